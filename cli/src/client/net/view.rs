//! Rows and tables of `jaco net`.

use std::time::Duration;

use jaco_proto::v1::{self, MeshState, PathExpectation, PathJudgement};
use serde::Serialize;

use crate::client::output::{
    View,
    table::{self, col, free},
    text::{enum_name, short_duration},
};

/// Status of the container networks.
#[derive(Debug, Serialize)]
pub(super) struct NetView {
    nodes: Vec<NodeView>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    faults: Vec<FaultRow>,
}

#[derive(Debug, Serialize)]
struct NodeView {
    hostname: String,
    /// Whether the answering node has a recent report of this one.
    reported: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    age_ms: Option<u64>,
    mesh: MeshRow,
    peers: Vec<PeerRow>,
    networks: Vec<NetworkRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    drops: Vec<DropRow>,
}

/// Packets that a node dropped for one reason since its daemon started.
#[derive(Debug, Serialize)]
struct DropRow {
    reason: String,
    packets: u64,
}

#[derive(Debug, Serialize)]
struct MeshRow {
    state: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    address: String,
    port: u32,
    /// Sum over the peers.
    rx_bytes_per_second: u64,
    tx_bytes_per_second: u64,
}

#[derive(Debug, Serialize)]
struct PeerRow {
    hostname: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    endpoint: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    handshake_age_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rtt_us: Option<u64>,
    loss: f64,
    rx_bytes: u64,
    tx_bytes: u64,
    rx_bytes_per_second: u64,
    tx_bytes_per_second: u64,
}

#[derive(Debug, Serialize)]
struct NetworkRow {
    deployment: String,
    network: String,
    block: String,
    bridge: String,
    /// `up`, `down` or `unknown`.
    state: &'static str,
    allowed: PathRow,
    forbidden: PathRow,
}

/// Verdict about the allowed or the forbidden paths of a network.
#[derive(Debug, Default, Serialize)]
struct PathRow {
    /// `ok`, `violated` or `untested`.
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    probe_age_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rtt_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<EndRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    violations: Vec<EndRow>,
}

/// End of a probed path.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct EndRow {
    hostname: String,
    deployment: String,
    network: String,
    address: String,
}

/// A fault of a container network.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct FaultRow {
    severity: String,
    code: String,
    hostname: String,
    deployment: String,
    network: String,
    target: EndRow,
}

impl NetView {
    /// Shows only `host` if it is given.
    pub(super) fn new(response: v1::NetworkStatusResponse, host: Option<&str>) -> Self {
        let is_shown = |hostname: &str| host.is_none_or(|host| host == hostname);
        let nodes = response.nodes.into_iter();
        let faults = response.faults.into_iter();
        Self {
            nodes: nodes
                .filter(|node| is_shown(&node.hostname))
                .map(NodeView::from)
                .collect(),
            faults: faults
                .filter(|fault| is_shown(&fault.hostname))
                .map(FaultRow::from)
                .collect(),
        }
    }
}

impl From<v1::NodeNetwork> for NodeView {
    fn from(node: v1::NodeNetwork) -> Self {
        let reported = node.age.is_some();
        let networks = node.bridges.iter();
        let networks = networks.map(|bridge| {
            let path = |expectation| {
                let mut paths = node.paths.iter();
                let found = paths.find(|path| {
                    path.deployment == bridge.deployment
                        && path.network == bridge.network
                        && path.expectation() == expectation
                });
                found.map_or_else(PathRow::untested, PathRow::from)
            };
            NetworkRow {
                allowed: path(PathExpectation::Allowed),
                forbidden: path(PathExpectation::Forbidden),
                deployment: bridge.deployment.clone(),
                network: bridge.network.clone(),
                block: bridge.block.clone(),
                bridge: bridge.bridge.clone(),
                state: match (reported, bridge.up) {
                    (false, _) => "unknown",
                    (true, true) => "up",
                    (true, false) => "down",
                },
            }
        });
        Self {
            reported,
            age_ms: node.age.map(millis),
            networks: networks.collect(),
            mesh: MeshRow::new(node.mesh.unwrap_or_default(), &node.peers),
            peers: node.peers.into_iter().map(PeerRow::from).collect(),
            drops: node.drops.into_iter().map(DropRow::from).collect(),
            hostname: node.hostname,
        }
    }
}

impl MeshRow {
    fn new(mesh: v1::MeshDevice, peers: &[v1::MeshPeer]) -> Self {
        let sum = |rate: fn(&v1::MeshPeer) -> u64| {
            let rates = peers.iter().map(rate);
            rates.fold(0, u64::saturating_add)
        };
        let state = match mesh.state() {
            MeshState::Unspecified => "unknown".to_owned(),
            known => enum_name(known.as_str_name(), "MESH_STATE_"),
        };
        Self {
            state,
            reason: mesh.reason,
            address: mesh.address,
            port: mesh.port,
            rx_bytes_per_second: sum(|peer| peer.rx_bytes_per_second),
            tx_bytes_per_second: sum(|peer| peer.tx_bytes_per_second),
        }
    }
}

