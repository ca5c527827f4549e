//! Cluster members according to the replicated state.

use std::net::SocketAddr;

use jaco_proto::v1::Node;
use jaco_state::State;

/// Another cluster member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// Its hostname.
    pub hostname: String,
    /// Its raft id.
    pub raft_id: u64,
    /// Its own address to dial; `None` if it advertised none, or one that does not parse.
    pub address: Option<SocketAddr>,
    /// SHA-256 of the certificate it must present.
    pub fingerprint: [u8; 32],
    /// Addresses reported by other members, apart from its own.
    pub reported_addresses: Vec<SocketAddr>,
    /// Whether the member is known from reports only while the state has another member of the same
    /// hostname.
    pub namesake: bool,
}

impl PeerInfo {
    /// Returns a member at `address`. An address that does not parse leaves it without one, and
    /// only that member can dial.
    #[must_use]
    pub fn new(hostname: &str, raft_id: u64, address: &str, fingerprint: [u8; 32]) -> Self {
        Self {
            hostname: hostname.to_owned(),
            raft_id,
            address: address.parse().ok(),
            fingerprint,
            reported_addresses: Vec::new(),
            namesake: false,
        }
    }

    /// Key of its route: its hostname, or `hostname~raft_id` for a namesake.
    #[must_use]
    pub fn key(&self) -> String {
        let Self {
            hostname, raft_id, ..
        } = self;
        if self.namesake {
            // `~` is invalid in hostnames, so the key is unique.
            format!("{hostname}~{raft_id}")
        } else {
            hostname.clone()
        }
    }

    /// Addresses to dial, in order of attempts.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        let own = self.address.into_iter();
        own.chain(self.reported_addresses.iter().copied())
    }
}

/// Identity of this node, and the members known when it joined.
#[derive(Clone, Debug)]
pub struct Origin {
    /// Hostname of this node.
    pub hostname: String,
    /// Raft id of this node.
    pub raft_id: u64,
    /// Members in the leader's response to the join; empty if this node founded the cluster.
    pub members: Vec<PeerInfo>,
}

impl Origin {
    /// Whether `record` is another member than this node.
    #[must_use]
    pub fn is_other(&self, record: &PeerInfo) -> bool {
        record.hostname != self.hostname && record.raft_id != self.raft_id
    }
}

/// Returns the members other than this node.
///
/// A node that joined replays entries from before its join, when it was not a member. Until its own
/// record is applied, the members from the join response are used.
#[must_use]
pub fn members(state: &State, origin: &Origin) -> Vec<PeerInfo> {
    let own = state.nodes.get(&origin.hostname);
    let joined = own.is_some_and(|node| node.raft_id == origin.raft_id);
    if !joined && !origin.members.is_empty() {
        let others = origin.members.iter().filter(|r| origin.is_other(r));
        return others.cloned().collect();
    }
    let others = rows(state).filter(|record| origin.is_other(record));
    others.collect()
}

/// Members in `state`; rows without a raft id or a valid fingerprint are skipped.
pub fn rows(state: &State) -> impl Iterator<Item = PeerInfo> {
    let named = state.nodes.values().filter(|node| node.raft_id != 0);
    named.filter_map(|node| {
        let print = <[u8; 32]>::try_from(&node.server_cert_fingerprint[..]).ok()?;
        let Node {
            hostname, address, ..
        } = &**node;
        Some(PeerInfo::new(hostname, node.raft_id, address, print))
    })
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use super::*;

    pub(in super::super) fn state(rows: &[(&str, u64, &str, u8)]) -> State {
        let mut state = State::default();
        for &(hostname, raft_id, address, print) in rows {
            let node = Node {
                hostname: hostname.to_owned(),
                raft_id,
                address: address.to_owned(),
                server_cert_fingerprint: vec![print; if print == 0 { 0 } else { 32 }],
                ..Default::default()
            };
            state.nodes.insert(hostname.to_owned(), Arc::new(node));
        }
        state
    }

    pub(in super::super) fn origin(members: &[(&str, u64)]) -> Origin {
        Origin {
            hostname: "me".to_owned(),
            raft_id: 9,
            members: members
                .iter()
                .map(|&(name, id)| PeerInfo::new(name, id, "10.0.0.1:1", [7; 32]))
                .collect(),
        }
    }

    fn names(records: &[PeerInfo]) -> Vec<(&str, u64, bool)> {
        records
            .iter()
            .map(|r| (r.hostname.as_str(), r.raft_id, r.address.is_some()))
            .collect()
    }

    #[test]
    fn state_lists_every_member_but_this_node() {
        let state = state(&[
            ("a", 1, "10.0.0.1:7001", 1),
            ("b", 2, "nowhere", 2),
            ("no-certificate", 3, "10.0.0.3:7001", 0),
            ("me", 9, "10.0.0.9:7001", 9),
        ]);
        let found = members(&state, &origin(&[("gone", 5)]));
        assert_eq!(names(&found), [("a", 1, true), ("b", 2, false)]);
    }

    #[test]
    fn joiner_uses_join_response_until_its_record_applies() {
        let joiner = origin(&[("a", 1), ("b", 2), ("me", 9)]);
        let expected = [("a", 1, true), ("b", 2, true)];
        let past = state(&[("a", 1, "x", 1), ("old", 4, "x", 4)]);
        assert_eq!(names(&members(&past, &joiner)), expected);
        // An earlier node with the same hostname.
        let namesake = state(&[("old", 4, "x", 4), ("me", 3, "x", 3)]);
        assert_eq!(names(&members(&namesake, &joiner)), expected);
    }

    #[test]
    fn founder_takes_members_from_state() {
        let state = state(&[("a", 1, "10.0.0.1:7001", 1)]);
        assert_eq!(names(&members(&state, &origin(&[]))), [("a", 1, true)]);
    }
}
