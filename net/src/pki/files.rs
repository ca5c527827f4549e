//! Atomically created files and directories.
//!
//! A directory is built beside its target and renamed onto it. Everything is synced before the
//! rename and the parent after it, so a crash leaves all of the content or none.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use jaco_proto::secret::SecretString;

use super::{ClusterCa, Error, NodeCert, NodeKey, certificates, check_hostname};

/// Mode of files that hold secrets.
pub const SECRET: u32 = 0o600;
/// Mode of world-readable files.
pub const PUBLIC: u32 = 0o644;
/// Mode of directories that hold only secrets.
pub const SECRET_DIR: u32 = 0o700;
/// Mode of directories that hold world-readable files.
pub const PUBLIC_DIR: u32 = 0o755;

/// A directory under construction; dropping it without [`Staging::commit`] removes it.
#[derive(Debug)]
pub struct Staging {
    path: PathBuf,
    target: PathBuf,
    committed: bool,
}

impl Staging {
    /// Creates the directory that will become `target`, replacing any leftover of a crash.
    ///
    /// # Errors
    /// [`Error::File`] if the parent is not writable.
    pub fn begin(target: &Path, mode: u32) -> Result<Self, Error> {
        let path = staging_path(target);
        match fs::remove_dir_all(&path) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => {
                return Err(Error::file("clear", &path)(why));
            }
            Ok(()) | Err(_) => {}
        }
        fs::DirBuilder::new()
            .mode(SECRET_DIR)
            .create(&path)
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(mode)))
            .map_err(Error::file("create", &path))?;
        Ok(Self {
            path,
            target: target.to_owned(),
            committed: false,
        })
    }

    /// Where the directory is being built.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes and syncs one file.
    ///
    /// # Errors
    /// [`Error::File`] if it exists already or cannot be written.
    pub fn file(&self, name: &str, content: &[u8], mode: u32) -> Result<(), Error> {
        let path = self.path.join(name);
        write_new(&path, content, mode).map_err(Error::file("write", &path))
    }

    /// Renames the directory to its target and syncs the parent.
    ///
    /// # Errors
    /// [`Error::File`] if the target is a directory that is not empty; nothing changes then.
    pub fn commit(mut self) -> Result<(), Error> {
        sync_dir(&self.path).map_err(Error::file("sync", &self.path))?;
        fs::rename(&self.path, &self.target).map_err(Error::file("replace", &self.target))?;
        self.committed = true;
        sync_parent(&self.target).map_err(Error::file("sync", &self.target))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.committed {
            let _ = fs::remove_dir_all(&self.path); // the next `begin` removes the leftover
        }
    }
}

/// The key and certificates by which a member authenticates itself.
#[derive(Debug)]
pub struct NodeFiles {
    /// Hostname that the certificate and the file names carry.
    pub hostname: String,
    /// Key of the member.
    pub key: NodeKey,
    /// Certificate of the member.
    pub cert: NodeCert,
    /// Certificate of the cluster's CA, PEM.
    pub ca_pem: String,
}

impl NodeFiles {
    /// Generates key and certificate of the node that bootstraps a cluster.
    ///
    /// # Errors
    /// [`Error::Hostname`] if the name cannot be a node's.
    pub fn bootstrap(
        ca: &ClusterCa,
        hostname: &str,
        ips: &[std::net::IpAddr],
        now: std::time::SystemTime,
    ) -> Result<Self, Error> {
        let key = NodeKey::generate()?;
        let cert = ca.issue(&key, hostname, ips, now)?;
        Ok(Self {
            hostname: hostname.to_owned(),
            key,
            cert,
            ca_pem: ca.cert_pem().to_owned(),
        })
    }

    /// Writes `<hostname>.key`, `<hostname>.crt` and `ca.crt` into a directory under
    /// construction; the certificates are public, the key is not.
    ///
    /// # Errors
    /// [`Error::Hostname`] or [`Error::File`].
    pub fn stage(&self, staging: &Staging) -> Result<(), Error> {
        let name = &self.hostname;
        check_hostname(name)?;
        staging.file(
            &format!("{name}.key"),
            self.key.pem().expose().as_bytes(),
            SECRET,
        )?;
        staging.file(&format!("{name}.crt"), self.cert.pem().as_bytes(), PUBLIC)?;
        staging.file("ca.crt", self.ca_pem.as_bytes(), PUBLIC)
    }

    /// Reads the files of `hostname` from `dir`, and checks that key and certificate match.
    ///
    /// # Errors
    /// [`Error::File`] if one is missing, [`Error::Content`] if one is invalid; both carry the
    /// path.
    pub fn load(dir: &Path, hostname: &str) -> Result<Self, Error> {
        check_hostname(hostname)?;
        let read = |path: &Path| fs::read_to_string(path).map_err(Error::file("read", path));
        let path = dir.join(format!("{hostname}.key"));
        let key =
            NodeKey::from_pem(SecretString::new(read(&path)?)).map_err(Error::content(path))?;
        let path = dir.join(format!("{hostname}.crt"));
        let pem = read(&path)?;
        let cert = NodeCert::from_pem(&pem)
            .and_then(|cert| cert.check_key(&key).map(|()| cert))
            .map_err(Error::content(path))?;
        let path = dir.join("ca.crt");
        let ca_pem = read(&path)?;
        certificates(&ca_pem).map_err(Error::content(path))?;
        Ok(Self {
            hostname: hostname.to_owned(),
            key,
            cert,
            ca_pem,
        })
    }
}

/// Path beside `target` under which its next content is built; a crash may leave it behind.
#[must_use]
pub fn staging_path(target: &Path) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    target.with_file_name(name)
}

/// Replaces a file atomically: a crash leaves the old content or the new one.
///
/// # Errors
/// [`Error::File`] if it cannot be written.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> Result<(), Error> {
    let staging = staging_path(path);
    match fs::remove_file(&staging) {
        Err(why) if why.kind() != io::ErrorKind::NotFound => {
            return Err(Error::file("clear", &staging)(why));
        }
        Ok(()) | Err(_) => {}
    }
    write_new(&staging, content, mode).map_err(Error::file("write", &staging))?;
    fs::rename(&staging, path)
        .and_then(|()| sync_parent(path))
        .map_err(Error::file("replace", path))
}

/// Removes a file, if it exists, and syncs its directory.
///
/// # Errors
/// [`Error::File`] if it cannot be removed.
pub fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(why) => Err(Error::file("remove", path)(why)),
        Ok(()) => sync_parent(path).map_err(Error::file("sync", path)),
    }
}

fn write_new(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(SECRET)
        .open(path)?;
    // Set explicitly, because the umask applies to the mode of creation.
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(content)?;
    file.sync_all()
}

fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_dir(parent),
        Some(_) | None => sync_dir(Path::new(".")),
    }
}
