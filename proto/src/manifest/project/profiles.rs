//! Profiles: services that are part of a deployment only on request.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    Error,
    manifest::{
        fault::{Located, invalid},
        grammar,
    },
    yaml::{Node, Value},
};

/// Name that activates every profile.
const ALL: &str = "*";

/// Services that were left out, by name, with their profiles.
pub type Inactive = BTreeMap<String, Vec<String>>;

/// Removes the services of which no profile is active, and the key `profiles`.
///
/// # Errors
/// A service that remains needs one that is left out.
pub(super) fn select(root: &mut Node, active: &BTreeSet<String>) -> Result<Inactive, Error> {
    let mut inactive = Inactive::new();
    let Some(Value::Map(services)) = root.get_mut("services").map(|node| &mut node.value) else {
        return Ok(inactive);
    };
    for (key, service) in services.iter() {
        let profiles = profiles(&key.text, service)?;
        let is_active = |profile: &String| active.contains(profile) || active.contains(ALL);
        if !profiles.is_empty() && !profiles.iter().any(is_active) {
            inactive.insert(key.text.clone(), profiles);
        }
    }
    services.retain(|key| !inactive.contains_key(key));
    let present: BTreeSet<String> = services.iter().map(|(key, _)| key.text.clone()).collect();
    for (name, service) in services.iter_mut() {
        if let Value::Map(map) = &mut service.value {
            map.retain(|key| key != "profiles");
        }
        drop_optional(service, &present);
        needs(&name.text, service, &inactive)?;
    }
    Ok(inactive)
}

fn profiles(service: &str, node: &Node) -> Result<Vec<String>, Error> {
    let given = node.as_map().and_then(|map| map.get("profiles"));
    let Some(given) = given.filter(|node| !node.is_null()) else {
        return Ok(Vec::new());
    };
    let wrong = |node: &Node| {
        let message = format!(
            "profiles of service {service:?} must be a list of names, not {}",
            node.kind()
        );
        invalid(message)
            .with("service", service)
            .with("field", "profiles")
            .at(node.at)
    };
    let items = given.as_seq().ok_or_else(|| wrong(given))?;
    let names = items.iter().map(|item| {
        let name = item
            .text()
            .filter(|name| !name.is_empty() && !item.is_null());
        name.map(str::to_owned).ok_or_else(|| wrong(item))
    });
    names.collect()
}

/// Removes dependencies that are not required and not part of the deployment.
fn drop_optional(service: &mut Node, present: &BTreeSet<String>) {
    let dependencies = service.get_mut("depends_on");
    let Some(Value::Map(dependencies)) = dependencies.map(|node| &mut node.value) else {
        return;
    };
    let optional: BTreeSet<String> = dependencies
        .iter()
        .filter(|(_, entry)| {
            let required = entry.as_map().and_then(|map| map.get("required"));
            required.and_then(Node::text).and_then(grammar::boolean) == Some(false)
        })
        .map(|(key, _)| key.text.clone())
        .collect();
    dependencies.retain(|key| present.contains(key) || !optional.contains(key));
}

/// Fails if a service refers to one that is left out.
fn needs(name: &str, service: &Node, inactive: &Inactive) -> Result<(), Error> {
    let Some(map) = service.as_map() else {
        return Ok(());
    };
    let mut targets: Vec<(&str, &str, &Node)> = Vec::new();
    for field in ["network_mode", "ipc", "pid", "uts"] {
        if let Some(node) = map.get(field)
            && let Some(target) = node.text().and_then(|text| text.strip_prefix("service:"))
        {
            targets.push((field, target, node));
        }
    }
    for field in ["links", "volumes_from", "depends_on"] {
        let Some(node) = map.get(field) else {
            continue;
        };
        for item in node.as_seq().unwrap_or_default() {
            let target = item.text().and_then(|text| text.split(':').next());
            targets.extend(target.map(|target| (field, target, item)));
        }
        let entries = node.as_map().into_iter().flat_map(|map| map.iter());
        targets.extend(entries.map(|(key, node)| (field, key.text.as_str(), node)));
    }
    for (field, target, node) in targets {
        if let Some(profiles) = inactive.get(target) {
            let message = format!(
                "{field} of service {name:?} needs {target:?}, which is left out: activate one of \
                 its profiles with --profile {}",
                profiles.join(" or --profile ")
            );
            return Err(invalid(message)
                .with("service", name)
                .with("field", field)
                .with("target_service", target)
                .at(node.at));
        }
    }
    Ok(())
}
