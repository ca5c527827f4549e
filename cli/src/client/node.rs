//! `jaco node`: the machines of a cluster.

mod join;

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

pub(crate) use self::join::{join, join_token};

const DEADLINE: Duration = Duration::from_secs(10);
/// Longest time the daemon drains a node, and half a minute for the rest of a removal.
const DRAIN_DEADLINE: Duration = Duration::from_secs(330);

/// What to do.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Make a token that admits one machine, and show how it joins
    IssueJoinToken(join::IssueArgs),
    /// Make this daemon join a cluster, with a join token
    Join(join::JoinArgs),
    /// Show all nodes
    List(ReadArgs),
    /// Remove a machine from the cluster
    ///
    /// Refused if a replica that runs there has no other place.
    Remove(RemoveArgs),
}

/// Does it.
pub(crate) async fn run(command: &Command, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    match command {
        Command::IssueJoinToken(args) => join::issue(args, client, ui).await,
        // It takes a token of its own.
        Command::Join(_) => Ok(()),
        Command::List(_) => list(client, ui).await,
        Command::Remove(args) => remove(args, client, ui).await,
    }
}

/// The machine to remove.
#[derive(clap::Args)]
pub(crate) struct RemoveArgs {
    /// Hostname of the machine
    #[arg(value_name = "HOST")]
    hostname: String,
    /// Do not move its replicas away first: what only they have is lost
    #[arg(long)]
    force: bool,
}

#[derive(Serialize)]
struct RemovedView<'a> {
    hostname: &'a str,
    removed: bool,
    forced: bool,
}

impl View for RemovedView<'_> {
    fn text(&self) -> String {
        format!("Removed node {}\n", self.hostname)
    }
}

async fn remove(args: &RemoveArgs, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let call = async |connection| {
        let request = v1::NodeRemoveRequest {
            hostname: args.hostname.clone(),
            force: args.force,
        };
        ClusterClient::new(connection).node_remove(request).await
    };
    let deadline = if args.force { DEADLINE } else { DRAIN_DEADLINE };
    let v1::NodeRemoveResponse {} = client.unary(deadline, call).await?;
    ui.outcome(&RemovedView {
        hostname: &args.hostname,
        removed: true,
        forced: args.force,
    })
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
