//! Reads a checked document into the typed [`Project`].

mod declared;
mod deploy;
mod files;
mod hardware;
mod lifecycle;
mod network;
mod placement;
mod references;
mod restart;
mod volume;

use std::collections::BTreeMap;

use crate::{
    Error,
    manifest::{
        fault::{Located, invalid, suggestion},
        grammar,
    },
    yaml::{Key, Map, Node, Position, Value},
};

use super::{
    Project, Resources, Service,
    document::{DEFAULT_NETWORK, Document},
    keys::{Effect, Keys, SERVICE},
    mounts, ports,
    reader::Reader,
};

pub(super) use network::normalised;

/// Reads all services; see [`Reader`] for `unresolved`.
pub(super) fn project(document: &Document, unresolved: bool) -> Result<Project, Error> {
    let mut project = Project::default();
    for (key, node) in document.networks() {
        check_name("networks", key)?;
        let declaration = network::declaration(key, node, unresolved)?;
        let name = network::normalised(&key.text);
        project.networks.insert(name, declaration);
    }
    for (key, node) in document.volumes() {
        check_name("volumes", key)?;
        let declaration = volume::read(key, node, unresolved)?;
        project.volumes.insert(key.text.clone(), declaration);
    }
    project.configs = files::objects(files::CONFIGS, document.table("configs"), unresolved)?;
    project.secrets = files::objects(files::SECRETS, document.table("secrets"), unresolved)?;
    for (key, node) in document.services() {
        check_name("services", key)?;
        let reader = Reader {
            service: &key.text,
            unresolved,
        };
        project
            .services
            .insert(key.text.clone(), service(&reader, node)?);
    }
    network::name_shared(&mut project);
    restart::let_complete(&mut project);
    files::check(&project, unresolved, document.may_include(unresolved))?;
    Ok(project)
}

fn check_name(table: &str, key: &Key) -> Result<(), Error> {
    if grammar::is_name(&key.text) {
        return Ok(());
    }
    let message = format!(
        "compose load: {table} key {:?} may hold only letters, digits and . _ -",
        key.text
    );
    Err(invalid(message)
        .with("field", table)
        .with("value", &key.text)
        .at(key.at))
}

/// Returns the mapping of a declared network or volume, if there is one.
fn declaration<'n>(
    table: &str,
    key: &Key,
    node: &'n Node,
    keys: &Keys,
    unresolved: bool,
) -> Result<Option<&'n Map>, Error> {
    let map = match &node.value {
        Value::Map(map) => map,
        Value::Scalar(scalar) if scalar.is_null() => return Ok(None),
        Value::Scalar(scalar) if unresolved && scalar.text.contains('$') => return Ok(None),
        Value::Scalar(_) | Value::Seq(_) => {
            let what = format!("must be a mapping, not {}", node.kind());
            return Err(invalid_declaration(table, key, &what, node.at));
        }
    };
    for (inner, _) in map.iter() {
        let text = inner.text.as_str();
        if !keys.has(text) {
            let near = suggestion(text, keys.names());
            let what = format!("has no key {text:?}{near}");
            return Err(invalid_declaration(table, key, &what, inner.at));
        }
    }
    Ok(Some(map))
}

fn invalid_declaration(table: &str, key: &Key, what: &str, at: Position) -> Error {
    invalid(format!("compose load: {table}.{} {what}", key.text))
        .with("field", table)
        .with("value", &key.text)
        .at(at)
}

fn service(reader: &Reader<'_>, node: &Node) -> Result<Service, Error> {
    let Value::Map(map) = &node.value else {
        let name = reader.service;
        let message = format!(
            "compose load: services.{name} must be a mapping, not {}",
            node.kind()
        );
        return Err(invalid(message).with("service", name).at(node.at));
    };
    let mut service = Service::default();
    let mut flat = Resources::default();
    for (key, node) in map.sorted() {
        field(reader, &mut service, &mut flat, &key.text, node)?;
    }
    deploy::choose_resources(&mut service, flat, map);
    if let Some(node) = map.get("scale") {
        deploy::scale(reader, &mut service, node)?;
    }
    if service.network_mode.is_some() {
        network::leave_networks(&mut service);
    } else if service.networks.is_empty() {
        service.networks.push(DEFAULT_NETWORK.to_owned());
    }
    references::add_dependencies(&mut service);
    if let Some(policy) = &service.deploy.restart_policy {
        service.restart = Some(policy.clone());
    }
    Ok(service)
}

