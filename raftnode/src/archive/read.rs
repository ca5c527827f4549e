//! Reads an archive into a state. The input is untrusted.

use std::{
    collections::BTreeSet,
    io::{self, BufRead, BufReader, Read},
};

use flate2::bufread::GzDecoder;
use jaco_state::{Rules, SnapshotError, State};
use tar::{Entry, EntryType, PaxExtensions};

use super::{META, Meta, SNAPSHOT};

/// Largest extension header (pax), in bytes; it carries times and owners.
const EXTENSION_BYTES: u64 = 16 << 10;
/// Maximum of extension headers in one archive.
const EXTENSIONS: usize = 8;
/// Maximum of zero bytes after the end of the tar archive.
const PADDING_BYTES: usize = 1 << 20;

/// Limits of reading; a larger archive is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArchiveLimits {
    /// Size of `meta.json`, in bytes.
    pub meta_bytes: u64,
    /// Size of `snapshot.bin`, in bytes.
    pub snapshot_bytes: u64,
    /// Size of one entity, in bytes.
    pub entity_bytes: u64,
    /// Number of entities.
    pub entities: u64,
}

impl Default for ArchiveLimits {
    /// Far above the size of a real cluster, and within the memory of a machine.
    fn default() -> Self {
        Self {
            meta_bytes: 64 << 10,
            snapshot_bytes: 2 << 30,
            entity_bytes: 64 << 20,
            entities: 10_000_000,
        }
    }
}

/// Content of an archive.
#[derive(Clone, Debug, PartialEq)]
pub struct Archive {
    /// Metadata of the archive.
    pub meta: Meta,
    /// State at index [`Meta::snapshot_index`].
    pub state: State,
    /// Snapshot fields that this version does not know and has left out.
    pub unknown_fields: BTreeSet<u32>,
}

/// Reason why an archive is rejected.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read, is not a gzip stream of a tar archive, is damaged or ends early.
    #[error("the archive cannot be read")]
    Read(#[source] io::Error),
    /// An entry other than the expected one.
    #[error("the archive holds {found:?} where {expected} belongs")]
    Unexpected {
        /// Name of the entry; bytes that are not ASCII text are escaped.
        found: String,
        /// Name of the expected entry.
        expected: &'static str,
    },
    /// An entry is missing.
    #[error("the archive holds no {0}")]
    Missing(&'static str),
    /// An entry that is not a regular file: a link, a directory, a device.
    #[error("{entry} is not a regular file in the archive")]
    NotRegular {
        /// Name of the entry.
        entry: String,
    },
    /// An extension header that changes the name or the size of the next entry.
    #[error("the archive has a header of headers with {0:?}")]
    Extension(String),
    /// An entry exceeds its limit.
    #[error("{entry} exceeds {limit} bytes")]
    TooLarge {
        /// Name of the entry.
        entry: &'static str,
        /// The limit, in bytes.
        limit: u64,
    },
    /// Bytes after the end of the archive.
    #[error("something follows the end of the archive")]
    Trailing,
    /// `meta.json` is damaged.
    #[error("meta.json cannot be used: {0}")]
    Meta(String),
    /// A layout other than `SCHEMA_VERSION`.
    #[error("schema version {found} is not supported")]
    Schema {
        /// Version in `meta.json`.
        found: u64,
    },
    /// The archive was written by another major version.
    #[error("the archive is of version {archive:?}, this is version {own:?}")]
    Version {
        /// Version of the program that wrote the archive.
        archive: String,
        /// Version of this program.
        own: String,
    },
    /// `snapshot.bin` is damaged.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The snapshot's cluster differs from the one in `meta.json`, or is missing.
    #[error("meta.json is of cluster {meta:?}, snapshot.bin of {snapshot:?}")]
    Cluster {
        /// Id in `meta.json`.
        meta: String,
        /// Id in `snapshot.bin`; empty if it holds no cluster.
        snapshot: String,
    },
    /// The snapshot contains an entity with an index above its own.
    #[error("the snapshot of index {index} holds an entity of index {entity}")]
    Later {
        /// Index in `meta.json`.
        index: u64,
        /// Index of the entity.
        entity: u64,
    },
}

/// Reads an archive for a program of version `own`.
///
/// Memory is bounded by `limits` for any input; nothing is written to disk.
///
/// # Errors
/// [`Error`] if the input is not exactly an archive: an accepted input was read to its last byte.
pub fn read(input: impl Read, own: &str, limits: &ArchiveLimits) -> Result<Archive, Error> {
    let mut tar = tar::Archive::new(GzDecoder::new(BufReader::new(input)));
    let (meta, found) = {
        // Raw: extension headers are checked below instead of being applied by the library.
        let entries = tar.entries().map_err(Error::Read)?.raw(true);
        let mut entries = Entries {
            entries,
            extensions: EXTENSIONS,
        };
        let mut entry = entries.require(META, limits.meta_bytes)?;
        let mut json = Vec::new();
        entry.read_to_end(&mut json).map_err(Error::Read)?;
        complete(json.len() as u64, &entry)?;
        let meta = Meta::parse(&json, own)?;

        let mut entry = entries.require(SNAPSHOT, limits.snapshot_bytes)?;
        let rules = Rules {
            entity_bytes: limits.entity_bytes,
            entities: limits.entities,
            number_audit_events: true,
            complete: false,
        };
        let mut counting = CountingReader {
            input: &mut entry,
            bytes: 0,
        };
        let found = State::read_snapshot(meta.snapshot_index, &mut counting, &rules)?;
        complete(counting.bytes, &entry)?;
        entries.end()?;
        (meta, found)
    };
    check_end(tar.into_inner())?;
    check(&meta, &found.state)?;
    Ok(Archive {
        meta,
        state: found.state,
        unknown_fields: found.unknown_fields,
    })
}

/// Iterates over the entries of an archive, without extension headers.
struct Entries<'a, R: Read> {
    entries: tar::Entries<'a, R>,
    /// Number of extension headers still allowed.
    extensions: usize,
}

