//! `jaco backup`: saves the cluster's state to a file.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use jaco_actors::{
    clock::Clock,
    node::{Export, Replay},
};
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

    /// With --offline, include also the entries at the end of the log that this machine does not
    /// know to be on a majority: after the loss of a majority, on the survivor whose log ends last
    #[arg(long)]
    uncommitted: bool,

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
    #[serde(flatten)]
    offline: Option<OfflineView>,
}

/// Facts about an offline backup.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct OfflineView {
    /// Log index of the state in the backup.
    snapshot_index: u64,
    /// Term of the entry at that index.
    snapshot_term: u64,
    /// Term of the last entry in the machine's log, by which survivors are compared.
    last_term: u64,
    /// Index of that entry, which decides between equal terms.
    last_index: u64,
    /// Digest of the state, to compare with that of a restore.
    state_digest: String,
}

impl OfflineView {
    fn of(export: &Export) -> Self {
        Self {
            snapshot_index: export.meta.snapshot_index,
            snapshot_term: export.meta.snapshot_term,
            last_term: export.last.term,
            last_index: export.last.index,
            state_digest: hex::encode(export.state_digest()),
        }
    }

    /// Returns how to use this backup beside those of other machines.
    fn warnings(&self) -> Vec<String> {
        let mut warnings = vec![
            "a node that was partitioned from the others may lack the newest writes; of several \
             survivors, the one with the highest last_term has most, and among equals the one with \
             the highest last_index"
                .to_owned(),
        ];
        let left_out = self.last_index.saturating_sub(self.snapshot_index);
        if left_out > 0 {
            warnings.push(format!(
                "{left_out} later entries of the log are not in the backup: this machine does not \
                 know whether a majority had them; --uncommitted includes them"
            ));
        }
        warnings
    }
}

impl View for WroteView {
    fn text(&self) -> String {
        let wrote = format!("Wrote {} bytes to {}\n", self.bytes, self.path);
        let Some(offline) = &self.offline else {
            return wrote;
        };
        let OfflineView {
            snapshot_index,
            snapshot_term,
            last_term,
            last_index,
            state_digest,
        } = offline;
        format!(
            "{wrote}snapshot_index: {snapshot_index}\nsnapshot_term: {snapshot_term}\n\
             last_term: {last_term}\nlast_index: {last_index}\nstate_digest: {state_digest}\n"
        )
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
    if args.uncommitted && !args.offline {
        let message = "--uncommitted is for --offline: a running daemon waits for its majority";
        return Err(Failure::new(Local::UsageError, message).into());
    }
    let mut file = Destination::create(path)?;
    let offline = if args.offline {
        let replay = if args.uncommitted {
            Replay::WholeLog
        } else {
            Replay::Committed
        };
        let local_daemon = args.local_daemon.resolve()?;
        // On Ctrl-C the file is dropped with its last owner, which removes it.
        let done = cancellable(move |cancelled| export(&local_daemon, replay, file, cancelled));
        let (written, view) = done.await??;
        file = written;
        Some(view)
    } else {
        within(Some(DEADLINE), download(&client()?, &mut file)).await?;
        None
    };
    let warnings = offline.as_ref().map(OfflineView::warnings);
    let bytes = file.finish()?;
    ui.outcome(&WroteView {
        path: path.display().to_string(),
        bytes,
        offline,
    })?;
    for warning in warnings.iter().flatten() {
        ui.warn(warning);
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

/// Returns the file, and what was written to it.
fn export(
    local_daemon: &LocalDaemon,
    replay: Replay,
    mut file: Destination,
    cancelled: &Cancelled,
) -> Result<(Destination, OfflineView), Failure> {
    let clock = Clock::system();
    let export = Export::read(
        &local_daemon.config.data_dir,
        crate::version(),
        &clock,
        replay,
    )?;
    let written = export.write(cancelled.wrap(&mut file.out));
    written.map_err(|error| unwritable(&file.path, &error))?;
    Ok((file, OfflineView::of(&export)))
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