impl From<v1::DroppedPackets> for DropRow {
    fn from(dropped: v1::DroppedPackets) -> Self {
        Self {
            reason: dropped.reason,
            packets: dropped.packets,
        }
    }
}

impl From<v1::MeshPeer> for PeerRow {
    fn from(peer: v1::MeshPeer) -> Self {
        Self {
            hostname: peer.hostname,
            endpoint: peer.endpoint,
            handshake_age_ms: peer.handshake_age.map(millis),
            rtt_us: peer.rtt.map(|rtt| rtt.micros),
            loss: peer.loss,
            rx_bytes: peer.rx_bytes,
            tx_bytes: peer.tx_bytes,
            rx_bytes_per_second: peer.rx_bytes_per_second,
            tx_bytes_per_second: peer.tx_bytes_per_second,
        }
    }
}

impl PathRow {
    fn untested() -> Self {
        Self {
            verdict: "untested",
            ..Self::default()
        }
    }
}

impl From<&v1::PathVerdict> for PathRow {
    fn from(path: &v1::PathVerdict) -> Self {
        Self {
            verdict: match path.judgement() {
                PathJudgement::Unspecified => "untested",
                PathJudgement::Ok => "ok",
                PathJudgement::Violated => "violated",
            },
            probe_age_ms: path.probe_age.map(millis),
            rtt_us: path.rtt.map(|rtt| rtt.micros),
            target: path.target.clone().map(EndRow::from),
            violations: path.violations.iter().cloned().map(EndRow::from).collect(),
        }
    }
}

impl From<v1::PathEnd> for EndRow {
    fn from(end: v1::PathEnd) -> Self {
        Self {
            hostname: end.hostname,
            deployment: end.deployment,
            network: end.network,
            address: end.address,
        }
    }
}

impl From<v1::NetworkFault> for FaultRow {
    fn from(fault: v1::NetworkFault) -> Self {
        Self {
            severity: enum_name(fault.severity().as_str_name(), "FAULT_SEVERITY_"),
            code: fault.code,
            hostname: fault.hostname,
            deployment: fault.deployment,
            network: fault.network,
            target: fault.target.unwrap_or_default().into(),
        }
    }
}

impl FaultRow {
    /// Renders faults as a table with a heading; empty without faults.
    pub(crate) fn table(faults: &[Self]) -> String {
        if faults.is_empty() {
            return String::new();
        }
        let columns = ["SEVERITY", "CODE", "HOST"].map(col);
        let columns = [&columns[..], &[free("FROM"), free("TO")]].concat();
        let rows = faults.iter().map(|fault| {
            vec![
                fault.severity.to_uppercase(),
                fault.code.clone(),
                fault.hostname.clone(),
                format!("{}/{}", fault.deployment, fault.network),
                fault.target.text(),
            ]
        });
        format!("\nErrors:\n{}", table::render(&columns, rows))
    }
}

impl EndRow {
    fn text(&self) -> String {
        format!(
            "{}/{} on {} ({})",
            self.deployment, self.network, self.hostname, self.address
        )
    }
}

impl View for NetView {
    fn text(&self) -> String {
        let nodes = || self.nodes.iter();
        let mut text = "Nodes:\n".to_owned();
        let columns = [
            "HOST", "MESH", "ADDRESS", "PORT", "RX/S", "TX/S", "REPORTED",
        ];
        text += &table::render(&columns.map(col), nodes().map(NodeView::cells));
        let reasons = nodes().filter(|node| !node.mesh.reason.is_empty());
        let reasons = reasons.map(|node| vec![node.hostname.clone(), node.mesh.reason.clone()]);
        let reasons: Vec<_> = reasons.collect();
        if !reasons.is_empty() {
            text += "\nMesh:\n";
            text += &table::render(&[col("HOST"), free("REASON")], reasons);
        }
        text += "\nPeers:\n";
        let columns = [
            "HOST",
            "PEER",
            "HANDSHAKE",
            "RTT",
            "LOSS",
            "RX",
            "TX",
            "RX/S",
            "TX/S",
        ];
        let rows = nodes().flat_map(|node| node.peers.iter().map(|peer| peer.cells(node)));
        text += &table::render(&columns.map(col), rows);
        text += "\nNetworks:\n";
        let columns = [
            "HOST",
            "DEPLOYMENT",
            "NETWORK",
            "BLOCK",
            "BRIDGE",
            "STATE",
            "ALLOWED",
            "FORBIDDEN",
            "PROBED",
        ];
        let rows = nodes().flat_map(|node| node.networks.iter().map(|row| row.cells(node)));
        text += &table::render(&columns.map(col), rows);
        let rows = nodes().flat_map(|node| node.drops.iter().map(|row| row.cells(node)));
        let rows: Vec<_> = rows.collect();
        if !rows.is_empty() {
            text += "\nDropped:\n";
            text += &table::render(&["HOST", "REASON", "PACKETS"].map(col), rows);
        }
        text + &FaultRow::table(&self.faults)
    }
}

