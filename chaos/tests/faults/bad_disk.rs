//! Damaged data directories: the daemon names the damage and changes nothing.

use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use jaco_chaos::{Daemon, Service, Settings, Workload, daemon::HOST, disk, test_permits};
use jaco_proto::v1::ReplicaState;

struct Damage {
    what: &'static str,
    /// Words of which at least one must be in the daemon's log.
    named: &'static [&'static str],
    inflict: fn(&Path) -> Result<()>,
}

const DAMAGES: &[Damage] = &[
    Damage {
        what: "CURRENT is missing",
        named: &["CURRENT"],
        inflict: |data| Ok(fs::remove_file(data.join("raft/CURRENT"))?),
    },
    Damage {
        what: "CURRENT names nothing",
        named: &["CURRENT"],
        inflict: |data| Ok(fs::write(data.join("raft/CURRENT"), "nonsense\n")?),
    },
    Damage {
        what: "the manifest is missing",
        named: &["MANIFEST"],
        inflict: |data| Ok(fs::remove_file(file(data, "MANIFEST-")?)?),
    },
    Damage {
        what: "the manifest is overwritten",
        named: &["MANIFEST", "damaged"],
        inflict: |data| overwrite(&file(data, "MANIFEST-")?),
    },
    Damage {
        what: "the write-ahead log is empty",
        named: &["write-ahead log", ".log"],
        inflict: |data| Ok(fs::write(file(data, ".log")?, "")?),
    },
    Damage {
        what: "the write-ahead log lost its end",
        named: &["write-ahead log", ".log"],
        inflict: |data| cut(&file(data, ".log")?),
    },
    Damage {
        what: "the write-ahead log is overwritten in its middle",
        named: &["write-ahead log", ".log"],
        inflict: |data| overwrite(&file(data, ".log")?),
    },
    Damage {
        what: "the write-ahead log is missing",
        named: &["write-ahead log", ".log"],
        inflict: |data| Ok(fs::remove_file(file(data, ".log")?)?),
    },
    Damage {
        what: "a table is missing",
        named: &[".sst"],
        inflict: |data| Ok(fs::remove_file(file(data, ".sst")?)?),
    },
    Damage {
        what: "all tables are overwritten",
        named: &[".sst", "damaged"],
        inflict: |data| {
            files(data, ".sst")?
                .iter()
                .try_for_each(|path| overwrite(path))
        },
    },
    Damage {
        what: "the watermark is missing",
        named: &["SYNCED"],
        inflict: |data| Ok(fs::remove_file(data.join("raft/SYNCED"))?),
    },
    Damage {
        what: "the database is gone but its directory is there",
        named: &["CURRENT"],
        inflict: |data| {
            fs::remove_dir_all(data.join("raft"))?;
            Ok(fs::create_dir(data.join("raft"))?)
        },
    },
    Damage {
        what: "the database is a file",
        named: &["raft"],
        inflict: |data| {
            fs::remove_dir_all(data.join("raft"))?;
            Ok(fs::write(data.join("raft"), "a file")?)
        },
    },
    Damage {
        what: "the membership is missing",
        named: &["join.json"],
        inflict: |data| Ok(fs::remove_file(data.join("node/join.json"))?),
    },
    Damage {
        what: "the membership is cut",
        named: &["join.json"],
        inflict: |data| cut(&data.join("node/join.json")),
    },
    Damage {
        what: "the node's key is missing",
        named: &[".key"],
        inflict: |data| Ok(fs::remove_file(data.join(format!("node/{HOST}.key")))?),
    },
    Damage {
        what: "the node's certificate is overwritten",
        named: &[".crt"],
        inflict: |data| overwrite(&data.join(format!("node/{HOST}.crt"))),
    },
    Damage {
        what: "the authority's certificate is cut",
        named: &["ca.crt"],
        inflict: |data| cut(&data.join("node/ca.crt")),
    },
];

/// Files of the database whose name contains `part`.
fn files(data: &Path, part: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(data.join("raft"))? {
        let path = entry?.path();
        if path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().contains(part))
        {
            found.push(path);
        }
    }
    ensure!(!found.is_empty(), "the database has no {part}");
    found.sort();
    Ok(found)
}

