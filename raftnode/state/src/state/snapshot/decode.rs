//! Decodes a snapshot message into a state.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, BufRead, BufReader, Read},
    sync::Arc,
};

use jaco_proto::v1;
use prost::Message;

use super::{
    super::{
        LoadError,
        rows::{add, is_complete},
    },
    AUDIT, CLUSTER, DELIMITED, Entity, KINDS, State,
};

/// Limits and checks of decoding a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Largest encoded entity, in bytes.
    pub entity_bytes: u64,
    /// Maximum number of entities.
    pub entities: u64,
    /// Whether audit events of one log index may lack ordinals, as in archives of other
    /// implementations. They are numbered in the order of the snapshot.
    pub number_audit_events: bool,
    /// Whether fields unknown to this version are an error; else they are left out.
    pub complete: bool,
}

impl Rules {
    /// Rules for snapshots of cluster members: accepts everything that a state machine can have
    /// written, and rejects unknown fields, which would be lost.
    pub const MEMBER: Self = Self {
        entity_bytes: u64::MAX,
        entities: u64::MAX,
        number_audit_events: false,
        complete: true,
    };
}

/// A decoded snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodedSnapshot {
    /// The decoded state.
    pub state: State,
    /// Fields of the message that this version does not know and has left out.
    pub unknown_fields: BTreeSet<u32>,
}

