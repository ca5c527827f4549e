//! The probes of a member's container networks.

use std::sync::Arc;

use jaco_supervision::ChildSpec;

use crate::{
    network::{
        firewall,
        gate::SharedGate,
        mesh::{self, KernelPort},
        probe::{Args, DeviceStats, KernelProber, MeshStats, NoMeshStats, worker},
    },
    node::MemberContext,
};

/// Creates the actor of a member whose networks are isolated by `firewall`, and wait for `gate`.
pub(super) fn network_probe(
    node: &Arc<MemberContext>,
    gate: SharedGate,
    firewall: firewall::SharedPort,
    mesh: Option<&(mesh::Args, KernelPort)>,
) -> ChildSpec {
    let stats: Arc<dyn MeshStats> = match mesh {
        Some((mesh, device)) => Arc::new(DeviceStats {
            host: mesh.host.clone(),
            raft: mesh.raft.clone(),
            device: device.clone(),
            port: mesh.port,
            status: mesh.status.subscribe(),
        }),
        None => Arc::new(NoMeshStats),
    };
    worker(Args {
        host: node.hostname.clone(),
        cluster: Arc::new(node.submitter()),
        peers: node.peers.clone(),
        reports: node.network_reports.clone(),
        mesh: stats,
        drops: Arc::new(move || firewall.drops()),
        prober: Arc::new(KernelProber::new(&node.cluster_id, &node.hostname, gate)),
        clock: node.clock.clone(),
    })
}
