//! Parameters of a container to create, and the parts of a service and a row that they come from.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jaco_proto::{
    manifest::compose::{Namespace, NetworkMode, Service, VolumeDeclaration, shared_name},
    v1::{ReplicaDesired, ServiceSpec},
};

use crate::labels::{
    LABEL_CLUSTER, LABEL_DEPLOYMENT, LABEL_RAFT_INDEX, LABEL_REPLICA, LABEL_REPLICA_INDEX,
    LABEL_SERVICE,
};

/// Network of a service that lists none.
pub const DEFAULT_NETWORK: &str = "_default";

/// Network of this host that is ready for containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Name of the network in the document.
    pub network: String,
    /// Name of the network in the engine.
    pub engine_network: String,
    /// Address of the bridge, on which its DNS resolver listens.
    pub gateway: String,
}

/// A file or a directory that this host has written for a container, which cannot change it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileMount {
    /// Path on the host.
    pub source: String,
    /// Path in the container.
    pub target: String,
    /// Bind of the document that it replaces, by its source.
    pub replaces: Option<String>,
}

/// Network configuration of a container.
#[derive(Clone, Debug)]
pub enum Networking {
    /// These networks, in attach order; the first is attached at creation.
    Attached(Vec<Attachment>),
    /// Loopback only.
    None,
    /// The network namespace of the host.
    Host,
    /// Shares the network namespace of a container of this service.
    Joined(String),
}

/// Parameters of a container to create.
#[derive(Clone, Debug)]
pub struct ContainerSpec {
    /// Cluster the container belongs to.
    pub cluster_id: String,
    /// Row it is created from.
    pub row: ReplicaDesired,
    /// Its service in the stored document.
    pub service: Service,
    /// Top-level volumes of that document.
    pub volumes: BTreeMap<String, VolumeDeclaration>,
    /// Files that this host has written for it.
    pub files: Vec<FileMount>,
    /// Network configuration.
    pub networking: Networking,
    /// Containers whose namespaces or volumes it shares, by service.
    pub shared_containers: BTreeMap<String, String>,
    /// Home directory of the daemon's user; replaces `~` in bind paths.
    pub home: String,
}

impl ContainerSpec {
    /// Labels of the container; those of JACO override those of the document.
    #[must_use]
    pub fn labels(&self) -> HashMap<String, String> {
        let row = &self.row;
        let own = [
            (LABEL_CLUSTER, self.cluster_id.clone()),
            (LABEL_DEPLOYMENT, row.deployment.clone()),
            (LABEL_SERVICE, row.service.clone()),
            (LABEL_REPLICA, row.id.clone()),
            (LABEL_REPLICA_INDEX, row.index.to_string()),
            (LABEL_RAFT_INDEX, row.raft_index.to_string()),
        ];
        let compose = self.service.labels.clone().into_iter();
        compose
            .chain(own.map(|(key, value)| (key.to_owned(), value)))
            .collect()
    }
}

/// Networks of a service in attach order: those of the deployment's revision, else those of the
/// document, else the default network.
#[must_use]
pub fn networks(spec: Option<&ServiceSpec>, service: &Service) -> Vec<String> {
    if service.network_mode.is_some() {
        return Vec::new();
    }
    let listed = spec
        .map(|spec| &spec.networks)
        .filter(|networks| !networks.is_empty())
        .unwrap_or(&service.networks);
    let mut resolved: Vec<String> = Vec::with_capacity(listed.len().max(1));
    for name in listed {
        let name = if name == "default" {
            DEFAULT_NETWORK
        } else {
            name
        };
        if !resolved.iter().any(|known| known == name) {
            resolved.push(name.to_owned());
        }
    }
    if resolved.is_empty() {
        resolved.push(DEFAULT_NETWORK.to_owned());
    }
    resolved
}

/// Settings of a container on one network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointConfig {
    /// DNS names of the container on this network.
    pub aliases: Vec<String>,
    /// Priority as default route; the highest wins.
    pub gateway_priority: Option<i64>,
}

/// Returns the settings of a replica on `network`, by its name in the document.
#[must_use]
pub fn endpoint_config(row: &ReplicaDesired, service: &Service, network: &str) -> EndpointConfig {
    let (name, deployment) = (&row.service, &row.deployment);
    let settings = service.network_settings.get(network);
    let given = settings.map(|settings| settings.aliases.as_slice());
    let full = [
        format!("{name}.{deployment}"),
        format!("{name}.{deployment}.jaco.internal"),
    ];
    if shared_name(network).is_some() {
        // The engine answers before JACO does, for the services of all deployments alike.
        return EndpointConfig {
            aliases: full.into(),
            gateway_priority: settings.and_then(|settings| settings.gateway_priority),
        };
    }
    let mut aliases = vec![name.clone()];
    aliases.extend(full);
    for alias in service
        .container_name
        .iter()
        .chain(given.unwrap_or_default())
    {
        if !aliases.contains(alias) {
            aliases.push(alias.clone());
        }
    }
    EndpointConfig {
        aliases,
        gateway_priority: settings.and_then(|settings| settings.gateway_priority),
    }
}

/// Name of a replica's container.
#[must_use]
pub fn container_name(replica_id: &str) -> String {
    format!("jaco_{replica_id}")
}

/// Image of a row; rows written by older versions have none and use the document's.
#[must_use]
pub fn image<'a>(row: &'a ReplicaDesired, service: &'a Service) -> &'a str {
    if row.image.is_empty() {
        service.image.as_deref().unwrap_or_default()
    } else {
        &row.image
    }
}

/// Whether a service declares a health check that is not disabled.
#[must_use]
pub fn declares_healthcheck(service: &Service) -> bool {
    let test = service.healthcheck.as_ref().map(|check| check.test.first());
    // A declared check without its own test runs the image's test.
    test.is_some_and(|kind| kind.is_none_or(|kind| !kind.eq_ignore_ascii_case("none")))
}

/// Service whose network namespace a service joins.
#[must_use]
pub fn joined_service(service: &Service) -> Option<&str> {
    match &service.network_mode {
        Some(NetworkMode::Service(name)) => Some(name),
        Some(NetworkMode::None | NetworkMode::Host) | None => None,
    }
}

/// Services of which a replica must run on this host because a namespace or the volumes of it are
/// shared.
#[must_use]
pub fn shared_services(service: &Service) -> BTreeSet<&str> {
    let others = [&service.ipc, &service.pid, &service.uts];
    let others = others.into_iter().flatten().filter_map(Namespace::service);
    let volumes = service
        .volumes_from
        .iter()
        .map(|from| from.service.as_str());
    let joined = joined_service(service).into_iter();
    joined.chain(others).chain(volumes).collect()
}
