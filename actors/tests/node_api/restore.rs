//! Restores: refused input, crashes in between, and the restored cluster.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use jaco_actors::node::{NodeConfig, RestoreError, RestoreStep, Restored, restore};
use jaco_net::pki::{ClusterCa, check_hostname};
use jaco_proto::v1::{self, AuditEventType};
use jaco_raftnode::{
    archive::{self, Archive, Meta},
    storage,
};
use jaco_state::{State, restore::restored};

use crate::{
    backup::{backup, opened},
    lab::{Lab, fingerprint, state, until},
};

/// A cluster with a history, and its archive: the lab, the operator's token, the bytes.
async fn source() -> (Lab, String, Vec<u8>) {
    let lab = Lab::new();
    let (node, token) = lab.bootstrapped().await;
    let client = lab.local();
    client.issue("ci", true).await.unwrap();
    client.issue("gone", false).await.unwrap();
    client.revoke("gone").await.unwrap();
    client
        .apply(
            "deployment: shop\nroutes:\n  - domain: shop.example\n    service: web\n    port: 80\n",
            "services:\n  web:\n    image: shop/web:1\n",
        )
        .await
        .unwrap();
    until(&node, "a placed replica", |state| {
        !state.replicas_desired.is_empty()
    })
    .await;
    let bytes = backup(&client).await.unwrap();
    node.stop().await;
    (lab, token, bytes)
}

/// A lab for the restored node, called `two`.
fn target() -> (Lab, NodeConfig) {
    let mut lab = Lab::new();
    lab.hostname = None;
    let config = lab.config();
    (lab, config)
}

fn run(config: &NodeConfig, bytes: &[u8]) -> Result<Restored, RestoreError> {
    restore(config, "two", bytes, |_| ())
}