/// The newest non-empty file of the database whose name contains `part`.
fn file(data: &Path, part: &str) -> Result<PathBuf> {
    let mut found = files(data, part)?;
    found.retain(|path| fs::metadata(path).is_ok_and(|file| file.len() > 0));
    found
        .pop()
        .with_context(|| format!("every {part} is empty"))
}

fn cut(path: &Path) -> Result<()> {
    let length = fs::metadata(path)?.len();
    Ok(fs::File::options()
        .write(true)
        .open(path)?
        .set_len(length / 2)?)
}

fn overwrite(path: &Path) -> Result<()> {
    let mut bytes = fs::read(path)?;
    let middle = bytes.len() / 2;
    let (low, high) = (middle.saturating_sub(32), (middle + 32).min(bytes.len()));
    bytes[low..high].iter_mut().for_each(|byte| *byte ^= 0xff);
    Ok(fs::File::create(path)?.write_all(&bytes)?)
}

/// Files that must not change: all but the database's own log and the locks.
fn protected_files(data: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut found = disk::content(data)?;
    found.retain(|path, _| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        !name.starts_with("LOG") && !name.eq_ignore_ascii_case("lock")
    });
    Ok(found)
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_data_is_named_and_left_unchanged() -> Result<()> {
    let _permits = test_permits::heavy().await;
    let mut daemon = Daemon::bootstrap(Settings::default()).await?;
    let mut workload = Workload::new("disk", [Service::new("web")]);
    daemon.api().apply(&workload).await?;
    daemon.api().converged(&workload).await?;
    // A clean stop and a start move existing data into tables; later writes stay in the write-ahead
    // log.
    daemon.stop().await?;
    daemon.start().await?;
    let web = workload.replica("web", 0);
    let old = daemon.engine().container(daemon.cluster_id(), &web).await?;
    workload.revise(1);
    let revision = daemon.api().apply(&workload).await?;
    daemon
        .api()
        .replica(&workload.name, &web, "runs anew", |r| {
            r.state() == ReplicaState::Running && r.container_id != old.id
        })
        .await?;
    daemon.kill()?;
    let container = daemon.engine().containers(daemon.cluster_id()).await?;
    let data = daemon.data_dir().to_owned();
    let pristine = daemon.scratch("pristine");
    disk::copy(&data, &pristine)?;

    let restore = || {
        fs::remove_dir_all(&data)?;
        disk::copy(&pristine, &data)
    };
    for Damage {
        what,
        named,
        inflict,
    } in DAMAGES
    {
        restore()?;
        inflict(&data).context(*what)?;
        let before = protected_files(&data)?;
        daemon.clear_log()?;
        daemon.spawn()?;
        let status = daemon.ended().await.context(*what)?;
        let log = daemon.log();
        ensure!(status.code() == Some(1), "{what}: {status}\n{log}");
        ensure!(
            named.iter().any(|name| log.contains(name)),
            "{what}: not named in\n{log}"
        );
        ensure!(daemon.panics().is_empty(), "{what}: {log}");
        let after = protected_files(&data)?;
        ensure!(before.keys().eq(after.keys()), "{what}: {:?}", after.keys());
        for (path, bytes) in &before {
            ensure!(
                after[path] == *bytes,
                "{what}: {} was changed",
                path.display()
            );
        }
    }

    // The undamaged directory still works.
    restore()?;
    daemon.start().await?;
    daemon.api().converged(&workload).await?;
    let shown = daemon.api().deployments().await?.deployments;
    ensure!(
        shown.len() == 1 && shown[0].applied_revision == revision,
        "{shown:?}"
    );
    let now = daemon.engine().containers(daemon.cluster_id()).await?;
    ensure!(now == container, "{now:#?}\n{container:#?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn second_daemon_on_same_directory_is_refused() -> Result<()> {
    let _permits = test_permits::heavy().await;
    let first = Daemon::bootstrap(Settings::default()).await?;
    let settings = Settings {
        data_dir: Some(first.data_dir().to_owned()),
        ..Default::default()
    };
    let mut second = Daemon::new(settings).await?;
    second.spawn()?;
    let status = second.ended().await?;
    ensure!(status.code() == Some(1), "{status}");
    ensure!(second.log().contains("another daemon"), "{}", second.log());
    ensure!(first.api().status().await?.initialized);
    Ok(())
}
