//! The state as rows, for storage and digests.

use std::{fmt, sync::Arc};

use jaco_proto::v1;
use prost::Message;
use sha2::{Digest, Sha256};

use super::{
    State,
    entity::{Entity, row_key},
    key::Key,
    table::Table,
};

/// One stored row: key and encoded entity.
pub type Row = (Vec<u8>, Vec<u8>);

/// Error in rows or a snapshot that a state machine cannot have written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The first byte of the key is not the tag of a table.
    #[error("row {key} belongs to no known table")]
    UnknownTable {
        /// The key.
        key: RowName,
    },
    /// The value does not decode as the message of its table.
    #[error("row {key} of {table} does not decode")]
    Undecodable {
        /// The table of the key.
        table: Table,
        /// The key.
        key: RowName,
        /// Error of the decoder.
        #[source]
        source: prost::DecodeError,
    },
    /// The value has fields of a newer version, which the next write would drop.
    #[error("row {key} of {table} holds something that this version does not know")]
    Unknown {
        /// The table of the key.
        table: Table,
        /// The key.
        key: RowName,
    },
    /// The value belongs to another key.
    #[error("row {key} of {table} holds the entity of {found}")]
    Misplaced {
        /// The table of the key.
        table: Table,
        /// The key.
        key: RowName,
        /// Key computed from the value.
        found: RowName,
    },
    /// An entity without a usable key, or two entities with the same key.
    #[error("{table} holds {key} twice, or it is not a key")]
    BadKey {
        /// The table of the entity.
        table: Table,
        /// Its key.
        key: RowName,
    },
}

/// A row key for display; bytes that are not printable ASCII are escaped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowName(pub Vec<u8>);

impl fmt::Display for RowName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// Rebuilds a state from all rows of storage, in any order.
///
/// The applied index is not a row: the caller sets it.
///
/// # Errors
///
/// [`LoadError`] names the invalid row.
pub fn load(rows: impl IntoIterator<Item = Row>) -> Result<State, LoadError> {
    let mut state = State::default();
    for (key, value) in rows {
        insert(&mut state, key, &value)?;
    }
    Ok(state)
}

fn insert(state: &mut State, key: Vec<u8>, value: &[u8]) -> Result<(), LoadError> {
    let Some(table) = key.first().copied().and_then(Table::from_tag) else {
        return Err(LoadError::UnknownTable { key: RowName(key) });
    };
    match table {
        Table::Cluster => insert_cluster(state, key, value),
        Table::Nodes => insert_entity::<v1::Node>(state, key, value),
        Table::Deployments => insert_entity::<v1::Deployment>(state, key, value),
        Table::ReplicasDesired => insert_entity::<v1::ReplicaDesired>(state, key, value),
        Table::ReplicasObserved => insert_entity::<v1::ReplicaObserved>(state, key, value),
        Table::RestartCounters => insert_entity::<v1::RestartCounter>(state, key, value),
        Table::ReplicaCounters => insert_entity::<v1::ReplicaCounter>(state, key, value),
        Table::RolloutPlans => insert_entity::<v1::RolloutPlan>(state, key, value),
        Table::Routes => insert_entity::<v1::Route>(state, key, value),
        Table::TcpRoutes => insert_entity::<v1::TcpRoute>(state, key, value),
        Table::Certs => insert_entity::<v1::Cert>(state, key, value),
        Table::CertBlobs => insert_entity::<v1::CertBlob>(state, key, value),
        Table::ChallengeTokens => insert_entity::<v1::ChallengeToken>(state, key, value),
        Table::Tokens => insert_entity::<v1::Token>(state, key, value),
        Table::JoinTokens => insert_entity::<v1::JoinToken>(state, key, value),
        Table::Subnets => insert_entity::<v1::Subnet>(state, key, value),
        Table::RegistryCredentials => insert_entity::<v1::RegistryCredential>(state, key, value),
        Table::Audit => insert_entity::<v1::AuditEvent>(state, key, value),
        Table::FreedSubnets => insert_entity::<v1::FreedSubnet>(state, key, value),
        Table::ClusterConfig => insert_entity::<v1::ClusterConfig>(state, key, value),
        Table::Secrets => insert_entity::<v1::Secret>(state, key, value),
        Table::RouteTlsOverrides => insert_entity::<v1::RouteTlsOverride>(state, key, value),
        Table::ImportedCerts => insert_entity::<v1::ImportedCert>(state, key, value),
        Table::FileContents => insert_entity::<v1::FileContent>(state, key, value),
        Table::ClusterFiles => insert_entity::<v1::ClusterFile>(state, key, value),
    }
}