fn restores_in(state: &State) -> usize {
    let kind = AuditEventType::RestoreCompleted;
    state.audit.values().filter(|e| e.r#type() == kind).count()
}

fn below(dir: &Path) -> Vec<PathBuf> {
    let mut found = vec![dir.to_owned()];
    if dir.is_dir() {
        for entry in fs::read_dir(dir).unwrap() {
            found.extend(below(&entry.unwrap().path()));
        }
    }
    found
}

/// Checks that the state on disk is the restored archive, for the node in the files.
fn check_disk(config: &NodeConfig, archive: &Archive) {
    let (found, position) = storage::read_offline(&config.data_dir.join("raft")).unwrap();
    assert_eq!(position, archive.meta.position());
    let own = &found.nodes["two"];
    let pem = fs::read_to_string(config.data_dir.join("node/two.crt")).unwrap();
    assert_eq!(own.server_cert_fingerprint, fingerprint(&pem).as_bytes());
    assert_eq!(own.grpc_address, config.listen_addr.unwrap().to_string());
    assert_eq!(own.address, config.cluster_addr.unwrap().to_string());
    let (expected, raft_id) = restored(&archive.state, v1::Node::clone(own));
    assert_eq!(found.digest(), expected.digest());
    assert_eq!(found, expected);
    assert_eq!(raft_id, 2, "the only former member had 1");
}

#[tokio::test]
async fn restored_cluster_runs_on_a_new_host() {
    let (old, token, bytes) = source().await;
    let archive = opened(&bytes);
    let (lab, config) = target();
    let done = run(&config, &bytes).unwrap();
    let key_id = &archive.state.cluster.as_ref().unwrap().secrets_key_id;
    let expected = Restored {
        cluster_id: archive.meta.cluster_id.clone(),
        snapshot_index: archive.meta.snapshot_index,
        state_digest: archive.state.digest(),
        taken_at: archive.meta.taken_at.clone(),
        former_members: vec!["one".to_owned()],
        unknown_fields: Default::default(),
        owned_by_root: rustix::process::geteuid().is_root(),
        missing_secrets_key: (!key_id.is_empty()).then(|| key_id.clone()),
    };
    assert_eq!(done, expected);
    check_disk(&config, &archive);
    for path in below(&lab.data()) {
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        let text = path.strip_prefix(lab.data()).unwrap().display().to_string();
        let expected = match text.as_str() {
            "" | "raft" | "node" => 0o700,
            "node/two.crt" | "node/ca.crt" | "node/join.json" => 0o644,
            _ => 0o600,
        };
        assert_eq!(mode, expected, "{text}: {mode:o}");
    }
    assert_eq!(old.ca(), lab.ca());

    let node = lab.start().await;
    // The archive's cluster, its operators and their secrets work.
    let status = lab.pinned(Some(&token)).status().await.unwrap();
    assert!(status.initialized);
    assert_eq!(status.leader_hostname, "two");
    let names: Vec<_> = status.nodes.iter().map(|n| n.hostname.as_str()).collect();
    assert_eq!(names, ["two"]);
    assert_eq!(status.suffrages.len(), 1);
    assert_eq!(status.suffrages[0].kind(), v1::node_suffrage::Kind::Voter);

    let new = until(&node, "the record of the restore", |s| restores_in(s) == 1).await;
    assert_eq!(new.cluster.as_ref().unwrap().cluster_id, done.cluster_id);
    for (key, event) in &archive.state.audit {
        assert_eq!(new.audit.get(key), Some(event), "history");
    }
    assert!(new.tokens["gone"].revoked_at.is_some());
    until(&node, "the replica on the new host", |state| {
        state.replicas_desired["shop-web-0"].host == "two"
    })
    .await;
    assert_eq!(new.routes.len(), 1);

    // The restore is recorded once, even after a restart.
    node.stop().await;
    drop(node);
    assert!(!lab.data().join("restore.txt").exists());
    let node = lab.start().await;
    lab.local().issue("later", false).await.unwrap();
    assert_eq!(restores_in(&state(&node)), 1);
    node.stop().await;
    drop(node);

    let error = run(&config, &bytes).unwrap_err();
    assert!(
        error.to_string().contains("refusing to overwrite"),
        "{error}"
    );
}

#[tokio::test]
async fn backup_of_a_restored_cluster_restores_again() {
    let (_old, _, bytes) = source().await;
    let (lab, config) = target();
    run(&config, &bytes).unwrap();
    let node = lab.start().await;
    until(&node, "the record of the restore", |s| restores_in(s) == 1).await;
    let second = backup(&lab.local()).await.unwrap();
    node.stop().await;

    let (lab, config) = target();
    run(&config, &second).unwrap();
    let node = lab.start().await;
    let state = until(&node, "the record of the restore", |s| restores_in(s) == 2).await;
    assert_eq!(state.nodes["two"].raft_id, 3, "an id is never used twice");
    node.stop().await;
}

const CRASH: &str = "JACO_TEST_CRASH";

/// Not a test of its own: the process that dies in the test below.
#[test]
fn restoring_process_dies() {
    let Ok(at) = std::env::var(CRASH) else {
        return;
    };
    let mut parts = at.split(' ');
    let step = parts.next().unwrap();
    let mut next = || parts.next().unwrap();
    let (data, archive) = (next(), next());
    let (_, mut config) = target();
    config.data_dir = data.into();
    config.listen_addr = Some(next().parse().unwrap());
    config.cluster_addr = Some(next().parse().unwrap());
    let input = fs::File::open(archive).unwrap();
    let _ = restore(&config, "two", input, |done| {
        if format!("{done:?}") == step {
            // Exits without unwinding, so that nothing cleans up.
            std::process::exit(42);
        }
    });
}

fn die_at(step: RestoreStep, config: &NodeConfig, archive: &Path) {
    let (data, archive) = (config.data_dir.display(), archive.display());
    let (api, peers) = (config.listen_addr.unwrap(), config.cluster_addr.unwrap());
    let at = format!("{step:?} {data} {archive} {api} {peers}");
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "restore::restoring_process_dies"])
        .env(CRASH, at)
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(42));
}

