//! The file with the secrets keys of this member: one per line, oldest first.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use jaco_net::{
    pki::{
        self,
        files::{SECRET, replace},
    },
    secrets::{self, SecretsKey},
};
use jaco_policy::secrets_key::MAX_HELD;
use jaco_proto::secret::SecretString;

/// Why a key file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// It cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// It is no key file.
    #[error("{path} is no key file")]
    Content {
        /// The file.
        path: PathBuf,
        /// Error of the parser.
        #[source]
        source: secrets::Error,
    },
    /// It cannot be written.
    #[error("cannot write {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: pki::Error,
    },
}

/// A key file, which need not exist.
#[derive(Clone, Debug)]
pub struct KeyFile(PathBuf);

impl KeyFile {
    /// The key file at `path`.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Reads the keys, oldest first; none if there is no file.
    ///
    /// # Errors
    /// [`KeyFileError::Read`], [`KeyFileError::Content`].
    pub fn read(&self) -> Result<Vec<SecretsKey>, KeyFileError> {
        let text = match fs::read_to_string(&self.0) {
            Ok(text) => SecretString::new(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => {
                return Err(KeyFileError::Read {
                    path: self.0.clone(),
                    source,
                });
            }
        };
        let lines = text.expose().lines().take(MAX_HELD);
        lines
            .map(SecretsKey::parse)
            .collect::<Result<_, _>>()
            .map_err(|source| KeyFileError::Content {
                path: self.0.clone(),
                source,
            })
    }

    /// Replaces the file, which only its owner may read. A crash leaves the old content or the new
    /// one.
    ///
    /// # Errors
    /// [`KeyFileError::Write`].
    pub fn write(&self, keys: &[SecretsKey]) -> Result<(), KeyFileError> {
        let mut text = String::with_capacity(keys.len() * 65); // growing would leave a copy behind
        for key in keys {
            text.push_str(key.to_text().expose());
        }
        let text = SecretString::new(text);
        replace(&self.0, text.expose().as_bytes(), SECRET).map_err(|source| KeyFileError::Write {
            path: self.0.clone(),
            source,
        })
    }

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn keys_are_read_back_from_a_private_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = KeyFile::new(dir.path().join("secrets.key"));
        assert!(file.read().unwrap().is_empty());
        let keys = [1, 2].map(|byte| SecretsKey::new([byte; 32]));
        file.write(&keys).unwrap();
        assert_eq!(file.read().unwrap(), keys);
        let mode = fs::metadata(file.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn damaged_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = KeyFile::new(dir.path().join("secrets.key"));
        for content in ["\n", "00", "not a key"] {
            fs::write(file.path(), content).unwrap();
            assert!(matches!(file.read(), Err(KeyFileError::Content { .. })));
        }
        fs::write(file.path(), b"\xff").unwrap();
        assert!(matches!(file.read(), Err(KeyFileError::Read { .. })));
    }
}
