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
/// The hour for which the daemon waits for a drain that goes on, plus 30 s for its answer.
const DRAIN_DEADLINE: Duration = Duration::from_secs(3630);

/// Subcommands of `node`.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Issue a single-use join token and print the join command
    IssueJoinToken(join::IssueArgs),
    /// Join this daemon to a cluster with a join token
    Join(join::JoinArgs),
    /// List all nodes
    List(ReadArgs),
    /// Remove a node from the cluster
    ///
    /// Its replicas are moved to other nodes first, and the node stays until they run there; refused
    /// if one cannot be placed elsewhere. Gives up when none has moved for 5 minutes, and can then be
    /// repeated.
    Remove(RemoveArgs),
    /// Place no further replicas on a node; those that it has stay
    Cordon(CordonArgs),
    /// Place replicas on a cordoned node again
    Uncordon(CordonArgs),
}

/// Runs a subcommand, except `join`, which needs another token.
pub(crate) async fn run(command: &Command, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    match command {
        Command::IssueJoinToken(args) => join::issue(args, client, ui).await,
        // Handled by `join` with the join token.
        Command::Join(_) => Ok(()),
        Command::List(_) => list(client, ui).await,
        Command::Remove(args) => remove(args, client, ui).await,
        Command::Cordon(args) => cordon(args, true, client, ui).await,
        Command::Uncordon(args) => cordon(args, false, client, ui).await,
    }
}

/// Arguments of `node remove`.
#[derive(clap::Args)]
pub(crate) struct RemoveArgs {
    /// Hostname of the node
    #[arg(value_name = "HOST")]
    hostname: String,
    /// Do not move its replicas first; data that exists only on this node is lost
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
    let deadline = if args.force { DEADLINE } else { DRAIN_DEADLINE };
    let call = async |connection| {
        let mut request = tonic::Request::new(v1::NodeRemoveRequest {
            hostname: args.hostname.clone(),
            force: args.force,
        });
        // The daemon answers in time, with the replicas that are left.
        request.set_timeout(deadline);
        ClusterClient::new(connection).node_remove(request).await
    };
    let v1::NodeRemoveResponse {} = client.unary(deadline, call).await?;
    ui.outcome(&RemovedView {
        hostname: &args.hostname,
        removed: true,
        forced: args.force,
    })
}

/// Arguments of `node cordon` and `uncordon`.
#[derive(clap::Args)]
pub(crate) struct CordonArgs {
    /// Hostname of the node
    #[arg(value_name = "HOST")]
    hostname: String,
}

#[derive(Serialize)]
struct CordonedView<'a> {
    hostname: &'a str,
    cordoned: bool,
}

impl View for CordonedView<'_> {
    fn text(&self) -> String {
        match self.cordoned {
            true => format!("Cordoned node {}\n", self.hostname),
            false => format!("Uncordoned node {}\n", self.hostname),
        }
    }
}

async fn cordon(
    args: &CordonArgs,
    cordoned: bool,
    client: &Client,
    ui: &mut Ui<'_>,
) -> Result<(), Stop> {
    let call = async |connection| {
        let request = v1::NodeCordonRequest {
            hostname: args.hostname.clone(),
            uncordon: !cordoned,
        };
        ClusterClient::new(connection).node_cordon(request).await
    };
    let v1::NodeCordonResponse {} = client.unary(DEADLINE, call).await?;
    ui.outcome(&CordonedView {
        hostname: &args.hostname,
        cordoned,
    })
}

/// A member of the cluster.
#[derive(Serialize)]
pub(super) struct NodeRow {
    pub(super) hostname: String,
    pub(super) address: String,
    pub(super) status: String,
    /// It receives no further replicas.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) cordoned: bool,
}

impl NodeRow {
    /// Status as in a text, with `separator` before a further word.
    pub(super) fn status_text(&self, separator: &str) -> String {
        let status = self.status.to_uppercase();
        match self.cordoned {
            true => status + separator + "CORDONED",
            false => status,
        }
    }
}

impl From<&v1::Node> for NodeRow {
    fn from(node: &v1::Node) -> Self {
        Self {
            hostname: node.hostname.clone(),
            address: node.address.clone(),
            status: enum_name(node.status().as_str_name(), "NODE_STATUS_"),
            cordoned: node.cordoned,
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
                node.status_text(","),
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
