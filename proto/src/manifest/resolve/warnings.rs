//! Warnings about valid manifests: settings that were probably not meant, or have no effect.

use std::collections::BTreeSet;

use crate::{
    manifest::{
        compose::{Compose, NetworkMode},
        jaco::Jaco,
    },
    v1::service_spec::PlacementMode,
};

/// Returns the warnings of the given files, those of `jaco.yaml` first.
pub(super) fn warnings(jaco: Option<&Jaco>, compose: Option<&Compose>) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(jaco) = jaco {
        of_jaco(jaco, &mut warnings);
    }
    if let Some(compose) = compose {
        of_compose(compose, &mut warnings);
    }
    warnings
}

fn of_jaco(jaco: &Jaco, warnings: &mut Vec<String>) {
    let engine_name = |name: &str| {
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        name.chars().all(good)
    };
    if !engine_name(&jaco.deployment) {
        warnings.push(format!(
            "deployment {:?} holds characters the engine does not take in names",
            jaco.deployment
        ));
    }
    for list in &jaco.empty_lists {
        warnings.push(format!(
            "jaco.yaml has no value for {list}, which counts as an empty list"
        ));
    }
    for given in &jaco.services {
        if !given.hosts.is_empty() && given.placement != PlacementMode::Hosts {
            warnings.push(format!(
                "service {:?} lists hosts, which has no effect without placement: hosts",
                given.name.value
            ));
        }
    }
    let domains: BTreeSet<&str> = jaco
        .routes
        .iter()
        .filter(|route| route.tls_auto)
        .map(|route| route.domain.as_str())
        .collect();
    if !domains.is_empty() {
        let domains = Vec::from_iter(domains).join(", ");
        warnings.push(format!(
            "tls is auto for {domains}, but this version obtains no certificates and serves plain \
             HTTP: set tls: off"
        ));
    }
    if !jaco.acme_email.is_empty() {
        warnings.push("acme_email has no effect: this version obtains no certificates".to_owned());
    }
}

fn of_compose(compose: &Compose, warnings: &mut Vec<String>) {
    for (name, service) in &compose.project.services {
        if !compose.has_image(name) {
            warnings.push(format!(
                "service {name:?} has no image and will stay pending"
            ));
        }
        if service.network_mode == Some(NetworkMode::None)
            && service.ports.iter().any(|port| port.listener.is_some())
        {
            warnings.push(format!(
                "service {name:?} publishes ports but has network_mode none"
            ));
        }
    }
    warnings.extend(compose.unused());
}
