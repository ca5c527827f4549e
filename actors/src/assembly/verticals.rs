//! Verticals of a member: the actors that run once a node has a membership.

use std::sync::Arc;

use jaco_engine::docker::DockerEngine;
use jaco_net::ingress::{AccessLog, Proxy, RotatedFile, Settings};
use jaco_policy::network::firewall::local::{LocalNetworks, LocalReports};
use jaco_raftnode::{
    ForwardingProposer, LeaderProposer, NoTransport, RaftArgs, StateReader as _, actor::spawn,
};
use jaco_supervision::{ChildSpec, Strategy, SupervisorSpec};
use ractor::SpawnErr;
use tokio::sync::watch;

use super::{
    certificates::{certificates, imported, imported_only, secrets_keys},
    network_probe::network_probe,
};
use crate::{
    api::{ApiContext, admission::Transport, service},
    health,
    ingress::{
        self, ProxyActor, ProxyArgs, ServingInput,
        certificate::serving,
        port::{PortManager, PortManagerArgs},
        probe_key::{self, ProbeKeyArgs},
    },
    membership,
    network::{
        self,
        gate::{NoIsolation, SharedGate},
        ipam::Pool,
        mesh::{self, MeshStatus},
    },
    node::{
        Layout, LeaderAllocator, MemberContext, NodeContext,
        leader::{leader_known, leading},
    },
    peer::{self, PeerTransport, Services},
    runtime, scheduler, secrets,
    serving::Installed,
};

