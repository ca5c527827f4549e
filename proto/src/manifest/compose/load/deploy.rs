//! `deploy`, and the precedence of its resources over the flat keys.

use crate::{
    Error,
    manifest::{
        MAX_REPLICAS,
        compose::{
            Deploy, DeployMode, FailureAction, Resources, Service, UpdateConfig, UpdateOrder,
            keys::{DEPLOY, Keys, LIMITS, RESERVATIONS, RESOURCES, ROLLBACK, UPDATE},
            reader::Reader,
        },
        grammar,
    },
    yaml::{Map, Node},
};

use super::{hardware, placement, restart};

pub(super) fn positive(value: Option<i64>) -> Option<i64> {
    value.filter(|value| *value > 0)
}

pub(super) fn cpus(reader: &Reader<'_>, field: &str, node: &Node) -> Result<Option<i64>, Error> {
    reader.parsed(field, node, "a number of cores", grammar::nano_cpus)
}

/// Selects the resources: `deploy.resources` replaces the flat keys as a whole once it sets any.
pub(super) fn choose_resources(service: &mut Service, flat: Resources, map: &Map) {
    let block = map
        .get("deploy")
        .and_then(|node| node.as_map()?.get("resources")?.as_map())
        .is_some_and(|block| {
            ["limits", "reservations"]
                .iter()
                .any(|key| block.get(key).is_some_and(|node| !node.is_null()))
        });
    let given = &service.resources;
    service.resources = if block {
        Resources {
            nano_cpus: given.nano_cpus,
            memory: given.memory,
            memory_reservation: given.memory_reservation,
            pids: given.pids,
            ..flat
        }
    } else {
        flat
    };
}

/// Reads `scale`, the older place of `deploy.replicas`.
pub(super) fn scale(reader: &Reader<'_>, service: &mut Service, node: &Node) -> Result<(), Error> {
    let Some(count) = replicas(reader, "scale", node)? else {
        return Ok(());
    };
    if let Some(other) = service.deploy.replicas.filter(|other| *other != count) {
        let what = format!("is {count}, but deploy.replicas is {other}: keep one of them");
        return Err(reader.fault("scale", node, what));
    }
    service.deploy.replicas = Some(count);
    Ok(())
}

fn replicas(reader: &Reader<'_>, field: &str, node: &Node) -> Result<Option<i32>, Error> {
    let count = reader.int_within(field, node, 0..=i64::from(MAX_REPLICAS))?;
    Ok(count.and_then(|count| i32::try_from(count).ok()))
}

pub(super) fn deploy(reader: &Reader<'_>, service: &mut Service, node: &Node) -> Result<(), Error> {
    let Some(map) = reader.map("deploy", node, &DEPLOY)? else {
        return Ok(());
    };
    let mut deploy = Deploy::default();
    for (key, node) in map.iter() {
        let field = format!("deploy.{}", key.text);
        match key.text.as_str() {
            "replicas" => deploy.replicas = replicas(reader, &field, node)?,
            "update_config" => deploy.update = update_config(reader, &field, node, &UPDATE)?,
            "rollback_config" => {
                update_config(reader, &field, node, &ROLLBACK)?;
            }
            "resources" => resources(reader, service, &field, node)?,
            "labels" => {
                reader.labels(&field, node)?;
            }
            "mode" => {
                let words = [
                    ("replicated", DeployMode::Replicated),
                    ("global", DeployMode::Global),
                ];
                deploy.mode = reader.choice(&field, node, &words)?;
            }
            "endpoint_mode" => {
                reader.string(&field, node)?;
            }
            "placement" => placement::read(reader, &mut deploy, &field, node)?,
            "restart_policy" => deploy.restart_policy = restart::policy(reader, &field, node)?,
            _ => {}
        }
    }
    if deploy.mode == Some(DeployMode::Global)
        && let Some((_, node)) = map.entry("replicas").filter(|(_, node)| !node.is_null())
    {
        let what = "is set beside mode: global, one replica on every node: keep one of them";
        return Err(reader.fault("deploy.replicas", node, what));
    }
    service.deploy = deploy;
    Ok(())
}

fn update_config(
    reader: &Reader<'_>,
    field: &str,
    node: &Node,
    keys: &Keys,
) -> Result<UpdateConfig, Error> {
    let mut config = UpdateConfig::default();
    let Some(map) = reader.map(field, node, keys)? else {
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

fn resources(
    reader: &Reader<'_>,
    service: &mut Service,
    field: &str,
    node: &Node,
) -> Result<(), Error> {
    let resources = &mut service.resources;
    let Some(map) = reader.map(field, node, &RESOURCES)? else {
        return Ok(());
    };
    if let Some(node) = map.get("limits") {
        let field = format!("{field}.limits");
        let limits = reader.map(&field, node, &LIMITS)?;
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
        let reservations = reader.map(&field, node, &RESERVATIONS)?;
        for (key, node) in reservations.into_iter().flat_map(Map::iter) {
            let field = format!("{field}.{}", key.text);
            match key.text.as_str() {
                "memory" => resources.memory_reservation = positive(reader.bytes(&field, node)?),
                "cpus" => {
                    cpus(reader, &field, node)?;
                }
                "devices" => service.gpus.extend(hardware::gpus(reader, &field, node)?),
                _ => {}
            }
        }
    }
    Ok(())
}
