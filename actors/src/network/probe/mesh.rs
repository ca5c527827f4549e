//! State of the mesh for reports, read from its device.

use std::sync::Arc;

use futures::future::BoxFuture;
use jaco_net::wireguard::PeerStats;
use jaco_policy::network::{
    mesh::address,
    probe::{
        report::{MeshView, PeerView},
        throughput::Counters,
    },
    readiness::MeshStatus,
};
use jaco_proto::v1::MeshState;
use jaco_raftnode::StateReader;
use tokio::sync::watch;

use super::MeshStats;
use crate::network::mesh::KernelPort;

/// The mesh of a node that has one.
#[derive(Clone)]
pub struct DeviceStats {
    /// This host.
    pub host: String,
    /// Reads the nodes, which the addresses are computed from.
    pub raft: Arc<dyn StateReader>,
    /// The device.
    pub device: KernelPort,
    /// UDP port of the device.
    pub port: u16,
    /// Status after the last pass of the mesh's actor.
    pub status: watch::Receiver<MeshStatus>,
}

impl MeshStats for DeviceStats {
    fn mesh(&self) -> BoxFuture<'static, MeshView> {
        let this = self.clone();
        Box::pin(async move {
            let (peers, drops) = this.device.stats().await;
            let state = this.raft.state();
            let nodes = state.nodes.values().map(AsRef::as_ref);
            let status = this.status.borrow().clone();
            MeshView {
                state: state_of(&status),
                reason: status.fault().unwrap_or_default(),
                address: address::assign(nodes).get(this.host.as_str()).copied(),
                port: Some(this.port),
                peers: peers.iter().map(peer).collect(),
                drops,
            }
        })
    }
}

fn state_of(status: &MeshStatus) -> MeshState {
    match status {
        MeshStatus::Up | MeshStatus::Partial { .. } => MeshState::Up,
        MeshStatus::Unavailable(_)
        | MeshStatus::Unprotected(_)
        | MeshStatus::ForeignRoutes { .. }
        | MeshStatus::Overlaps(_) => MeshState::Down,
        MeshStatus::Off => MeshState::Unavailable,
    }
}

fn peer(stats: &PeerStats) -> PeerView {
    PeerView {
        public_key: stats.public_key.0.to_vec(),
        endpoint: stats.endpoint,
        handshake_age: stats.last_handshake,
        rtt: stats.rtt,
        loss: stats.loss.map(f64::from),
        counters: Counters {
            rx: stats.rx_bytes,
            tx: stats.tx_bytes,
        },
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jaco_net::wireguard::PublicKey;

    use super::*;

    #[test]
    fn peers_keep_what_the_device_measured() {
        let stats = PeerStats {
            public_key: PublicKey([7; 32]),
            endpoint: Some(([10, 0, 0, 2], 51820).into()),
            last_handshake: Some(Duration::from_secs(3)),
            rtt: None,
            loss: Some(0.5),
            rx_bytes: 8,
            tx_bytes: 9,
        };
        let view = peer(&stats);
        assert_eq!(view.public_key, [7; 32]);
        assert_eq!((view.loss, view.rtt), (Some(0.5), None));
        assert_eq!(view.counters, Counters { rx: 8, tx: 9 });
        for (status, expected) in [
            (MeshStatus::Up, MeshState::Up),
            (MeshStatus::Unavailable(String::new()), MeshState::Down),
            (MeshStatus::Unprotected(String::new()), MeshState::Down),
            (
                MeshStatus::ForeignRoutes {
                    routes: String::new(),
                    unreached: Default::default(),
                },
                MeshState::Down,
            ),
            (MeshStatus::Off, MeshState::Unavailable),
        ] {
            assert_eq!(state_of(&status), expected, "{status:?}");
        }
    }
}