impl NodeView {
    fn cells(&self) -> Vec<String> {
        let address = match self.mesh.address.is_empty() {
            true => "-".to_owned(),
            false => self.mesh.address.clone(),
        };
        vec![
            self.hostname.clone(),
            self.mesh.state.to_uppercase(),
            address,
            self.mesh.port.to_string(),
            size(self.mesh.rx_bytes_per_second),
            size(self.mesh.tx_bytes_per_second),
            ago(self.age_ms),
        ]
    }
}

impl PeerRow {
    fn cells(&self, node: &NodeView) -> Vec<String> {
        vec![
            node.hostname.clone(),
            self.hostname.clone(),
            ago(self.handshake_age_ms),
            round_trip(self.rtt_us),
            format!("{:.1}%", self.loss * 100.0),
            size(self.rx_bytes),
            size(self.tx_bytes),
            size(self.rx_bytes_per_second),
            size(self.tx_bytes_per_second),
        ]
    }
}

impl DropRow {
    fn cells(&self, node: &NodeView) -> Vec<String> {
        vec![
            node.hostname.clone(),
            self.reason.clone(),
            self.packets.to_string(),
        ]
    }
}

impl NetworkRow {
    fn cells(&self, node: &NodeView) -> Vec<String> {
        let (allowed, forbidden) = (self.allowed.verdict, self.forbidden.verdict);
        let newest = [&self.allowed, &self.forbidden];
        let newest = newest.iter().filter_map(|path| path.probe_age_ms).min();
        vec![
            node.hostname.clone(),
            self.deployment.clone(),
            self.network.clone(),
            self.block.clone(),
            self.bridge.clone(),
            self.state.to_uppercase(),
            match allowed {
                "ok" => format!("OK {}", round_trip(self.allowed.rtt_us)),
                "violated" => "UNREACHABLE".to_owned(),
                other => other.to_uppercase(),
            },
            match forbidden {
                "ok" => "BLOCKED".to_owned(),
                "violated" => "BREACH".to_owned(),
                other => other.to_uppercase(),
            },
            ago(newest),
        ]
    }
}

fn millis(time: v1::Elapsed) -> u64 {
    time.micros / 1000
}

/// Formats an age: `5s ago`; `-` if it is absent.
fn ago(ms: Option<u64>) -> String {
    ms.map_or_else(
        || "-".to_owned(),
        |ms| format!("{} ago", short_duration(Duration::from_millis(ms))),
    )
}

/// Formats a round-trip time in milliseconds; `-` if it is absent.
fn round_trip(micros: Option<u64>) -> String {
    micros.map_or_else(
        || "-".to_owned(),
        |micros| format!("{}.{:02}ms", micros / 1000, micros % 1000 / 10),
    )
}

/// Formats a number of bytes with one decimal and a binary unit: `512B`, `1.5KiB`.
fn size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = "B";
    for larger in units {
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    match unit {
        "B" => format!("{bytes}B"),
        _ => format!("{value:.1}{unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        for (bytes, expected) in [
            (0, "0B"),
            (1023, "1023B"),
            (1024, "1.0KiB"),
            (1536, "1.5KiB"),
            (1 << 20, "1.0MiB"),
            ((1 << 20) - 1, "1.0MiB"),
            (5 << 30, "5.0GiB"),
            (u64::MAX, "16.0EiB"),
        ] {
            assert_eq!(size(bytes), expected, "{bytes}");
        }
    }

    #[test]
    fn absent_times_are_dashes() {
        assert_eq!((ago(None), round_trip(None)), ("-".into(), "-".into()));
        assert_eq!(ago(Some(61_000)), "1m01s ago");
        for (micros, expected) in [(0, "0.00ms"), (999, "0.99ms"), (12_345, "12.34ms")] {
            assert_eq!(round_trip(Some(micros)), expected);
        }
    }

    #[test]
    fn one_host_is_shown_alone() {
        let node = |hostname: &str| v1::NodeNetwork {
            hostname: hostname.to_owned(),
            ..Default::default()
        };
        let fault = |hostname: &str| v1::NetworkFault {
            hostname: hostname.to_owned(),
            ..Default::default()
        };
        let response = v1::NetworkStatusResponse {
            nodes: vec![node("a"), node("b")],
            faults: vec![fault("a"), fault("b")],
        };
        for (host, expected) in [(None, 2), (Some("b"), 1), (Some("c"), 0)] {
            let view = NetView::new(response.clone(), host);
            assert_eq!((view.nodes.len(), view.faults.len()), (expected, expected));
        }
    }
}
