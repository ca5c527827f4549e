//! From a checked document to the typed [`Project`].

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    Error,
    manifest::{
        fault::{Located, invalid},
        grammar,
    },
    yaml::{Key, Map, Node, Value},
};

use super::{
    Condition, Dependency, Deploy, Device, FailureAction, GpuRequest, Healthcheck, Logging,
    NetworkMode, Project, PullPolicy, Resources, Service, Ulimit, UpdateConfig, UpdateOrder,
    VolumeDeclaration,
    document::{DEFAULT_NETWORK, Document},
    mounts, ports,
    reader::Reader,
};

/// Reads every service; `open_variables` as in [`Reader`].
pub(super) fn project(document: &Document, open_variables: bool) -> Result<Project, Error> {
    let mut project = Project::default();
    for (key, _) in document.networks() {
        check_name("networks", key)?;
        project.networks.push(key.text.clone());
    }
    for (key, node) in document.volumes() {
        check_name("volumes", key)?;
        let declaration = volume(key, node)?;
        project.volumes.insert(key.text.clone(), declaration);
    }
    for (key, node) in document.services() {
        check_name("services", key)?;
        let reader = Reader {
            service: &key.text,
            open_variables,
        };
        project
            .services
            .insert(key.text.clone(), service(&reader, node)?);
    }
    Ok(project)
}