/// Reason why bytes are not the snapshot of a state.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The bytes cannot be read, or end too early.
    #[error("the snapshot cannot be read")]
    Read(#[source] io::Error),
    /// The bytes are not a valid message.
    #[error("the snapshot is damaged: {0}")]
    Malformed(&'static str),
    /// An entity does not decode as a message of its kind.
    #[error("an entity of field {field} does not decode")]
    Entity {
        /// Number of the field.
        field: u32,
        /// Error of the decoder.
        #[source]
        source: prost::DecodeError,
    },
    /// A field of the snapshot, or of one of its entities, is of a newer version.
    #[error("field {field} holds something that this version does not know")]
    Unknown {
        /// Field number in the snapshot.
        field: u32,
    },
    /// An entity has no usable key, or a duplicate one.
    #[error("the snapshot holds an impossible state")]
    Key(#[from] LoadError),
    /// A limit of the rules is exceeded.
    #[error("the snapshot exceeds {limit} {unit}")]
    TooLarge {
        /// Unit of the limit.
        unit: &'static str,
        /// The limit.
        limit: u64,
    },
}

impl State {
    /// Decodes a snapshot taken at `applied_index`, one entity at a time.
    ///
    /// # Errors
    /// [`SnapshotError`]; memory stays within the limits of `rules` for any input.
    pub fn read_snapshot(
        applied_index: u64,
        input: impl Read,
        rules: &Rules,
    ) -> Result<DecodedSnapshot, SnapshotError> {
        let mut fields = FieldReader {
            input: BufReader::new(input),
            entity_bytes: rules.entity_bytes,
            bytes: Vec::new(),
        };
        let mut state = Self {
            applied_index,
            ..Self::default()
        };
        let mut unknown_fields = BTreeSet::new();
        let mut ordinals = BTreeMap::new();
        let mut left = rules.entities;
        while let Some((field, wire_type)) = fields.key()? {
            let kind = KINDS.iter().find(|kind| kind.field == field);
            if field != CLUSTER && kind.is_none() {
                fields.skip(wire_type)?;
                if rules.complete {
                    return Err(SnapshotError::Unknown { field });
                }
                unknown_fields.insert(field);
                continue;
            }
            if wire_type != DELIMITED {
                return Err(SnapshotError::Malformed("a field has the wrong type"));
            }
            left = left.checked_sub(1).ok_or(SnapshotError::TooLarge {
                unit: "entities",
                limit: rules.entities,
            })?;
            let bytes = fields.delimited()?;
            match kind {
                Some(kind) if kind.field == AUDIT && rules.number_audit_events => {
                    insert_numbered(&mut state, &mut ordinals, bytes, rules)?;
                }
                Some(kind) => (kind.insert)(&mut state, field, bytes, rules)?,
                None => insert_cluster(&mut state, bytes, rules)?,
            }
        }
        Ok(DecodedSnapshot {
            state,
            unknown_fields,
        })
    }
}

pub(super) fn insert<E: Entity>(
    state: &mut State,
    field: u32,
    bytes: &[u8],
    rules: &Rules,
) -> Result<(), SnapshotError> {
    let entity: E = decode(field, bytes, rules)?;
    Ok(add(state, entity)?)
}

fn insert_cluster(state: &mut State, bytes: &[u8], rules: &Rules) -> Result<(), SnapshotError> {
    let meta: v1::ClusterMeta = decode(CLUSTER, bytes, rules)?;
    match state.cluster.replace(Arc::new(meta)) {
        None => Ok(()),
        Some(_) => Err(SnapshotError::Malformed("it holds two clusters")),
    }
}

/// Adds an audit event, under the next free ordinal if its own is taken.
fn insert_numbered(
    state: &mut State,
    next: &mut BTreeMap<u64, u32>,
    bytes: &[u8],
    rules: &Rules,
) -> Result<(), SnapshotError> {
    let mut event: v1::AuditEvent = decode(AUDIT, bytes, rules)?;
    let free = next.entry(event.raft_index).or_default();
    event.ordinal = event.ordinal.max(*free);
    *free = event.ordinal.saturating_add(1);
    Ok(add(state, event)?)
}

fn decode<M: Message + Default>(
    field: u32,
    bytes: &[u8],
    rules: &Rules,
) -> Result<M, SnapshotError> {
    let found = M::decode(bytes).map_err(|source| SnapshotError::Entity { field, source })?;
    if rules.complete && !is_complete(&found, bytes) {
        return Err(SnapshotError::Unknown { field });
    }
    Ok(found)
}

/// Splits the bytes of a message into its fields.
struct FieldReader<R> {
    input: BufReader<R>,
    entity_bytes: u64,
    /// Content of the last field read.
    bytes: Vec<u8>,
}

impl<R: Read> FieldReader<R> {
    /// Returns number and wire type of the next field; `None` at the end.
    fn key(&mut self) -> Result<Option<(u32, u32)>, SnapshotError> {
        let at_end = self.input.fill_buf().map_err(SnapshotError::Read)?;
        if at_end.is_empty() {
            return Ok(None);
        }
        let key = u32::try_from(self.varint()?)
            .map_err(|_| SnapshotError::Malformed("a field number is out of range"))?;
        match (key >> 3, key & 7) {
            (0, _) => Err(SnapshotError::Malformed("a field has the number 0")),
            split => Ok(Some(split)),
        }
    }

    /// Reads the content of a length-delimited field.
    fn delimited(&mut self) -> Result<&[u8], SnapshotError> {
        let length = self.varint()?;
        if length > self.entity_bytes {
            return Err(SnapshotError::TooLarge {
                unit: "bytes in one entity",
                limit: self.entity_bytes,
            });
        }
        self.bytes.clear();
        // The buffer grows with the bytes present, because the length is untrusted.
        let found = self
            .input
            .by_ref()
            .take(length)
            .read_to_end(&mut self.bytes);
        if found.map_err(SnapshotError::Read)? as u64 != length {
            return Err(SnapshotError::Read(io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(&self.bytes)
    }

    fn skip(&mut self, wire_type: u32) -> Result<(), SnapshotError> {
        match wire_type {
            0 => self.varint().map(drop),
            1 => self.fixed::<8>(),
            DELIMITED => self.delimited().map(drop),
            5 => self.fixed::<4>(),
            _ => Err(SnapshotError::Malformed("a field has an unknown type")),
        }
    }

    fn fixed<const N: usize>(&mut self) -> Result<(), SnapshotError> {
        self.input
            .read_exact(&mut [0; N])
            .map_err(SnapshotError::Read)
    }

    /// Reads a base-128 number of at most 64 bits.
    fn varint(&mut self) -> Result<u64, SnapshotError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let mut byte = [0];
            self.input
                .read_exact(&mut byte)
                .map_err(SnapshotError::Read)?;
            let bits = u64::from(byte[0] & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte[0] & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(SnapshotError::Malformed("a number is longer than 64 bits"))
    }
}