/// Length in bytes at which the log of requests is replaced, and how many are kept.
const ACCESS_LOG_BYTES: u64 = 20 << 20;
const ACCESS_LOGS_KEPT: u32 = 5;

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

    let secrets = secrets_key(shared, node, is_leader.clone());
    let pool = Pool::of_cluster(&node.raft.state()).unwrap_or(shared.config.ipam);
    let directory = network::dns::Directory::default();
    let dns = shared.config.dns.clone().map(|config| network::dns::Args {
        host: node.hostname.clone(),
        raft: raft.clone(),
        fresh: node.failure_detector.fresh(),
        pool,
        config,
        metrics: shared.metrics().clone(),
        directory: directory.clone(),
        installed: node.serving.part(network::dns::same_input),
    });
    let responders: Arc<dyn network::responders::Responders> = match &dns {
        Some(_) => Arc::new(directory),
        None => Arc::new(network::responders::NoResponders),
    };
    let local = watch::Sender::default();
    let reports = watch::Sender::<LocalReports>::default();
    let mut firewall =
        { shared.config.isolation }.then(|| firewall(node, pool, &local, reports.subscribe()));
    let enforced = firewall.as_ref().map(|args| args.status.subscribe());
    let mesh = mesh(shared, node, pool, enforced);
    if let Some(firewall) = &mut firewall {
        firewall.mesh = mesh.as_ref().map(|(args, _)| args.status.subscribe());
    }
    let network_status = health::NetworkStatus {
        firewall: firewall.as_ref().map(|args| args.status.subscribe()),
        mesh: mesh.as_ref().map(|(args, _)| args.status.subscribe()),
    };
    if let Some(status) = &network_status.firewall {
        let _ = node.firewall.set(status.clone()); // set once: the verticals are assembled once
    }
    shared
        .metrics()
        .watch_network(&node.hostname, &node.network_reports);
    // Without isolation every forbidden path would be reported as a breach.
    let filter = firewall.as_ref().map(|args| Arc::clone(&args.port));
    let (firewall, gate): (_, SharedGate) = match firewall {
        Some(args) => {
            let (child, gate) = network::firewall::child(args);
            (Some(child), Arc::new(gate))
        }
        None => (None, Arc::new(NoIsolation)),
    };
    let probe = filter.map(|filter| network_probe(node, Arc::clone(&gate), filter, mesh.as_ref()));
    let mesh = mesh.map(|(mesh, _)| mesh);
    let (network, _, networks, allocator) = network::supervisor(network::Args {
        cluster_id: node.cluster_id.clone(),
        host: node.hostname.clone(),
        raft: raft.clone(),
        is_leader: is_leader.clone(),
        clock: clock.clone(),
        pool,
        engine: Arc::new(DockerEngine::new(&shared.config.docker_socket)),
        cluster: submitter.clone(),
        remote: Arc::new(LeaderAllocator(node.leader.clone())),
        interfaces: network::interfaces::of_this_host(),
        gate,
        firewall,
        local,
        responders,
        mesh: mesh.clone(),
        dns,
    });
    let _ = node.allocator.set(allocator); // set once: the verticals are assembled once
    let (runtime, access) = runtime::supervisor(
        "runtime",
        runtime::Deps {
            host: node.hostname.clone(),
            engine: node.engine.clone(),
            networks: Arc::new(networks),
            raft: submitter.clone(),
            clock: clock.clone(),
            contact: health::Contact::of(&node.failure_detector),
            metrics: shared.metrics().clone(),
            routing: Arc::new(node.routing().clone()),
            files: runtime::FileMounts::in_memory(
                Layout::new(&shared.config.data_dir).container_files(),
                secrets_keys(node),
            ),
            reports,
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
        network: network_status,
    });
    let _ = node.runtime.set(access); // set once: the verticals are assembled once
    let (scheduler, _) = scheduler::supervisor(scheduler::Args::new(
        raft.clone(),
        is_leader,
        clock,
        shared.metrics().clone(),
    ));
    let (import, imports) = imported(node);
    let mut ingress = SupervisorSpec::new(Strategy::OneForOne).child(import);
    if let Some(port) = shared.config.http_port {
        let facts = ingress::table::NodeFacts {
            hostname: node.hostname.clone(),
            https: shared.config.certificates.is_some() && shared.config.https_port.is_some(),
            mesh: false,
            unreached: Default::default(),
        };
        let fresh = node.failure_detector.fresh();
        let inherited = &shared.config.inherited;
        let ports = ingress::port::data_plane(&node.hostname, fresh.clone(), inherited.clone());
        shared.metrics().watch_ports(&ports);
        let mut input = ServingInput::new(raft, facts, fresh);
        if let Some(mesh) = mesh {
            input = input.with_mesh(mesh.status.subscribe());
        }
        let proxy = Proxy::observed(proxy_settings(shared), Arc::new(shared.metrics().clone()));
        let (publisher, published) = match &shared.config.certificates {
            Some(settings) => certificates(shared, node, settings, imports),
            None => imported_only(node, imports),
        };
        let presented = published.clone();
        shared.metrics().watch_certificates(move || {
            let by_domain = Arc::clone(&presented.borrow().by_domain);
            let ends = by_domain.iter();
            ends.map(|(domain, material)| (domain.clone(), material.chain.not_after))
                .collect()
        });
        // A node that obtains no certificates answers no challenges.
        let installed = match &shared.config.certificates {
            Some(_) => node.serving.part(serving::same_tokens),
            None => Installed::default(),
        };
        let tls = serving::child(proxy.clone(), published, installed);
        let probes = ProbeKeyArgs {
            proxy: proxy.clone(),
            secrets_key: secrets_keys(node),
        };
        ingress = ingress.child(publisher).child(tls);
        ingress = ingress.child(probe_key::child(probes));
        // Set once: the verticals are assembled once.
        let _ = node.data_planes.set((proxy.clone(), ports.clone()));
        let installed = node.serving.part(jaco_policy::ingress::ports::same_input);
        let ports = PortManagerArgs::new(input.clone(), installed, ports);
        let installed = node.serving.part(ingress::table::same_input);
        let proxy = ProxyArgs::new(input, installed, port, proxy);
        let mut proxy = proxy.with_inherited(inherited.clone());
        if let Some(port) = shared.config.https_port {
            proxy = proxy.with_https(port);
        }
        if let Some(secrets) = node.secrets.get() {
            proxy = proxy.with_secrets_key(secrets.subscribe());
        }
        ingress = ingress
            .child(ChildSpec::worker::<ProxyActor>("proxy", proxy).0)
            .child(ChildSpec::worker::<PortManager>("ports", ports).0);
    }
    let (ingress, _) = ChildSpec::supervisor("ingress", ingress);
    let raft = raft_supervisor(api, node, ca_pem);
    let first = [raft, secrets, health, network].into_iter().chain(probe);
    first.chain([runtime, scheduler, ingress]).collect()
}

