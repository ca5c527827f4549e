//! Key, map, row and event of each kind of entity.

use std::sync::Arc;

use imbl::OrdMap;
use jaco_proto::v1;
use prost::Message;

use super::{State, key::Key, table::Table};
use crate::event::{Change, Delta};

/// One row of a table.
pub(crate) trait Entity: Message + Default + PartialEq + 'static {
    /// Unique key among the entities of this kind.
    type Key: Key;

    /// Table that stores this kind.
    const TABLE: Table;

    /// Returns the key, built from the entity's fields.
    fn key(&self) -> Self::Key;

    /// Returns the map of this kind.
    fn map(state: &State) -> &OrdMap<Self::Key, Arc<Self>>;

    /// Returns the map of this kind, mutable.
    fn map_mut(state: &mut State) -> &mut OrdMap<Self::Key, Arc<Self>>;

    /// Returns the event of a change; `None` for kinds that cannot be watched.
    fn change(delta: Delta<Self>) -> Option<Change>;

    /// Returns the deployment that the entity names, if any.
    fn deployment(&self) -> Option<&str> {
        None
    }
}

/// Returns the key of a row in storage: the tag of its table, then its own key.
pub(crate) fn row_key<E: Entity>(key: &E::Key) -> Vec<u8> {
    let mut out = vec![E::TABLE.tag()];
    key.encode(&mut out);
    out
}

macro_rules! entity {
    ($entity:ident in $table:ident, $map:ident by $key:ty = |$e:ident| $key_of:expr,
     $event:expr $(, of $deployment:ident)?) => {
        impl Entity for v1::$entity {
            type Key = $key;
            const TABLE: Table = Table::$table;

            fn key(&self) -> Self::Key {
                let $e = self;
                $key_of
            }

            fn map(state: &State) -> &OrdMap<Self::Key, Arc<Self>> {
                &state.$map
            }

            fn map_mut(state: &mut State) -> &mut OrdMap<Self::Key, Arc<Self>> {
                &mut state.$map
            }

            fn change(delta: Delta<Self>) -> Option<Change> {
                let event: fn(Delta<Self>) -> Option<Change> = $event;
                event(delta)
            }

            $(fn deployment(&self) -> Option<&str> {
                Some(&self.$deployment)
            })?
        }
    };
}

entity!(Node in Nodes, nodes by String = |e| e.hostname.clone(),
    |d| Some(Change::Node(d)));
entity!(Deployment in Deployments, deployments by String = |e| e.name.clone(),
    |d| Some(Change::Deployment(d)), of name);
entity!(ReplicaDesired in ReplicasDesired, replicas_desired by String = |e| e.id.clone(),
    |d| Some(Change::ReplicaDesired(d)), of deployment);
entity!(ReplicaObserved in ReplicasObserved, replicas_observed by String = |e| e.id.clone(),
    |d| Some(Change::ReplicaObserved(d)));
entity!(RestartCounter in RestartCounters, restart_counters by String = |e| e.replica_id.clone(),
    |d| Some(Change::RestartCounter(d)));
entity!(ReplicaCounter in ReplicaCounters, replica_counters by (String, String) =
    |e| (e.deployment.clone(), e.service.clone()),
    |d| Some(Change::ReplicaCounter(d)), of deployment);
entity!(RolloutPlan in RolloutPlans, rollout_plans by (String, String) =
    |e| (e.deployment.clone(), e.service.clone()),
    |d| Some(Change::RolloutPlan(d)), of deployment);
entity!(Route in Routes, routes by (String, String) = |e| (e.domain.clone(), e.path.clone()),
    |d| Some(Change::Route(d)), of deployment);
entity!(TcpRoute in TcpRoutes, tcp_routes by (i32, i32) = |e| (e.published_port, e.protocol),
    |d| Some(Change::TcpRoute(d)), of deployment);
entity!(Cert in Certs, certs by String = |e| e.domain.clone(),
    |d| Some(Change::Cert(d)));
entity!(CertBlob in CertBlobs, cert_blobs by String = |e| e.key.clone(),
    |_| None);
entity!(ChallengeToken in ChallengeTokens, challenge_tokens by String = |e| e.token.clone(),
    |d| Some(Change::ChallengeToken(d)));
entity!(Token in Tokens, tokens by String = |e| e.identity.clone(),
    |d| Some(Change::Token(d)));
entity!(JoinToken in JoinTokens, join_tokens by String = |e| join_token_key(&e.hashed_secret),
    |d| Some(Change::JoinToken(d)));
entity!(Subnet in Subnets, subnets by (String, String, String) =
    |e| (e.deployment.clone(), e.network.clone(), e.host.clone()),
    |d| Some(Change::Subnet(d)), of deployment);
entity!(RegistryCredential in RegistryCredentials, registry_credentials by String =
    |e| e.registry.clone(),
    |_| None);
entity!(ClusterConfig in ClusterConfig, cluster_config by String = |e| e.key.clone(),
    |d| Some(Change::ClusterConfig(d)));
entity!(FreedSubnet in FreedSubnets, freed_subnets by String = |e| e.cidr.clone(),
    |_| None, of deployment);
entity!(Secret in Secrets, secrets by (String, String) =
    |e| (e.deployment.clone(), e.name.clone()),
    |_| None, of deployment);
entity!(RouteTlsOverride in RouteTlsOverrides, route_tls_overrides by (String, String) =
    |e| (e.deployment.clone(), e.domain.clone()),
    |d| Some(Change::RouteTlsOverride(d)), of deployment);
entity!(ImportedCert in ImportedCerts, imported_certs by String = |e| e.name.clone(),
    |d| Some(Change::ImportedCert(d)));
entity!(FileContent in FileContents, file_contents by (String, String) =
    |e| (e.deployment.clone(), e.id.clone()),
    |_| None, of deployment);
entity!(ClusterFile in ClusterFiles, cluster_files by (String, String) =
    |e| cluster_file_key(e.kind(), &e.name),
    |_| None);
entity!(AuditEvent in Audit, audit by (u64, u32) = |e| (e.raft_index, e.ordinal),
    |d| Some(Change::Audit(d)));

/// Returns the key of a join token: lower-case hex of its hash.
#[must_use]
pub fn join_token_key(hashed_secret: &[u8]) -> String {
    hex::encode(hashed_secret)
}

/// Returns the key of a config or secret of the cluster.
#[must_use]
pub fn cluster_file_key(kind: v1::FileKind, name: &str) -> (String, String) {
    let kind = match kind {
        v1::FileKind::Config => "config",
        v1::FileKind::Secret => "secret",
        v1::FileKind::Unspecified | v1::FileKind::Bind => "", // refused: no row has this key
    };
    (kind.to_owned(), name.to_owned())
}
