//! `jaco restore`: makes this machine the only member of a backed-up cluster.

use std::{
    env,
    error::Error as _,
    fs::File,
    ops::ControlFlow,
    path::{Path, PathBuf},
    time::Duration,
};

use jaco_actors::node::{
    FilesError, NodeConfig, Prepared, RestoreError, RestoreStep, Restored, archive,
};
use jaco_proto::{
    ErrorCode, chain,
    v1::{self, cluster_client::ClusterClient},
};
use serde::Serialize;

use super::{
    cancellable::{Cancelled, cancellable},
    cluster::secrets_key,
    connection::Client,
    failure::{Failure, Local, Stop},
    local_daemon::LocalDaemonArgs,
    output::{Ui, View},
    transport::Target,
};
use crate::daemon;

/// Command that stops a daemon and its socket unit, which would start it again.
const STOP_COMMAND: &str = "systemctl stop jaco.socket jaco.service";

/// Time within which a running daemon must answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Arguments of `restore`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Backup file written by `jaco backup`
    #[arg(long, value_name = "FILE")]
    input: PathBuf,

    /// Hostname of this machine as the only member of the restored cluster
    #[arg(long, value_name = "HOST")]
    name: String,

    /// File with the secrets key, written by `jaco cluster secrets-key export`
    #[arg(long, value_name = "FILE")]
    secrets_key: Option<PathBuf>,

    #[command(flatten)]
    local_daemon: LocalDaemonArgs,
}

#[derive(Serialize)]
struct RestoredView {
    data_dir: String,
    node: String,
    cluster_id: String,
    snapshot_index: u64,
    state_digest: String,
    taken_at: String,
}

impl View for RestoredView {
    fn text(&self) -> String {
        format!(
            "Restored cluster {} as of {} (index {}) into {}; its only member is {}.\n\
             Start the `jaco` service on this machine, then wipe the others and join them with \
             fresh join tokens.\n\
             state_digest: {}\n",
            self.cluster_id,
            self.taken_at,
            self.snapshot_index,
            self.data_dir,
            self.node,
            self.state_digest
        )
    }
}

/// Restores the backup and prints the outcome with its warnings.
pub(crate) async fn run(args: &Args, socket: Option<&Path>, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let local_daemon = args.local_daemon.resolve()?;
    let data_dir = local_daemon.config.data_dir.clone();
    let config = daemon::config::node(&local_daemon.config, None, false).map_err(|error| {
        Failure::new(Local::RestoreFailed, "the configuration cannot be used")
            .with("reason", format!("{error:#}"))
    })?;
    let key = args
        .secrets_key
        .as_deref()
        .map(secrets_key::read)
        .transpose()?;
    let (path, name) = (args.input.clone(), args.name.clone());
    let prepared = cancellable(move |cancelled| prepare(&path, &config, &name, cancelled));
    let mut prepared = prepared.await??;
    if let Some(key) = key {
        prepared = prepared
            .with_secrets_key(key)
            .map_err(|error| refusal(&error))?;
    }
    // A probe may start a daemon by socket activation; that daemon finds its data directory locked.
    refuse_running(socket, &local_daemon.config.unix_socket).await?;
    let placed =
        cancellable(move |cancelled| prepared.place(&mut |step| log_step(step, cancelled)));
    let restored = placed.await?.map_err(|error| refusal(&error))?;
    ui.outcome(&RestoredView {
        data_dir: data_dir.display().to_string(),
        node: args.name.clone(),
        cluster_id: restored.cluster_id.clone(),
        snapshot_index: restored.snapshot_index,
        state_digest: hex::encode(restored.state_digest),
        taken_at: restored.taken_at.clone(),
    })?;
    for text in warnings(&restored) {
        ui.warn(&text);
    }
    if restored.owned_by_root {
        let shown = data_dir.display();
        ui.warn(&format!(
            "{shown} belongs to root: give it to the user that the daemon runs as before you start \
             it, as in `chown -R jaco: {shown}`"
        ));
    }
    if let Some(configured_data_dir) = local_daemon.configured_data_dir {
        ui.warn(&format!(
            "the daemon's configuration names the data directory {}, not {}",
            configured_data_dir.display(),
            data_dir.display()
        ));
    }
    Ok(())
}

/// Reads the archive and locks the data directory.
fn prepare(
    path: &Path,
    config: &NodeConfig,
    name: &str,
    cancelled: &Cancelled,
) -> Result<Prepared, Failure> {
    let input = File::open(path).map_err(|error| {
        let shown = path.display();
        Failure::new(Local::FileError, format!("read {shown}: {error}")).with("path", shown)
    })?;
    let input = cancelled.wrap(input);
    Prepared::read(config, name, input, &mut |step| log_step(step, cancelled))
        .map_err(|error| refusal(&error))
}

