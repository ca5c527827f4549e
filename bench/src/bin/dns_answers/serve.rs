//! JACO's responder of one network, as a node runs it.

use std::{path::PathBuf, sync::Arc};

use anyhow::{Context as _, Result};
use jaco_actors::{
    clock::Clock,
    health::Hosts,
    network::{
        dns::{self, Directory, DnsConfig},
        ipam::Pool,
        responders::Responders as _,
    },
    serving::Installed,
    supervision::{Strategy, SupervisorSpec, Tree},
    telemetry::Metrics,
};
use jaco_policy::network::names::NetworkId;
use jaco_proto::{
    config::HostPort,
    v1::{self, ReplicaState},
};
use jaco_raftnode::{State, StateReader};
use tokio::sync::watch;

use crate::lab;

const HOST: &str = "here";

struct Fixed(watch::Sender<Arc<State>>);

impl StateReader for Fixed {
    fn state(&self) -> Arc<State> {
        self.0.borrow().clone()
    }

    fn subscribe(&self) -> watch::Receiver<Arc<State>> {
        self.0.subscribe()
    }
}

/// Serves until the process ends.
pub(crate) fn serve() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let (_hosts, fresh) = watch::channel(Hosts::default());
        let directory = Directory::default();
        let network = NetworkId::new("shop", "front");
        directory.ensure(&network, lab::BLOCK.parse()?);
        let (host, port) = lab::UPSTREAM;
        let forwarder = HostPort {
            host: host.to_owned(),
            port,
        };
        let children = dns::children(dns::Args {
            host: HOST.to_owned(),
            raft: Arc::new(Fixed(watch::Sender::new(Arc::new(shop())))),
            fresh,
            pool: Pool::default(),
            config: DnsConfig {
                forwarders: vec![forwarder],
                resolv_conf: PathBuf::from("/dev/null"),
                port: lab::PORT,
                ..DnsConfig::default()
            },
            metrics: Metrics::new(HOST, Clock::system()),
            directory,
            installed: Installed::default(),
        });
        let spec = SupervisorSpec::new(Strategy::OneForOne);
        let spec = children.into_iter().fold(spec, SupervisorSpec::child);
        let _tree = Tree::start("network", spec).await.context("the actors")?;
        std::future::pending().await
    })
}

/// A deployment with three running replicas of the service.
fn shop() -> State {
    let mut state = State::default();
    let service = v1::ServiceSpec {
        name: lab::SERVICE.to_owned(),
        networks: vec!["front".to_owned()],
        ..Default::default()
    };
    let deployment = v1::Deployment {
        name: "shop".to_owned(),
        services: vec![service],
        ..Default::default()
    };
    let name = deployment.name.clone();
    state.deployments.insert(name.clone(), Arc::new(deployment));
    for address in lab::ADDRESSES {
        let id = format!("shop-web-{address}");
        let desired = v1::ReplicaDesired {
            id: id.clone(),
            deployment: name.clone(),
            service: lab::SERVICE.to_owned(),
            host: HOST.to_owned(),
            ..Default::default()
        };
        let observed = v1::ReplicaObserved {
            id: id.clone(),
            state: ReplicaState::Running.into(),
            host: HOST.to_owned(),
            details: [("ip.jaco_shop_front".to_owned(), address.to_owned())].into(),
            ..Default::default()
        };
        state.replicas_desired.insert(id.clone(), Arc::new(desired));
        state.replicas_observed.insert(id, Arc::new(observed));
    }
    state
}
