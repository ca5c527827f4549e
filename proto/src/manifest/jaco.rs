//! `jaco.yaml`: ingress and scheduling settings of a deployment.

mod check;
mod decode;
mod keys;
mod protection;
mod schema;
pub mod secrets;

use std::{collections::BTreeMap, ops::Deref};

pub use schema::json_schema;

use super::fault::bounded;
use crate::{
    Error,
    v1::{self, service_spec::PlacementMode},
    yaml::Position,
};

/// One `jaco.yaml`, validated as far as possible without the compose file and the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Jaco {
    /// Name of the deployment; prefix of its replicas, networks and volumes.
    pub deployment: String,
    /// Path of the environment file for interpolation; used by clients only.
    pub environment: Option<String>,
    /// Ingress rules in file order.
    pub routes: Vec<Route>,
    /// Scheduling overrides in file order.
    pub services: Vec<Override>,
    /// Templates of the values of secrets, by name.
    pub secrets: BTreeMap<String, Spanned<String>>,
    /// ACME account; empty for the cluster's default.
    pub acme_email: String,
    /// Lists that the file names without a value, which makes them empty.
    pub empty_lists: Vec<&'static str>,
}

/// A value with its position; an absent one has the position of its mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spanned<T> {
    /// The value.
    pub value: T,
    /// Position of its first character.
    pub at: Position,
}

impl<T> Deref for Spanned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// One entry of `routes`.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// Host name, compared bytewise.
    pub domain: String,
    /// Compose service that receives the requests.
    pub service: Spanned<String>,
    /// Container port, 1 to 65535.
    pub port: u16,
    /// Whether a certificate is obtained and HTTPS served.
    pub tls_auto: bool,
    /// Whether the route says so itself, instead of taking the default.
    pub tls_written: bool,
    /// Path prefix; empty matches all paths.
    pub path: Spanned<String>,
    /// Whether the prefix is removed before the request is forwarded.
    pub strip_path: bool,
    /// Whether the containers speak cleartext HTTP/2.
    pub upstream_h2c: bool,
    /// Limits per client; absent for the cluster's default.
    pub limits: Option<v1::RouteLimits>,
    /// Sticky sessions; absent for none.
    pub affinity: Option<v1::RouteAffinity>,
    /// Position of the entry.
    pub at: Position,
}

/// One entry of `services`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// Compose service that is overridden.
    pub name: Spanned<String>,
    /// Replica count, 0 or more; the compose file's if absent.
    pub replicas: Option<Spanned<i32>>,
    /// How hosts are selected for replicas; the compose file decides if absent.
    pub placement: Option<PlacementMode>,
    /// Hosts for [`PlacementMode::Hosts`].
    pub hosts: Vec<Spanned<String>>,
    /// Networks in attach order; the compose file's if empty.
    pub networks: Vec<Spanned<String>>,
    /// Version of the PROXY protocol header sent on connections to published TCP ports: 0 for no
    /// header, else 2.
    pub proxy_protocol: u32,
    /// Names of the secrets that the service has; absent for all.
    pub secrets: Option<Vec<Spanned<String>>>,
}

/// File name in error details.
pub(super) const FILE: &str = "jaco.yaml";

impl Jaco {
    /// Parses and checks a file; only its first document is used.
    ///
    /// # Errors
    /// `parse_failed` for content that is not YAML of the right structure, otherwise the code of
    /// the first violated rule.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        decode::decode(bytes)
            .and_then(check::check)
            .map_err(|error| bounded(error.with("file", FILE)))
    }
}
