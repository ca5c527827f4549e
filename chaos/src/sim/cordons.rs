//! Cordons of members, and the judge of placements on them.

use jaco_proto::{
    mark,
    v1::{self, command::Payload},
};
use jaco_state::State;

use crate::Rng;

use super::{
    calls::{Change, Requester},
    cluster::Cluster,
    mutation::Mutation,
    oracle::Oracle,
};

/// Draws a node, and whether it is cordoned from now on.
pub(super) fn draw(chance: &mut Rng, hosts: &[String]) -> Payload {
    let hostname = chance.choose(hosts).cloned().unwrap_or_default();
    match chance.within(0..3) {
        0 => update(hostname, mark::CLEAR),
        _ => update(hostname, mark::SET),
    }
}

fn update(hostname: String, cordon_mark: i32) -> Payload {
    Payload::NodeStatusUpdate(v1::NodeStatusUpdate {
        hostname,
        cordon_mark,
        ..v1::NodeStatusUpdate::default()
    })
}

impl Mutation {
    /// State without cordons.
    pub(super) fn without_cordons(state: &State) -> State {
        let mut seen = state.clone();
        for (host, node) in &state.nodes {
            let lifted = v1::Node {
                cordoned: false,
                ..v1::Node::clone(node)
            };
            seen.nodes.insert(host.clone(), lifted.into());
        }
        seen
    }
}

impl Cluster {
    /// Lifts the cordons, as an operator would once the faults are over.
    pub(super) fn lift_cordons(&mut self) {
        let nodes = self.oracle.newest().nodes.values();
        let cordoned = nodes.filter(|node| node.cordoned);
        let hosts: Vec<String> = cordoned.map(|node| node.hostname.clone()).collect();
        for host in hosts {
            if let Some(leader) = self.leader()
                && let Some(lift) = self.node_command(leader, |_| update(host, mark::CLEAR))
            {
                self.submit(leader, Requester::Detached, Change::Command(lift));
            }
        }
    }
}

impl Oracle {
    /// Checks that an entry places no replica on a node that was cordoned in the state on which the entry
    /// was planned.
    pub(super) fn check_cordons(&mut self, seen: &State, before: &State, after: &State) {
        for (host, node) in &after.nodes {
            let former = before.nodes.get(host);
            if node.cordoned && former.is_some_and(|former| !former.cordoned) {
                self.count_rollout("nodes cordoned");
            }
        }
        let mut rows = after.replicas_desired.values();
        let placed = rows.find(|row| {
            let former = before.replicas_desired.get(&row.id);
            let node = seen.nodes.get(&row.host);
            row.raft_index == after.applied_index
                && former.is_none_or(|former| former.host != row.host)
                && node.is_some_and(|node| node.cordoned)
        });
        if let Some(row) = placed {
            let (index, id, host) = (row.raft_index, &row.id, &row.host);
            let what = format!("entry {index} places {id} on {host}");
            self.violate("cordoned nodes receive nothing", what);
        }
    }
}
