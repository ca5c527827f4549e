//! `jaco.yaml`: what a deployment wants from the cluster.

mod check;
mod decode;
mod schema;
mod shape;

use std::ops::Deref;

pub use schema::json_schema;

use super::fault::bounded;
use crate::{Error, v1::service_spec::PlacementMode, yaml::Position};

/// One `jaco.yaml`, checked as far as it can be on its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Jaco {
    /// Name of the deployment; prefix of its replicas, networks and volumes.
    pub deployment: String,
    /// Path of the file with interpolation variables; only clients read it.
    pub environment: Option<String>,
    /// Ingress rules in file order.
    pub routes: Vec<Route>,
    /// Scheduling overrides in file order.
    pub services: Vec<Override>,
    /// ACME account; empty for the cluster's default.
    pub acme_email: String,
}

/// A value and where it stands; one that is not set stands where its mapping starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spanned<T> {
    /// The value.
    pub value: T,
    /// Its first character.
    pub at: Position,
}

impl<T> Deref for Spanned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// One entry of `routes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Host name, compared bytewise.
    pub domain: String,
    /// Compose service the requests go to.
    pub service: Spanned<String>,
    /// Container port, 1 to 65535.
    pub port: u16,
    /// Whether a certificate is obtained and HTTPS served.
    pub tls_auto: bool,
    /// Path prefix; empty for everything.
    pub path: Spanned<String>,
    /// Take the prefix off before the request goes on.
    pub strip_path: bool,
    /// Where the entry starts.
    pub at: Position,
}

/// One entry of `services`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// Compose service it is about.
    pub name: Spanned<String>,
    /// Replica count, 0 or more; unset leaves it to the compose file.
    pub replicas: Option<Spanned<i32>>,
    /// How replicas choose hosts.
    pub placement: PlacementMode,
    /// Hosts for [`PlacementMode::Hosts`].
    pub hosts: Vec<Spanned<String>>,
    /// Networks in attach order; empty inherits the compose file's.
    pub networks: Vec<Spanned<String>>,
}

/// Name the file goes by in error details.
pub(super) const FILE: &str = "jaco.yaml";

impl Jaco {
    /// Reads and checks a file; only its first document counts.
    ///
    /// # Errors
    /// `parse_failed` for what is not YAML of the right shape, otherwise the code of the first
    /// broken rule.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        decode::decode(bytes)
            .and_then(check::check)
            .map_err(|error| bounded(error.with("file", FILE)))
    }
}
