//! `deploy`, and the precedence of its resources over the flat keys.

use crate::{
    Error,
    manifest::{
        MAX_REPLICAS,
        compose::{
            Deploy, FailureAction, Resources, Service, UpdateConfig, UpdateOrder,
            keys::{DEPLOY, LIMITS, RESERVATIONS, RESOURCES, ROLLOUT},
            reader::Reader,
        },
        grammar,
    },
    yaml::{Map, Node},
};

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

pub(super) fn deploy(reader: &Reader<'_>, service: &mut Service, node: &Node) -> Result<(), Error> {
    let Some(map) = reader.map("deploy", node, &DEPLOY)? else {
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
                if given && count.is_none_or(|count| !(0..=MAX_REPLICAS).contains(&count)) {
                    let want = format!("0 to {MAX_REPLICAS}");
                    return Err(reader.wrong(&field, node, &want));
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
    let mut config = UpdateConfig::default();
    let Some(map) = reader.map(field, node, &ROLLOUT)? else {
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
    let Some(map) = reader.map(field, node, &RESOURCES)? else {
        return Ok(resources);
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
                _ => {}
            }
        }
    }
    Ok(resources)
}