/// Logs a completed step, and returns whether to continue.
fn log_step(step: RestoreStep, cancelled: &Cancelled) -> ControlFlow<()> {
    tracing::debug!(subsystem = "backup", ?step, "done");
    cancelled.flow()
}

/// Refuses to continue while a daemon answers on the control socket, whichever data directory it
/// uses.
///
/// An existing socket is not sufficient: the init system may listen on it.
async fn refuse_running(flag: Option<&Path>, configured: &Path) -> Result<(), Failure> {
    let named = || env::var_os("JACO_SOCKET").filter(|value| !value.is_empty());
    let path = match flag {
        Some(path) => path.to_owned(),
        None => named().map_or_else(|| configured.to_owned(), PathBuf::from),
    };
    let client = Client::new(Target::Socket(path.clone()), false)?;
    let call = async |connection| {
        ClusterClient::new(connection)
            .status(v1::ClusterStatusRequest {})
            .await
    };
    let answers = match client.unary(PROBE_TIMEOUT, call).await {
        Ok(_) => true,
        Err(failure) => {
            let silent = [Local::Unavailable, Local::DeadlineExceeded];
            !silent.iter().any(|local| failure.code == local.as_str())
        }
    };
    if !answers {
        return Ok(());
    }
    let message = "a daemon is running on this machine; stop it first";
    let failure = Failure::new(Local::RestoreFailed, message);
    Err(failure
        .with("socket", path.display())
        .with("hint", STOP_COMMAND))
}

fn warnings(restored: &Restored) -> Vec<String> {
    let mut warnings = vec![
        "tokens and credentials that were revoked after the backup are valid again".to_owned(),
        "certificates of domains may be older than those in use before".to_owned(),
    ];
    if !restored.former_members.is_empty() {
        warnings.push(format!(
            "the certificates of former members are refused from now on: {}",
            restored.former_members.join(", ")
        ));
    }
    if let Some(id) = &restored.missing_secrets_key {
        warnings.push(format!(
            "secret values stay sealed until the secrets key {id} is given: `jaco cluster secrets-key \
             import FILE`"
        ));
    }
    warnings.push(
        "if a majority of the former members can still start, there are two clusters with one \
         identity, and nothing reconciles them"
            .to_owned(),
    );
    if !restored.unknown_fields.is_empty() {
        let fields: Vec<_> = restored.unknown_fields.iter().map(u32::to_string).collect();
        warnings.push(format!(
            "parts of the snapshot that this version does not know are left out: fields {}",
            fields.join(", ")
        ));
    }
    warnings
}

/// Converts the error to a failure with its details.
fn refusal(error: &RestoreError) -> Failure {
    let failure = Failure::new(Local::RestoreFailed, error.to_string());
    let failure = match error.source() {
        Some(source) => failure.with("reason", chain(source)),
        None => failure,
    };
    match error {
        RestoreError::Hostname(_) => Failure::new(Local::UsageError, error.to_string()),
        RestoreError::Renamed { configured, .. } => failure.with("hostname", configured),
        RestoreError::SecretsKey { key_id, expected } => {
            let code = ErrorCode::SecretsKeyMismatch;
            let error = jaco_proto::Error::new(code, error.to_string());
            Failure::from(error.with("key_id", key_id).with("expected", expected))
        }
        RestoreError::Occupied(path) => failure.with("path", path.display()),
        RestoreError::Files(FilesError::Locked(path)) => failure
            .with("data_dir", path.display())
            .with("hint", STOP_COMMAND),
        RestoreError::Files(FilesError::GoDaemon(path)) => failure.with("data_dir", path.display()),
        RestoreError::Archive(error) => with_facts(failure, error),
        _ => failure,
    }
}

fn with_facts(failure: Failure, error: &archive::Error) -> Failure {
    match error {
        archive::Error::Unexpected { found, expected } => {
            failure.with("entry", found).with("expected", expected)
        }
        archive::Error::Missing(entry) => failure.with("entry", entry),
        archive::Error::NotRegular { entry } => failure.with("entry", entry),
        archive::Error::TooLarge { entry, limit } => {
            failure.with("entry", entry).with("limit", limit)
        }
        archive::Error::Schema { found } => failure
            .with("schema_version", found)
            .with("supported", archive::SCHEMA_VERSION),
        archive::Error::Version { archive, own } => failure
            .with("archive_version", archive)
            .with("version", own),
        archive::Error::Cluster { meta, snapshot } => failure
            .with("meta_cluster_id", meta)
            .with("snapshot_cluster_id", snapshot),
        archive::Error::Later { index, entity } => failure
            .with("snapshot_index", index)
            .with("entity_index", entity),
        archive::Error::Read(_)
        | archive::Error::Extension(_)
        | archive::Error::Trailing
        | archive::Error::Meta(_)
        | archive::Error::Snapshot(_) => failure,
    }
}

#[cfg(test)]
mod tests;
