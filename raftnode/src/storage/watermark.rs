//! Sequence number up to which the database is known to be on disk.
//!
//! Recovery cannot distinguish a torn unsynced tail, which is normal, from the loss of synced
//! writes, which breaks raft. After every sync the sequence number is therefore written to a small
//! file. That write is not synced itself: after a power cut it may be old, but it never exceeds the
//! sequence number that was on disk when it was made.

use std::{
    fs::{File, OpenOptions, TryLockError},
    os::unix::fs::FileExt,
    path::Path,
};

use super::Error;

/// Name of the file, in the database's directory.
pub(crate) const FILE: &str = "SYNCED";

const MAGIC: u64 = u64::from_be_bytes(*b"jacosync");

#[derive(Debug)]
pub(crate) struct Watermark(File);

impl Drop for Watermark {
    /// Unlocks explicitly. Closing does not unlock while a child between `fork` and `exec` holds
    /// copies of the descriptors (flock(2)).
    fn drop(&mut self) {
        // Ignored: without such a child, closing the file unlocks it too.
        let _ = self.0.unlock();
    }
}

impl Watermark {
    /// Creates the file at sequence number 0 and syncs it.
    pub(crate) fn create(directory: &Path) -> Result<(), Error> {
        let path = directory.join(FILE);
        let attempt = || {
            let file = File::create_new(&path)?;
            file.write_all_at(&encode(0), 0)?;
            file.sync_all()
        };
        attempt().map_err(|e| Error::io(path.display(), e))
    }

    /// Opens the file and reads its sequence number.
    ///
    /// An open watermark is the lock of its directory: RocksDB takes no lock when it opens a
    /// database read-only, which happens first.
    pub(crate) fn open(directory: &Path) -> Result<(Self, u64), Error> {
        Self::open_with(directory, true)
    }

    /// Like [`Watermark::open`], for a directory that may be on a read-only disk;
    /// [`Watermark::raise`] fails then.
    pub(crate) fn open_read_only(directory: &Path) -> Result<(Self, u64), Error> {
        Self::open_with(directory, false)
    }

    fn open_with(directory: &Path, write: bool) -> Result<(Self, u64), Error> {
        let path = directory.join(FILE);
        let file = OpenOptions::new()
            .read(true)
            .write(write)
            .open(&path)
            .map_err(|e| match e.kind() {
                std::io::ErrorKind::NotFound => Error::corrupt(FILE, "the file is missing"),
                _ => Error::io(path.display(), e),
            })?;
        file.try_lock().map_err(|e| match e {
            TryLockError::WouldBlock => Error::Locked(directory.to_owned()),
            TryLockError::Error(e) => Error::io(path.display(), e),
        })?;
        let watermark = Self(file);
        let mut bytes = [0; 16];
        watermark
            .0
            .read_exact_at(&mut bytes, 0)
            .map_err(|e| Error::corrupt(FILE, e))?;
        let sequence =
            decode(bytes).ok_or_else(|| Error::corrupt(FILE, "checksum does not match"))?;
        Ok((watermark, sequence))
    }

    /// Records that everything up to `sequence` is on disk.
    pub(crate) fn raise(&self, sequence: u64) -> Result<(), Error> {
        self.0
            .write_all_at(&encode(sequence), 0)
            .map_err(|e| Error::io(FILE, e))
    }
}

fn encode(sequence: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&sequence.to_be_bytes());
    bytes[8..].copy_from_slice(&(sequence ^ MAGIC).to_be_bytes());
    bytes
}

fn decode(bytes: [u8; 16]) -> Option<u64> {
    let value = u128::from_be_bytes(bytes);
    let (sequence, check) = ((value >> 64) as u64, value as u64);
    (sequence ^ MAGIC == check).then_some(sequence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_number_survives_reopening() {
        let dir = tempfile::tempdir().unwrap();
        Watermark::create(dir.path()).unwrap();
        Watermark::open(dir.path()).unwrap().0.raise(7).unwrap();
        assert_eq!(Watermark::open(dir.path()).unwrap().1, 7);
    }

    #[test]
    fn read_only_open_takes_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        Watermark::create(dir.path()).unwrap();
        let held = Watermark::open_read_only(dir.path()).unwrap().0;
        held.raise(7).unwrap_err();
        assert!(matches!(Watermark::open(dir.path()), Err(Error::Locked(_))));
        drop(held);
        assert_eq!(Watermark::open(dir.path()).unwrap().1, 0);
    }

    #[test]
    fn drop_unlocks_despite_copied_descriptors() {
        let dir = tempfile::tempdir().unwrap();
        Watermark::create(dir.path()).unwrap();
        let held = Watermark::open(dir.path()).unwrap().0;
        let locked = Watermark::open(dir.path()).unwrap_err();
        assert!(matches!(locked, Error::Locked(_)));
        let inherited = held.0.try_clone().unwrap();
        drop(held);
        Watermark::open(dir.path()).unwrap();
        drop(inherited);
    }

    #[test]
    fn damaged_file_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        for content in [&b""[..], b"short", &[0; 16], &[0xff; 16]] {
            std::fs::write(&path, content).unwrap();
            let error = Watermark::open(dir.path()).unwrap_err();
            assert!(
                matches!(error, Error::Corrupt { .. }),
                "{content:?}: {error}"
            );
        }
    }
}
