//! Lock that gives a data directory to one process.

use std::{
    fs::{File, TryLockError},
    io,
};

/// A file locked with flock(2) for as long as this value lives.
#[derive(Debug)]
pub(crate) struct DirectoryLock(File);

impl DirectoryLock {
    /// Takes the lock; `None` if another open file description holds it.
    pub(super) fn take(file: File) -> io::Result<Option<Self>> {
        match file.try_lock() {
            Ok(()) => Ok(Some(Self(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

impl Drop for DirectoryLock {
    /// Unlocks explicitly instead of relying on close: a child process between `fork` and `exec`
    /// holds copies of all descriptors and would keep the lock.
    fn drop(&mut self) {
        // If this fails, closing the file unlocks it, unless there is such a child.
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drop_unlocks_despite_inherited_descriptors() {
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
