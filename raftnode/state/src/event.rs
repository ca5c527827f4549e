//! Changes made by applied commands, one event per changed entity.

mod wire;

use std::{fmt, sync::Arc};

use jaco_proto::v1;

pub use wire::resync;

/// One change of one entity.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Log index of the command that made the change.
    pub raft_index: u64,
    /// Deployment that the entity belonged to at the change; `None` for kinds outside deployments.
    pub deployment: Option<String>,
    /// The changed entity.
    pub change: Change,
}

impl Event {
    /// Bytes of manifests that the event keeps in memory; its other content is small.
    #[must_use]
    pub fn manifest_bytes(&self) -> usize {
        let Change::Deployment(delta) = &self.change else {
            return 0;
        };
        let of = |deployment: &Arc<v1::Deployment>| {
            let previous = deployment.previous.as_ref();
            deployment.jaco_yaml.len()
                + deployment.compose_yaml.len()
                + previous.map_or(0, |p| p.jaco_yaml.len() + p.compose_yaml.len())
        };
        delta.before.as_ref().map_or(0, of) + delta.after.as_ref().map_or(0, of)
    }
}

/// An entity before and after a change; at least one of the two is present.
#[derive(Debug, PartialEq)]
pub struct Delta<T> {
    /// Entity before the change; `None` if it was added.
    pub before: Option<Arc<T>>,
    /// Entity after the change; `None` if it was removed.
    pub after: Option<Arc<T>>,
}

impl<T> Clone for Delta<T> {
    fn clone(&self) -> Self {
        Self {
            before: self.before.clone(),
            after: self.after.clone(),
        }
    }
}

impl<T> Delta<T> {
    /// Whether the entity was added, changed or removed.
    #[must_use]
    pub fn kind(&self) -> v1::EventKind {
        match (&self.before, &self.after) {
            (None, Some(_)) => v1::EventKind::Added,
            (Some(_), Some(_)) => v1::EventKind::Updated,
            (Some(_), None) => v1::EventKind::Removed,
            (None, None) => v1::EventKind::Unspecified,
        }
    }
}

macro_rules! entity_types {
    ($($(#[$doc:meta])* $name:ident($entity:ident) = $text:literal,)*) => {
        /// Kind of entity that can be watched.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum EntityType {
            $($(#[$doc])* $name,)*
        }

        impl EntityType {
            /// Every kind.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the kind's name in a watch request.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// Parses the kind's name in a watch request.
            #[must_use]
            pub fn parse(name: &str) -> Option<Self> {
                match name {
                    $($text => Some(Self::$name),)*
                    _ => None,
                }
            }
        }

        /// A changed entity, by kind.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Change {
            $($(#[$doc])* $name(Delta<v1::$entity>),)*
        }

        impl Change {
            /// Returns the kind of the entity.
            #[must_use]
            pub fn entity(&self) -> EntityType {
                match self {
                    $(Self::$name(_) => EntityType::$name,)*
                }
            }

            /// Whether the entity was added, changed or removed.
            #[must_use]
            pub fn kind(&self) -> v1::EventKind {
                match self {
                    $(Self::$name(delta) => delta.kind(),)*
                }
            }
        }
    };
}

entity_types! {
    /// Cluster members.
    Node(Node) = "nodes",
    /// Deployments.
    Deployment(Deployment) = "deployments",
    /// Desired replicas.
    ReplicaDesired(ReplicaDesired) = "replicas_desired",
    /// Observed replicas.
    ReplicaObserved(ReplicaObserved) = "replicas_observed",
    /// HTTP routes.
    Route(Route) = "routes",
    /// TCP listeners.
    TcpRoute(TcpRoute) = "tcp_routes",
    /// Certificate leases.
    Cert(Cert) = "certs",
    /// HTTP-01 challenge responses.
    ChallengeToken(ChallengeToken) = "challenge_tokens",
    /// Operator tokens.
    Token(Token) = "tokens",
    /// Join tokens.
    JoinToken(JoinToken) = "join_tokens",
    /// Audit events.
    Audit(AuditEvent) = "audit",
    /// Address blocks of networks.
    Subnet(Subnet) = "subnets",
    /// Rollout plans.
    RolloutPlan(RolloutPlan) = "rollout_plans",
    /// Counters that replica indexes are drawn from.
    ReplicaCounter(ReplicaCounter) = "replica_counters",
    /// Counters of consecutive failures.
    RestartCounter(RestartCounter) = "restart_counters",
    /// Keys of the cluster configuration.
    ClusterConfig(ClusterConfig) = "cluster_config",
    /// TLS of domains in place of what manifests say.
    RouteTlsOverride(RouteTlsOverride) = "route_tls_overrides",
    /// Certificates of operators.
    ImportedCert(ImportedCert) = "imported_certs",
}

impl fmt::Display for EntityType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