impl<'a, R: Read> Entries<'a, R> {
    /// Returns the next entry, which must be the regular file `name` of at most `limit` bytes.
    fn require(&mut self, name: &'static str, limit: u64) -> Result<Entry<'a, R>, Error> {
        let entry = self.next()?.ok_or(Error::Missing(name))?;
        let found = name_of(&entry);
        if found != name {
            return Err(Error::Unexpected {
                found,
                expected: name,
            });
        }
        if entry.header().entry_type() != EntryType::Regular {
            return Err(Error::NotRegular { entry: found });
        }
        if entry.size() > limit {
            return Err(Error::TooLarge { entry: name, limit });
        }
        Ok(entry)
    }

    fn end(&mut self) -> Result<(), Error> {
        match self.next()? {
            None => Ok(()),
            Some(entry) => Err(Error::Unexpected {
                found: name_of(&entry),
                expected: "the end",
            }),
        }
    }

    /// Returns the next entry that is not an extension header. Some programs write one before an
    /// entry for fractions of a second.
    fn next(&mut self) -> Result<Option<Entry<'a, R>>, Error> {
        loop {
            let Some(entry) = self.entries.next() else {
                return Ok(None);
            };
            let entry = entry.map_err(Error::Read)?;
            match entry.header().entry_type() {
                EntryType::XHeader | EntryType::XGlobalHeader if self.extensions > 0 => {
                    self.extensions -= 1;
                    check_extension(entry)?;
                }
                _ => return Ok(Some(entry)),
            }
        }
    }
}

fn name_of(entry: &Entry<'_, impl Read>) -> String {
    entry.path_bytes().escape_ascii().to_string()
}

/// Accepts an extension header that leaves the name, size and kind of the entry unchanged.
fn check_extension(mut entry: Entry<'_, impl Read>) -> Result<(), Error> {
    if entry.size() > EXTENSION_BYTES {
        return Err(Error::TooLarge {
            entry: "a header",
            limit: EXTENSION_BYTES,
        });
    }
    let mut bytes = Vec::new();
    entry.read_to_end(&mut bytes).map_err(Error::Read)?;
    complete(bytes.len() as u64, &entry)?;
    for record in PaxExtensions::new(&bytes) {
        let record = record.map_err(Error::Read)?;
        let key = record.key_bytes();
        if !matches!(
            key,
            b"mtime" | b"atime" | b"ctime" | b"uid" | b"gid" | b"uname" | b"gname" | b"comment"
        ) {
            return Err(Error::Extension(key.escape_ascii().to_string()));
        }
    }
    Ok(())
}

/// Rejects an entry that ended before its declared size.
fn complete(read: u64, entry: &Entry<'_, impl Read>) -> Result<(), Error> {
    if read == entry.size() {
        Ok(())
    } else {
        Err(Error::Read(io::ErrorKind::UnexpectedEof.into()))
    }
}

/// Reads to the end of the stream, where the checksum is verified.
fn check_end(mut gzip: GzDecoder<BufReader<impl Read>>) -> Result<(), Error> {
    let mut buffer = [0; 4096];
    let mut padding = 0;
    loop {
        let count = gzip.read(&mut buffer).map_err(Error::Read)?;
        if count == 0 {
            break;
        }
        padding += count;
        if padding > PADDING_BYTES || buffer[..count].iter().any(|byte| *byte != 0) {
            return Err(Error::Trailing);
        }
    }
    let rest = gzip.get_mut().fill_buf().map_err(Error::Read)?;
    if rest.is_empty() {
        Ok(())
    } else {
        Err(Error::Trailing)
    }
}

/// Checks that the two entries are of the same cluster and index.
fn check(meta: &Meta, state: &State) -> Result<(), Error> {
    let id = state.cluster.as_deref().map(|c| c.cluster_id.as_str());
    if id != Some(&meta.cluster_id) {
        return Err(Error::Cluster {
            meta: meta.cluster_id.clone(),
            snapshot: id.unwrap_or_default().to_owned(),
        });
    }
    let audit = state.audit.keys().map(|(index, _)| *index);
    let desired = state.replicas_desired.values().map(|row| row.raft_index);
    let freed = state.freed_subnets.values().map(|row| row.raft_index);
    match audit.chain(desired).chain(freed).max() {
        Some(entity) if entity > meta.snapshot_index => Err(Error::Later {
            index: meta.snapshot_index,
            entity,
        }),
        Some(_) | None => Ok(()),
    }
}

struct CountingReader<R> {
    input: R,
    bytes: u64,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.bytes += count as u64;
        Ok(count)
    }
}