fn check_name(table: &str, key: &Key) -> Result<(), Error> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if !key.text.is_empty() && key.text.chars().all(good) {
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

fn volume(key: &Key, node: &Node) -> Result<VolumeDeclaration, Error> {
    let fail = |what: &str, node: &Node| {
        invalid(format!("compose load: volumes.{} {what}", key.text))
            .with("field", "volumes")
            .with("value", &key.text)
            .at(node.at)
    };
    let map = match &node.value {
        Value::Map(map) => map,
        Value::Scalar(scalar) if scalar.is_null() => return Ok(VolumeDeclaration::default()),
        Value::Scalar(_) | Value::Seq(_) => return Err(fail("must be a mapping", node)),
    };
    let mut name = None;
    let mut external = false;
    if let Some(node) = map.get("name") {
        let text = node
            .text()
            .ok_or_else(|| fail("name must be a string", node))?;
        name = (!text.is_empty() && !node.is_null()).then(|| text.to_owned());
    }
    if let Some(node) = map.get("external") {
        external = match &node.value {
            Value::Map(legacy) => {
                name = name.or_else(|| legacy.get("name")?.text().map(str::to_owned));
                true
            }
            Value::Scalar(scalar) if scalar.is_null() => false,
            Value::Scalar(scalar) => match grammar::boolean(&scalar.text) {
                Some(external) => external,
                None if scalar.text.contains('$') => false,
                None => return Err(fail("external must be a boolean", node)),
            },
            Value::Seq(_) => return Err(fail("external must be a boolean", node)),
        };
    }
    let foreign = |key: &str| !matches!(key, "name" | "external") && !key.starts_with("x-");
    if external && let Some((other, node)) = map.iter().find(|(key, _)| foreign(&key.text)) {
        let what = format!("is external, so {:?} has no place in it", other.text);
        return Err(fail(&what, node));
    }
    Ok(VolumeDeclaration { name, external })
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
    choose_resources(&mut service, flat, map);
    if service.network_mode.is_some() {
        leave_networks(&mut service);
    } else if service.networks.is_empty() {
        service.networks.push(DEFAULT_NETWORK.to_owned());
    }
    add_namespace_dependencies(&mut service);
    Ok(service)
}

/// Reads one key; the list of keys is closed by the checks that run before.
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
        "environment" => service.environment = reader.dict(key, node)?,
        "labels" => service.labels = reader.labels(key, node)?,
        "working_dir" => service.working_dir = reader.name(key, node)?,
        "user" => service.user = reader.name(key, node)?,
        "hostname" => service.hostname = reader.name(key, node)?,
        "domainname" => service.domainname = reader.name(key, node)?,
        "stop_signal" => service.stop_signal = reader.name(key, node)?,
        "stop_grace_period" => service.stop_grace_period = reader.duration(key, node)?,
        "healthcheck" => service.healthcheck = healthcheck(reader, node)?,
        "volumes" => service.volumes = mounts::read(reader, node)?,
        "tmpfs" => service.tmpfs = tmpfs(reader, node)?,
        "read_only" => service.read_only = reader.boolean(key, node)?.unwrap_or(false),
        "cap_add" => service.cap_add = reader.string_list(key, node)?,
        "cap_drop" => service.cap_drop = reader.string_list(key, node)?,
        "sysctls" => service.sysctls = reader.labels(key, node)?,
        "ulimits" => service.ulimits = ulimits(reader, node)?,
        "privileged" => service.privileged = reader.boolean(key, node)?.unwrap_or(false),
        "security_opt" => service.security_opt = reader.string_list(key, node)?,
        "devices" => service.devices = devices(reader, node)?,
        "gpus" => service.gpus = gpus(reader, node)?,
        "networks" => service.networks = networks(reader, node)?,
        "network_mode" => service.network_mode = network_mode(reader, node)?,
        "ports" => service.ports = ports::read(reader, node)?,
        "dns" => service.dns = reader.string_or_list(key, node)?,
        "dns_search" => service.dns_search = reader.string_or_list(key, node)?,
        "dns_opt" => service.dns_opt = reader.string_list(key, node)?,
        "extra_hosts" => service.extra_hosts = extra_hosts(reader, node)?,
        "init" => service.init = reader.boolean(key, node)?,
        "shm_size" => service.shm_size = reader.bytes(key, node)?,
        "ipc" => service.ipc = reader.name(key, node)?,
        "pid" => service.pid = reader.name(key, node)?,
        "uts" => service.uts = reader.name(key, node)?,
        "userns_mode" => service.userns_mode = reader.name(key, node)?,
        "cgroup_parent" => service.cgroup_parent = reader.name(key, node)?,
        "cgroup" => {
            let words = [("host", "host"), ("private", "private")];
            service.cgroup = reader.choice(key, node, &words)?.map(str::to_owned);
        }
        "logging" => service.logging = logging(reader, node)?,
        "deploy" => deploy(reader, service, node)?,
        "cpus" => flat.nano_cpus = positive(cpus(reader, key, node)?),
        "mem_limit" => flat.memory = positive(reader.bytes(key, node)?),
        "mem_reservation" => flat.memory_reservation = positive(reader.bytes(key, node)?),
        "pids_limit" => flat.pids = positive(reader.int(key, node)?),
        "cpu_shares" => flat.cpu_shares = positive(reader.int(key, node)?),
        "cpuset" => flat.cpuset = reader.name(key, node)?,
        "depends_on" => service.depends_on = depends_on(reader, node)?,
        "pull_policy" => service.pull_policy = pull_policy(reader, node)?,
        // `restart`, `build` and `name` may hold anything; `env_file` is the client's.
        _ => {}
    }
    Ok(())
}

fn positive(value: Option<i64>) -> Option<i64> {
    value.filter(|value| *value > 0)
}

fn cpus(reader: &Reader<'_>, field: &str, node: &Node) -> Result<Option<i64>, Error> {
    reader.parsed(field, node, "a number of cores", grammar::nano_cpus)
}

/// `deploy.resources` replaces the flat keys as a block as soon as it sets anything.
fn choose_resources(service: &mut Service, flat: Resources, map: &Map) {
    let block = map
        .get("deploy")
        .and_then(|node| node.as_map()?.get("resources")?.as_map())
        .is_some_and(|block| {
            ["limits", "reservations"]
                .iter()
                .any(|key| block.get(key).is_some_and(|node| !node.is_null()))
        });
    let chosen = if block {
        std::mem::take(&mut service.resources)
    } else {
        flat.clone()
    };
    service.resources = Resources {
        cpu_shares: flat.cpu_shares,
        cpuset: flat.cpuset,
        ..chosen
    };
}

/// Drops what the engine refuses on a container without its own network.
fn leave_networks(service: &mut Service) {
    service.networks.clear();
    service.hostname = None;
    service.domainname = None;
    service.dns.clear();
    service.dns_search.clear();
    service.dns_opt.clear();
    service.extra_hosts.clear();
}