fn decode<M: Message + Default>(table: Table, key: &[u8], value: &[u8]) -> Result<M, LoadError> {
    let key = || RowName(key.to_vec());
    let found = M::decode(value).map_err(|source| LoadError::Undecodable {
        table,
        key: key(),
        source,
    })?;
    match is_complete(&found, value) {
        true => Ok(found),
        false => Err(LoadError::Unknown { table, key: key() }),
    }
}

/// Whether a message decoded from `bytes` includes all of them: decoding drops unknown fields. The
/// bytes were written by this encoder, so only dropped fields make a difference.
pub(super) fn is_complete(message: &impl Message, bytes: &[u8]) -> bool {
    message.encoded_len() == bytes.len()
}

fn insert_cluster(state: &mut State, key: Vec<u8>, value: &[u8]) -> Result<(), LoadError> {
    let meta = decode(Table::Cluster, &key, value)?;
    if key != cluster_key() {
        return Err(LoadError::Misplaced {
            table: Table::Cluster,
            key: RowName(key),
            found: RowName(cluster_key()),
        });
    }
    state.cluster = Some(Arc::new(meta));
    Ok(())
}

fn insert_entity<E: Entity>(
    state: &mut State,
    key: Vec<u8>,
    value: &[u8],
) -> Result<(), LoadError> {
    let entity: E = decode(E::TABLE, &key, value)?;
    let found = row_key::<E>(&entity.key());
    if key != found {
        return Err(LoadError::Misplaced {
            table: E::TABLE,
            key: RowName(key),
            found: RowName(found),
        });
    }
    add(state, entity)
}

/// Adds an entity, which must be storable and not exist yet.
pub(super) fn add<E: Entity>(state: &mut State, entity: E) -> Result<(), LoadError> {
    let key = entity.key();
    let row = row_key::<E>(&key);
    let storable = key.is_storable();
    if !storable || E::map_mut(state).insert(key, Arc::new(entity)).is_some() {
        return Err(LoadError::BadKey {
            table: E::TABLE,
            key: RowName(row),
        });
    }
    Ok(())
}

/// Returns the key of the cluster singleton: the tag of its table alone.
pub(crate) fn cluster_key() -> Vec<u8> {
    vec![Table::Cluster.tag()]
}

fn rows_of<E: Entity>(state: &State) -> impl Iterator<Item = Row> + '_ {
    E::map(state)
        .iter()
        .map(|(key, entity)| (row_key::<E>(key), entity.encode_to_vec()))
}

impl State {
    /// Iterates over the rows of this state, by ascending key.
    ///
    /// The applied index is not a row, so two states with the same rows may differ in it.
    pub fn rows(&self) -> impl Iterator<Item = Row> + '_ {
        let cluster = self
            .cluster
            .iter()
            .map(|meta| (cluster_key(), meta.encode_to_vec()));
        cluster
            .chain(rows_of::<v1::Node>(self))
            .chain(rows_of::<v1::Deployment>(self))
            .chain(rows_of::<v1::ReplicaDesired>(self))
            .chain(rows_of::<v1::ReplicaObserved>(self))
            .chain(rows_of::<v1::RestartCounter>(self))
            .chain(rows_of::<v1::ReplicaCounter>(self))
            .chain(rows_of::<v1::RolloutPlan>(self))
            .chain(rows_of::<v1::Route>(self))
            .chain(rows_of::<v1::TcpRoute>(self))
            .chain(rows_of::<v1::Cert>(self))
            .chain(rows_of::<v1::CertBlob>(self))
            .chain(rows_of::<v1::ChallengeToken>(self))
            .chain(rows_of::<v1::Token>(self))
            .chain(rows_of::<v1::JoinToken>(self))
            .chain(rows_of::<v1::Subnet>(self))
            .chain(rows_of::<v1::RegistryCredential>(self))
            .chain(rows_of::<v1::AuditEvent>(self))
            .chain(rows_of::<v1::FreedSubnet>(self))
            .chain(rows_of::<v1::ClusterConfig>(self))
            .chain(rows_of::<v1::Secret>(self))
            .chain(rows_of::<v1::RouteTlsOverride>(self))
            .chain(rows_of::<v1::ImportedCert>(self))
            .chain(rows_of::<v1::FileContent>(self))
            .chain(rows_of::<v1::ClusterFile>(self))
    }

    /// Returns the SHA-256 over the rows: equal on two nodes exactly if their rows are equal.
    ///
    /// It depends neither on the history nor on the applied index; compare it between nodes at the
    /// same applied index.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        for (key, value) in self.rows() {
            // The lengths separate keys and values unambiguously.
            hash.update((key.len() as u64).to_be_bytes());
            hash.update(&key);
            hash.update((value.len() as u64).to_be_bytes());
            hash.update(&value);
        }
        hash.finalize().into()
    }
}
