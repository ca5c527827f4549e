//! `jaco node`: the machines of a cluster.

use std::time::Duration;

use jaco_proto::v1::{self, cluster_client::ClusterClient};
use serde::Serialize;

use super::{
    args::ReadArgs,
    connection::Client,
    failure::Stop,
    output::{
        Ui, View,
        table::{self, col},
        text::enum_name,
    },
};

const DEADLINE: Duration = Duration::from_secs(10);

/// What to do.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Show all nodes
    List(ReadArgs),
}

/// Does it.
pub(crate) async fn run(command: &Command, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    match command {
        Command::List(_) => list(client, ui).await,
    }
}

/// A member of the cluster.
#[derive(Serialize)]
pub(super) struct NodeRow {
    pub(super) hostname: String,
    pub(super) address: String,
    pub(super) status: String,
}

impl From<&v1::Node> for NodeRow {
    fn from(node: &v1::Node) -> Self {
        Self {
            hostname: node.hostname.clone(),
            address: node.address.clone(),
            status: enum_name(node.status().as_str_name(), "NODE_STATUS_"),
        }
    }
}

#[derive(Serialize)]
struct ListView {
    nodes: Vec<NodeRow>,
}

impl View for ListView {
    fn text(&self) -> String {
        let columns = ["HOSTNAME", "ADDRESS", "STATUS"].map(col);
        let rows = self.nodes.iter().map(|node| {
            vec![
                node.hostname.clone(),
                node.address.clone(),
                node.status.to_uppercase(),
            ]
        });
        table::render(&columns, rows)
    }
}

async fn list(client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let call = async |connection| {
        ClusterClient::new(connection)
            .node_list(v1::NodeListRequest {})
            .await
    };
    let response = client.unary(DEADLINE, call).await?;
    ui.data(&ListView {
        nodes: response.nodes.iter().map(NodeRow::from).collect(),
    })
}
