//! Encodes a state as a snapshot message.

use std::io::{self, Read};

use prost::Message;

use super::{CLUSTER, DELIMITED, Entity, KINDS, State};

/// Encoded fields, one for each entity.
pub(super) type Fields<'a> = Box<dyn Iterator<Item = Vec<u8>> + 'a>;

/// Size of a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Total size, in bytes.
    pub bytes: u64,
    /// Number of entities.
    pub entities: u64,
    /// Size of the largest entity, in bytes.
    pub largest: u64,
}

impl Extent {
    fn add(&mut self, field: u32, entity: &impl Message) {
        let length = entity.encoded_len();
        let head = prost::length_delimiter_len(key(field)) + prost::length_delimiter_len(length);
        self.bytes += (head + length) as u64;
        self.entities += 1;
        self.largest = self.largest.max(length as u64);
    }
}

impl State {
    /// Encodes the state as `FSMSnapshot`, in key order; the applied index is not included.
    #[must_use]
    pub fn encode_snapshot(&self) -> Vec<u8> {
        let length = usize::try_from(self.snapshot_length()).unwrap_or_default();
        let mut bytes = Vec::with_capacity(length);
        for field in self.snapshot_fields() {
            bytes.extend_from_slice(&field);
        }
        bytes
    }

    /// Returns the length of [`State::encode_snapshot`], in bytes.
    #[must_use]
    pub fn snapshot_length(&self) -> u64 {
        self.snapshot_extent().bytes
    }

    /// Returns the size of [`State::encode_snapshot`] and of its entities.
    #[must_use]
    pub fn snapshot_extent(&self) -> Extent {
        let mut extent = Extent::default();
        if let Some(meta) = &self.cluster {
            extent.add(CLUSTER, &**meta);
        }
        for kind in &KINDS {
            (kind.measure)(self, kind.field, &mut extent);
        }
        extent
    }

    /// Returns a reader of [`State::encode_snapshot`] that encodes one entity at a time.
    pub fn snapshot_reader(&self) -> impl Read + '_ {
        Encoder {
            fields: self.snapshot_fields(),
            current: Vec::new(),
            taken: 0,
        }
    }

    fn snapshot_fields(&self) -> Fields<'_> {
        let cluster = self.cluster.iter().map(|meta| encode(CLUSTER, &**meta));
        let kinds = KINDS
            .iter()
            .flat_map(|kind| (kind.encoded)(self, kind.field));
        Box::new(cluster.chain(kinds))
    }
}

struct Encoder<'a> {
    fields: Fields<'a>,
    current: Vec<u8>,
    taken: usize,
}

impl Read for Encoder<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.taken == self.current.len() {
            let Some(next) = self.fields.next() else {
                return Ok(0);
            };
            (self.current, self.taken) = (next, 0);
        }
        let rest = &self.current[self.taken..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.taken += count;
        Ok(count)
    }
}

pub(super) fn measure<E: Entity>(state: &State, field: u32, extent: &mut Extent) {
    for entity in E::map(state).values() {
        extent.add(field, &**entity);
    }
}

pub(super) fn fields_of<E: Entity>(state: &State, field: u32) -> Fields<'_> {
    Box::new(
        E::map(state)
            .values()
            .map(move |entity| encode(field, &**entity)),
    )
}

pub(super) fn encode(field: u32, message: &impl Message) -> Vec<u8> {
    let length = message.encoded_len();
    let mut bytes = Vec::with_capacity(length + 16);
    // Keys are varints, like lengths. A vector grows as needed, so these calls cannot fail.
    let _ = prost::encode_length_delimiter(key(field), &mut bytes);
    let _ = prost::encode_length_delimiter(length, &mut bytes);
    let _ = message.encode(&mut bytes);
    bytes
}

fn key(field: u32) -> usize {
    (field << 3 | DELIMITED) as usize
}
