//! Cluster members according to the replicated state.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use jaco_net::{
    pki::Fingerprint,
    quic::{self, Member},
};
use jaco_proto::v1::Node;
use jaco_raftnode::{RaftHandle, State, StateReader as _};

use super::{
    Sender,
    gossip::{MembershipView, PeerReport, merge_reports},
};
use crate::lock::lock;

/// Another cluster member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerInfo {
    /// Hostname, raft id and address.
    pub(crate) member: Arc<Member>,
    /// Fingerprint of the certificate it must present.
    pub(crate) fingerprint: Fingerprint,
    /// Addresses reported by other members, apart from its own.
    pub(crate) reported_addresses: Vec<SocketAddr>,
    /// Whether the member is known from reports only while the state has another member of the same
    /// hostname.
    pub(crate) namesake: bool,
}

impl PeerInfo {
    /// Returns a member at `address`. An address that does not parse leaves it without one, and
    /// only that member can dial.
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
            reported_addresses: Vec::new(),
            namesake: false,
        }
    }

    /// Key of its route: its hostname, or `hostname~raft_id` for a namesake.
    #[must_use]
    pub(crate) fn key(&self) -> String {
        let Member {
            hostname, raft_id, ..
        } = &*self.member;
        if self.namesake {
            // `~` is invalid in hostnames, so the key is unique.
            format!("{hostname}~{raft_id}")
        } else {
            hostname.clone()
        }
    }

    /// Addresses to dial, in order of attempts.
    pub(super) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        let own = self.member.address.into_iter();
        own.chain(self.reported_addresses.iter().copied())
    }
}

/// Identity of this node, and the members known when it joined.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    /// Hostname of this node.
    pub(crate) hostname: String,
    /// Raft id of this node.
    pub(crate) raft_id: u64,
    /// Members in the leader's response to the join; empty if this node founded the cluster.
    pub(crate) members: Vec<PeerInfo>,
}

impl Origin {
    pub(super) fn is_other(&self, record: &PeerInfo) -> bool {
        let member = &record.member;
        member.hostname != self.hostname && member.raft_id != self.raft_id
    }
}

/// Returns the members other than this node.
///
/// A node that joined replays entries from before its join, when it was not a member. Until its own
/// record is applied, the members from the join response are used.
#[must_use]
pub(crate) fn members(state: &State, origin: &Origin) -> Vec<PeerInfo> {
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
pub(super) fn rows(state: &State) -> impl Iterator<Item = PeerInfo> {
    let named = state.nodes.values().filter(|node| node.raft_id != 0);
    named.filter_map(|node| {
        let print = <[u8; 32]>::try_from(&node.server_cert_fingerprint[..]).ok()?;
        let Node {
            hostname, address, ..
        } = &**node;
        Some(PeerInfo::new(hostname, node.raft_id, address, print))
    })
}

/// Member directory of the transport, computed from the latest applied state on every access.
#[derive(Clone, Debug)]
pub(super) struct MemberDirectory {
    pub(super) raft: RaftHandle,
    pub(super) origin: Arc<Origin>,
    /// Last reports of connected members, by record key.
    reports: Arc<Mutex<BTreeMap<String, PeerReport>>>,
    /// Number of the last report.
    serial: Arc<AtomicU64>,
}

impl MemberDirectory {
    pub(super) fn new(raft: RaftHandle, origin: Origin) -> Self {
        Self {
            raft,
            origin: Arc::new(origin),
            reports: Arc::default(),
            serial: Arc::default(),
        }
    }

    pub(super) fn members(&self) -> Vec<PeerInfo> {
        let state = self.raft.state();
        let members = members(&state, &self.origin);
        let reports = lock(&self.reports);
        merge_reports(members, state.applied_index, reports.values(), &self.origin)
    }

    /// Stores the membership view `view` of the connected member with record `key`. Returns `false`
    /// if this node has applied its index already.
    pub(super) fn record_report(&self, key: &str, speaker: &Sender, view: MembershipView) -> bool {
        if view.applied <= self.raft.state().applied_index {
            return false;
        }
        let mut reports = lock(&self.reports);
        let serial = self.serial.fetch_add(1, Ordering::Relaxed) + 1;
        let report = PeerReport {
            speaker: speaker.clone(),
            view,
            serial,
        };
        reports.insert(key.to_owned(), report);
        true
    }

    /// Drops the report of the member with record `key`, after it disconnected.
    pub(super) fn drop_report(&self, key: &str) {
        lock(&self.reports).remove(key);
    }

    /// Number of the newest stored report; `None` without one.
    pub(super) fn last_report(&self) -> Option<u64> {
        lock(&self.reports)
            .values()
            .map(|report| report.serial)
            .max()
    }

    /// Drops reports up to `serial`: this node has applied every entry committed when that one
    /// arrived.
    pub(super) fn discard_reports(&self, serial: u64) {
        lock(&self.reports).retain(|_, report| report.serial > serial);
    }
}

impl quic::Roster for MemberDirectory {
    fn member(&self, fingerprint: &Fingerprint) -> Option<Arc<Member>> {
        let members = self.members();
        let found = members
            .iter()
            .find(|record| record.fingerprint == *fingerprint);
        found.map(|record| record.member.clone())
    }

    fn has_member_at(&self, address: IpAddr) -> bool {
        let at = |record: &PeerInfo| record.member.address.map(|at| at.ip());
        self.members()
            .iter()
            .any(|record| at(record) == Some(address))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use jaco_proto::v1;

    use super::*;

    pub(in super::super) fn state(rows: &[(&str, u64, &str, u8)]) -> State {
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
