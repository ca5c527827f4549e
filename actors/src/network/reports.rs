//! The newest report of each member about its container networks; kept in memory only.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::Arc,
    time::Duration,
};

use jaco_policy::network::status;
use jaco_proto::v1::{DroppedPackets, NetworkFault, NetworkStatusResponse, NodeNetwork};
use jaco_state::State;
use tokio::{sync::watch, time::Instant};

/// Age above which a report counts no longer: the endpoints in it are not probed, and its faults are
/// not shown. Members report more often than that.
pub const MAX_AGE: Duration = Duration::from_secs(90);
/// Limits on the lists of a report.
const MAX_PEERS: usize = 4096;
const MAX_BRIDGES: usize = 16_384;
const MAX_VIOLATIONS: usize = 256;
const MAX_DROP_REASONS: usize = 64;

/// A report over the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the list {0} of the report is too long")]
pub struct TooLong(pub &'static str);

/// A report with the time of its receipt.
#[derive(Clone, Debug)]
struct Received {
    at: Instant,
    report: Arc<NodeNetwork>,
}

/// Reports by hostname; a clone shares them.
#[derive(Clone, Debug)]
pub struct NetworkReports(Arc<watch::Sender<BTreeMap<String, Received>>>);

impl Default for NetworkReports {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(BTreeMap::new())))
    }
}

impl NetworkReports {
    /// Stores the report of member `host`, which replaces its last one.
    ///
    /// # Errors
    /// [`TooLong`]; the last report stays.
    pub fn put(&self, host: &str, report: NodeNetwork) -> Result<(), TooLong> {
        check(&report)?;
        let received = Received {
            at: Instant::now(),
            report: Arc::new(report),
        };
        self.0.send_modify(|reports| {
            reports.insert(host.to_owned(), received);
        });
        Ok(())
    }

    /// Drops the reports of hosts that are no member of `state`.
    pub fn retain_members(&self, state: &State) {
        self.0.send_if_modified(|reports| {
            let before = reports.len();
            reports.retain(|host, _| state.nodes.contains_key(host));
            reports.len() != before
        });
    }

    /// Status of the members of `state`.
    #[must_use]
    pub fn status(&self, state: &State) -> NetworkStatusResponse {
        let reports = self.0.borrow().clone();
        let now = Instant::now();
        let fresh = |host: &str| {
            let received = reports.get(host)?;
            let age = now.saturating_duration_since(received.at);
            (age <= MAX_AGE).then(|| (NodeNetwork::clone(&received.report), age))
        };
        status::status(state, fresh)
    }

    /// Faults that the members of `state` report.
    #[must_use]
    pub fn faults(&self, state: &State) -> Vec<NetworkFault> {
        self.status(state).faults
    }

    /// Packets that member `host` dropped, by reason, by its last report.
    #[must_use]
    pub fn dropped(&self, host: &str) -> Vec<DroppedPackets> {
        let reports = self.0.borrow();
        let report = reports.get(host).map(|received| &received.report);
        report
            .map(|report| report.drops.clone())
            .unwrap_or_default()
    }

    /// Addresses of the probe endpoints that answer, by the reports of the last [`MAX_AGE`].
    #[must_use]
    pub fn live(&self) -> BTreeSet<Ipv4Addr> {
        let reports = self.0.borrow();
        let now = Instant::now();
        let fresh = reports
            .values()
            .filter(|received| now.saturating_duration_since(received.at) <= MAX_AGE);
        fresh
            .flat_map(|received| &received.report.bridges)
            .filter_map(|bridge| bridge.probe_address.parse().ok())
            .collect()
    }
}

fn check(report: &NodeNetwork) -> Result<(), TooLong> {
    let paths = || report.paths.iter();
    let lists = [
        ("peers", report.peers.len(), MAX_PEERS),
        ("bridges", report.bridges.len(), MAX_BRIDGES),
        ("paths", report.paths.len(), 2 * MAX_BRIDGES),
        (
            "violations",
            paths().map(|path| path.violations.len()).max().unwrap_or(0),
            MAX_VIOLATIONS,
        ),
        ("drops", report.drops.len(), MAX_DROP_REASONS),
    ];
    match lists.iter().find(|(_, length, limit)| length > limit) {
        Some((list, ..)) => Err(TooLong(list)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use jaco_proto::v1::{BridgeStatus, Node, PathVerdict};

    use super::*;

    fn report(probe_address: &str) -> NodeNetwork {
        NodeNetwork {
            bridges: vec![BridgeStatus {
                probe_address: probe_address.to_owned(),
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    fn members(hosts: &[&str]) -> State {
        let mut state = State::default();
        for &host in hosts {
            let node = Node {
                hostname: host.to_owned(),
                ..Default::default()
            };
            state.nodes.insert(host.to_owned(), Arc::new(node));
        }
        state
    }

    #[tokio::test(start_paused = true)]
    async fn old_reports_do_not_count() {
        let reports = NetworkReports::default();
        reports.put("a", report("10.244.0.254")).unwrap();
        reports.put("b", report("")).unwrap();
        let state = members(&["a", "b"]);
        let ages = |reports: &NetworkReports| -> Vec<bool> {
            let status = reports.status(&state);
            status.nodes.iter().map(|node| node.age.is_some()).collect()
        };
        assert_eq!(reports.live(), [[10, 244, 0, 254].into()].into());
        assert_eq!(ages(&reports), [true, true]);
        tokio::time::advance(MAX_AGE).await;
        reports.put("b", report("10.244.1.254")).unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(reports.live(), [[10, 244, 1, 254].into()].into());
        assert_eq!(ages(&reports), [false, true]);
        reports.retain_members(&members(&["a"]));
        assert!(reports.live().is_empty());
    }

    #[test]
    fn oversized_report_is_refused() {
        let reports = NetworkReports::default();
        let peers = NodeNetwork {
            peers: vec![Default::default(); MAX_PEERS + 1],
            ..Default::default()
        };
        let violations = NodeNetwork {
            paths: vec![PathVerdict {
                violations: vec![Default::default(); MAX_VIOLATIONS + 1],
                ..Default::default()
            }],
            ..Default::default()
        };
        let drops = NodeNetwork {
            drops: vec![Default::default(); MAX_DROP_REASONS + 1],
            ..Default::default()
        };
        for (report, list) in [
            (peers, "peers"),
            (violations, "violations"),
            (drops, "drops"),
        ] {
            assert_eq!(reports.put("a", report), Err(TooLong(list)));
        }
        assert!(reports.live().is_empty());
    }
}
