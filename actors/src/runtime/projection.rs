//! Builds the engine's create request from a compose service and a row. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bollard::models::{
    ContainerCreateBody, DeviceMapping, DeviceRequest, EndpointSettings, HealthConfig, HostConfig,
    HostConfigCgroupnsModeEnum, HostConfigLogConfig, NetworkingConfig, ResourcesUlimits,
};
use jaco_proto::{
    manifest::compose::{Healthcheck, Logging, Namespace, NetworkMode, Service, VolumeDeclaration},
    v1::{ReplicaDesired, ServiceSpec},
};

use crate::labels::{
    LABEL_CLUSTER, LABEL_DEPLOYMENT, LABEL_RAFT_INDEX, LABEL_REPLICA, LABEL_REPLICA_INDEX,
    LABEL_SERVICE,
};

mod mounts;
#[cfg(test)]
mod tests;

/// Network of a service that lists none.
pub const DEFAULT_NETWORK: &str = "_default";

/// Network of this host that is ready for containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Name of the network in the engine.
    pub engine_network: String,
    /// Address of the bridge, on which its DNS resolver listens.
    pub gateway: String,
}

/// Network configuration of a container.
#[derive(Clone, Copy, Debug)]
pub enum Networking<'a> {
    /// These networks, in attach order; the first is attached at creation.
    Attached(&'a [Attachment]),
    /// Loopback only.
    None,
    /// Shares the network namespace of a container of this service.
    Joined(&'a str),
}

/// Input of [`project`].
#[derive(Clone, Copy, Debug)]
pub struct ProjectionInput<'a> {
    /// Cluster the container belongs to.
    pub cluster_id: &'a str,
    /// Row it is created from.
    pub row: &'a ReplicaDesired,
    /// Its service in the stored document.
    pub service: &'a Service,
    /// Top-level volumes of that document.
    pub volumes: &'a BTreeMap<String, VolumeDeclaration>,
    /// Network configuration.
    pub networking: Networking<'a>,
    /// Containers whose namespaces it shares, by service.
    pub namespace_containers: &'a BTreeMap<String, String>,
    /// Home directory of the daemon's user; replaces `~` in bind paths.
    pub home: &'a str,
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

/// DNS names of a replica on each of its networks.
#[must_use]
pub fn aliases(row: &ReplicaDesired) -> Vec<String> {
    let (service, deployment) = (&row.service, &row.deployment);
    vec![
        service.clone(),
        format!("{service}.{deployment}"),
        format!("{service}.{deployment}.jaco.internal"),
    ]
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

/// Builds the create request of a container.
#[must_use]
pub fn project(source: &ProjectionInput<'_>) -> ContainerCreateBody {
    let service = source.service;
    let attached = matches!(source.networking, Networking::Attached(_));
    ContainerCreateBody {
        image: Some(image(source.row, service).to_owned()),
        cmd: service.command.clone(),
        entrypoint: service.entrypoint.clone(),
        working_dir: service.working_dir.clone(),
        user: service.user.clone(),
        hostname: service.hostname.clone().filter(|_| attached),
        domainname: service.domainname.clone().filter(|_| attached),
        env: Some(environment(&service.environment)),
        labels: Some(labels(source)),
        healthcheck: service.healthcheck.as_ref().map(healthcheck),
        stop_signal: service.stop_signal.clone(),
        stop_timeout: service
            .stop_grace_period
            .and_then(|grace| i64::try_from(grace.as_secs()).ok()),
        host_config: Some(host_config(source)),
        networking_config: first_network(source),
        ..Default::default()
    }
}

fn environment(environment: &BTreeMap<String, Option<String>>) -> Vec<String> {
    environment
        .iter()
        .map(|(key, value)| format!("{key}={}", value.as_deref().unwrap_or_default()))
        .collect()
}

fn labels(source: &ProjectionInput<'_>) -> HashMap<String, String> {
    let row = source.row;
    let own = [
        (LABEL_CLUSTER, source.cluster_id.to_owned()),
        (LABEL_DEPLOYMENT, row.deployment.clone()),
        (LABEL_SERVICE, row.service.clone()),
        (LABEL_REPLICA, row.id.clone()),
        (LABEL_REPLICA_INDEX, row.index.to_string()),
        (LABEL_RAFT_INDEX, row.raft_index.to_string()),
    ];
    let compose = source.service.labels.clone().into_iter();
    compose
        .chain(own.map(|(key, value)| (key.to_owned(), value)))
        .collect()
}

fn healthcheck(check: &Healthcheck) -> HealthConfig {
    let nanos = |duration: Option<std::time::Duration>| {
        duration.map(|duration| i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
    };
    HealthConfig {
        test: some(check.test.clone()),
        interval: nanos(check.interval),
        timeout: nanos(check.timeout),
        retries: check.retries,
        start_period: nanos(check.start_period),
        start_interval: None,
    }
}

fn first_network(source: &ProjectionInput<'_>) -> Option<NetworkingConfig> {
    let Networking::Attached([first, ..]) = source.networking else {
        return None;
    };
    let endpoint = EndpointSettings {
        aliases: Some(aliases(source.row)),
        ..Default::default()
    };
    Some(NetworkingConfig {
        endpoints_config: Some(HashMap::from([(first.engine_network.clone(), endpoint)])),
    })
}

fn host_config(source: &ProjectionInput<'_>) -> HostConfig {
    let service = source.service;
    let (network_mode, resolvers, attached) = match source.networking {
        Networking::Attached(bridges) => (
            bridges.first().map(|first| first.engine_network.clone()),
            resolvers(service, bridges),
            true,
        ),
        Networking::None => (Some("none".to_owned()), Vec::new(), false),
        Networking::Joined(name) => (namespace_of(source, name), Vec::new(), false),
    };
    let if_attached = |list: &Vec<String>| some(list.clone()).filter(|_| attached);
    let (binds, mounts) = mounts::split(source);
    let resources = &service.resources;
    HostConfig {
        network_mode,
        dns: some(resolvers),
        dns_search: if_attached(&service.dns_search),
        dns_options: if_attached(&service.dns_opt),
        extra_hosts: if_attached(&service.extra_hosts),
        binds: some(binds),
        mounts: some(mounts),
        tmpfs: (!service.tmpfs.is_empty()).then(|| service.tmpfs.clone().into_iter().collect()),
        readonly_rootfs: Some(service.read_only),
        privileged: Some(service.privileged),
        init: service.init,
        shm_size: service.shm_size,
        cap_add: some(service.cap_add.clone()),
        cap_drop: some(service.cap_drop.clone()),
        security_opt: some(service.security_opt.clone()),
        sysctls: (!service.sysctls.is_empty())
            .then(|| service.sysctls.clone().into_iter().collect()),
        ulimits: some(ulimits(service)),
        devices: some(devices(service)),
        device_requests: some(device_requests(service)),
        ipc_mode: namespace(source, service.ipc.as_ref()),
        pid_mode: namespace(source, service.pid.as_ref()),
        uts_mode: namespace(source, service.uts.as_ref()),
        userns_mode: service.userns_mode.clone(),
        cgroup_parent: service.cgroup_parent.clone(),
        cgroupns_mode: service.cgroup.as_deref().and_then(cgroup_namespace),
        log_config: service.logging.as_ref().and_then(log_config),
        nano_cpus: resources.nano_cpus,
        memory: resources.memory,
        memory_reservation: resources.memory_reservation,
        pids_limit: resources.pids.filter(|pids| *pids > 0),
        cpu_shares: resources.cpu_shares,
        cpuset_cpus: resources.cpuset.clone(),
        ..Default::default()
    }
}

/// `None` when the service does not configure logging.
fn log_config(logging: &Logging) -> Option<HostConfigLogConfig> {
    let driver = (!logging.driver.is_empty()).then(|| logging.driver.clone());
    let options = (!logging.options.is_empty()).then(|| logging.options.clone());
    (driver.is_some() || options.is_some()).then(|| HostConfigLogConfig {
        typ: driver,
        config: options.map(|options| options.into_iter().collect()),
    })
}

/// Namespace mode in the engine's syntax.
fn namespace(source: &ProjectionInput<'_>, namespace: Option<&Namespace>) -> Option<String> {
    match namespace? {
        Namespace::Engine(mode) => Some(mode.clone()),
        Namespace::Service(name) => namespace_of(source, name),
    }
}

/// Namespace of the container that runs `service`.
fn namespace_of(source: &ProjectionInput<'_>, service: &str) -> Option<String> {
    let container = source.namespace_containers.get(service)?;
    Some(format!("container:{container}"))
}

/// Resolvers of the document, else those of every attached network.
fn resolvers(service: &Service, bridges: &[Attachment]) -> Vec<String> {
    if service.dns.is_empty() {
        bridges
            .iter()
            .map(|bridge| bridge.gateway.clone())
            .collect()
    } else {
        service.dns.clone()
    }
}

fn ulimits(service: &Service) -> Vec<ResourcesUlimits> {
    let limit =
        |(name, limit): (&String, &jaco_proto::manifest::compose::Ulimit)| ResourcesUlimits {
            name: Some(name.clone()),
            soft: Some(limit.soft),
            hard: Some(limit.hard),
        };
    service.ulimits.iter().map(limit).collect()
}

fn devices(service: &Service) -> Vec<DeviceMapping> {
    service
        .devices
        .iter()
        .map(|device| DeviceMapping {
            path_on_host: Some(device.source.clone()),
            path_in_container: Some(device.target.clone()),
            cgroup_permissions: Some(device.permissions.clone()),
        })
        .collect()
}

fn device_requests(service: &Service) -> Vec<DeviceRequest> {
    service
        .gpus
        .iter()
        .map(|gpu| DeviceRequest {
            driver: (!gpu.driver.is_empty()).then(|| gpu.driver.clone()),
            // The engine accepts either a count or ids.
            count: gpu.device_ids.is_empty().then_some(gpu.count),
            device_ids: some(gpu.device_ids.clone()),
            // One inner list: all of them must be present.
            capabilities: some(gpu.capabilities.clone()).map(|all| vec![all]),
            options: (!gpu.options.is_empty()).then(|| gpu.options.clone().into_iter().collect()),
        })
        .collect()
}

fn cgroup_namespace(mode: &str) -> Option<HostConfigCgroupnsModeEnum> {
    match mode {
        "host" => Some(HostConfigCgroupnsModeEnum::HOST),
        "private" => Some(HostConfigCgroupnsModeEnum::PRIVATE),
        _ => None,
    }
}

/// `None` for an empty list, so that the engine applies its default.
fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

/// Service whose network namespace a service joins.
#[must_use]
pub fn joined_service(service: &Service) -> Option<&str> {
    match &service.network_mode {
        Some(NetworkMode::Service(name)) => Some(name),
        Some(NetworkMode::None) | None => None,
    }
}

/// Services of which a replica must run on this host because a namespace of it is shared.
#[must_use]
pub fn namespace_services(service: &Service) -> BTreeSet<&str> {
    let others = [&service.ipc, &service.pid, &service.uts];
    let others = others.into_iter().flatten().filter_map(Namespace::service);
    joined_service(service).into_iter().chain(others).collect()
}