/// Creates the actor of the secrets key.
fn secrets_key(
    shared: &Arc<NodeContext>,
    node: &Arc<MemberContext>,
    is_leader: watch::Receiver<bool>,
) -> ChildSpec {
    let (child, secrets) = secrets::child(secrets::Args {
        host: node.hostname.clone(),
        file: Layout::new(&shared.config.data_dir).secrets_key(),
        raft: Arc::new(node.raft.clone()),
        is_leader,
        peers: Arc::new(node.peers.clone()),
        clock: node.clock.clone(),
        sealing_lock: node.sealing_lock.clone(),
        reseal: secrets::RESEALERS,
    });
    let _ = node.secrets.set(secrets); // set once: the verticals are assembled once
    child
}

/// Settings of the data plane. Requests are served without their log if it cannot be opened.
fn proxy_settings(shared: &NodeContext) -> Settings {
    let mut settings = Settings::default();
    if let Some(path) = &shared.config.ingress_access_log {
        let file = RotatedFile::open(path.clone(), ACCESS_LOG_BYTES, ACCESS_LOGS_KEPT);
        match file.and_then(AccessLog::start) {
            Ok(log) => {
                shared.metrics().watch_access_log(&log);
                settings.access_log = Some(log);
            }
            Err(error) => {
                tracing::error!(subsystem = "ingress", path = %path.display(), %error, "failed to open the log of requests");
            }
        }
    }
    settings
}

/// Arguments of the mesh and its device, if the node has one.
fn mesh(
    shared: &Arc<NodeContext>,
    node: &Arc<MemberContext>,
    pool: Pool,
    firewall: Option<watch::Receiver<network::firewall::Status>>,
) -> Option<(mesh::Args, mesh::KernelPort)> {
    let (settings, key) = (shared.config.mesh?, shared.mesh_key.clone()?);
    let waiting = MeshStatus::Unprotected("the mesh device is not set up yet".to_owned());
    let (port, backend, resumed) = (settings.port, settings.backend, &shared.config.resumed_mesh);
    let device = mesh::KernelPort::resuming(key, port, backend, resumed);
    let _ = node.mesh.set(device.clone()); // set once: the verticals are assembled once
    let mesh = mesh::Args {
        host: node.hostname.clone(),
        port: settings.port,
        pool,
        firewall,
        raft: Arc::new(node.submitter()),
        clock: node.clock.clone(),
        mesh: Arc::new(device.clone()),
        status: watch::Sender::new(waiting),
    };
    Some((mesh, device))
}

/// Firewall of a node that isolates deployments.
fn firewall(
    node: &Arc<MemberContext>,
    pool: Pool,
    local: &watch::Sender<Option<Arc<LocalNetworks>>>,
    reports: watch::Receiver<LocalReports>,
) -> network::firewall::Args {
    network::firewall::Args {
        host: node.hostname.clone(),
        raft: Arc::new(node.submitter()),
        leader_known: leader_known(&node.raft),
        pool,
        local: local.subscribe(),
        reports,
        mesh: None,
        clock: node.clock.clone(),
        port: Arc::new(network::firewall::KernelPort::default()),
        status: watch::Sender::default(),
    }
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
