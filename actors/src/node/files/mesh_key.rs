//! The node's key in the mesh.

use std::{
    fs::{self, File, Permissions},
    io::{self, Read as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::PathBuf,
};

use jaco_net::{
    pki::files::{SECRET, SECRET_DIR, replace},
    wireguard::PrivateKey,
};
use jaco_proto::secret::SecretString;

use super::{FilesError, Layout, NOFOLLOW_NONBLOCK};

/// A key file is far shorter.
const MAX_BYTES: u64 = 1024;

impl Layout {
    fn mesh_key_path(&self) -> PathBuf {
        self.root.join("wg").join("private.key")
    }

    /// Reads the node's key in the mesh, or creates it if there is none.
    ///
    /// # Errors
    /// [`FilesError::Corrupt`] if the file holds no key; it is never overwritten, because other
    /// members know the key.
    pub(crate) fn mesh_key(&self) -> Result<PrivateKey, FilesError> {
        match self.existing_mesh_key()? {
            Some(key) => Ok(key),
            None => self.new_mesh_key(),
        }
    }

    /// Reads the node's key in the mesh; `None` if there is none.
    ///
    /// # Errors
    /// As [`Layout::mesh_key`].
    pub(crate) fn existing_mesh_key(&self) -> Result<Option<PrivateKey>, FilesError> {
        let path = self.mesh_key_path();
        let found = File::options()
            .read(true)
            .custom_flags(NOFOLLOW_NONBLOCK)
            .open(&path);
        let file = match found {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(FilesError::io("open", &path)(error)),
        };
        let mut text = String::new();
        let read = file.take(MAX_BYTES).read_to_string(&mut text);
        let text = SecretString::new(text);
        match read {
            Ok(_) => match text.expose().parse() {
                Ok(key) => Ok(Some(key)),
                Err(error) => Err(FilesError::Corrupt {
                    path,
                    reason: format!("{error}"),
                }),
            },
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(FilesError::Corrupt {
                path,
                reason: "it is not text".to_owned(),
            }),
            Err(error) => Err(FilesError::io("read", &path)(error)),
        }
    }

    fn new_mesh_key(&self) -> Result<PrivateKey, FilesError> {
        let path = self.mesh_key_path();
        let dir = self.root.join("wg");
        fs::DirBuilder::new()
            .recursive(true)
            .mode(SECRET_DIR)
            .create(&dir)
            .and_then(|()| fs::set_permissions(&dir, Permissions::from_mode(SECRET_DIR)))
            .map_err(FilesError::io("create", &dir))?;
        let key =
            PrivateKey::generate().map_err(|error| FilesError::Randomness(error.to_string()))?;
        replace(&path, format!("{}\n", *key.to_base64()).as_bytes(), SECRET)?;
        Ok(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_created_once() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        let key = layout.mesh_key().unwrap().public();
        assert_eq!(layout.mesh_key().unwrap().public(), key);
        let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(dir.path().join("wg")), 0o700);
        assert_eq!(mode(layout.mesh_key_path()), 0o600);
        let text = fs::read_to_string(layout.mesh_key_path()).unwrap();
        assert_eq!(text.trim().len(), 44, "32 bytes in base64");
    }

    #[test]
    fn bad_key_file_is_refused_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        fs::create_dir(dir.path().join("wg")).unwrap();
        for content in [&b""[..], b"AAAA", b"\xff\xfe", &[b'A'; 5000]] {
            fs::write(layout.mesh_key_path(), content).unwrap();
            let error = layout.mesh_key().unwrap_err();
            assert!(matches!(error, FilesError::Corrupt { .. }), "{error:?}");
            assert_eq!(fs::read(layout.mesh_key_path()).unwrap(), content);
        }
        fs::remove_file(layout.mesh_key_path()).unwrap();
        fs::create_dir(layout.mesh_key_path()).unwrap();
        assert!(matches!(layout.mesh_key(), Err(FilesError::Io { .. })));
    }
}
