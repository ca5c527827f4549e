//! Verticals of a member: the actors that run once a node has a membership.

use std::sync::Arc;

use jaco_engine::docker::DockerEngine;
use jaco_net::proxy::{Proxy, Settings};
use jaco_raftnode::{ForwardingProposer, LeaderProposer, NoTransport, RaftArgs, actor::spawn};
use jaco_supervision::{ChildSpec, Strategy, SupervisorSpec};
use ractor::SpawnErr;

use crate::{
    api::{ApiContext, admission::Transport, service},
    health,
    ingress::{self, ProxyActor, ProxyArgs},
    membership, network,
    node::{LeaderAllocator, MemberContext, leader::leading},
    peer::{self, PeerTransport, Services},
    runtime, scheduler,
};

/// Builds the verticals of a member, in start order; called once per node.
pub(super) fn build(
    api: &Arc<ApiContext>,
    node: &Arc<MemberContext>,
    ca_pem: String,
) -> Vec<ChildSpec> {
    let shared = api.node();
    let raft: Arc<dyn LeaderProposer> = Arc::new(node.raft.clone());
    let submitter: Arc<dyn ForwardingProposer> = Arc::new(node.submitter());
    let is_leader = leading(&node.raft);
    let clock = node.clock.clone();

    let (network, _, directory, allocator) = network::supervisor(network::Args {
        cluster_id: node.cluster_id.clone(),
        host: node.hostname.clone(),
        raft: raft.clone(),
        is_leader: is_leader.clone(),
        clock: clock.clone(),
        pool: shared.config.ipam,
        engine: Arc::new(DockerEngine::new(&shared.config.docker_socket)),
        remote: Arc::new(LeaderAllocator(node.leader.clone())),
    });
    let _ = node.allocator.set(allocator); // set once: the verticals are assembled once
    let (runtime, access) = runtime::supervisor(
        "runtime",
        runtime::Deps {
            host: node.hostname.clone(),
            engine: node.engine.clone(),
            networks: Arc::new(directory),
            raft: submitter.clone(),
            clock: clock.clone(),
            contact: health::Contact::of(&node.failure_detector),
            metrics: shared.metrics().clone(),
        },
    );
    let health = health::worker(health::Args {
        failure_detector: node.failure_detector.clone(),
        host: node.hostname.clone(),
        raft: raft.clone(),
        cluster: submitter.clone(),
        confirm: health::confirm_by_read_index(&node.raft),
        orphans_cleared: access.orphans_cleared(),
        engine: node.engine.clone(),
        clock: clock.clone(),
    });
    let _ = node.runtime.set(access); // set once: the verticals are assembled once
    let (scheduler, _) = scheduler::supervisor(scheduler::Args::new(
        raft.clone(),
        is_leader,
        clock,
        shared.metrics().clone(),
    ));
    let mut ingress = SupervisorSpec::new(Strategy::OneForOne);
    if let Some(port) = shared.config.http_port {
        let facts = ingress::table::NodeFacts {
            hostname: node.hostname.clone(),
            https: false,
            mesh: false,
        };
        let proxy = Proxy::observed(Settings::default(), Arc::new(shared.metrics().clone()));
        let proxy = ProxyArgs::new(raft, facts, node.failure_detector.fresh(), port, proxy);
        ingress = ingress.child(ChildSpec::worker::<ProxyActor>("proxy", proxy).0);
    }
    let (ingress, _) = ChildSpec::supervisor("ingress", ingress);
    vec![
        raft_supervisor(api, node, ca_pem),
        health,
        network,
        runtime,
        scheduler,
        ingress,
    ]
}

/// Supervisor of the raft actor and its dependents, which start after it and restart with it.
fn raft_supervisor(api: &Arc<ApiContext>, node: &Arc<MemberContext>, ca_pem: String) -> ChildSpec {
    let shared = api.node();
    let report = shared.clone();
    let transport = node.transport.as_ref().map(PeerTransport::raft_transport);
    let args = RaftArgs {
        storage: node.storage.clone(),
        handle: node.raft.clone(),
        transport: transport.unwrap_or_else(|| Arc::new(NoTransport)),
        observer: Arc::new(shared.metrics().clone()),
        on_fatal: Arc::new(move |error: &(dyn std::error::Error + 'static)| {
            let _ = report.report_fatal(error);
        }),
        limits: node.limits.clone(),
    };
    let raft = ChildSpec::external("raft", "RaftActor", move |supervisor| {
        let args = args.clone();
        async move {
            spawn(args, supervisor)
                .await
                .map_err(|error| SpawnErr::StartupFailed(Box::new(error)))
        }
    });
    let deps = membership::Deps {
        raft: Arc::new(node.raft.clone()),
        clock: node.clock.clone(),
        drain_mark_lock: node.drain_mark_lock.clone(),
    };
    let (members, membership) = membership::actor(node.raft.clone(), deps);
    let _ = node.membership.set(membership); // set once: the verticals are assembled once
    let mut spec = SupervisorSpec::new(Strategy::RestForOne).child(raft);
    if let (Some(transport), Some(address)) = (&node.transport, shared.config.cluster_addr) {
        spec = spec.child(peer::supervisor(peer::Args {
            transport: transport.clone(),
            address,
            identity: shared.certificate.clone(),
            ca_pem,
            services: Services::new(service(api, Transport::Peer)),
            heartbeat: node.failure_detector.clone(),
            metrics: shared.metrics().clone(),
        }));
    }
    ChildSpec::supervisor("raft", spec.child(members)).0
}
