//! `jaco cluster config`: settings that hold on every node.

use std::time::Duration;

use jaco_proto::v1::{self, config_client::ConfigClient};
use serde::Serialize;

use crate::client::{
    connection::Client,
    failure::Stop,
    output::{
        Ui, View,
        table::{self, col, free},
        text::time,
    },
};

const DEADLINE: Duration = Duration::from_secs(30);

/// Subcommands of `cluster config`.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// List all settings with their values
    List,
    /// Show one setting
    Get {
        /// Name of the setting
        #[arg(value_name = "KEY")]
        key: String,
    },
    /// Change a setting; in force on every node at once
    Set {
        /// Name of the setting
        #[arg(value_name = "KEY")]
        key: String,
        /// Its new value
        #[arg(value_name = "VALUE", allow_hyphen_values = true)]
        value: String,
    },
    /// Give a setting its default value back
    Unset {
        /// Name of the setting
        #[arg(value_name = "KEY")]
        key: String,
    },
}

/// Runs a subcommand.
pub(crate) async fn run(command: &Command, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    match command {
        Command::List => list(client, ui).await,
        Command::Get { key } => get(key, client, ui).await,
        Command::Set { key, value } => set(key, Some(value), client, ui).await,
        Command::Unset { key } => set(key, None, client, ui).await,
    }
}

#[derive(Serialize)]
struct Row {
    key: String,
    value: String,
    default: String,
    set: bool,
    r#type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    updated_at: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    updated_by: String,
}

impl From<v1::ConfigEntry> for Row {
    fn from(entry: v1::ConfigEntry) -> Self {
        Self {
            key: entry.key,
            value: entry.value,
            default: entry.default_value,
            set: entry.is_set,
            r#type: entry.r#type,
            updated_at: entry.updated_at.as_ref().map(time),
            updated_by: entry.updated_by,
        }
    }
}

#[derive(Serialize)]
struct ListView {
    settings: Vec<Row>,
}

impl View for ListView {
    fn text(&self) -> String {
        let columns = [col("KEY"), free("VALUE"), col("SET BY"), col("UPDATED")];
        let rows = self.settings.iter().map(|row| {
            vec![
                row.key.clone(),
                row.value.clone(),
                row.updated_by.clone(),
                row.updated_at.clone().unwrap_or_default(),
            ]
        });
        table::render(&columns, rows)
    }
}

/// A setting as the answer to `get`: its value alone, for scripts.
#[derive(Serialize)]
#[serde(transparent)]
struct ValueView(Row);

impl View for ValueView {
    fn text(&self) -> String {
        format!("{}\n", self.0.value)
    }
}

/// A setting as the answer to a change.
#[derive(Serialize)]
#[serde(transparent)]
struct ChangedView(Row);

impl View for ChangedView {
    fn text(&self) -> String {
        let Row {
            key, value, set, ..
        } = &self.0;
        match set {
            true => format!("Set {key} to {value:?}\n"),
            false => format!("Unset {key}; its default is {value:?}\n"),
        }
    }
}

async fn list(client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let call = async |connection| {
        ConfigClient::new(connection)
            .list(v1::ConfigListRequest {})
            .await
    };
    let response = client.unary(DEADLINE, call).await?;
    ui.data(&ListView {
        settings: response.entries.into_iter().map(Row::from).collect(),
    })
}

async fn get(key: &str, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let call = async |connection| {
        let request = v1::ConfigKey {
            key: key.to_owned(),
        };
        ConfigClient::new(connection).get(request).await
    };
    let entry = client.unary(DEADLINE, call).await?;
    ui.data(&ValueView(entry.into()))
}

async fn set(
    key: &str,
    value: Option<&String>,
    client: &Client,
    ui: &mut Ui<'_>,
) -> Result<(), Stop> {
    let call = async |connection| {
        let request = v1::ConfigSetRequest {
            key: key.to_owned(),
            value: value.cloned().unwrap_or_default(),
            unset: value.is_none(),
        };
        ConfigClient::new(connection).set(request).await
    };
    let entry = client.unary(DEADLINE, call).await?;
    ui.outcome(&ChangedView(entry.into()))
}
