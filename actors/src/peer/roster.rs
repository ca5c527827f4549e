//! Who is a member, read off the replicated state.

use std::{net::SocketAddr, sync::Arc};

use jaco_net::{
    pki::Fingerprint,
    quic::{self, Member},
};
use jaco_raftnode::{Propose as _, RaftHandle, State};

/// A member other than this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Name, raft id and address.
    pub(crate) member: Arc<Member>,
    /// The certificate it must show.
    pub(crate) fingerprint: Fingerprint,
}

impl Record {
    /// A member at `address`, which may be no address: such a member has to dial itself.
    #[must_use]
    pub(crate) fn new(hostname: &str, raft_id: u64, address: &str, fingerprint: [u8; 32]) -> Self {
        let member = Member {
            hostname: hostname.to_owned(),
            raft_id,
            address: address.parse::<SocketAddr>().ok(),
        };
        Self {
            member: Arc::new(member),
            fingerprint: Fingerprint::from_bytes(fingerprint),
        }
    }
}

/// Who this node is, and whom it knew when it joined.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    /// Its hostname.
    pub(crate) hostname: String,
    /// Its raft id.
    pub(crate) raft_id: u64,
    /// The members it joined, as the leader told them.
    pub(crate) members: Vec<Record>,
}

/// The members other than this node.
///
/// A node that has joined replays the past, in which others were members and it was not: until
/// its own record is applied, it keeps to what it was told when it joined.
#[must_use]
pub(crate) fn members(state: &State, origin: &Origin) -> Vec<Record> {
    let own = state.nodes.get(&origin.hostname);
    let arrived = own.is_some_and(|node| node.raft_id == origin.raft_id);
    if !arrived && !origin.members.is_empty() {
        let own = |record: &&Record| record.member.hostname != origin.hostname;
        return origin.members.iter().filter(own).cloned().collect();
    }
    let others = state.nodes.values().filter(|node| {
        node.raft_id != 0 && node.raft_id != origin.raft_id && node.hostname != origin.hostname
    });
    others
        .filter_map(|node| {
            let print = <[u8; 32]>::try_from(&node.server_cert_fingerprint[..]).ok()?;
            Some(Record::new(
                &node.hostname,
                node.raft_id,
                &node.address,
                print,
            ))
        })
        .collect()
}

/// The roster as the transport asks for it, always that of the state as it is applied.
#[derive(Clone, Debug)]
pub(super) struct Roster {
    pub(super) raft: RaftHandle,
    pub(super) origin: Arc<Origin>,
}

impl Roster {
    pub(super) fn members(&self) -> Vec<Record> {
        members(&self.raft.state(), &self.origin)
    }
}

impl quic::Roster for Roster {
    fn member(&self, fingerprint: &Fingerprint) -> Option<Arc<Member>> {
        let members = self.members();
        let found = members
            .iter()
            .find(|record| record.fingerprint == *fingerprint);
        found.map(|record| record.member.clone())
    }

    fn is_at(&self, address: std::net::IpAddr) -> bool {
        let at = |record: &Record| record.member.address.map(|at| at.ip());
        self.members()
            .iter()
            .any(|record| at(record) == Some(address))
    }
}

#[cfg(test)]
mod tests {
    use jaco_proto::v1;

    use super::*;

    fn state(rows: &[(&str, u64, &str, u8)]) -> State {
        let mut state = State::default();
        for &(hostname, raft_id, address, print) in rows {
            let node = v1::Node {
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

    fn origin(members: &[(&str, u64)]) -> Origin {
        Origin {
            hostname: "me".to_owned(),
            raft_id: 9,
            members: members
                .iter()
                .map(|&(name, id)| Record::new(name, id, "10.0.0.1:1", [7; 32]))
                .collect(),
        }
    }

    fn names(records: &[Record]) -> Vec<(&str, u64, bool)> {
        records
            .iter()
            .map(|r| {
                let member = &r.member;
                (
                    member.hostname.as_str(),
                    member.raft_id,
                    member.address.is_some(),
                )
            })
            .collect()
    }

    #[test]
    fn the_state_names_the_others_and_not_this_node() {
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
    fn until_its_own_record_is_applied_a_joiner_keeps_to_what_it_was_told() {
        let told = origin(&[("a", 1), ("b", 2), ("me", 9)]);
        let expected = [("a", 1, true), ("b", 2, true)];
        let past = state(&[("a", 1, "x", 1), ("old", 4, "x", 4)]);
        assert_eq!(names(&members(&past, &told)), expected);
        // An earlier node of the same name is somebody else.
        let namesake = state(&[("old", 4, "x", 4), ("me", 3, "x", 3)]);
        assert_eq!(names(&members(&namesake, &told)), expected);
    }

    #[test]
    fn without_having_been_told_the_state_is_all_there_is() {
        let state = state(&[("a", 1, "10.0.0.1:7001", 1)]);
        assert_eq!(names(&members(&state, &origin(&[]))), [("a", 1, true)]);
    }
}
