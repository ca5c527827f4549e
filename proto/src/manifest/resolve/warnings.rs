//! Warnings about valid manifests: settings that were probably not meant, or have no effect.

use super::networks;
use crate::{
    manifest::{
        compose::{Compose, Constraint, Mount, MountSource, NetworkMode},
        jaco::{Jaco, secrets},
    },
    v1::{TransportProtocol, service_spec::PlacementMode},
};

/// Usual paths of the sockets of Docker and Podman.
const ENGINE_SOCKETS: [&str; 4] = [
    "/run/docker.sock",
    "/run/podman/podman.sock",
    "/var/run/docker.sock",
    "/var/run/podman/podman.sock",
];

/// Name servers that the engine's resolver asks for names it does not know itself.
const NAME_SERVERS: usize = 3;

/// Returns the warnings of the given files, those of `jaco.yaml` first.
pub(super) fn warnings(jaco: Option<&Jaco>, compose: Option<&Compose>) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(jaco) = jaco {
        of_jaco(jaco, &mut warnings);
    }
    if let (Some(jaco), Some(compose)) = (jaco, compose) {
        warnings.extend(proxy_protocol(jaco, compose));
    }
    if let Some(compose) = compose {
        of_compose(compose, &mut warnings);
        warnings.extend(name_servers(jaco, compose));
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
    for (name, template) in &jaco.secrets {
        if secrets::is_literal(template) {
            warnings.push(format!(
                "secret {name:?} has its value in jaco.yaml, which the cluster stores as it is: write \
                 {name}: ${{{name}}} and keep the value outside"
            ));
        }
    }
    for given in &jaco.services {
        if !given.hosts.is_empty() && given.placement != Some(PlacementMode::Hosts) {
            warnings.push(format!(
                "service {:?} lists hosts, which has no effect without placement: hosts",
                given.name.value
            ));
        }
    }
}

fn of_compose(compose: &Compose, warnings: &mut Vec<String>) {
    for (name, service) in &compose.project.services {
        if !compose.has_image(name) {
            let build = compose.build_context(name).map(|context| {
                format!(
                    ": build one and push it to a registry that every node reaches (docker build \
                     -t <registry>/{name} {context} && docker push <registry>/{name}), then set \
                     image: <registry>/{name}"
                )
            });
            warnings.push(format!(
                "service {name:?} has no image and will stay pending{}",
                build.unwrap_or_default()
            ));
        }
        let mut mounts = service.volumes.iter();
        if let Some(socket) = mounts.find_map(engine_socket) {
            warnings.push(format!(
                "service {name:?} mounts {socket}: whoever controls the container controls the \
                 engine of its node"
            ));
        }
        if service.deploy.constraints.iter().any(Constraint::is_role) {
            warnings.push(format!(
                "service {name:?} has a constraint on node.role, which has no effect: every node may \
                 be a manager"
            ));
        }
        let publishes = service.ports.iter().any(|port| port.listener.is_some());
        // Such a container has no address of its own, so its ports have no upstream.
        if let Some(mode) = service.network_mode.as_ref().filter(|_| publishes) {
            let mode = match mode {
                NetworkMode::None => "none".to_owned(),
                NetworkMode::Host => "host".to_owned(),
                NetworkMode::Service(other) => format!("service:{other}"),
            };
            warnings.push(format!(
                "service {name:?} publishes ports but has network_mode {mode}"
            ));
        }
    }
    warnings.extend(compose.unused());
}

/// Path of a container engine's socket that a mount reaches.
fn engine_socket(mount: &Mount) -> Option<&str> {
    match &mount.source {
        MountSource::Bind { path, .. } => {
            let path = path.as_str();
            ENGINE_SOCKETS.contains(&path).then_some(path)
        }
        MountSource::Volume(_)
        | MountSource::Anonymous
        | MountSource::Tmpfs
        | MountSource::Other { .. } => None,
    }
}

/// Warnings for services on more networks than the engine's resolver has name servers for.
fn name_servers(jaco: Option<&Jaco>, compose: &Compose) -> Vec<String> {
    let given = jaco.map_or(&[][..], |jaco| &jaco.services);
    let services = compose.project.services.iter();
    let unasked = services.filter_map(|(name, service)| {
        let given = given.iter().find(|given| given.name.value == *name);
        let networks = networks(given, &compose.project, service);
        let unasked = networks.get(NAME_SERVERS..).unwrap_or_default();
        (!unasked.is_empty()).then(|| {
            format!(
                "service {name:?} joins {} networks, but the engine asks the name servers of the first {NAME_SERVERS}: services on {} resolve only where they run on the same node",
                networks.len(),
                unasked.join(", ")
            )
        })
    });
    unasked.collect()
}

/// Warnings for services that ask for PROXY headers and have no TCP port to send them on.
fn proxy_protocol(jaco: &Jaco, compose: &Compose) -> Vec<String> {
    let publishes_tcp = |name: &str| {
        let service = compose.project.services.get(name);
        let mut listeners = service
            .into_iter()
            .flat_map(|service| service.ports.iter().filter_map(|port| port.listener));
        listeners.any(|listener| listener.protocol == TransportProtocol::Tcp)
    };
    let without_effect = jaco
        .services
        .iter()
        .filter(|given| given.proxy_protocol != 0 && !publishes_tcp(&given.name.value));
    without_effect
        .map(|given| {
            let name = &given.name.value;
            format!("service {name:?} sets proxy_protocol, which has no effect without a published TCP port")
        })
        .collect()
}