/// Reads one key; the checks that run before reject unknown keys.
fn field(
    reader: &Reader<'_>,
    service: &mut Service,
    flat: &mut Resources,
    key: &str,
    node: &Node,
) -> Result<(), Error> {
    match key {
        "image" => service.image = reader.name(key, node)?,
        "command" => service.command = reader.command(key, node)?,
        "entrypoint" => service.entrypoint = reader.command(key, node)?,
        "annotations" => service.annotations = reader.labels(key, node)?,
        "tty" => service.tty = reader.boolean(key, node)?.unwrap_or(false),
        "stdin_open" => service.stdin_open = reader.boolean(key, node)?.unwrap_or(false),
        "platform" => service.platform = reader.name(key, node)?,
        "container_name" => service.container_name = network::name(reader, key, node)?,
        "links" => service.links = references::links(reader, node)?,
        "mac_address" => service.mac_address = network::mac_address(reader, node)?,
        "volumes_from" => service.volumes_from = references::volumes_from(reader, node)?,
        "group_add" => service.group_add = hardware::group_add(reader, node)?,
        "runtime" => service.runtime = reader.name(key, node)?,
        "device_cgroup_rules" => service.device_cgroup_rules = reader.string_list(key, node)?,
        "storage_opt" => service.storage_opt = hardware::storage_opt(reader, node)?,
        "environment" => service.environment = reader.dict(key, node)?.into(),
        "labels" => service.labels = reader.labels(key, node)?,
        "working_dir" => service.working_dir = reader.name(key, node)?,
        "user" => service.user = reader.name(key, node)?,
        "hostname" => service.hostname = reader.name(key, node)?,
        "domainname" => service.domainname = reader.name(key, node)?,
        "stop_signal" => service.stop_signal = reader.name(key, node)?,
        "stop_grace_period" => service.stop_grace_period = reader.duration(key, node)?,
        "healthcheck" => service.healthcheck = lifecycle::healthcheck(reader, node)?,
        "volumes" => service.volumes = mounts::read(reader, node)?,
        "configs" => service.configs = files::references(reader, files::CONFIGS, node)?,
        "secrets" => service.secrets = files::references(reader, files::SECRETS, node)?,
        "tmpfs" => service.tmpfs = tmpfs(reader, node)?,
        "read_only" => service.read_only = reader.boolean(key, node)?.unwrap_or(false),
        "cap_add" => service.cap_add = reader.string_list(key, node)?,
        "cap_drop" => service.cap_drop = reader.string_list(key, node)?,
        "sysctls" => service.sysctls = reader.labels(key, node)?,
        "ulimits" => service.ulimits = hardware::ulimits(reader, node)?,
        "privileged" => service.privileged = reader.boolean(key, node)?.unwrap_or(false),
        "security_opt" => service.security_opt = reader.string_list(key, node)?,
        "devices" => service.devices = hardware::devices(reader, node)?,
        "gpus" => service.gpus.extend(hardware::gpus(reader, key, node)?),
        "networks" => {
            (service.networks, service.network_settings) = network::networks(reader, node)?;
        }
        "network_mode" => service.network_mode = network::network_mode(reader, node)?,
        "ports" => service.ports = ports::read(reader, node)?,
        "expose" => service.expose = ports::exposed(reader, node)?,
        "dns" => service.dns = reader.string_or_list(key, node)?,
        "dns_search" => service.dns_search = reader.string_or_list(key, node)?,
        "dns_opt" => service.dns_opt = reader.string_list(key, node)?,
        "extra_hosts" => service.extra_hosts = network::extra_hosts(reader, node)?,
        "init" => service.init = reader.boolean(key, node)?,
        "shm_size" => service.shm_size = deploy::positive(reader.bytes(key, node)?),
        "ipc" => service.ipc = network::namespace(reader, key, node)?,
        "pid" => service.pid = network::namespace(reader, key, node)?,
        "uts" => service.uts = network::namespace(reader, key, node)?,
        "userns_mode" => service.userns_mode = reader.name(key, node)?,
        "cgroup_parent" => service.cgroup_parent = reader.name(key, node)?,
        "cgroup" => {
            let words = [("host", "host"), ("private", "private")];
            service.cgroup = reader.choice(key, node, &words)?.map(str::to_owned);
        }
        "logging" => service.logging = lifecycle::logging(reader, node)?,
        "deploy" => deploy::deploy(reader, service, node)?,
        "cpus" => flat.nano_cpus = deploy::positive(deploy::cpus(reader, key, node)?),
        "mem_limit" => flat.memory = deploy::positive(reader.bytes(key, node)?),
        "mem_reservation" => flat.memory_reservation = deploy::positive(reader.bytes(key, node)?),
        "pids_limit" => flat.pids = deploy::positive(reader.int(key, node)?),
        "cpu_shares" => flat.cpu_shares = deploy::positive(reader.int(key, node)?),
        "cpuset" => flat.cpuset = reader.name(key, node)?,
        "cpu_period" => flat.cpu_period = hardware::microseconds(reader, key, node)?,
        "cpu_quota" => flat.cpu_quota = hardware::microseconds(reader, key, node)?,
        "cpu_rt_period" => flat.cpu_rt_period = hardware::microseconds(reader, key, node)?,
        "cpu_rt_runtime" => flat.cpu_rt_runtime = hardware::microseconds(reader, key, node)?,
        "memswap_limit" => flat.memory_swap = hardware::memory_swap(reader, node)?,
        "mem_swappiness" => flat.memory_swappiness = reader.int_within(key, node, 0..=100)?,
        "oom_score_adj" => flat.oom_score_adj = reader.int_within(key, node, -1000..=1000)?,
        "oom_kill_disable" => flat.oom_kill_disable = reader.boolean(key, node)?,
        "blkio_config" => flat.blkio = hardware::blkio(reader, node)?,
        "depends_on" => service.depends_on = lifecycle::depends_on(reader, node)?,
        "restart" => service.restart = restart::restart(reader, node)?,
        "post_start" => service.post_start = restart::hooks(reader, key, node)?,
        "pre_stop" => service.pre_stop = restart::hooks(reader, key, node)?,
        "pull_policy" => service.pull_policy = lifecycle::pull_policy(reader, node)?,
        // `scale` is read after `deploy`, and the client resolves its keys.
        _ => debug_assert!(
            key == "scale" || SERVICE.effect(key) != Some(Effect::Kept),
            "{key}"
        ),
    }
    Ok(())
}

fn tmpfs(reader: &Reader<'_>, node: &Node) -> Result<BTreeMap<String, String>, Error> {
    let lines = reader.string_or_list("tmpfs", node)?;
    Ok(lines
        .into_iter()
        .map(|line| match line.split_once(':') {
            Some((path, options)) => (path.to_owned(), options.to_owned()),
            None => (line, String::new()),
        })
        .collect())
}
