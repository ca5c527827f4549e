//! Builds the create request of one service from two manifests, in the same steps as a start.

use std::collections::BTreeMap;

use jaco_engine::{
    docker::{self, ContainerCreateBody},
    spec::{self, Attachment, ContainerSpec, FileMount, Networking},
};
use jaco_policy::network::names::NetworkId;
use jaco_proto::{
    manifest::{
        self, ClusterView,
        compose::{NetworkMode, Project, Service},
    },
    v1::{ReplicaDesired, ServiceSpec, TransportProtocol},
};

/// A cluster that has every host, owns no name or port and permits everything.
pub(crate) struct Anything;

impl ClusterView for Anything {
    fn has_host(&self, _: &str) -> bool {
        true
    }

    fn port_owner(&self, _: u16, _: TransportProtocol) -> Option<String> {
        None
    }

    fn route_owner(&self, _: &str, _: &str) -> Option<String> {
        None
    }

    fn identity(&self) -> &str {
        "local"
    }

    fn allows_privileged(&self) -> bool {
        true
    }
}

/// Requests of a start to the engine.
pub(crate) struct Start {
    /// The create request.
    pub(crate) body: ContainerCreateBody,
    /// Platform of the pull and of the create request.
    pub(crate) platform: Option<String>,
    /// Networks joined between create and start.
    pub(crate) connects: Vec<String>,
}

/// Returns the start of replica 0 of a service.
pub(crate) fn start(jaco: &str, compose: &str, name: &str) -> Start {
    let resolved = manifest::resolve(jaco.as_bytes(), compose.as_bytes(), &Anything)
        .unwrap_or_else(|error| panic!("{error}: {:?}\n{compose}", error.details));
    let document = Project::parse(compose.as_bytes()).unwrap();
    let service = &document.services[name];
    let spec = resolved.services.iter().find(|spec| spec.name == name);
    project(&resolved.deployment, &document, name, service, spec)
}

/// Returns the start of replica 0 of a service that is already parsed.
pub(crate) fn project(
    deployment: &str,
    document: &Project,
    name: &str,
    service: &Service,
    spec: Option<&ServiceSpec>,
) -> Start {
    let networks = spec::networks(spec, service);
    let bridges: Vec<Attachment> = networks
        .iter()
        .enumerate()
        .map(|(index, network)| Attachment {
            network: network.clone(),
            engine_network: NetworkId::new(deployment, network).engine_name(),
            gateway: format!("10.0.{index}.1"),
        })
        .collect();
    let shared_containers: BTreeMap<String, String> = spec::shared_services(service)
        .into_iter()
        .map(|name| (name.to_owned(), format!("<id of {name}>")))
        .collect();
    let networking = match &service.network_mode {
        Some(NetworkMode::Service(name)) => Networking::Joined(name.clone()),
        Some(NetworkMode::None) => Networking::None,
        Some(NetworkMode::Host) => Networking::Host,
        None => Networking::Attached(bridges.clone()),
    };
    let row = ReplicaDesired {
        id: format!("{deployment}-{name}-0"),
        deployment: deployment.to_owned(),
        service: name.to_owned(),
        raft_index: 7,
        ..Default::default()
    };
    let files = service.configs.iter().chain(&service.secrets);
    let files = files.map(|file| FileMount {
        source: format!("<file {}>", file.source),
        target: file.target.clone(),
        replaces: None,
    });
    let body = docker::project(&ContainerSpec {
        cluster_id: "c1".to_owned(),
        row,
        service: service.clone(),
        volumes: document.volumes.clone(),
        networking,
        shared_containers,
        files: files.collect(),
        home: "/home/jaco".to_owned(),
    });
    let rest = bridges.into_iter().skip(1);
    Start {
        body,
        platform: service.platform.clone(),
        connects: rest.map(|bridge| bridge.engine_network).collect(),
    }
}
