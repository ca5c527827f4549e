//! Who is a member, read off the replicated state.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
};

use jaco_net::{
    pki::Fingerprint,
    quic::{self, Member},
};
use jaco_proto::v1::Node;
use jaco_raftnode::{Propose as _, RaftHandle, State};

use crate::supervision::lock;

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

impl Origin {
    fn is_other(&self, record: &Record) -> bool {
        let member = &record.member;
        member.hostname != self.hostname && member.raft_id != self.raft_id
    }
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
        let others = origin.members.iter().filter(|r| origin.is_other(r));
        return others.cloned().collect();
    }
    let others = rows(state).filter(|record| origin.is_other(record));
    others.collect()
}

/// The members in `state`, apart from rows that no peer can be known by.
pub(super) fn rows(state: &State) -> impl Iterator<Item = Record> {
    let named = state.nodes.values().filter(|node| node.raft_id != 0);
    named.filter_map(|node| {
        let print = <[u8; 32]>::try_from(&node.server_cert_fingerprint[..]).ok()?;
        let Node {
            hostname, address, ..
        } = &**node;
        Some(Record::new(hostname, node.raft_id, address, print))
    })
}

/// The roster of another member, which has applied more of the log than this node.
///
/// A node that was away may not know the very member that leads now, and without it would never
/// hear of it. What a member says counts while it is connected and until this node has applied
/// as much. Nobody gets in by it who has no certificate of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    /// Index of the last entry that the member has applied.
    pub(super) applied: u64,
    /// The members at that index, all of them.
    pub(super) members: Vec<Record>,
}

/// `members` as this node knows them at `applied`, and what those who know more say.
#[must_use]
fn with_told<'a>(
    members: Vec<Record>,
    applied: u64,
    told: impl Iterator<Item = &'a Told>,
    origin: &Origin,
) -> Vec<Record> {
    let mut newest: BTreeMap<String, (u64, Record)> = members
        .into_iter()
        .map(|record| (record.member.hostname.clone(), (applied, record)))
        .collect();
    for told in told.filter(|told| told.applied > applied) {
        for record in told.members.iter().filter(|record| origin.is_other(record)) {
            let known = newest.get(&record.member.hostname);
            if known.is_none_or(|(known, _)| told.applied > *known) {
                let name = record.member.hostname.clone();
                newest.insert(name, (told.applied, record.clone()));
            }
        }
    }
    newest.into_values().map(|(_, record)| record).collect()
}

/// The roster as the transport asks for it, always that of the state as it is applied.
#[derive(Clone, Debug)]
pub(super) struct Roster {
    pub(super) raft: RaftHandle,
    pub(super) origin: Arc<Origin>,
    /// What connected members say, by hostname.
    told: Arc<Mutex<BTreeMap<String, Told>>>,
}

impl Roster {
    pub(super) fn new(raft: RaftHandle, origin: Origin) -> Self {
        Self {
            raft,
            origin: Arc::new(origin),
            told: Arc::default(),
        }
    }

    pub(super) fn members(&self) -> Vec<Record> {
        let state = self.raft.state();
        let members = members(&state, &self.origin);
        let told = lock(&self.told);
        with_told(members, state.applied_index, told.values(), &self.origin)
    }

    /// Connected member `host` says this. `true` if it says something new to this node.
    pub(super) fn hear(&self, host: &str, told: Told) -> bool {
        if told.applied <= self.raft.state().applied_index {
            return false;
        }
        lock(&self.told).insert(host.to_owned(), told);
        true
    }

    /// Member `host` is not connected any more.
    pub(super) fn forget(&self, host: &str) {
        lock(&self.told).remove(host);
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

    fn is_at(&self, address: IpAddr) -> bool {
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
    fn who_has_applied_more_is_believed_about_what_this_node_does_not_know_yet() {
        let own = members(&state(&[("a", 1, "x", 1), ("b", 2, "x", 2)]), &origin(&[]));
        let told = |applied, rows: &[(&str, u64, u8)]| Told {
            applied,
            members: rows
                .iter()
                .map(|&(name, id, print)| Record::new(name, id, "10.0.0.7:1", [print; 32]))
                .collect(),
        };
        let told = [
            told(11, &[("a", 1, 1), ("me", 9, 9), ("c", 3, 3)]),
            told(12, &[("a", 1, 7), ("namesake-of-me", 9, 9)]),
            told(10, &[("late", 4, 4)]),
        ];
        let found = with_told(own, 10, told.iter(), &origin(&[]));
        // Nobody is taken away by what is said: that is for the state to do.
        assert_eq!(
            names(&found),
            [("a", 1, true), ("b", 2, false), ("c", 3, true)]
        );
        assert_eq!(found[0].fingerprint, Fingerprint::from_bytes([7; 32]));
    }

    #[test]
    fn without_having_been_told_the_state_is_all_there_is() {
        let state = state(&[("a", 1, "10.0.0.1:7001", 1)]);
        assert_eq!(names(&members(&state, &origin(&[]))), [("a", 1, true)]);
    }
}