#[tokio::test]
async fn crash_at_any_step_leaves_all_or_nothing() {
    let (_old, _, bytes) = source().await;
    let archive = opened(&bytes);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("archive");
    fs::write(&path, &bytes).unwrap();
    for step in RestoreStep::ALL {
        let (lab, config) = target();
        die_at(step, &config, &path);
        if step == RestoreStep::StatePlaced {
            let error = run(&config, &bytes).unwrap_err();
            assert!(matches!(error, RestoreError::Occupied(_)), "{error}");
        } else {
            assert!(!lab.data().join("raft").exists(), "{step:?}");
            run(&config, &bytes).unwrap();
        }
        check_disk(&config, &archive);
        let left: Vec<_> = below(&lab.data())
            .into_iter()
            .filter(|path| path.to_string_lossy().ends_with(".new"))
            .collect();
        assert!(left.is_empty(), "{step:?}: {left:?}");
        let node = lab.start().await;
        until(&node, "the record of the restore", |s| restores_in(s) == 1).await;
        node.stop().await;
    }
}

#[tokio::test]
async fn leftovers_of_a_crash_are_no_membership() {
    let (_old, _, bytes) = source().await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("archive");
    fs::write(&path, &bytes).unwrap();
    let (lab, config) = target();
    die_at(RestoreStep::MarkerPlaced, &config, &path);
    for left in ["restore.txt", "raft.new", "node"] {
        assert!(lab.data().join(left).exists(), "{left}");
    }
    let node = lab.start().await;
    assert!(!lab.local().status().await.unwrap().initialized);
    for left in ["restore.txt", "raft.new"] {
        assert!(!lab.data().join(left).exists(), "{left}");
    }
    lab.init().await.unwrap();
    node.stop().await;
    drop(node);
    let node = lab.start().await;
    lab.local().issue("ci", false).await.unwrap();
    assert_eq!(restores_in(&state(&node)), 0);
    node.stop().await;
}

/// Puts the identity of an earlier membership into a data directory without its raft state, like an
/// operator that moves only the raft state away.
fn leave_identity(data: &Path) {
    fs::create_dir_all(data.join("node")).unwrap();
    fs::write(data.join("node/old.key"), "key").unwrap();
}

/// Returns the identity files that are left, and the files that a restore may leave beside them.
fn identity_in(data: &Path) -> Vec<String> {
    let mut found: Vec<_> = below(data)
        .into_iter()
        .map(|path| path.strip_prefix(data).unwrap().display().to_string())
        .filter(|path| path.contains("node") || path.contains("restore"))
        .collect();
    found.sort();
    found
}

#[tokio::test]
async fn failed_restore_keeps_the_earlier_identity() {
    let (_old, _, bytes) = source().await;
    for (fails_after, in_the_way) in [
        (RestoreStep::Claimed, "raft.new"),
        (RestoreStep::StateStaged, "node.new"),
        (RestoreStep::IdentityPlaced, "restore.txt.new/x"),
    ] {
        for earlier in [true, false] {
            let (lab, config) = target();
            if earlier {
                leave_identity(&lab.data());
            }
            let at = lab.data().join(in_the_way);
            let failed = restore(&config, "two", &*bytes, |done| {
                if done == fails_after {
                    // A full disk cannot be arranged, so the path to be written exists already.
                    fs::create_dir_all(at.parent().unwrap()).unwrap();
                    fs::write(&at, "").unwrap();
                }
            });
            let error = failed.unwrap_err();
            assert!(matches!(error, RestoreError::Files(_)), "{error}");
            let _ = fs::remove_file(&at);
            let _ = fs::remove_dir(lab.data().join("restore.txt.new"));
            let expected: &[&str] = match earlier {
                true => &["node", "node/old.key"],
                false => &[],
            };
            assert_eq!(identity_in(&lab.data()), expected, "{in_the_way}");
            run(&config, &bytes).unwrap();
            let found = identity_in(&lab.data());
            assert!(!found.iter().any(|name| name.contains("old")), "{found:?}");
        }
    }
}

#[tokio::test]
async fn start_after_killed_restore_recovers_earlier_identity() {
    let (_old, _, bytes) = source().await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("archive");
    fs::write(&path, &bytes).unwrap();
    for step in [RestoreStep::IdentityPlaced, RestoreStep::MarkerPlaced] {
        let (lab, config) = target();
        leave_identity(&lab.data());
        die_at(step, &config, &path);
        let node = lab.start().await;
        assert!(!lab.local().status().await.unwrap().initialized);
        node.stop().await;
        let found = identity_in(&lab.data());
        assert_eq!(found, ["node", "node/old.key"], "{step:?}");
    }
}

