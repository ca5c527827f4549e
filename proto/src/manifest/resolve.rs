//! Merges both manifests, and checks the rules that need both or the cluster.

mod cross;
mod warnings;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    Error, ErrorCode,
    v1::{self, service_spec::PlacementMode},
};

use super::{
    compose::{
        Attribute, Compose, Constraint, DeployMode, FileReference, FileSource, MountSource,
        NetworkDeclaration, NetworkMode, Project, Service,
    },
    fault::bounded,
    jaco::{Jaco, Override, Spanned},
};
use warnings::warnings;

/// Information about the cluster and the caller that the checks need.
pub trait ClusterView {
    /// Whether `hostname` is a member, ready or not.
    fn has_host(&self, hostname: &str) -> bool;
    /// Returns the deployment that owns a published port of a protocol.
    fn port_owner(&self, port: u16, protocol: v1::TransportProtocol) -> Option<String>;
    /// Returns the deployment that owns a (domain, path).
    fn route_owner(&self, domain: &str, path: &str) -> Option<String>;
    /// Returns the identity of the caller, for messages.
    fn identity(&self) -> &str;
    /// Whether the caller may admit privileged services.
    fn allows_privileged(&self) -> bool;
}

/// A deployment that passed all checks.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// Name of the deployment.
    pub deployment: String,
    /// Merged scheduling settings of every compose service, by name.
    pub services: Vec<v1::ServiceSpec>,
    /// Ingress rules in file order.
    pub routes: Vec<v1::Route>,
    /// Domains with a route that says itself whether it has TLS.
    pub tls_written: BTreeSet<String>,
    /// Published ports by port and protocol.
    pub tcp_routes: Vec<v1::TcpRoute>,
    /// Names of the declared secrets.
    pub secrets: BTreeSet<String>,
    /// ACME account; empty for the cluster's default.
    pub acme_email: String,
    /// Privileged services by name; for the audit log.
    pub privileged: Vec<Privileged>,
    /// Origins of the configs and secrets that services mount, by kind and key. The files of
    /// [`Self::services`] have no content yet.
    pub file_sources: BTreeMap<(v1::FileKind, String), FileSource>,
    /// Paths of hosts that services mount.
    pub binds: Vec<Bind>,
    /// Networks with settings, by name.
    pub networks: Vec<v1::NetworkSpec>,
    /// Warnings about valid but probably unintended settings.
    pub warnings: Vec<String>,
}

/// A path of the host that a service mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// Name of the service.
    pub service: String,
    /// Path on the host.
    pub source: String,
    /// Path in the container.
    pub target: String,
}

/// A service with privileged settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Privileged {
    /// Name of the service.
    pub service: String,
    /// Those of `privileged`, `security_opt`, `network_mode`, `post_start` and `pre_stop`,
    /// comma-separated.
    pub fields: String,
}

/// Parses, merges and checks both manifests for an apply.
///
/// # Errors
/// The first violated rule, in the order of the contract. The cluster is queried only after both
/// files passed their own checks.
pub fn resolve(
    jaco_yaml: &[u8],
    compose_yaml: &[u8],
    cluster: &impl ClusterView,
) -> Result<Resolved, Error> {
    resolve_unbounded(jaco_yaml, compose_yaml, cluster).map_err(bounded)
}

fn resolve_unbounded(
    jaco_yaml: &[u8],
    compose_yaml: &[u8],
    cluster: &impl ClusterView,
) -> Result<Resolved, Error> {
    for (bytes, field) in [(jaco_yaml, "jaco_yaml"), (compose_yaml, "compose_yaml")] {
        if bytes.is_empty() {
            let message = format!("{field} is required");
            return Err(Error::new(ErrorCode::ValidationFailed, message).with("field", field));
        }
    }
    let jaco = Jaco::parse(jaco_yaml)?;
    let compose = Compose::checked(compose_yaml)?;
    cross::overrides(&jaco, &compose)?;
    cross::hardware_addresses(&jaco, &compose)?;
    cross::secrets(&jaco, &compose)?;
    let services = merge(&jaco, &compose);
    cross::override_networks(&jaco, &compose)?;
    cross::hosts(&jaco, cluster)?;
    cross::route_services(&jaco, &compose)?;
    let tcp_routes = cross::tcp_routes(&jaco, &compose)?;
    cross::port_owners(&jaco, &compose, &tcp_routes, cluster)?;
    cross::route_owners(&jaco, cluster)?;
    let privileged = cross::privileges(&compose, cluster)?;
    Ok(Resolved {
        file_sources: compose.project.file_sources(),
        binds: binds(&compose.project),
        networks: network_specs(&compose.project),
        services,
        routes: routes(&jaco),
        tls_written: tls_written(&jaco),
        tcp_routes,
        privileged,
        warnings: warnings(Some(&jaco), Some(&compose)),
        secrets: jaco.secrets.into_keys().collect(),
        acme_email: jaco.acme_email,
        deployment: jaco.deployment,
    })
}

