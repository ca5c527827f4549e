//! Builds the engine's create request from a compose service and a row. Pure.

use std::collections::{BTreeMap, HashMap};

use bollard::models::{
    ContainerCreateBody, DeviceMapping, DeviceRequest, EndpointSettings, HealthConfig, HostConfig,
    HostConfigCgroupnsModeEnum, HostConfigLogConfig, NetworkingConfig, ResourcesBlkioWeightDevice,
    ResourcesUlimits, ThrottleDevice,
};
use jaco_proto::manifest::compose::{Blkio, Healthcheck, Logging, Namespace, Service, VolumesFrom};

use super::exec;
use crate::{
    labels::LABEL_PRE_STOP,
    spec::{Attachment, ContainerSpec, EndpointConfig, Networking, endpoint_config, image},
};

mod mounts;
#[cfg(test)]
mod tests;

/// Kernel parameter that lets TCP connections of a container find a smaller size of packets after
/// several timeouts (RFC 4821), and its value. A tunnel path that silently drops large packets
/// would stall them for ever, because nothing inside the tunnel learns of it.
const MTU_PROBING: (&str, &str) = ("net.ipv4.tcp_mtu_probing", "1");

/// Builds the create request of a container.
#[must_use]
pub fn project(source: &ContainerSpec) -> ContainerCreateBody {
    let service = &source.service;
    let is_named = matches!(
        source.networking,
        Networking::Attached(_) | Networking::Host
    );
    ContainerCreateBody {
        image: Some(image(&source.row, service).to_owned()),
        cmd: service.command.clone(),
        entrypoint: service.entrypoint.clone(),
        working_dir: service.working_dir.clone(),
        user: service.user.clone(),
        hostname: service.hostname.clone().filter(|_| is_named),
        domainname: service.domainname.clone().filter(|_| is_named),
        tty: service.tty.then_some(true),
        open_stdin: service.stdin_open.then_some(true),
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

fn labels(source: &ContainerSpec) -> HashMap<String, String> {
    let mut labels = source.labels();
    let requests: Vec<_> = source.service.pre_stop.iter().map(exec::request).collect();
    if !requests.is_empty()
        && let Ok(json) = serde_json::to_string(&requests)
    {
        labels.insert(LABEL_PRE_STOP.to_owned(), json);
    }
    labels
}

pub(super) fn environment(environment: &BTreeMap<String, Option<String>>) -> Vec<String> {
    environment
        .iter()
        .map(|(key, value)| format!("{key}={}", value.as_deref().unwrap_or_default()))
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

fn first_network(source: &ContainerSpec) -> Option<NetworkingConfig> {
    let Networking::Attached(bridges) = &source.networking else {
        return None;
    };
    let first = bridges.first()?;
    let config = endpoint_config(&source.row, &source.service, &first.network);
    let endpoint = EndpointSettings {
        mac_address: source.service.mac_address.clone(),
        ..endpoint_settings(&config)
    };
    Some(NetworkingConfig {
        endpoints_config: Some(HashMap::from([(first.engine_network.clone(), endpoint)])),
    })
}

/// Settings of an attachment in the engine's form.
pub(super) fn endpoint_settings(config: &EndpointConfig) -> EndpointSettings {
    EndpointSettings {
        aliases: Some(config.aliases.clone()),
        gw_priority: config.gateway_priority,
        ..Default::default()
    }
}

fn host_config(source: &ContainerSpec) -> HostConfig {
    let service = &source.service;
    let has_networks = matches!(source.networking, Networking::Attached(_));
    let (network_mode, resolvers, is_named) = match &source.networking {
        Networking::Attached(bridges) => (
            bridges.first().map(|first| first.engine_network.clone()),
            resolvers(service, bridges),
            true,
        ),
        Networking::None => (Some("none".to_owned()), Vec::new(), false),
        Networking::Host => (Some("host".to_owned()), service.dns.clone(), true),
        Networking::Joined(name) => (namespace_of(source, name), Vec::new(), false),
    };
    let if_named = |list: &Vec<String>| some(list.clone()).filter(|_| is_named);
    let (binds, mounts) = mounts::split(source);
    let resources = &service.resources;
    HostConfig {
        network_mode,
        dns: some(resolvers),
        dns_search: if_named(&service.dns_search),
        dns_options: if_named(&service.dns_opt),
        extra_hosts: if_named(&service.extra_hosts),
        binds: some(binds),
        mounts: some(mounts),
        tmpfs: texts(&service.tmpfs),
        readonly_rootfs: Some(service.read_only),
        privileged: Some(service.privileged),
        init: service.init,
        shm_size: service.shm_size,
        cap_add: some(service.cap_add.clone()),
        cap_drop: some(service.cap_drop.clone()),
        security_opt: some(service.security_opt.clone()),
        sysctls: sysctls(service, has_networks),
        ulimits: some(ulimits(service)),
        devices: some(devices(service)),
        device_requests: some(device_requests(service)),
        device_cgroup_rules: some(service.device_cgroup_rules.clone()),
        group_add: some(service.group_add.clone()),
        runtime: service.runtime.clone(),
        annotations: texts(&service.annotations),
        storage_opt: texts(&service.storage_opt),
        volumes_from: some(volumes_from(source)),
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
        cpu_period: resources.cpu_period,
        cpu_quota: resources.cpu_quota,
        cpu_realtime_period: resources.cpu_rt_period,
        cpu_realtime_runtime: resources.cpu_rt_runtime,
        memory_swap: resources.memory_swap,
        memory_swappiness: resources.memory_swappiness,
        oom_score_adj: resources.oom_score_adj,
        oom_kill_disable: resources.oom_kill_disable,
        blkio_weight: resources.blkio.weight,
        blkio_weight_device: some(weights(&resources.blkio)),
        blkio_device_read_bps: some(rates(&resources.blkio.read_bps)),
        blkio_device_read_iops: some(rates(&resources.blkio.read_iops)),
        blkio_device_write_bps: some(rates(&resources.blkio.write_bps)),
        blkio_device_write_iops: some(rates(&resources.blkio.write_iops)),
        ..Default::default()
    }
}

fn weights(blkio: &Blkio) -> Vec<ResourcesBlkioWeightDevice> {
    let devices = blkio.weight_device.iter();
    let weight = |(path, weight): &(String, u16)| ResourcesBlkioWeightDevice {
        path: Some(path.clone()),
        weight: Some(usize::from(*weight)),
    };
    devices.map(weight).collect()
}

fn rates(devices: &[(String, i64)]) -> Vec<ThrottleDevice> {
    let rate = |(path, rate): &(String, i64)| ThrottleDevice {
        path: Some(path.clone()),
        rate: Some(*rate),
    };
    devices.iter().map(rate).collect()
}

/// Containers whose volumes are mounted, in the engine's syntax.
fn volumes_from(source: &ContainerSpec) -> Vec<String> {
    let sources = source.service.volumes_from.iter();
    let container = |from: &VolumesFrom| {
        let container = source.shared_containers.get(&from.service)?;
        let mode = if from.read_only { "ro" } else { "rw" };
        Some(format!("{container}:{mode}"))
    };
    sources.filter_map(container).collect()
}

/// `None` for an empty mapping, so that the engine applies its default.
fn texts(map: &BTreeMap<String, String>) -> Option<HashMap<String, String>> {
    (!map.is_empty()).then(|| map.clone().into_iter().collect())
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
fn namespace(source: &ContainerSpec, namespace: Option<&Namespace>) -> Option<String> {
    match namespace? {
        Namespace::Engine(mode) => Some(mode.clone()),
        Namespace::Service(name) => namespace_of(source, name),
    }
}

/// Namespace of the container that runs `service`.
fn namespace_of(source: &ContainerSpec, service: &str) -> Option<String> {
    let container = source.shared_containers.get(service)?;
    Some(format!("container:{container}"))
}

/// Kernel parameters of the document and, for a container with a network namespace of its own,
/// [`MTU_PROBING`].
fn sysctls(service: &Service, attached: bool) -> Option<HashMap<String, String>> {
    let mut sysctls: HashMap<_, _> = service.sysctls.clone().into_iter().collect();
    if attached {
        let (key, value) = MTU_PROBING;
        sysctls
            .entry(key.to_owned())
            .or_insert_with(|| value.to_owned());
    }
    (!sysctls.is_empty()).then_some(sysctls)
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
