//! `jaco registry`: credentials for pulling images.

mod password;

use std::time::Duration;

use jaco_proto::{
    secret::SecretBytes,
    v1::{self, registry_credentials_client::RegistryCredentialsClient},
};
use serde::Serialize;

use super::{
    args::ReadArgs,
    connection::Client,
    failure::Stop,
    output::{
        Ui, View,
        table::{self, col},
        text::time,
    },
};

const DEADLINE: Duration = Duration::from_secs(10);

/// Subcommands of `registry`.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Store a credential; replaces an existing one
    ///
    /// The password is read from stdin; on a terminal there is a prompt.
    Login {
        /// Registry, optionally with the namespace that the credential is limited to
        #[arg(value_name = "REGISTRY")]
        registry: String,
        /// Username at the registry
        #[arg(short, long, value_name = "USER")]
        username: String,
        /// Read the password from the first line of stdin
        #[arg(long)]
        password_stdin: bool,
    },
    /// Remove a credential
    Logout {
        /// Registry, in any spelling that `login` accepts
        #[arg(value_name = "REGISTRY")]
        registry: String,
    },
    /// List the registries with stored credentials
    List(ReadArgs),
}

/// Runs a subcommand.
pub(crate) async fn run(command: &Command, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    match command {
        Command::Login {
            registry,
            username,
            password_stdin,
        } => {
            let password = password::from_user(*password_stdin, ui).await?;
            login(registry, username, &password, client, ui).await
        }
        Command::Logout { registry } => logout(registry, client, ui).await,
        Command::List(_) => list(client, ui).await,
    }
}

#[derive(Serialize)]
struct CredentialRow {
    registry: String,
    username: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    updated_at: Option<String>,
}

/// A stored credential.
#[derive(Serialize)]
#[serde(transparent)]
struct StoredView(CredentialRow);

impl View for StoredView {
    fn text(&self) -> String {
        format!(
            "Stored credential for {} (user {})\n",
            self.0.registry, self.0.username
        )
    }
}

pub(super) async fn login(
    registry: &str,
    username: &str,
    password: &SecretBytes,
    client: &Client,
    ui: &mut Ui<'_>,
) -> Result<(), Stop> {
    let call = async |connection| {
        let request = v1::RegistryCredentialAddRequest {
            registry: registry.to_owned(),
            username: username.to_owned(),
            secret: password.expose().to_vec(),
        };
        RegistryCredentialsClient::new(connection)
            .add(request)
            .await
    };
    let stored = client.unary(DEADLINE, call).await?;
    ui.outcome(&StoredView(CredentialRow {
        registry: stored.registry,
        username: username.to_owned(),
        updated_at: stored.updated_at.as_ref().map(time),
    }))
}

#[derive(Serialize)]
struct RemovedView<'a> {
    registry: &'a str,
    removed: bool,
}

impl View for RemovedView<'_> {
    fn text(&self) -> String {
        format!("Removed credential for {}\n", self.registry)
    }
}

async fn logout(registry: &str, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let call = async |connection| {
        let request = v1::RegistryCredentialRemoveRequest {
            registry: registry.to_owned(),
        };
        RegistryCredentialsClient::new(connection)
            .remove(request)
            .await
    };
    let v1::RegistryCredentialRemoveResponse {} = client.unary(DEADLINE, call).await?;
    ui.outcome(&RemovedView {
        registry,
        removed: true,
    })
}

#[derive(Serialize)]
struct ListView {
    credentials: Vec<CredentialRow>,
}

impl View for ListView {
    fn text(&self) -> String {
        let columns = ["REGISTRY", "USERNAME", "UPDATED"].map(col);
        let rows = self.credentials.iter().map(|credential| {
            vec![
                credential.registry.clone(),
                credential.username.clone(),
                credential.updated_at.clone().unwrap_or_default(),
            ]
        });
        table::render(&columns, rows)
    }
}

async fn list(client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let call = async |connection| {
        RegistryCredentialsClient::new(connection)
            .list(v1::RegistryCredentialListRequest {})
            .await
    };
    let response = client.unary(DEADLINE, call).await?;
    let rows = response
        .credentials
        .into_iter()
        .map(|stored| CredentialRow {
            registry: stored.registry,
            username: stored.username,
            updated_at: stored.updated_at.as_ref().map(time),
        });
    ui.data(&ListView {
        credentials: rows.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{
        fake::{self, Fake},
        output::Format,
    };

    #[tokio::test]
    async fn password_is_sent_byte_for_byte() {
        let server = Fake::start().await;
        let password = SecretBytes::new(b"p w\xff".to_vec());
        let (result, output) = fake::capture(Format::Table, async |ui| {
            login("GHCR.io", "u", &password, &server.client(), ui).await
        })
        .await;
        assert_eq!(result, Ok(()));
        assert_eq!(output.out, "Stored credential for ghcr.io (user u)\n");
        let sent = &server.credentials()[0];
        assert_eq!(sent.registry, "GHCR.io"); // the server canonicalizes it
        assert_eq!(
            (sent.username.as_str(), &sent.secret[..]),
            ("u", &b"p w\xff"[..])
        );
    }
}