/// Checks the rules that need no cluster, and returns warnings. Variables in the compose file may
/// be unresolved.
///
/// # Errors
/// The first violated rule, as in [`resolve`].
pub fn validate(
    jaco_yaml: Option<&[u8]>,
    compose_yaml: Option<&[u8]>,
) -> Result<Vec<String>, Error> {
    validate_unbounded(jaco_yaml, compose_yaml).map_err(bounded)
}

fn validate_unbounded(
    jaco_yaml: Option<&[u8]>,
    compose_yaml: Option<&[u8]>,
) -> Result<Vec<String>, Error> {
    let jaco = jaco_yaml.map(Jaco::parse).transpose()?;
    let compose = compose_yaml.map(Compose::unresolved).transpose()?;
    if let (Some(jaco), Some(compose)) = (&jaco, &compose) {
        cross::overrides(jaco, compose)?;
        cross::hardware_addresses(jaco, compose)?;
        cross::secrets(jaco, compose)?;
        cross::override_networks(jaco, compose)?;
        cross::route_services(jaco, compose)?;
        cross::tcp_routes(jaco, compose)?;
    }
    Ok(warnings(jaco.as_ref(), compose.as_ref()))
}

fn merge(jaco: &Jaco, compose: &Compose) -> Vec<v1::ServiceSpec> {
    let overrides = jaco.services.iter();
    let overrides: BTreeMap<&str, &Override> = overrides
        .map(|given| (given.name.as_str(), given))
        .collect();
    let services = compose.project.services.iter();
    services
        .map(|(name, service)| {
            let given = overrides.get(name.as_str()).copied();
            let placement = placement(given, service);
            // The networks of the replicas on one node would be the same.
            let host_network = service.network_mode == Some(NetworkMode::Host);
            let per_node = service.deploy.max_replicas_per_node;
            let per_node = if host_network { Some(1) } else { per_node };
            v1::ServiceSpec {
                name: name.clone(),
                replicas: replicas(given, service),
                placement: placement.mode.into(),
                hosts: given.map(|given| texts(&given.hosts)).unwrap_or_default(),
                networks: networks(given, &compose.project, service),
                secrets: secrets(jaco, given),
                files: files(service),
                constraints: placement.constraints,
                max_replicas_per_node: per_node.unwrap_or(0),
                platform: service.platform.clone().unwrap_or_default(),
                host_network,
            }
        })
        .collect()
}

/// Names of the secrets that a service has in its environment.
fn secrets(jaco: &Jaco, given: Option<&Override>) -> Vec<String> {
    match given.and_then(|given| given.secrets.as_ref()) {
        Some(names) => {
            let names: BTreeSet<String> = texts(names).into_iter().collect();
            names.into_iter().collect()
        }
        None => jaco.secrets.keys().cloned().collect(),
    }
}

/// Configs and secrets of a service, without their content.
fn files(service: &Service) -> Vec<v1::MountedFile> {
    let file = |kind: v1::FileKind, reference: &FileReference| v1::MountedFile {
        kind: kind.into(),
        name: reference.source.clone(),
        target: reference.target.clone(),
        path: String::new(),
        uid: reference.uid,
        gid: reference.gid,
        mode: reference.mode,
        content_id: String::new(),
    };
    let configs = service.configs.iter();
    let configs = configs.map(|one| file(v1::FileKind::Config, one));
    let secrets = service.secrets.iter();
    configs
        .chain(secrets.map(|one| file(v1::FileKind::Secret, one)))
        .collect()
}

