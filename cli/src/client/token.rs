//! `jaco token`: operator tokens.

use std::time::Duration;

use jaco_proto::v1::{self, tokens_client::TokensClient};
use serde::Serialize;

use super::{
    args::ReadArgs,
    connection::Client,
    failure::Stop,
    output::{
        Ui, View,
        table::{self, col},
        text::{or_dash, time},
    },
};

const DEADLINE: Duration = Duration::from_secs(10);

/// Subcommands of `token`.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Issue a token and print it; it cannot be shown again
    ///
    /// An existing token of the identity is replaced: its old secret stops working immediately.
    Issue {
        /// Identity that the audit log records for the token's holder
        #[arg(long, value_name = "IDENTITY")]
        name: String,
        /// Allow the token to deploy privileged services
        #[arg(long)]
        allow_privileged: bool,
    },
    /// Revoke a token
    Revoke {
        /// Identity of the token
        #[arg(value_name = "IDENTITY")]
        identity: String,
    },
    /// List all tokens, without their secrets
    List(ReadArgs),
}

/// Runs a subcommand.
pub(crate) async fn run(command: &Command, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    match command {
        Command::Issue {
            name,
            allow_privileged,
        } => issue(name, *allow_privileged, client, ui).await,
        Command::Revoke { identity } => revoke(identity, client, ui).await,
        Command::List(_) => list(client, ui).await,
    }
}

#[derive(Serialize)]
struct IssuedView {
    identity: String,
    token: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    issued_at: Option<String>,
    allows_privileged: bool,
}

impl View for IssuedView {
    fn text(&self) -> String {
        format!(
            "Token for {} (save this; not recoverable): {}\n",
            self.identity, self.token
        )
    }
}

async fn issue(
    identity: &str,
    allows_privileged: bool,
    client: &Client,
    ui: &mut Ui<'_>,
) -> Result<(), Stop> {
    let call = async |connection| {
        let request = v1::TokenIssueRequest {
            identity: identity.to_owned(),
            allows_privileged,
        };
        TokensClient::new(connection).issue(request).await
    };
    let response = client.unary(DEADLINE, call).await?;
    // The secret cannot be fetched again, so it is printed even with `--quiet`.
    ui.data(&IssuedView {
        identity: response.identity,
        token: response.token,
        issued_at: response.issued_at.as_ref().map(time),
        allows_privileged,
    })
}

#[derive(Serialize)]
struct RevokedView<'a> {
    identity: &'a str,
    revoked: bool,
}

impl View for RevokedView<'_> {
    fn text(&self) -> String {
        format!("Revoked token for {}\n", self.identity)
    }
}

async fn revoke(identity: &str, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let call = async |connection| {
        let request = v1::TokenRevokeRequest {
            identity: identity.to_owned(),
        };
        TokensClient::new(connection).revoke(request).await
    };
    let v1::TokenRevokeResponse {} = client.unary(DEADLINE, call).await?;
    ui.outcome(&RevokedView {
        identity,
        revoked: true,
    })
}

#[derive(Serialize)]
struct ListView {
    tokens: Vec<TokenRow>,
}

#[derive(Serialize)]
struct TokenRow {
    identity: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    issued_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked_at: Option<String>,
    allows_privileged: bool,
}

impl From<v1::TokenInfo> for TokenRow {
    fn from(token: v1::TokenInfo) -> Self {
        Self {
            identity: token.identity,
            issued_at: token.issued_at.as_ref().map(time),
            revoked_at: token.revoked_at.as_ref().map(time),
            allows_privileged: token.allows_privileged,
        }
    }
}

impl View for ListView {
    fn text(&self) -> String {
        let columns = ["IDENTITY", "ISSUED", "REVOKED", "PRIVILEGED"].map(col);
        let rows = self.tokens.iter().map(|token| {
            vec![
                token.identity.clone(),
                token.issued_at.clone().unwrap_or_default(),
                or_dash(token.revoked_at.as_ref()),
                token.allows_privileged.to_string(),
            ]
        });
        table::render(&columns, rows)
    }
}

async fn list(client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let call = async |connection| {
        TokensClient::new(connection)
            .list(v1::TokenListRequest {})
            .await
    };
    let response = client.unary(DEADLINE, call).await?;
    ui.data(&ListView {
        tokens: response.tokens.into_iter().map(TokenRow::from).collect(),
    })
}
