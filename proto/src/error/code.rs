//! The closed list of error codes, and the gRPC status of each.

use std::{fmt, str::FromStr};

#[cfg(feature = "grpc")]
use tonic::Code;

macro_rules! error_codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal => $code:ident,)*) => {
        /// Stable name of a failure; clients may branch on it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum ErrorCode {
            $($(#[$doc])* $name,)*
        }

        impl ErrorCode {
            /// Every code, in the order of the contract.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the wire name: lower-case snake case.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// Returns the gRPC status code of the failure.
            #[cfg(feature = "grpc")]
            pub fn grpc(self) -> Code {
                match self {
                    $(Self::$name => Code::$code,)*
                }
            }
        }
    };
}

error_codes! {
    /// The node has no cluster yet, or was removed from it.
    ClusterUninitialized = "cluster_uninitialized" => Unavailable,
    /// Init or join on a node that has a cluster.
    ClusterAlreadyInitialized = "cluster_already_initialized" => FailedPrecondition,
    /// The joining hostname is a member already.
    NodeAlreadyMember = "node_already_member" => AlreadyExists,
    /// No member has this hostname.
    NodeNotFound = "node_not_found" => NotFound,
    /// Missing, malformed or unknown operator token.
    TokenInvalid = "token_invalid" => Unauthenticated,
    /// The operator token was revoked.
    TokenRevoked = "token_revoked" => Unauthenticated,
    /// A privileged manifest with a token that does not allow it.
    PrivilegeDenied = "privilege_denied" => PermissionDenied,
    /// The call is reserved to members.
    PeerOnly = "peer_only" => PermissionDenied,
    /// Malformed or unknown join token.
    JoinTokenInvalid = "join_token_invalid" => PermissionDenied,
    /// The join token was used before.
    JoinTokenConsumed = "join_token_consumed" => PermissionDenied,
    /// The join token is past its lifetime.
    JoinTokenExpired = "join_token_expired" => PermissionDenied,
    /// The CA of the peer differs from the one in the join token.
    CaDigestMismatch = "ca_digest_mismatch" => FailedPrecondition,
    /// The clocks of the joining node and of the cluster differ too much.
    ClockSkew = "clock_skew" => FailedPrecondition,
    /// The peer to join through does not respond.
    PeerUnreachable = "peer_unreachable" => Unavailable,
    /// A certificate request that does not parse, does not verify, or has names other than the
    /// joiner's.
    CsrInvalid = "csr_invalid" => InvalidArgument,
    /// The replicated state holds no CA.
    CaMissing = "ca_missing" => Internal,
    /// The leader is unknown or unreachable.
    NoLeader = "no_leader" => Unavailable,
    /// No majority of voters is reachable.
    QuorumLost = "quorum_lost" => Unavailable,
    /// Raft is not open.
    RaftUnavailable = "raft_unavailable" => Unavailable,
    /// The replicated state is not open.
    StateUnavailable = "state_unavailable" => Unavailable,
    /// A commit failed, or its outcome is unknown.
    RaftApplyFailed = "raft_apply_failed" => Internal,
    /// A learner could not be added.
    RaftAddNonvoterFailed = "raft_add_nonvoter_failed" => Internal,
    /// A voter could not be demoted.
    RaftDemoteFailed = "raft_demote_failed" => Internal,
    /// A member could not be removed from raft.
    RaftRemoveFailed = "raft_remove_failed" => Internal,
    /// The system's random generator failed.
    RandFailed = "rand_failed" => Internal,
    /// The method exists for compatibility only.
    Unimplemented = "unimplemented" => Unimplemented,
    /// A failure without a code of its own.
    Internal = "internal" => Internal,
    /// A manifest or request breaks a rule of its schema.
    ValidationFailed = "validation_failed" => InvalidArgument,
    /// A manifest is not YAML of the expected shape.
    ParseFailed = "parse_failed" => InvalidArgument,
    /// A name that is not a compose service.
    UnknownService = "unknown_service" => InvalidArgument,
    /// A pinned host that is not a member.
    UnknownHost = "unknown_host" => InvalidArgument,
    /// A network that is not declared.
    UnknownNetwork = "unknown_network" => InvalidArgument,
    /// A published port that is used by the ingress.
    ReservedPort = "reserved_port" => InvalidArgument,
    /// A published port that is in use.
    PortConflict = "port_conflict" => InvalidArgument,
    /// A (domain, path) of another deployment.
    RouteConflict = "route_conflict" => InvalidArgument,
    /// More replicas than distinct pinned hosts.
    ReplicasExceedPinnedHosts = "replicas_exceed_pinned_hosts" => InvalidArgument,
    /// A key of the first compose formats.
    LegacyComposeField = "legacy_compose_field" => InvalidArgument,
    /// `env_file` reached the daemon unresolved.
    EnvFileUnresolved = "env_file_unresolved" => InvalidArgument,
    /// One domain with both TLS modes.
    RouteTlsMixed = "route_tls_mixed" => InvalidArgument,
    /// No route of the deployment has a domain.
    DomainRequired = "domain_required" => InvalidArgument,
    /// A certificate that does not fit its key or its name, or is not valid.
    CertInvalid = "cert_invalid" => InvalidArgument,
    /// No imported certificate has this name.
    CertNotFound = "cert_not_found" => NotFound,
    /// A deployment names a config whose content was not sent, or one that the cluster does not have.
    ConfigMissing = "config_missing" => InvalidArgument,
    /// A deployment names a secret whose value was not sent, or one that the cluster does not have.
    SecretMissing = "secret_missing" => InvalidArgument,
    /// A variable of a secret is not set where the client runs.
    SecretUnresolved = "secret_unresolved" => InvalidArgument,
    /// A secret has the name of a variable in `environment`.
    SecretConflict = "secret_conflict" => InvalidArgument,
    /// The cluster has no config of this name.
    ConfigNotFound = "config_not_found" => NotFound,
    /// The cluster has no secret of this name.
    SecretNotFound = "secret_not_found" => NotFound,
    /// The cluster has a config or secret of this name with another content.
    FileExists = "file_exists" => AlreadyExists,
    /// Two catch-all routes on one domain.
    RouteMultipleCatchall = "route_multiple_catchall" => InvalidArgument,
    /// A service that depends on itself, directly or in a cycle.
    InvalidDependsOn = "invalid_depends_on" => InvalidArgument,
    /// A dependency that is not in the file.
    UnknownDependsOnService = "unknown_depends_on_service" => InvalidArgument,
    /// A dependency condition that JACO does not support.
    UnsupportedDependsOnCondition = "unsupported_depends_on_condition" => InvalidArgument,
    /// No deployment has this name.
    DeploymentNotFound = "deployment_not_found" => NotFound,
    /// A rollback without a previous revision.
    NoPreviousRevision = "no_previous_revision" => FailedPrecondition,
    /// No rollout of the deployment is in progress.
    RolloutNotFound = "rollout_not_found" => NotFound,
    /// The domain has no routes.
    RouteNotFound = "route_not_found" => NotFound,
    /// No replica has this id.
    ReplicaNotFound = "replica_not_found" => NotFound,
    /// A replica of the draining node fits on no other node.
    DrainNoPlacement = "drain_no_placement" => FailedPrecondition,
    /// The drain did not finish in time.
    DrainTimeout = "drain_timeout" => FailedPrecondition,
    /// The caller disconnected; the drain goes on.
    DrainCancelled = "drain_cancelled" => DeadlineExceeded,
    /// A move during the drain could not be committed.
    DrainApplyFailed = "drain_apply_failed" => Internal,
    /// No block is left in the address pool.
    SubnetPoolExhausted = "subnet_pool_exhausted" => ResourceExhausted,
    /// The allocator is not ready.
    IpamUnavailable = "ipam_unavailable" => Unavailable,
    /// A backup without a cluster.
    NoCluster = "no_cluster" => FailedPrecondition,
    /// The backup could not be written.
    BackupFailed = "backup_failed" => Internal,
    /// The host has no container engine.
    LogsUnavailable = "logs_unavailable" => Unavailable,
    /// A host's log stream broke.
    LogsStream = "logs_stream" => Internal,
    /// No setting of the cluster configuration has this name.
    ConfigKeyUnknown = "config_key_unknown" => InvalidArgument,
    /// The value is not one of the setting's type.
    ConfigValueInvalid = "config_value_invalid" => InvalidArgument,
    /// No member has the secrets key that seals the cluster's values.
    SecretsKeyMissing = "secrets_key_missing" => Unavailable,
    /// The key is not the one that seals the cluster's values.
    SecretsKeyMismatch = "secrets_key_mismatch" => FailedPrecondition,
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text is not an error code known to this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown error code")]
pub struct UnknownCode;

impl FromStr for ErrorCode {
    type Err = UnknownCode;

    fn from_str(text: &str) -> Result<Self, UnknownCode> {
        Self::ALL
            .iter()
            .copied()
            .find(|code| code.as_str() == text)
            .ok_or(UnknownCode)
    }
}

#[cfg(test)]
mod tests;
