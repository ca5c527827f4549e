//! The tables of the state, as storage names them.

use std::fmt;

macro_rules! tables {
    ($($(#[$doc:meta])* $name:ident = $tag:literal, $text:literal;)*) => {
        /// Kind of entity that a stored row holds.
        ///
        /// The tag is the first byte of every row key on disk and never changes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Table {
            $($(#[$doc])* $name = $tag,)*
        }

        impl Table {
            /// Every table, in the order of the tags.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The first byte of its row keys.
            #[must_use]
            pub fn tag(self) -> u8 {
                self as u8
            }

            /// The table with this tag.
            #[must_use]
            pub fn from_tag(tag: u8) -> Option<Self> {
                match tag {
                    $($tag => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Its name, for logs and errors.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

tables! {
    /// The cluster singleton.
    Cluster = 1, "cluster";
    /// Members.
    Nodes = 2, "nodes";
    /// Deployments.
    Deployments = 3, "deployments";
    /// Wanted containers.
    ReplicasDesired = 4, "replicas_desired";
    /// Reported containers.
    ReplicasObserved = 5, "replicas_observed";
    /// Consecutive failures.
    RestartCounters = 6, "restart_counters";
    /// Sources of replica indexes.
    ReplicaCounters = 7, "replica_counters";
    /// Rolling updates.
    RolloutPlans = 8, "rollout_plans";
    /// HTTP routes.
    Routes = 9, "routes";
    /// TCP listeners.
    TcpRoutes = 10, "tcp_routes";
    /// Certificate leases.
    Certs = 11, "certs";
    /// The certificate store.
    CertBlobs = 12, "cert_blobs";
    /// HTTP-01 answers.
    ChallengeTokens = 13, "challenge_tokens";
    /// Operator tokens.
    Tokens = 14, "tokens";
    /// Join tokens.
    JoinTokens = 15, "join_tokens";
    /// Address blocks.
    Subnets = 16, "subnets";
    /// Pull credentials.
    RegistryCredentials = 17, "registry_credentials";
    /// The audit trail.
    Audit = 18, "audit";
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
