//! `jaco backup`: saves the cluster's state to a file.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use jaco_actors::{clock::Clock, node::Export};
use jaco_proto::v1::{self, cluster_client::ClusterClient};
use serde::Serialize;
use tempfile::NamedTempFile;

use super::{
    cancellable::{Cancelled, cancellable},
    connection::{Client, within},
    failure::{Failure, Local, Stop},
    local_daemon::{LocalDaemon, LocalDaemonArgs},
    output::{Ui, View},
};

const DEADLINE: Duration = Duration::from_secs(300);

/// Arguments of `backup`; the output file comes from the global `--output`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Read the state from a stopped daemon's data directory, instead of calling a running daemon
    #[arg(long)]
    offline: bool,

    #[command(flatten)]
    local_daemon: LocalDaemonArgs,
}

impl Args {
    /// Whether the backup reads the data directory directly.
    pub(crate) fn is_offline(&self) -> bool {
        self.offline
    }
}

#[derive(Serialize)]
struct WroteView {
    path: String,
    bytes: u64,
    /// Log index of an offline backup, by which the most recent of several is chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot_index: Option<u64>,
    /// State digest of an offline backup, to compare with that of a restore.
    #[serde(skip_serializing_if = "Option::is_none")]
    state_digest: Option<String>,
}

impl View for WroteView {
    fn text(&self) -> String {
        let wrote = format!("Wrote {} bytes to {}\n", self.bytes, self.path);
        match (self.snapshot_index, &self.state_digest) {
            (Some(index), Some(digest)) => {
                format!("{wrote}snapshot_index: {index}\nstate_digest: {digest}\n")
            }
            _ => wrote,
        }
    }
}

/// Writes the file; leaves an existing file unchanged on failure.
pub(crate) async fn run(
    args: &Args,
    destination: Option<&Path>,
    client: impl FnOnce() -> Result<Client, Failure>,
    ui: &mut Ui<'_>,
) -> Result<(), Stop> {
    let Some(path) = destination else {
        let message = "give the file to write with --output FILE";
        return Err(Failure::new(Local::UsageError, message).into());
    };
    if args.local_daemon.is_given() && !args.offline {
        let message = "--data-dir and --config are for --offline: a running daemon knows its own";
        return Err(Failure::new(Local::UsageError, message).into());
    }
    let mut file = Destination::create(path)?;
    let (snapshot_index, state_digest) = if args.offline {
        let local_daemon = args.local_daemon.resolve()?;
        // On Ctrl-C the file is dropped with its last owner, which removes it.
        let done = cancellable(move |cancelled| export(&local_daemon, file, cancelled));
        let (written, index, digest) = done.await??;
        file = written;
        (Some(index), Some(hex::encode(digest)))
    } else {
        within(Some(DEADLINE), download(&client()?, &mut file)).await?;
        (None, None)
    };
    let bytes = file.finish()?;
    ui.outcome(&WroteView {
        path: path.display().to_string(),
        bytes,
        snapshot_index,
        state_digest,
    })?;
    if args.offline {
        ui.warn(
            "a node that was partitioned from the others may lack the newest writes; of several \
             backups, the one with the highest snapshot_index is the most recent",
        );
    }
    ui.note("The file holds the keys and secrets of the cluster: guard it as you guard them.");
    Ok(())
}

async fn download(client: &Client, file: &mut Destination) -> Result<(), Stop> {
    let call = async |connection| {
        ClusterClient::new(connection)
            .backup(v1::BackupRequest {})
            .await
    };
    let mut pieces = client.stream(call).await?;
    while let Some(piece) = pieces.next().await? {
        file.write(&piece.data)?;
    }
    Ok(())
}

/// Returns the file, and the log index and digest of the state written to it.
fn export(
    local_daemon: &LocalDaemon,
    mut file: Destination,
    cancelled: &Cancelled,
) -> Result<(Destination, u64, [u8; 32]), Failure> {
    let clock = Clock::system();
    let export = Export::read(&local_daemon.config.data_dir, crate::version(), &clock)?;
    let written = export.write(cancelled.wrap(&mut file.out));
    written.map_err(|error| unwritable(&file.path, &error))?;
    let digest = export.state_digest();
    Ok((file, export.meta.snapshot_index, digest))
}

/// A temporary file beside its destination, readable by its owner only.
struct Destination {
    out: BufWriter<NamedTempFile>,
    path: PathBuf,
}

impl Destination {
    fn create(path: &Path) -> Result<Self, Failure> {
        let fail = |error| unwritable(path, &error);
        if fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
            return Err(fail(io::Error::other("it is not a regular file")));
        }
        let Some(name) = path.file_name() else {
            return Err(fail(io::Error::other("it names no file")));
        };
        let mut prefix = name.to_owned();
        prefix.push(".");
        // Created with mode 0600, and removed if it is dropped before `finish`.
        let file = tempfile::Builder::new()
            .prefix(&prefix)
            .suffix(".tmp")
            .tempfile_in(parent(path))
            .map_err(fail)?;
        Ok(Self {
            out: BufWriter::new(file),
            path: path.to_owned(),
        })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let written = self.out.write_all(bytes);
        written.map_err(|error| unwritable(&self.path, &error))
    }

    /// Renames the file to its destination, durably, and returns its length in bytes.
    fn finish(self) -> Result<u64, Failure> {
        let Self { out, path } = self;
        let finish = || {
            let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.as_file().sync_all()?;
            let bytes = file.as_file().metadata()?.len();
            file.persist(&path).map_err(|error| error.error)?;
            File::open(parent(&path))?.sync_all()?;
            Ok(bytes)
        };
        finish().map_err(|error: io::Error| unwritable(&path, &error))
    }
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    }
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    let shown = path.display();
    Failure::new(Local::FileError, format!("write {shown}: {error}")).with("path", shown)
}

#[cfg(test)]
mod tests;
