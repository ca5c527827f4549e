//! Member directory of the transport; [`jaco_policy::peer`] computes the members.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use jaco_net::{
    pki::Fingerprint,
    quic::{self, Member},
};
use jaco_policy::peer::{
    gossip::{MembershipView, PeerReport, merge_reports},
    members::{Origin, PeerInfo, members},
};
use jaco_raftnode::{RaftHandle, StateReader as _};

use super::Sender;
use crate::lock::lock;

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
            speaker: speaker.into(),
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
            .find(|record| record.fingerprint == *fingerprint.as_bytes());
        found.map(|record| {
            Arc::new(Member {
                hostname: record.hostname.clone(),
                raft_id: record.raft_id,
                address: record.address,
            })
        })
    }

    fn has_member_at(&self, address: IpAddr) -> bool {
        let at = |record: &PeerInfo| record.address.map(|at| at.ip());
        self.members()
            .iter()
            .any(|record| at(record) == Some(address))
    }
}