#[tokio::test]
async fn killed_restore_leaves_files_to_the_owner() {
    if !rustix::process::geteuid().is_root() {
        return; // without root all files have one owner
    }
    let (_old, _, bytes) = source().await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("archive");
    fs::write(&path, &bytes).unwrap();
    for step in RestoreStep::ALL {
        let (lab, config) = target();
        if step == RestoreStep::Read {
            continue; // no file exists yet
        }
        fs::create_dir(lab.data()).unwrap();
        std::os::unix::fs::chown(lab.data(), Some(4242), Some(4243)).unwrap();
        die_at(step, &config, &path);
        for left in below(&lab.data()) {
            let found = fs::metadata(&left).unwrap();
            let needed = found.is_dir() || left.ends_with("LOCK");
            assert!(
                !needed || found.uid() == 4242,
                "{step:?}: {}",
                left.display()
            );
        }
    }
}

#[tokio::test]
async fn empty_raft_directory_counts_only_with_a_membership() {
    let (_old, _, bytes) = source().await;
    let (lab, config) = target();
    fs::create_dir_all(lab.data().join("raft")).unwrap();
    let node = lab.start().await;
    assert!(!lab.local().status().await.unwrap().initialized);
    node.stop().await;
    drop(node);
    run(&config, &bytes).unwrap();
    fs::remove_dir_all(lab.data().join("raft")).unwrap();
    fs::create_dir(lab.data().join("raft")).unwrap();
    let error = lab.try_start().await.err().unwrap();
    let text = jaco_proto::chain(&error);
    assert!(text.contains("CURRENT"), "{text}");
    let error = run(&config, &bytes).unwrap_err();
    assert!(matches!(error, RestoreError::Occupied(_)), "{error}");
}

#[tokio::test]
async fn invalid_restore_is_refused_and_writes_nothing() {
    let (_old, _, bytes) = source().await;
    let archive = opened(&bytes);
    let write = |meta: &Meta, state: &State| {
        let mut bytes = Vec::new();
        archive::write(meta, state, &mut bytes).unwrap();
        bytes
    };
    let with_cluster = |change: &dyn Fn(&mut v1::ClusterMeta)| {
        let mut state = archive.state.clone();
        let mut cluster = state.cluster.as_deref().unwrap().clone();
        change(&mut cluster);
        state.cluster = Some(cluster.into());
        write(&archive.meta, &state)
    };
    let other = ClusterCa::generate(std::time::SystemTime::now()).unwrap();
    let other_key = other.key_pem().expose().as_bytes().to_vec();
    let newer = Meta {
        jaco_version: "7.0.0".to_owned(),
        ..archive.meta.clone()
    };
    let mut flipped = bytes.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    for (what, input, word) in [
        ("cut", bytes[..bytes.len() - 1].to_vec(), "cannot be read"),
        ("flipped", flipped, "cannot be read"),
        ("empty", Vec::new(), "cannot be read"),
        ("other major", write(&newer, &archive.state), "7.0.0"),
        (
            "no CA key",
            with_cluster(&|c| c.ca_key.clear()),
            "authority",
        ),
        ("no CA", with_cluster(&|c| c.ca_cert.clear()), "authority"),
        (
            "key of another CA",
            with_cluster(&|c| c.ca_key.clone_from(&other_key)),
            "authority",
        ),
        (
            "other cluster",
            with_cluster(&|c| c.cluster_id = "x".to_owned()),
            "snapshot.bin of \"x\"",
        ),
    ] {
        let (lab, config) = target();
        let error = run(&config, &input).unwrap_err();
        // A flipped bit shows as damage of the stream or of its content.
        let text = jaco_proto::chain(&error);
        assert!(text.contains(word) || what == "flipped", "{what}: {text}");
        assert!(!lab.data().exists(), "{what}");
    }

    let (lab, config) = target();
    let named =
        |name: &str, config: &NodeConfig| restore(config, name, &*bytes, |_| ()).unwrap_err();
    assert!(check_hostname("../two").is_err());
    let error = named("../two", &config);
    assert!(matches!(error, RestoreError::Hostname(_)), "{error}");
    let mut configured = config.clone();
    configured.hostname = Some("three".to_owned());
    let error = named("two", &configured);
    assert!(matches!(error, RestoreError::Renamed { .. }), "{error}");
    assert!(!lab.data().exists());
}

