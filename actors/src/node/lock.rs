//! What makes a data directory that of one process.

use std::{
    fs::{File, TryLockError},
    io,
};

/// A locked file, and the lock for as long as this lives (flock(2)).
#[derive(Debug)]
pub(super) struct DirectoryLock(File);

impl DirectoryLock {
    /// Takes the lock; `None` while another opening of the file has it.
    pub(super) fn take(file: File) -> io::Result<Option<Self>> {
        match file.try_lock() {
            Ok(()) => Ok(Some(Self(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

impl Drop for DirectoryLock {
    /// Ends the lock rather than leave that to the last descriptor: a child of this process that
    /// is between `fork` and `exec` holds copies of all of them, and would hold the lock.
    fn drop(&mut self) {
        // What fails here is done by closing the file, where there is no such child.
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_even_while_a_child_holds_copies_of_descriptors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("LOCK");
        let lock = DirectoryLock::take(File::create_new(&path).unwrap())
            .unwrap()
            .unwrap();
        let open = || File::open(&path).unwrap();
        assert!(DirectoryLock::take(open()).unwrap().is_none());
        let inherited = lock.0.try_clone().unwrap();
        drop(lock);
        assert!(DirectoryLock::take(open()).unwrap().is_some());
        drop(inherited);
    }
}
