//! `jaco cluster digest`: compares the state of all members.

use std::{collections::BTreeSet, time::Duration};

use jaco_proto::v1::{self, cluster_client::ClusterClient};
use serde::Serialize;

use crate::client::{
    connection::Client,
    failure::{Failure, Local, Stop},
    output::{
        Ui, View,
        table::{self, col, free},
    },
};

/// Allows for a member that waits for the index, and for a second attempt at a later index.
const DEADLINE: Duration = Duration::from_secs(30);

#[derive(Serialize)]
struct DigestView {
    index: u64,
    /// Whether the compared members have equal states, and enough members were compared.
    equal: bool,
    /// Number of compared members, and of all members.
    compared: usize,
    members: usize,
    nodes: Vec<Row>,
    /// Number of different states among the compared members.
    #[serde(skip)]
    states: usize,
}

#[derive(Serialize)]
struct Row {
    hostname: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<u64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    digest: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    error: String,
}

impl Row {
    fn is_compared(&self, index: u64) -> bool {
        self.index == Some(index)
    }
}

impl From<v1::DigestResponse> for DigestView {
    fn from(response: v1::DigestResponse) -> Self {
        let nodes: Vec<_> = response.nodes.into_iter().map(Row::from).collect();
        let compared = || nodes.iter().filter(|row| row.is_compared(response.index));
        let states: BTreeSet<_> = compared().map(|row| &row.digest).collect();
        let (states, compared, members) = (states.len(), compared().count(), nodes.len());
        // A member that answered for another index is reachable, so repeating the command can
        // compare it.
        let unreachable = nodes.iter().filter(|row| row.index.is_none()).count();
        let enough = compared + unreachable == members && (compared >= 2 || members == 1);
        Self {
            index: response.index,
            equal: states == 1 && enough,
            compared,
            members,
            nodes,
            states,
        }
    }
}

impl From<v1::NodeDigest> for Row {
    fn from(node: v1::NodeDigest) -> Self {
        Self {
            hostname: node.hostname,
            index: node.error.is_empty().then_some(node.index),
            digest: hex::encode(node.digest),
            error: node.error,
        }
    }
}

impl View for DigestView {
    fn text(&self) -> String {
        let columns = [col("HOSTNAME"), col("INDEX"), free("DIGEST")];
        let rows = self.nodes.iter().map(|row| {
            let (index, detail) = match row.index {
                Some(index) => (index.to_string(), &row.digest),
                None => ("-".to_owned(), &row.error),
            };
            vec![row.hostname.clone(), index, detail.clone()]
        });
        format!(
            "{}Compared: {} of {} members\n",
            table::render(&columns, rows),
            self.compared,
            self.members
        )
    }
}

/// Fetches and prints the digests. Fails if members have different states at one index, or if too
/// few of the reachable members were compared.
pub(super) async fn run(client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let call = async |connection| {
        ClusterClient::new(connection)
            .digest(v1::DigestRequest {})
            .await
    };
    let view = DigestView::from(client.unary(DEADLINE, call).await?);
    ui.data(&view)?;
    let left_out = view.nodes.iter().filter(|row| !row.is_compared(view.index));
    for row in left_out {
        ui.warn(&format!("{} was not compared", row.hostname));
    }
    if view.equal {
        return Ok(());
    }
    let failure = match view.states > 1 {
        true => Failure::new(
            Local::StateDiverged,
            "members that applied the same entries hold different states",
        ),
        false => Failure::new(
            Local::NotCompared,
            "too few members answered for one index to say that their states are equal",
        ),
    };
    Err(failure
        .with("index", view.index)
        .with("compared", view.compared)
        .with("members", view.members)
        .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(hostname: &str, index: u64, digest: &[u8]) -> v1::NodeDigest {
        v1::NodeDigest {
            hostname: hostname.to_owned(),
            index,
            digest: digest.to_vec(),
            error: String::new(),
        }
    }

    #[test]
    fn equality_needs_all_reachable_members_and_two() {
        let unreachable = |hostname| v1::NodeDigest {
            error: "peer_unreachable".to_owned(),
            ..node(hostname, 0, b"")
        };
        let (a, b) = (node("a", 7, b"\x01"), node("b", 7, b"\x01"));
        let behind = node("c", 6, b"\x02");
        for (nodes, equal, compared, states) in [
            (vec![], false, 0, 0),
            (vec![a.clone()], true, 1, 1),
            (vec![a.clone(), b.clone()], true, 2, 1),
            (vec![a.clone(), node("b", 7, b"\x02")], false, 2, 2),
            (vec![a.clone(), b.clone(), behind.clone()], false, 2, 1),
            (vec![a.clone(), b.clone(), unreachable("c")], true, 2, 1),
            (
                vec![a.clone(), unreachable("b"), unreachable("c")],
                false,
                1,
                1,
            ),
            (
                vec![unreachable("a"), unreachable("b"), unreachable("c")],
                false,
                0,
                0,
            ),
            (vec![a, node("b", 7, b"\x02"), behind], false, 2, 2),
        ] {
            let members = nodes.len();
            let view = DigestView::from(v1::DigestResponse { index: 7, nodes });
            let found = (view.equal, view.compared, view.members, view.states);
            assert_eq!(found, (equal, compared, members, states), "{}", view.text());
        }
    }
}
