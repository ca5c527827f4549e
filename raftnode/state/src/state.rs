//! The typed replicated state.

mod entity;
mod key;
mod rows;
mod snapshot;
mod table;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use imbl::OrdMap;
use jaco_proto::v1;

pub(crate) use entity::{Entity, row_key};
pub use entity::{cluster_file_key, join_token_key};
pub(crate) use key::Key;
pub(crate) use rows::cluster_key;
pub use rows::{LoadError, Row, RowName, load};
pub use snapshot::{DecodedSnapshot, Extent, Rules, SnapshotError};
pub use table::Table;

/// The replicated state of the cluster at one log index.
///
/// The maps are persistent: a clone is O(1) and shares structure with its origin, so every applied
/// entry yields an immutable snapshot. Keys are ordered, so iteration is the same on every node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Log index of the last applied entry.
    pub applied_index: u64,
    /// Identity of the cluster; `None` before the first command.
    pub cluster: Option<Arc<v1::ClusterMeta>>,
    /// Members by hostname.
    pub nodes: OrdMap<String, Arc<v1::Node>>,
    /// Deployments by name.
    pub deployments: OrdMap<String, Arc<v1::Deployment>>,
    /// Desired replicas by replica id.
    pub replicas_desired: OrdMap<String, Arc<v1::ReplicaDesired>>,
    /// Last observation of each replica by replica id.
    pub replicas_observed: OrdMap<String, Arc<v1::ReplicaObserved>>,
    /// Consecutive failures by replica id.
    pub restart_counters: OrdMap<String, Arc<v1::RestartCounter>>,
    /// Counters that replica indexes are drawn from, by (deployment, service).
    pub replica_counters: OrdMap<(String, String), Arc<v1::ReplicaCounter>>,
    /// Rollout plans by (deployment, service).
    pub rollout_plans: OrdMap<(String, String), Arc<v1::RolloutPlan>>,
    /// HTTP routes by (domain, path).
    pub routes: OrdMap<(String, String), Arc<v1::Route>>,
    /// Published ports by (port, number of the transport protocol).
    pub tcp_routes: OrdMap<(i32, i32), Arc<v1::TcpRoute>>,
    /// Certificate leases by lock name.
    pub certs: OrdMap<String, Arc<v1::Cert>>,
    /// Certificate store by key.
    pub cert_blobs: OrdMap<String, Arc<v1::CertBlob>>,
    /// HTTP-01 challenge responses by token.
    pub challenge_tokens: OrdMap<String, Arc<v1::ChallengeToken>>,
    /// Operator tokens by identity.
    pub tokens: OrdMap<String, Arc<v1::Token>>,
    /// Join tokens by lower-case hex of their hash.
    pub join_tokens: OrdMap<String, Arc<v1::JoinToken>>,
    /// Address blocks by (deployment, network, host).
    pub subnets: OrdMap<(String, String, String), Arc<v1::Subnet>>,
    /// Address blocks that lost their network within the last [`QUARANTINE`](crate::QUARANTINE),
    /// by block.
    pub freed_subnets: OrdMap<String, Arc<v1::FreedSubnet>>,
    /// Registry credentials by canonical registry key.
    pub registry_credentials: OrdMap<String, Arc<v1::RegistryCredential>>,
    /// Cluster configuration by key; a key that is not set has no row.
    pub cluster_config: OrdMap<String, Arc<v1::ClusterConfig>>,
    /// Secrets of deployments by (deployment, name).
    pub secrets: OrdMap<(String, String), Arc<v1::Secret>>,
    /// TLS of domains in place of what manifests say, by (deployment, domain).
    pub route_tls_overrides: OrdMap<(String, String), Arc<v1::RouteTlsOverride>>,
    /// Certificates of operators by name.
    pub imported_certs: OrdMap<String, Arc<v1::ImportedCert>>,
    /// Contents of the files of deployments by (deployment, id).
    pub file_contents: OrdMap<(String, String), Arc<v1::FileContent>>,
    /// Configs and secrets of the cluster by (number of the kind, name).
    pub cluster_files: OrdMap<(String, String), Arc<v1::ClusterFile>>,
    /// Audit trail by (log index, ordinal).
    pub audit: OrdMap<(u64, u32), Arc<v1::AuditEvent>>,
}

impl State {
    /// Whether `other` differs at most in records, which are only read on request: the applied
    /// index, the audit trail, tokens, registry credentials, freed address blocks and the contents
    /// of files. May return `false` for equal states with different histories.
    #[must_use]
    pub fn equal_except_records(&self, other: &Self) -> bool {
        // Destructured, so that a new table must be assigned to one of the two groups.
        let Self {
            applied_index: _,
            audit: _,
            tokens: _,
            join_tokens: _,
            registry_credentials: _,
            freed_subnets: _,
            file_contents: _,
            cluster_files: _,
            cluster,
            nodes,
            deployments,
            replicas_desired,
            replicas_observed,
            restart_counters,
            replica_counters,
            rollout_plans,
            routes,
            tcp_routes,
            certs,
            cert_blobs,
            challenge_tokens,
            subnets,
            cluster_config,
            secrets,
            route_tls_overrides,
            imported_certs,
        } = self;
        let same_cluster = match (cluster, &other.cluster) {
            (Some(one), Some(two)) => Arc::ptr_eq(one, two),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        same_cluster
            && nodes.ptr_eq(&other.nodes)
            && deployments.ptr_eq(&other.deployments)
            && replicas_desired.ptr_eq(&other.replicas_desired)
            && replicas_observed.ptr_eq(&other.replicas_observed)
            && restart_counters.ptr_eq(&other.restart_counters)
            && replica_counters.ptr_eq(&other.replica_counters)
            && rollout_plans.ptr_eq(&other.rollout_plans)
            && routes.ptr_eq(&other.routes)
            && tcp_routes.ptr_eq(&other.tcp_routes)
            && certs.ptr_eq(&other.certs)
            && cert_blobs.ptr_eq(&other.cert_blobs)
            && challenge_tokens.ptr_eq(&other.challenge_tokens)
            && subnets.ptr_eq(&other.subnets)
            && cluster_config.ptr_eq(&other.cluster_config)
            && secrets.ptr_eq(&other.secrets)
            && route_tls_overrides.ptr_eq(&other.route_tls_overrides)
            && imported_certs.ptr_eq(&other.imported_certs)
    }

    /// Whether `route` asks for TLS: its domain's override decides, else the manifest.
    #[must_use]
    pub fn is_tls_auto(&self, route: &v1::Route) -> bool {
        if self.route_tls_overrides.is_empty() {
            return route.tls_auto;
        }
        let key = (route.deployment.clone(), route.domain.clone());
        let stored = self.route_tls_overrides.get(&key);
        stored.map_or(route.tls_auto, |stored| stored.tls_auto)
    }
}
