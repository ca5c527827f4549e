//! Health checks, start order, pull policy and logging.

use std::collections::BTreeMap;

use crate::{
    Error,
    manifest::compose::{
        Condition, Dependency, Healthcheck, Logging, PullPolicy,
        keys::{DEPENDENCY, HEALTHCHECK, LOGGING},
        reader::Reader,
    },
    yaml::{Node, Value},
};

pub(super) fn healthcheck(reader: &Reader<'_>, node: &Node) -> Result<Option<Healthcheck>, Error> {
    let Some(map) = reader.map("healthcheck", node, &HEALTHCHECK)? else {
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
                        .map(|line| match line.as_str() {
                            "NONE" => vec![line],
                            _ => vec!["CMD-SHELL".to_owned(), line],
                        })
                        .unwrap_or_default(),
                }
            }
            "interval" => check.interval = reader.duration(&field, node)?,
            "timeout" => check.timeout = reader.duration(&field, node)?,
            "start_period" => check.start_period = reader.duration(&field, node)?,
            "start_interval" => {
                reader.duration(&field, node)?;
            }
            "retries" => {
                check.retries = reader.int(&field, node)?;
                if check.retries.is_some_and(|count| count < 0) {
                    return Err(reader.wrong(&field, node, "0 or more"));
                }
            }
            "disable" => disabled = reader.boolean(&field, node)?.unwrap_or(false),
            _ => {}
        }
    }
    let none = check.test.first().is_some_and(|word| word == "NONE");
    Ok((!disabled && !none).then_some(check))
}

pub(super) fn logging(reader: &Reader<'_>, node: &Node) -> Result<Option<Logging>, Error> {
    let Some(map) = reader.map("logging", node, &LOGGING)? else {
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

pub(super) fn depends_on(
    reader: &Reader<'_>,
    node: &Node,
) -> Result<BTreeMap<String, Dependency>, Error> {
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
        let entry = reader.map(&field, node, &DEPENDENCY)?;
        let Some(entry) = entry else {
            if reader.is_open(node) {
                continue;
            }
            return Err(reader.fault(&field, node, "needs a condition"));
        };
        let Some(condition) = entry.get("condition") else {
            return Err(reader.fault(&field, node, "needs a condition"));
        };
        let words = Condition::ALL.map(|condition| (condition.as_str(), condition));
        let chosen = reader.choice(&format!("{field}.condition"), condition, &words)?;
        if chosen.is_none() && !reader.is_open(condition) {
            return Err(reader.fault(&field, condition, "needs a condition"));
        }
        let required = match entry.get("required") {
            Some(node) => reader.boolean(&format!("{field}.required"), node)?,
            None => None,
        };
        let dependency = Dependency {
            condition: chosen.unwrap_or(Condition::ServiceStarted),
            required: required.unwrap_or(true),
        };
        edges.insert(key.text.clone(), dependency);
    }
    Ok(edges)
}

/// Reads the policy, whose spelling was checked before.
pub(super) fn pull_policy(reader: &Reader<'_>, node: &Node) -> Result<PullPolicy, Error> {
    let policy = reader.name("pull_policy", node)?;
    Ok(match policy.as_deref() {
        Some("never") => PullPolicy::Never,
        Some(_) | None => PullPolicy::Always,
    })
}
