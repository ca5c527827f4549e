//! Tables of the state, with their tags and names in storage.

use std::fmt;

macro_rules! tables {
    ($($(#[$doc:meta])* $name:ident = $tag:literal, $text:literal;)*) => {
        /// Kind of entity in a stored row.
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

            /// Returns the first byte of the table's row keys.
            #[must_use]
            pub fn tag(self) -> u8 {
                self as u8
            }

            /// Returns the table with this tag.
            #[must_use]
            pub fn from_tag(tag: u8) -> Option<Self> {
                match tag {
                    $($tag => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Returns the table's name, for logs and errors.
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
    /// Desired replicas.
    ReplicasDesired = 4, "replicas_desired";
    /// Observed replicas.
    ReplicasObserved = 5, "replicas_observed";
    /// Counters of consecutive failures.
    RestartCounters = 6, "restart_counters";
    /// Counters that replica indexes are drawn from.
    ReplicaCounters = 7, "replica_counters";
    /// Rollout plans.
    RolloutPlans = 8, "rollout_plans";
    /// HTTP routes.
    Routes = 9, "routes";
    /// TCP listeners.
    TcpRoutes = 10, "tcp_routes";
    /// Certificate leases.
    Certs = 11, "certs";
    /// The certificate store.
    CertBlobs = 12, "cert_blobs";
    /// HTTP-01 challenge responses.
    ChallengeTokens = 13, "challenge_tokens";
    /// Operator tokens.
    Tokens = 14, "tokens";
    /// Join tokens.
    JoinTokens = 15, "join_tokens";
    /// Address blocks.
    Subnets = 16, "subnets";
    /// Registry credentials.
    RegistryCredentials = 17, "registry_credentials";
    /// The audit trail.
    Audit = 18, "audit";
    /// Address blocks in quarantine.
    FreedSubnets = 19, "freed_subnets";
    /// Keys of the cluster configuration.
    ClusterConfig = 20, "cluster_config";
    /// Secrets of deployments.
    Secrets = 24, "secrets";
    /// TLS of domains in place of what manifests say.
    RouteTlsOverrides = 26, "route_tls_overrides";
    /// Certificates of operators.
    ImportedCerts = 27, "imported_certs";
    /// Contents of the files of deployments.
    FileContents = 28, "file_contents";
    /// Configs and secrets of the cluster.
    ClusterFiles = 29, "cluster_files";
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
