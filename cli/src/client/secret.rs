//! `jaco secret`: secrets of deployments, which containers have as environment variables, and those of
//! the cluster, which deployments name as external.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use jaco_proto::{
    manifest::jaco::secrets::MAX_VALUE,
    secret::SecretBytes,
    v1::{self, FileKind, secrets_client::SecretsClient},
};
use serde::Serialize;

use super::{
    args::ReadArgs,
    blocking,
    cluster_files::{self, NewFile, STDIN},
    connection::Client,
    failure::{Failure, Stop},
    output::{
        Ui, View,
        table::{self, col},
        text::time,
    },
};

const DEADLINE: Duration = Duration::from_secs(30);

/// Subcommands of `secret`.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Set a secret of a deployment; services that have it get new containers
    ///
    /// The value is read from stdin or a file, without the newline at its end.
    Set {
        /// Name of the deployment, which need not exist yet
        #[arg(value_name = "DEPLOYMENT")]
        deployment: String,
        /// Name of the environment variable
        #[arg(value_name = "NAME")]
        name: String,
        /// File with the value, at most 64 KiB
        #[arg(long, value_name = "FILE", default_value = STDIN)]
        from_file: PathBuf,
    },
    /// Store a secret in the cluster, for deployments that name it as external
    Create {
        /// The secret belongs to the cluster, not to one deployment
        #[arg(long, required = true)]
        cluster: bool,
        #[command(flatten)]
        create: NewFile,
    },
    /// List secrets, without their values
    List {
        /// Deployment whose secrets are listed [default: all]
        #[arg(value_name = "DEPLOYMENT", conflicts_with = "cluster")]
        deployment: Option<String>,
        /// List those of the cluster
        #[arg(long)]
        cluster: bool,
        #[command(flatten)]
        read: ReadArgs,
    },
    /// Remove a secret that no service has, or one of the cluster
    #[command(
        override_usage = "jaco secret rm DEPLOYMENT NAME\n       jaco secret rm --cluster NAME"
    )]
    Rm {
        /// Name of the deployment; of the secret with --cluster
        #[arg(value_name = "DEPLOYMENT")]
        first: String,
        /// Name of the environment variable
        #[arg(
            value_name = "NAME",
            required_unless_present = "cluster",
            conflicts_with = "cluster"
        )]
        name: Option<String>,
        /// The secret belongs to the cluster; deployments keep what they were applied with
        #[arg(long)]
        cluster: bool,
    },
}

impl Command {
    /// Settings of the read, if the command is one.
    pub(crate) fn read(&self) -> Option<&ReadArgs> {
        match self {
            Self::List { read, .. } => Some(read),
            Self::Set { .. } | Self::Create { .. } | Self::Rm { .. } => None,
        }
    }
}

/// Runs a subcommand.
pub(crate) async fn run(command: Command, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    match command {
        Command::Set {
            deployment,
            name,
            from_file,
        } => {
            let value = blocking(move || value(&from_file)).await??;
            set(deployment, name, &value, client, ui).await
        }
        Command::Create { create, .. } => {
            cluster_files::create(FileKind::Secret, create, client, ui).await
        }
        Command::List { cluster: true, .. } => {
            cluster_files::list(FileKind::Secret, client, ui).await
        }
        Command::List { deployment, .. } => list(deployment.unwrap_or_default(), client, ui).await,
        Command::Rm {
            first,
            name: Some(name),
            ..
        } => remove(first, name, client, ui).await,
        Command::Rm { first, .. } => {
            cluster_files::remove(FileKind::Secret, first, client, ui).await
        }
    }
}

/// Reads a value without the newline at its end.
fn value(path: &Path) -> Result<SecretBytes, Failure> {
    let content = cluster_files::read(path, MAX_VALUE + "\r\n".len() + 1)?;
    let value = content.expose();
    let line = value.strip_suffix(b"\n");
    let line = line.map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    Ok(line.map_or_else(|| content.clone(), |line| SecretBytes::new(line.to_vec())))
}

#[derive(Serialize)]
struct SecretRow {
    deployment: String,
    name: String,
    version: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    updated_at: Option<String>,
    updated_by: String,
    services: Vec<String>,
}

impl From<v1::SecretInfo> for SecretRow {
    fn from(info: v1::SecretInfo) -> Self {
        Self {
            deployment: info.deployment,
            name: info.name,
            version: info.version,
            updated_at: info.updated_at.as_ref().map(time),
            updated_by: info.updated_by,
            services: info.services,
        }
    }
}

