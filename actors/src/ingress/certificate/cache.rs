//! Copies of the certificates on the disk of this node.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use jaco_net::pki::files;
use sha2::{Digest as _, Sha256};

/// Mode of the directory.
const DIRECTORY: u32 = 0o700;
/// Mode of the files, which hold private keys.
const SECRET: u32 = 0o600;

/// Directory of copies, one file per entry of the certificate store; best effort.
#[derive(Clone, Debug)]
pub struct Cache(PathBuf);

impl Cache {
    /// Copies under `<data_dir>/ingress/cache`, which is created by the first write.
    #[must_use]
    pub fn new(data_dir: &Path) -> Self {
        Self(data_dir.join("ingress").join("cache"))
    }

    /// Path of the copy of an entry.
    #[must_use]
    pub fn path(&self, key: &str) -> PathBuf {
        self.0.join(hex::encode(Sha256::digest(key.as_bytes())))
    }

    /// Copy of an entry; `None` if there is none or it cannot be read.
    #[must_use]
    pub fn read(&self, key: &str) -> Option<Vec<u8>> {
        match fs::read(self.path(key)) {
            Ok(copy) => Some(copy),
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(subsystem = "stagefirst", %error, "certificate copy not read");
                }
                None
            }
        }
    }

    /// Writes the copy of an entry, atomically.
    pub fn write(&self, key: &str, value: &[u8]) {
        let mut builder = fs::DirBuilder::new();
        let created = builder.recursive(true).mode(DIRECTORY).create(&self.0);
        let written = created.map_err(|error| error.to_string());
        let written = written.and_then(|()| {
            let replaced = files::replace(&self.path(key), value, SECRET);
            replaced.map_err(|error| error.to_string())
        });
        if let Err(error) = written {
            tracing::warn!(
                subsystem = "stagefirst",
                error,
                "certificate copy not written"
            );
        }
    }

    /// Removes the copy of an entry, if there is one.
    pub fn remove(&self, key: &str) {
        if let Err(error) = files::remove(&self.path(key)) {
            tracing::debug!(subsystem = "stagefirst", %error, "certificate copy not removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn copies_are_private_and_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(dir.path());
        assert_eq!(cache.read("a"), None);
        cache.write("a", b"one");
        cache.write("a", b"two");
        cache.write("b", b"other");
        assert_eq!(cache.read("a").as_deref(), Some(&b"two"[..]));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&dir.path().join("ingress/cache")), 0o700);
        assert_eq!(mode(&cache.path("a")), 0o600);
        cache.remove("a");
        cache.remove("a");
        assert_eq!(cache.read("a"), None);
        assert!(cache.read("b").is_some());
    }
}