#[tokio::test]
async fn directory_in_use_is_refused() {
    let (_old, _, bytes) = source().await;
    let (lab, config) = target();
    let node = lab.start().await;
    let error = run(&config, &bytes).unwrap_err();
    assert!(error.to_string().contains("another daemon"), "{error}");
    assert!(!lab.data().join("raft").exists());
    node.stop().await;
    drop(node);
    // The files of an uninitialized daemon do not prevent a restore.
    run(&config, &bytes).unwrap();
}

/// Gives the data directory to another user, if the test has the rights.
fn give(lab: &Lab) {
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(lab.data(), Some(4242), Some(4243)).unwrap();
        let above = lab.data();
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(above.parent().unwrap(), mode).unwrap();
    }
}

#[tokio::test]
async fn root_does_not_follow_links_of_the_owner() {
    let (_old, _, bytes) = source().await;
    let elsewhere = tempfile::tempdir().unwrap();
    let planted = elsewhere.path().join("planted");
    // A symlink in the place of the lock file.
    let (lab, config) = target();
    fs::create_dir(lab.data()).unwrap();
    symlink(&planted, lab.data().join("LOCK")).unwrap();
    give(&lab);
    let error = run(&config, &bytes).unwrap_err();
    assert!(matches!(error, RestoreError::Files(_)), "{error}");
    assert!(!planted.exists());
}

const OWNED: &str = "JACO_TEST_OWNED";

/// Not a test of its own: the process that restores in the test below. Threads of the database keep
/// its rights, so it does nothing else.
#[test]
fn restoring_process_acts_as_the_owner() {
    let Ok(paths) = std::env::var(OWNED) else {
        return;
    };
    let paths: Vec<&Path> = paths.split(' ').map(Path::new).collect();
    let (_, mut config) = target();
    config.data_dir = paths[0].into();
    let owner = fs::metadata(paths[0]).unwrap();
    let me = rustix::process::geteuid();
    let mut steps = 0;
    let input = fs::File::open(paths[1]).unwrap();
    let restored = restore(&config, "two", input, |_| {
        steps += 1;
        assert_eq!(rustix::process::geteuid().as_raw(), owner.uid());
        assert_eq!(rustix::process::getegid().as_raw(), owner.gid());
        // Even if a path is swapped in between, root reaches no more than the owner.
        let reached = fs::write(paths[2], "").is_ok();
        assert_eq!(reached, owner.uid() == me.as_raw());
    });
    restored.unwrap();
    assert_eq!(steps, RestoreStep::ALL.len());
    assert_eq!(rustix::process::geteuid(), me);
    fs::write(paths[2], "").unwrap();
    std::process::exit(42);
}

#[tokio::test]
async fn restored_files_belong_to_the_directory_owner() {
    let (_old, _, bytes) = source().await;
    let dir = tempfile::tempdir().unwrap();
    let (archive, planted) = (dir.path().join("archive"), dir.path().join("planted"));
    fs::write(&archive, &bytes).unwrap();
    let (lab, _) = target();
    fs::create_dir(lab.data()).unwrap();
    give(&lab);
    let owner = fs::metadata(lab.data()).unwrap();
    let paths = [lab.data(), archive, planted].map(|path| path.display().to_string());
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "restore::restoring_process_acts_as_the_owner"])
        .env(OWNED, paths.join(" "))
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(42));
    for path in below(&lab.data()) {
        let found = fs::metadata(&path).unwrap();
        assert_eq!(
            (found.uid(), found.gid()),
            (owner.uid(), owner.gid()),
            "{}",
            path.display()
        );
    }
}
