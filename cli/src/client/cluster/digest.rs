//! `jaco cluster digest`: whether all members hold the same state.

use std::{collections::BTreeSet, time::Duration};

use jaco_proto::v1::{self, cluster_client::ClusterClient};
use serde::Serialize;

use crate::client::{
    connection::Client,
    failure::{Failure, Local, Stop},
    output::{
        Ui, View,
        table::{self, col, free},
        text::hex,
    },
};

/// A member may wait for the index, and be asked again at a later one.
const DEADLINE: Duration = Duration::from_secs(30);

#[derive(Serialize)]
struct DigestView {
    index: u64,
    equal: bool,
    nodes: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    hostname: String,
    index: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    digest: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    error: String,
}

impl From<v1::DigestResponse> for DigestView {
    fn from(response: v1::DigestResponse) -> Self {
        let compared: BTreeSet<_> = response
            .nodes
            .iter()
            .filter(|node| node.error.is_empty() && node.index == response.index)
            .map(|node| &node.digest)
            .collect();
        let equal = compared.len() <= 1;
        Self {
            index: response.index,
            equal,
            nodes: response.nodes.into_iter().map(Row::from).collect(),
        }
    }
}

impl From<v1::NodeDigest> for Row {
    fn from(node: v1::NodeDigest) -> Self {
        Self {
            hostname: node.hostname,
            index: node.index,
            digest: hex(&node.digest),
            error: node.error,
        }
    }
}

impl View for DigestView {
    fn text(&self) -> String {
        let columns = [col("HOSTNAME"), col("INDEX"), free("DIGEST")];
        let rows = self.nodes.iter().map(|row| {
            if row.error.is_empty() {
                vec![
                    row.hostname.clone(),
                    row.index.to_string(),
                    row.digest.clone(),
                ]
            } else {
                vec![row.hostname.clone(), "-".to_owned(), row.error.clone()]
            }
        });
        table::render(&columns, rows)
    }
}

/// Asks for it, shows it, and fails if members that reached one index differ.
pub(super) async fn run(client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let call = async |connection| {
        ClusterClient::new(connection)
            .digest(v1::DigestRequest {})
            .await
    };
    let view = DigestView::from(client.unary(DEADLINE, call).await?);
    ui.data(&view)?;
    let behind = view
        .nodes
        .iter()
        .filter(|row| !row.error.is_empty() || row.index != view.index);
    for row in behind {
        ui.warn(&format!("{} was not compared", row.hostname));
    }
    if view.equal {
        return Ok(());
    }
    let failure = Failure::new(
        Local::StateDiverged,
        "members that applied the same entries hold different states",
    );
    Err(failure.with("index", view.index).into())
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
    fn only_members_at_the_compared_index_are_compared() {
        let silent = v1::NodeDigest {
            error: "peer_unreachable".to_owned(),
            ..node("c", 0, b"")
        };
        for (nodes, equal) in [
            (vec![node("a", 7, b"\x01"), node("b", 7, b"\x01")], true),
            (vec![node("a", 7, b"\x01"), node("b", 7, b"\x02")], false),
            (vec![node("a", 7, b"\x01"), node("b", 6, b"\x02")], true),
            (vec![node("a", 7, b"\x01"), silent], true),
        ] {
            let view = DigestView::from(v1::DigestResponse { index: 7, nodes });
            assert_eq!(view.equal, equal, "{}", view.text());
        }
    }
}
