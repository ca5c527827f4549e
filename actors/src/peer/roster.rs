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
///
/// How much a member has applied is only its word, so it counts no longer than the state here
/// calls the speaker a member, with the certificate it has shown, and never for the speaker
/// itself: whoever is removed falls, and with it all who were known by its word alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    /// Index of the last entry that the member has applied.
    pub(super) applied: u64,
    /// The members at that index, all of them.
    pub(super) members: Vec<Record>,
}

/// Who said something.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Speaker {
    hostname: String,
    /// Of the certificate it has shown.
    fingerprint: Fingerprint,
}

/// `members` as this node knows them at `applied`, and what those of them who know more say.
#[must_use]
fn with_told<'a>(
    members: Vec<Record>,
    applied: u64,
    told: impl Iterator<Item = &'a (Speaker, Told)>,
    origin: &Origin,
) -> Vec<Record> {
    // Nobody known by hearsay alone is believed about others.
    let believed = |(speaker, told): &&(Speaker, Told)| {
        let is = |record: &Record| {
            record.member.hostname == speaker.hostname && record.fingerprint == speaker.fingerprint
        };
        told.applied > applied && members.iter().any(is)
    };
    let told: Vec<_> = told.filter(believed).collect();
    // Two names with one raft id, or one certificate, could not be told apart.
    let is_sound = |told: &Record| {
        members.iter().all(|known| {
            known.member.hostname == told.member.hostname
                || known.member.raft_id != told.member.raft_id
                    && known.fingerprint != told.fingerprint
        })
    };
    let mut newest: BTreeMap<String, (u64, Record)> = members
        .iter()
        .map(|record| (record.member.hostname.clone(), (applied, record.clone())))
        .collect();
    for (speaker, told) in told {
        let others = told.members.iter().filter(|record| {
            record.member.hostname != speaker.hostname
                && origin.is_other(record)
                && is_sound(record)
        });
        for record in others {
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
    told: Arc<Mutex<BTreeMap<String, (Speaker, Told)>>>,
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

    /// Connected member `host`, which has shown the certificate `fingerprint`, says this. `true`
    /// if it says something new to this node.
    pub(super) fn hear(&self, host: &str, fingerprint: &Fingerprint, told: Told) -> bool {
        if told.applied <= self.raft.state().applied_index {
            return false;
        }
        let speaker = Speaker {
            hostname: host.to_owned(),
            fingerprint: *fingerprint,
        };
        lock(&self.told).insert(host.to_owned(), (speaker, told));
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

    /// Members of raft ids and fingerprints, as `speaker` has them at `applied`.
    fn told(speaker: (&str, u8), applied: u64, rows: &[(&str, u64, u8)]) -> (Speaker, Told) {
        let speaker = Speaker {
            hostname: speaker.0.to_owned(),
            fingerprint: Fingerprint::from_bytes([speaker.1; 32]),
        };
        let members = rows
            .iter()
            .map(|&(name, id, print)| Record::new(name, id, "10.0.0.7:1", [print; 32]))
            .collect();
        (speaker, Told { applied, members })
    }

    #[test]
    fn who_has_applied_more_is_believed_about_what_this_node_does_not_know_yet() {
        let own = members(&state(&[("a", 1, "x", 1), ("b", 2, "x", 2)]), &origin(&[]));
        let told = [
            told(("a", 1), 11, &[("b", 2, 6), ("me", 9, 9), ("c", 3, 3)]),
            told(("b", 2), 12, &[("a", 1, 7), ("namesake-of-me", 9, 9)]),
            told(("a", 1), 10, &[("late", 4, 4)]),
        ];
        let found = with_told(own, 10, told.iter(), &origin(&[]));
        // Nobody is taken away by what is said: that is for the state to do.
        assert_eq!(
            names(&found),
            [("a", 1, true), ("b", 2, true), ("c", 3, true)]
        );
        let prints = [7, 6, 3].map(|print| Fingerprint::from_bytes([print; 32]));
        let found: Vec<_> = found.iter().map(|record| record.fingerprint).collect();
        assert_eq!(found, prints);
    }

    #[test]
    fn a_removed_member_speaks_for_nobody_however_much_it_claims_to_know() {
        const MOST: u64 = u64::MAX;
        let own = || members(&state(&[("a", 1, "x", 1), ("b", 2, "x", 2)]), &origin(&[]));
        let table: &[(&str, &[(Speaker, Told)])] = &[
            (
                "gone",
                &[told(("gone", 5), MOST, &[("gone", 5, 5), ("c", 3, 3)])],
            ),
            (
                "known by the word of somebody who is gone",
                &[
                    told(("gone", 5), MOST, &[("d", 6, 6), ("e", 7, 7)]),
                    told(("d", 6), MOST, &[("e", 7, 7), ("gone", 5, 5)]),
                    told(("e", 7), MOST, &[("d", 6, 6), ("gone", 5, 5)]),
                ],
            ),
            (
                "a member's name with another certificate",
                &[told(("a", 8), MOST, &[("c", 3, 3), ("b", 2, 8)])],
            ),
            ("of itself", &[told(("a", 1), MOST, &[("a", 1, 8)])]),
            (
                "a raft id or a certificate of somebody else",
                &[told(
                    ("a", 1),
                    MOST,
                    &[("c", 2, 3), ("d", 4, 2), ("e", 1, 5)],
                )],
            ),
        ];
        for (case, told) in table {
            let found = with_told(own(), 10, told.iter(), &origin(&[]));
            assert_eq!(found, own(), "{case}");
        }
    }

    #[test]
    fn without_having_been_told_the_state_is_all_there_is() {
        let state = state(&[("a", 1, "10.0.0.1:7001", 1)]);
        assert_eq!(names(&members(&state, &origin(&[]))), [("a", 1, true)]);
    }
}