/// Outcome of `set`.
#[derive(Serialize)]
#[serde(transparent)]
struct SetView(SecretRow);

impl View for SetView {
    fn text(&self) -> String {
        let SecretRow {
            deployment,
            name,
            version,
            services,
            ..
        } = &self.0;
        let effect = match services.is_empty() {
            true => "; no service has it yet".to_owned(),
            false => format!("; new containers for {}", services.join(", ")),
        };
        format!("Set secret {name} of {deployment}, version {version}{effect}\n")
    }
}

async fn set(
    deployment: String,
    name: String,
    value: &SecretBytes,
    client: &Client,
    ui: &mut Ui<'_>,
) -> Result<(), Stop> {
    let call = async |connection| {
        let request = v1::SecretSetRequest {
            deployment: deployment.clone(),
            name: name.clone(),
            value: value.expose().to_vec(),
        };
        SecretsClient::new(connection).set(request).await
    };
    let info = client.unary(DEADLINE, call).await?;
    ui.outcome(&SetView(info.into()))
}

#[derive(Serialize)]
struct ListView {
    secrets: Vec<SecretRow>,
}

impl View for ListView {
    fn text(&self) -> String {
        let columns = ["DEPLOYMENT", "NAME", "VERSION", "UPDATED", "BY", "SERVICES"].map(col);
        let rows = self.secrets.iter().map(|secret| {
            vec![
                secret.deployment.clone(),
                secret.name.clone(),
                secret.version.to_string(),
                secret.updated_at.clone().unwrap_or_default(),
                secret.updated_by.clone(),
                secret.services.join(","),
            ]
        });
        table::render(&columns, rows)
    }
}

async fn list(deployment: String, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let call = async |connection| {
        let request = v1::SecretListRequest {
            deployment_filter: deployment.clone(),
        };
        SecretsClient::new(connection).list(request).await
    };
    let response = client.unary(DEADLINE, call).await?;
    ui.data(&ListView {
        secrets: response.secrets.into_iter().map(SecretRow::from).collect(),
    })
}

#[derive(Serialize)]
struct RemovedView {
    deployment: String,
    name: String,
    removed: bool,
}

impl View for RemovedView {
    fn text(&self) -> String {
        format!("Removed secret {} of {}\n", self.name, self.deployment)
    }
}

async fn remove(
    deployment: String,
    name: String,
    client: &Client,
    ui: &mut Ui<'_>,
) -> Result<(), Stop> {
    let call = async |connection| {
        let request = v1::SecretRemoveRequest {
            deployment: deployment.clone(),
            name: name.clone(),
        };
        SecretsClient::new(connection).remove(request).await
    };
    let v1::SecretRemoveResponse {} = client.unary(DEADLINE, call).await?;
    ui.outcome(&RemovedView {
        deployment,
        name,
        removed: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{
        fake::{self, Fake},
        output::Format,
    };

    #[test]
    fn one_newline_at_the_end_is_no_value() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("value");
        for (content, expected) in [
            (&b"a b"[..], &b"a b"[..]),
            (b"a\n", b"a"),
            (b"a\r\n", b"a"),
            (b"a\n\n", b"a\n"),
            (b"\r", b"\r"),
            (b"", b""),
            (b"\n", b""),
        ] {
            std::fs::write(&path, content).unwrap();
            assert_eq!(value(&path).unwrap().expose(), expected);
        }
        std::fs::write(&path, vec![b'x'; 2 * MAX_VALUE]).unwrap();
        assert!(value(&path).unwrap().expose().len() > MAX_VALUE);
        let error = value(Path::new("/nonexistent")).unwrap_err();
        assert_eq!(error.code, "file_error");
    }

    #[tokio::test]
    async fn value_is_sent_and_not_shown() {
        let server = Fake::start().await;
        let value = SecretBytes::new(b"s3cret".to_vec());
        let (result, output) = fake::capture(Format::Table, async |ui| {
            set("shop".into(), "A".into(), &value, &server.client(), ui).await
        })
        .await;
        assert_eq!(result, Ok(()));
        assert_eq!(
            output.out,
            "Set secret A of shop, version 1; new containers for web\n"
        );
        assert_eq!(server.secrets()[0].value, b"s3cret");
        assert!(!output.err.contains("s3cret"));
    }
}