fn binds(project: &Project) -> Vec<Bind> {
    let services = project.services.iter();
    let binds = services.flat_map(|(name, service)| {
        service
            .volumes
            .iter()
            .filter_map(|mount| match &mount.source {
                MountSource::Bind { path, .. } => Some(Bind {
                    service: name.clone(),
                    source: path.clone(),
                    target: mount.target.clone(),
                }),
                MountSource::Volume(_)
                | MountSource::Anonymous
                | MountSource::Tmpfs
                | MountSource::Other { .. } => None,
            })
    });
    binds.collect()
}

/// Networks with settings.
fn network_specs(project: &Project) -> Vec<v1::NetworkSpec> {
    let networks = project.networks.iter();
    let spec = |(name, declared): (&String, &NetworkDeclaration)| {
        declared.internal.then(|| v1::NetworkSpec {
            name: name.clone(),
            internal: true,
        })
    };
    networks.filter_map(spec).collect()
}

struct Placement {
    mode: PlacementMode,
    constraints: Vec<v1::PlacementConstraint>,
}

/// An entry of jaco.yaml with a placement replaces that of the compose file, and one with replicas
/// its mode.
fn placement(given: Option<&Override>, service: &Service) -> Placement {
    if let Some(mode) = given.and_then(|given| given.placement) {
        return Placement {
            mode,
            constraints: Vec::new(),
        };
    }
    let counted = given.is_some_and(|given| given.replicas.is_some());
    let constraints = service.deploy.constraints.iter();
    Placement {
        mode: match service.deploy.mode {
            Some(DeployMode::Global) if !counted => PlacementMode::Global,
            Some(DeployMode::Global | DeployMode::Replicated) | None => PlacementMode::Spread,
        },
        constraints: constraints.filter_map(constraint).collect(),
    }
}

fn constraint(given: &Constraint) -> Option<v1::PlacementConstraint> {
    let attribute = match &given.attribute {
        Attribute::Hostname => "node.hostname".to_owned(),
        Attribute::Label(key) => format!("node.labels.{key}"),
        Attribute::Os => "node.platform.os".to_owned(),
        Attribute::Arch => "node.platform.arch".to_owned(),
        Attribute::Role => return None,
    };
    Some(v1::PlacementConstraint {
        attribute,
        excludes: given.excludes,
        value: given.value.clone(),
    })
}

fn replicas(given: Option<&Override>, service: &Service) -> i32 {
    given
        .and_then(|given| Some(given.replicas?.value))
        .or(service.deploy.replicas)
        .unwrap_or(1)
}

fn networks(given: Option<&Override>, project: &Project, service: &Service) -> Vec<String> {
    if service.network_mode.is_some() {
        return Vec::new();
    }
    match given {
        Some(given) if !given.networks.is_empty() => stored(project, &given.networks),
        // In attach order: other services reach the service on its first network by default.
        Some(_) | None => service.networks.clone(),
    }
}

fn texts(items: &[Spanned<String>]) -> Vec<String> {
    items.iter().map(|item| item.value.clone()).collect()
}

/// Returns the names as stored, in file order and without duplicates.
fn stored(project: &Project, networks: &[Spanned<String>]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let names = networks.iter().map(|key| project.network_name(key));
    names.filter(|name| seen.insert(name.clone())).collect()
}

fn tls_written(jaco: &Jaco) -> BTreeSet<String> {
    let written = jaco.routes.iter().filter(|route| route.tls_written);
    written.map(|route| route.domain.clone()).collect()
}

fn routes(jaco: &Jaco) -> Vec<v1::Route> {
    let routes = jaco.routes.iter();
    routes
        .map(|route| v1::Route {
            domain: route.domain.clone(),
            deployment: jaco.deployment.clone(),
            service: route.service.value.clone(),
            port: i32::from(route.port),
            tls_auto: route.tls_auto,
            path: route.path.value.clone(),
            strip_path: route.strip_path,
            upstream_h2c: route.upstream_h2c,
            limits: route.limits.clone(),
            affinity: route.affinity.clone(),
        })
        .collect()
}
