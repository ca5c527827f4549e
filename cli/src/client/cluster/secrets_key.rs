//! `jaco cluster secrets-key`: the key that seals secret values of the replicated state.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use jaco_actors::secrets::{KeyFile, KeyFileError};
use jaco_net::secrets::SecretsKey;
use jaco_proto::{
    chain,
    v1::{self, secrets_client::SecretsClient},
};
use serde::Serialize;

use crate::client::{
    connection::Client,
    failure::{Failure, Local, Stop},
    output::{Ui, View},
};

const DEADLINE: Duration = Duration::from_secs(30);

/// Subcommands of `cluster secrets-key`.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Write the key to a file, on the machine of a member
    ///
    /// No backup contains the key: without it, sealed values of a restored cluster cannot be opened.
    Export {
        /// File to write; only its owner may read it
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Give a restored cluster its key back
    Import {
        /// File written by `export`
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Replace the key, and seal every value anew
    Rotate,
}

/// Runs a subcommand.
pub(crate) async fn run(command: &Command, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    match command {
        Command::Export { out } => export(out, client, ui).await,
        Command::Import { file } => import(file, client, ui).await,
        Command::Rotate => rotate(client, ui).await,
    }
}

#[derive(Serialize)]
struct ExportedView {
    path: String,
    key_id: String,
}

impl View for ExportedView {
    fn text(&self) -> String {
        format!("Wrote the secrets key {} to {}\n", self.key_id, self.path)
    }
}

#[derive(Serialize)]
struct KeyView {
    key_id: String,
    #[serde(skip)]
    action: &'static str,
}

impl View for KeyView {
    fn text(&self) -> String {
        format!("{} the secrets key {}\n", self.action, self.key_id)
    }
}

async fn export(out: &Path, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    if fs::symlink_metadata(out).is_ok_and(|found| !found.is_file()) {
        let message = format!("write {}: it is not a regular file", out.display());
        let failure = Failure::new(Local::FileError, message);
        return Err(failure.with("path", out.display()).into());
    }
    let call = async |connection| {
        SecretsClient::new(connection)
            .export_key(v1::ExportKeyRequest {})
            .await
    };
    let response = client.unary(DEADLINE, call).await?;
    let key = SecretsKey::from_slice(&response.key)
        .map_err(|error| Failure::new(Local::Internal, format!("the daemon's answer: {error}")))?;
    KeyFile::new(out)
        .write(std::slice::from_ref(&key))
        .map_err(|error| unusable(&error, out))?;
    ui.outcome(&ExportedView {
        path: out.display().to_string(),
        key_id: key.id(),
    })?;
    ui.note("Whoever has the file and a backup can open the cluster's secrets: keep them apart.");
    Ok(())
}

async fn import(file: &Path, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let key = read(file)?;
    let call = async |connection| {
        let request = v1::ImportKeyRequest {
            key: key.expose().to_vec(),
        };
        SecretsClient::new(connection).import_key(request).await
    };
    let response = client.unary(DEADLINE, call).await?;
    ui.outcome(&KeyView {
        key_id: response.id,
        action: "Imported",
    })
}

async fn rotate(client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let call = async |connection| {
        SecretsClient::new(connection)
            .rotate_key(v1::RotateKeyRequest {})
            .await
    };
    let response = client.unary(DEADLINE, call).await?;
    ui.outcome(&KeyView {
        key_id: response.id,
        action: "Rotated",
    })?;
    ui.note("Export the new key: files of the old one open only older backups.");
    Ok(())
}

/// Reads a file that holds one key.
///
/// # Errors
/// `file_error` if it cannot be read, or holds none.
pub(crate) fn read(path: &Path) -> Result<SecretsKey, Failure> {
    let keys = KeyFile::new(path)
        .read()
        .map_err(|error| unusable(&error, path))?;
    keys.into_iter().next().ok_or_else(|| {
        let message = format!("read {}: there is no key", path.display());
        Failure::new(Local::FileError, message).with("path", path.display())
    })
}

fn unusable(error: &KeyFileError, path: &Path) -> Failure {
    Failure::new(Local::FileError, chain(error)).with("path", path.display())
}