/// A container cannot join the namespace of a service that has not started.
fn add_namespace_dependencies(service: &mut Service) {
    let mut targets: Vec<String> = [&service.ipc, &service.pid, &service.uts]
        .into_iter()
        .filter_map(|mode| mode.as_deref()?.strip_prefix("service:"))
        .map(str::to_owned)
        .collect();
    if let Some(NetworkMode::Service(target)) = &service.network_mode {
        targets.push(target.clone());
    }
    let started = Dependency {
        condition: Condition::ServiceStarted,
        required: true,
    };
    for target in targets {
        let dependency = service.depends_on.entry(target).or_insert(started);
        if !dependency.required {
            *dependency = started;
        }
    }
}

fn healthcheck(reader: &Reader<'_>, node: &Node) -> Result<Option<Healthcheck>, Error> {
    let keys = [
        "test",
        "interval",
        "timeout",
        "retries",
        "start_period",
        "start_interval",
        "disable",
    ];
    let Some(map) = reader.map("healthcheck", node, &keys)? else {
        return Ok(None);
    };
    let mut check = Healthcheck::default();
    let mut disabled = false;
    for (key, node) in map.iter() {
        let field = format!("healthcheck.{}", key.text);
        match key.text.as_str() {
            "test" => {
                check.test = match &node.value {
                    Value::Seq(items) => reader.strings(&field, items)?,
                    Value::Scalar(_) | Value::Map(_) => reader
                        .name(&field, node)?
                        .map(|line| vec!["CMD-SHELL".to_owned(), line])
                        .unwrap_or_default(),
                }
            }
            "interval" => check.interval = reader.duration(&field, node)?,
            "timeout" => check.timeout = reader.duration(&field, node)?,
            "start_period" => check.start_period = reader.duration(&field, node)?,
            "start_interval" => {
                reader.duration(&field, node)?;
            }
            "retries" => check.retries = reader.int(&field, node)?,
            "disable" => disabled = reader.boolean(&field, node)?.unwrap_or(false),
            _ => {}
        }
    }
    let none = check.test.first().is_some_and(|word| word == "NONE");
    Ok((!disabled && !none).then_some(check))
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

fn ulimits(reader: &Reader<'_>, node: &Node) -> Result<BTreeMap<String, Ulimit>, Error> {
    let mut limits = BTreeMap::new();
    let Some(map) = reader.any_map("ulimits", node)? else {
        return Ok(limits);
    };
    for (key, node) in map.iter() {
        let field = format!("ulimits.{}", key.text);
        let limit = match &node.value {
            Value::Map(_) => {
                let pair = reader.map(&field, node, &["soft", "hard"])?;
                let side = |side: &str| pair.and_then(|pair| pair.get(side));
                let (Some(soft), Some(hard)) = (side("soft"), side("hard")) else {
                    return Err(reader.fault(&field, node, "needs both soft and hard"));
                };
                let soft = reader.int(&field, soft)?;
                soft.zip(reader.int(&field, hard)?)
            }
            Value::Scalar(_) | Value::Seq(_) => reader.int(&field, node)?.map(|n| (n, n)),
        };
        if let Some((soft, hard)) = limit {
            limits.insert(key.text.clone(), Ulimit { soft, hard });
        }
    }
    Ok(limits)
}

fn devices(reader: &Reader<'_>, node: &Node) -> Result<Vec<Device>, Error> {
    let mut devices = Vec::new();
    for item in reader.seq("devices", node)? {
        let (source, target, permissions) = match &item.value {
            Value::Map(_) => {
                let keys = ["source", "target", "permissions"];
                let map = reader.map("devices", item, &keys)?;
                let text = |key: &str| match map.and_then(|map| map.get(key)) {
                    Some(node) => reader.name(&format!("devices.{key}"), node),
                    None => Ok(None),
                };
                (text("source")?, text("target")?, text("permissions")?)
            }
            Value::Scalar(_) | Value::Seq(_) => {
                let Some(text) = reader.name("devices", item)? else {
                    continue;
                };
                let mut parts = text.split(':').map(str::to_owned);
                let device = (parts.next(), parts.next(), parts.next());
                if parts.next().is_some() {
                    return Err(reader.wrong("devices", item, "source[:target[:permissions]]"));
                }
                device
            }
        };
        let Some(source) = source.filter(|source| !source.is_empty()) else {
            return Err(reader.fault("devices", item, "needs a source"));
        };
        devices.push(Device {
            target: target.unwrap_or_else(|| source.clone()),
            permissions: permissions.unwrap_or_else(|| "rwm".to_owned()),
            source,
        });
    }
    Ok(devices)
}

fn gpus(reader: &Reader<'_>, node: &Node) -> Result<Vec<GpuRequest>, Error> {
    let all = GpuRequest {
        count: -1,
        capabilities: vec!["gpu".to_owned()],
        ..GpuRequest::default()
    };
    if let Value::Scalar(_) = &node.value {
        let word = reader.choice("gpus", node, &[("all", ())])?;
        return Ok(word.map(|()| all).into_iter().collect());
    }
    let keys = ["driver", "count", "device_ids", "capabilities", "options"];
    let mut requests = Vec::new();
    for item in reader.seq("gpus", node)? {
        let Some(map) = reader.map("gpus", item, &keys)? else {
            continue;
        };
        let mut request = all.clone();
        let mut count = None;
        for (key, node) in map.iter() {
            let field = format!("gpus.{}", key.text);
            match key.text.as_str() {
                "driver" => request.driver = reader.name(&field, node)?.unwrap_or_default(),
                "count" if node.text() == Some("all") => count = Some(-1),
                "count" => count = reader.int(&field, node)?,
                "device_ids" => request.device_ids = reader.string_list(&field, node)?,
                "capabilities" => {
                    let given = reader.string_list(&field, node)?;
                    if !given.is_empty() {
                        request.capabilities = given;
                    }
                }
                "options" => request.options = reader.labels(&field, node)?,
                _ => {}
            }
        }
        if count.is_some() && !request.device_ids.is_empty() {
            return Err(reader.fault("gpus", item, "takes a count or device_ids, not both"));
        }
        request.count = match count {
            Some(count) => count,
            None if request.device_ids.is_empty() => -1,
            None => 0,
        };
        requests.push(request);
    }
    Ok(requests)
}

fn networks(reader: &Reader<'_>, node: &Node) -> Result<Vec<String>, Error> {
    let mut names: Vec<(i64, String)> = Vec::new();
    match &node.value {
        Value::Map(map) => {
            for (key, node) in map.iter() {
                let field = format!("networks.{}", key.text);
                let priority = match reader
                    .any_map(&field, node)?
                    .and_then(|m| m.get("priority"))
                {
                    Some(node) => reader.int(&format!("{field}.priority"), node)?,
                    None => None,
                };
                names.push((priority.unwrap_or(0), key.text.clone()));
            }
        }
        Value::Scalar(_) | Value::Seq(_) => {
            let list = reader.string_list("networks", node)?;
            names.extend(list.into_iter().map(|name| (0, name)));
        }
    }
    for (_, name) in &mut names {
        if name == "default" {
            *name = DEFAULT_NETWORK.to_owned();
        }
    }
    names.sort_by(|(a, x), (b, y)| b.cmp(a).then_with(|| x.cmp(y)));
    let mut seen = BTreeSet::new();
    Ok(names
        .into_iter()
        .map(|(_, name)| name)
        .filter(|name| seen.insert(name.clone()))
        .collect())
}

fn network_mode(reader: &Reader<'_>, node: &Node) -> Result<Option<NetworkMode>, Error> {
    let Some(mode) = reader.name("network_mode", node)? else {
        return Ok(None);
    };
    match mode.strip_prefix("service:") {
        Some(target) if !target.is_empty() => Ok(Some(NetworkMode::Service(target.to_owned()))),
        None if mode == "none" => Ok(Some(NetworkMode::None)),
        Some(_) | None => Err(reader.wrong("network_mode", node, "none or service:<name>")),
    }
}

fn extra_hosts(reader: &Reader<'_>, node: &Node) -> Result<Vec<String>, Error> {
    let mut lines = Vec::new();
    let mut add = |host: &str, ip: &str| {
        let bare = ip.strip_prefix('[').and_then(|ip| ip.strip_suffix(']'));
        lines.push(format!("{host}:{}", bare.unwrap_or(ip)));
    };
    if let Value::Map(map) = &node.value {
        for (key, node) in map.iter() {
            let field = format!("extra_hosts.{}", key.text);
            match &node.value {
                Value::Seq(items) => {
                    for ip in reader.strings(&field, items)? {
                        add(&key.text, &ip);
                    }
                }
                Value::Scalar(_) | Value::Map(_) => {
                    if let Some(ip) = reader.name(&field, node)? {
                        add(&key.text, &ip);
                    }
                }
            }
        }
    } else {
        for item in reader.seq("extra_hosts", node)? {
            let Some(text) = reader.name("extra_hosts", item)? else {
                continue;
            };
            let Some((host, ip)) = text.split_once('=').or_else(|| text.split_once(':')) else {
                return Err(reader.wrong("extra_hosts", item, "host:ip or host=ip"));
            };
            add(host, ip);
        }
    }
    lines.sort();
    Ok(lines)
}

fn logging(reader: &Reader<'_>, node: &Node) -> Result<Option<Logging>, Error> {
    let Some(map) = reader.map("logging", node, &["driver", "options"])? else {
        return Ok(None);
    };
    let mut logging = Logging::default();
    if let Some(node) = map.get("driver") {
        logging.driver = reader.name("logging.driver", node)?.unwrap_or_default();
    }
    if let Some(options) = map.get("options") {
        reader.any_map("logging.options", options)?;
        logging.options = reader.labels("logging.options", options)?;
    }
    Ok(Some(logging))
}

fn depends_on(reader: &Reader<'_>, node: &Node) -> Result<BTreeMap<String, Dependency>, Error> {
    let mut edges = BTreeMap::new();
    let Value::Map(map) = &node.value else {
        for name in reader.string_list("depends_on", node)? {
            let dependency = Dependency {
                condition: Condition::ServiceStarted,
                required: true,
            };
            edges.insert(name, dependency);
        }
        return Ok(edges);
    };
    for (key, node) in map.iter() {
        let field = format!("depends_on.{}", key.text);
        let entry = reader.map(&field, node, &["condition", "required", "restart"])?;
        let Some(entry) = entry else {
            if reader.is_open(node) {
                continue;
            }
            return Err(reader.fault(&field, node, "needs a condition"));
        };
        let Some(condition) = entry.get("condition") else {
            return Err(reader.fault(&field, node, "needs a condition"));
        };
        let words = [
            ("service_started", Condition::ServiceStarted),
            ("service_healthy", Condition::ServiceHealthy),
        ];
        let condition = reader.choice(&format!("{field}.condition"), condition, &words)?;
        let required = match entry.get("required") {
            Some(node) => reader.boolean(&format!("{field}.required"), node)?,
            None => None,
        };
        let dependency = Dependency {
            condition: condition.unwrap_or(Condition::ServiceStarted),
            required: required.unwrap_or(true),
        };
        edges.insert(key.text.clone(), dependency);
    }
    Ok(edges)
}

fn pull_policy(reader: &Reader<'_>, node: &Node) -> Result<PullPolicy, Error> {
    let words = [
        ("always", PullPolicy::Always),
        ("missing", PullPolicy::Always),
        ("build", PullPolicy::Always),
        ("never", PullPolicy::Never),
    ];
    Ok(reader
        .choice("pull_policy", node, &words)?
        .unwrap_or_default())
}

fn deploy(reader: &Reader<'_>, service: &mut Service, node: &Node) -> Result<(), Error> {
    let keys = [
        "mode",
        "replicas",
        "labels",
        "update_config",
        "rollback_config",
        "resources",
        "restart_policy",
        "placement",
        "endpoint_mode",
    ];
    let Some(map) = reader.map("deploy", node, &keys)? else {
        return Ok(());
    };
    let mut deploy = Deploy::default();
    for (key, node) in map.iter() {
        let field = format!("deploy.{}", key.text);
        match key.text.as_str() {
            "replicas" => {
                let count = reader.int(&field, node)?;
                let count = count.map(i32::try_from).transpose().ok().flatten();
                let given = !node.is_null() && !reader.is_open(node);
                if given && count.is_none_or(|count| count < 0) {
                    return Err(reader.wrong(&field, node, "0 or more"));
                }
                deploy.replicas = count;
            }
            "update_config" => deploy.update = update_config(reader, &field, node)?,
            "rollback_config" => {
                update_config(reader, &field, node)?;
            }
            "resources" => service.resources = resources(reader, &field, node)?,
            "labels" => {
                reader.labels(&field, node)?;
            }
            "mode" | "endpoint_mode" => {
                reader.string(&field, node)?;
            }
            "restart_policy" | "placement" => {
                reader.any_map(&field, node)?;
            }
            _ => {}
        }
    }
    service.deploy = deploy;
    Ok(())
}

fn update_config(reader: &Reader<'_>, field: &str, node: &Node) -> Result<UpdateConfig, Error> {
    let keys = [
        "parallelism",
        "delay",
        "order",
        "monitor",
        "failure_action",
        "max_failure_ratio",
    ];
    let mut config = UpdateConfig::default();
    let Some(map) = reader.map(field, node, &keys)? else {
        return Ok(config);
    };
    for (key, node) in map.iter() {
        let field = format!("{field}.{}", key.text);
        match key.text.as_str() {
            "parallelism" => {
                let count = reader.int(&field, node)?;
                let narrowed = count.and_then(|count| u32::try_from(count).ok());
                if count.is_some() && narrowed.is_none() {
                    return Err(reader.wrong(&field, node, "0 or more"));
                }
                config.parallelism = narrowed;
            }
            "delay" => config.delay = reader.duration(&field, node)?,
            "monitor" => config.monitor = reader.duration(&field, node)?,
            "order" => {
                let words = [
                    ("stop-first", UpdateOrder::StopFirst),
                    ("start-first", UpdateOrder::StartFirst),
                ];
                config.order = reader.choice(&field, node, &words)?;
            }
            "failure_action" => {
                let words = [
                    ("pause", FailureAction::Pause),
                    ("continue", FailureAction::Continue),
                    ("rollback", FailureAction::Rollback),
                ];
                config.failure_action = reader.choice(&field, node, &words)?;
            }
            _ => {}
        }
    }
    Ok(config)
}

fn resources(reader: &Reader<'_>, field: &str, node: &Node) -> Result<Resources, Error> {
    let mut resources = Resources::default();
    let Some(map) = reader.map(field, node, &["limits", "reservations"])? else {
        return Ok(resources);
    };
    if let Some(node) = map.get("limits") {
        let field = format!("{field}.limits");
        let limits = reader.map(&field, node, &["cpus", "memory", "pids"])?;
        for (key, node) in limits.into_iter().flat_map(Map::iter) {
            let field = format!("{field}.{}", key.text);
            match key.text.as_str() {
                "cpus" => resources.nano_cpus = positive(cpus(reader, &field, node)?),
                "memory" => resources.memory = positive(reader.bytes(&field, node)?),
                "pids" => resources.pids = positive(reader.int(&field, node)?),
                _ => {}
            }
        }
    }
    if let Some(node) = map.get("reservations") {
        let field = format!("{field}.reservations");
        let keys = ["cpus", "memory", "devices", "generic_resources", "pids"];
        let reservations = reader.map(&field, node, &keys)?;
        for (key, node) in reservations.into_iter().flat_map(Map::iter) {
            let field = format!("{field}.{}", key.text);
            match key.text.as_str() {
                "memory" => resources.memory_reservation = positive(reader.bytes(&field, node)?),
                "cpus" => {
                    cpus(reader, &field, node)?;
                }
                _ => {}
            }
        }
    }
    Ok(resources)
}
