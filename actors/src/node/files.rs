//! Files of a node in its data directory, apart from the raft database.

mod mesh_key;

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use jaco_net::{
    pki::{
        self, BootstrapCert, Fingerprint, NodeCert,
        files::{NodeFiles, PUBLIC, SECRET, SECRET_DIR, Staging},
    },
    secrets::SecretsKey,
    tls::Identity,
};
use jaco_policy::{
    network::ipam::Pool,
    peer::members::{Origin, PeerInfo},
};
use jaco_proto::{secret::SecretString, v1};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::{NodeConfig, lock::DirectoryLock};
use crate::identity::{self, random_token};

/// Name of the file with the secrets keys of a member.
const SECRETS_KEY: &str = "secrets.key";

/// Flags to open a file without following a symlink, and without blocking on a FIFO.
const NOFOLLOW_NONBLOCK: i32 = OFlags::NOFOLLOW
    .union(OFlags::NONBLOCK)
    .bits()
    .cast_signed();

/// Why the files of a node cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilesError {
    /// A file or directory cannot be read or written.
    #[error("cannot {action} {path}")]
    Io {
        /// Operation that failed.
        action: &'static str,
        /// Path it failed on.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// Another daemon uses the directory.
    #[error("another daemon is using {0}")]
    Locked(PathBuf),
    /// A file has unexpected content.
    #[error("{path} is corrupt: {reason}")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Defect that was found.
        reason: String,
    },
    /// Raft state without its membership file, or the other way round.
    #[error("{0} is missing, although this node is a member of a cluster")]
    Missing(PathBuf),
    /// Data directory of JACO's Go implementation, whose raft log is a file.
    #[error(
        "{0} holds the raft log of JACO's Go daemon (raft/log.db); refusing to overwrite it: back \
         the cluster up with that daemon (`jaco backup`), move the directory aside and restore the \
         backup (`jaco restore`), as docs/migration.md describes"
    )]
    GoDaemon(PathBuf),
    /// The configured name is not the one the node joined with.
    #[error("hostname {configured:?} is configured, but this node is a member as {stored:?}")]
    Renamed {
        /// Name in the configuration.
        configured: String,
        /// Name in the cluster.
        stored: String,
    },
    /// The configured address pool is not that of the cluster.
    #[error(
        "the address pool {configured} is configured, but the cluster has {stored}, which was fixed \
         when it was created: set ipam_pool and ipam_block to it, or remove them"
    )]
    Pool {
        /// Pool in the configuration.
        configured: Pool,
        /// Pool of the cluster.
        stored: Pool,
    },
    /// Keys or certificates cannot be used.
    #[error("node identity")]
    Pki(#[from] pki::Error),
    /// The TLS configuration cannot be built.
    #[error("tls")]
    Tls(#[from] jaco_net::tls::Error),
    /// The raft database cannot be opened.
    #[error("raft state in {path}")]
    Storage {
        /// Its directory.
        path: PathBuf,
        /// Defect that was found.
        #[source]
        source: jaco_raftnode::storage::Error,
    },
    /// The system has no randomness.
    #[error("no randomness: {0}")]
    Randomness(String),
}

impl FilesError {
    /// Whether another process uses the directory.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        matches!(self, Self::Locked(_))
    }

    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }
}

/// Number of former certificates that are kept.
const FORMER_CERTIFICATES: usize = 4;

/// Parses a bundle that this node wrote; entries that do not parse are skipped.
fn split(bundle: &str) -> Vec<NodeCert> {
    let each = bundle.split_inclusive("-----END CERTIFICATE-----");
    each.filter_map(|pem| NodeCert::from_pem(pem).ok())
        .collect()
}

/// `node/join.json`: identity of this node in its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Membership {
    pub(super) cluster_id: String,
    pub(crate) hostname: String,
    pub(super) raft_id: u64,
    pub(super) advertise_addr: String,
    /// Members at the time of the join, as reported by the leader; empty on the bootstrap node.
    pub(super) peers: Vec<KnownPeer>,
}

/// A member as this node knew it when it joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KnownPeer {
    pub(super) hostname: String,
    pub(super) raft_id: u64,
    /// `host:port` of its peer transport.
    pub(super) address: String,
    /// SHA-256 of its certificate, as `sha256:<hex>`.
    pub(super) fingerprint: String,
}

impl KnownPeer {
    /// Takes the fields of a Node row.
    pub(super) fn of(node: &v1::Node) -> Self {
        let print = <[u8; 32]>::try_from(node.server_cert_fingerprint.as_slice());
        Self {
            hostname: node.hostname.clone(),
            raft_id: node.raft_id,
            address: node.address.clone(),
            // Empty if the member has not published one yet; the replicated state provides it
            // later.
            fingerprint: print
                .map(|bytes| Fingerprint::from_bytes(bytes).to_string())
                .unwrap_or_default(),
        }
    }
}

/// Paths under one data directory.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    root: PathBuf,
}

impl Layout {
    pub(crate) fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// The raft database; its presence makes the node a member.
    pub(super) fn raft(&self) -> PathBuf {
        self.root.join("raft")
    }

    /// Key, certificate, CA and membership of a member.
    pub(super) fn node(&self) -> PathBuf {
        self.root.join("node")
    }

    /// Certificate and token of a node that waits for an init or a join.
    pub(super) fn bootstrap(&self) -> PathBuf {
        self.root.join("bootstrap")
    }

    /// Identity (key, certificate, CA and membership) that a restore moved aside to place its own.
    fn identity_aside(&self) -> PathBuf {
        self.root.join("node.aside")
    }

    /// The secrets keys of a member.
    pub(crate) fn secrets_key(&self) -> PathBuf {
        self.node().join(SECRETS_KEY)
    }

    /// Mount point of the files of containers.
    pub(crate) fn container_files(&self) -> PathBuf {
        self.root.join("container-files")
    }

    fn membership(&self) -> PathBuf {
        self.node().join("join.json")
    }

    /// Marker of a node that was removed from its cluster and must stay inactive.
    fn removed(&self) -> PathBuf {
        self.node().join("removed")
    }

    /// Whether this node was removed from its cluster.
    pub(crate) fn is_removed(&self) -> Result<bool, FilesError> {
        let path = self.removed();
        path.try_exists().map_err(FilesError::io("look at", &path))
    }

    /// Records that this node was removed from its cluster.
    pub(super) fn mark_removed(&self) -> Result<(), FilesError> {
        Ok(pki::files::replace(
            &self.removed(),
            b"",
            pki::files::SECRET,
        )?)
    }

    /// Path of a new certificate until the cluster knows its fingerprint.
    fn staged_certificate(&self, hostname: &str) -> PathBuf {
        self.node().join(format!("{hostname}.crt.next"))
    }

    /// Path of the certificates that were in force or staged before, newest first.
    fn former_certificates(&self, hostname: &str) -> PathBuf {
        self.node().join(format!("{hostname}.crt.former"))
    }

    /// Returns the staged certificate, if there is one.
    pub(super) fn staged(&self, hostname: &str) -> Option<NodeCert> {
        let pem = fs::read_to_string(self.staged_certificate(hostname)).ok()?;
        NodeCert::from_pem(&pem).ok()
    }

    /// Certificates for this node's key other than the one in force. A peer may know any of them:
    /// it may not have applied a newer fingerprint yet, or may have applied it before this node
    /// did.
    pub(super) fn other_certificates(&self, files: &NodeFiles) -> Vec<NodeCert> {
        let former = fs::read_to_string(self.former_certificates(&files.hostname));
        let mut others: Vec<NodeCert> = self.staged(&files.hostname).into_iter().collect();
        others.extend(former.iter().flat_map(|pem| split(pem)));
        others
            .retain(|cert| *cert.der() != *files.cert.der() && cert.check_key(&files.key).is_ok());
        others
    }

    /// Records a certificate that is about to be replaced.
    fn remember_certificate(&self, hostname: &str, pem: &str) -> Result<(), FilesError> {
        let path = self.former_certificates(hostname);
        // An unreadable list is of no use; it is overwritten.
        let known = fs::read_to_string(&path).unwrap_or_default();
        let mut former = split(pem);
        for cert in split(&known) {
            if former.iter().all(|newer| newer.der() != cert.der()) {
                former.push(cert);
            }
        }
        let former = former.iter().take(FORMER_CERTIFICATES);
        let text: String = former
            .map(|cert| format!("{}\n", cert.pem().trim()))
            .collect();
        Ok(pki::files::replace(&path, text.as_bytes(), PUBLIC)?)
    }

    /// Stages a certificate for this node's key until the cluster knows its fingerprint. A
    /// certificate that is already staged may have been published, so it is recorded.
    pub(super) fn stage_certificate(
        &self,
        hostname: &str,
        cert: &NodeCert,
    ) -> Result<(), FilesError> {
        if let Some(staged) = self.staged(hostname) {
            self.remember_certificate(hostname, staged.pem())?;
        }
        let path = self.staged_certificate(hostname);
        Ok(pki::files::replace(&path, cert.pem().as_bytes(), PUBLIC)?)
    }

    /// Replaces the certificate in force by the staged one and records the former; `false` if none
    /// is staged.
    pub(super) fn promote_certificate(&self, hostname: &str) -> Result<bool, FilesError> {
        let path = self.staged_certificate(hostname);
        let pem = match fs::read(&path) {
            Ok(pem) => pem,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(FilesError::io("read", &path)(error)),
        };
        let place = self.node().join(format!("{hostname}.crt"));
        let in_force = fs::read_to_string(&place).map_err(FilesError::io("read", &place))?;
        self.remember_certificate(hostname, &in_force)?;
        pki::files::replace(&place, &pem, PUBLIC)?;
        pki::files::remove(&path)?;
        Ok(true)
    }

    /// Marker of a restore that is not in the audit trail yet; deleted at the first start after it.
    pub(super) fn marker(&self) -> PathBuf {
        self.root.join("restore.txt")
    }

    /// The file whose lock gives the directory to one process.
    pub(super) fn lock_file(&self) -> PathBuf {
        self.root.join("LOCK")
    }

    /// Creates the directory if it is missing, and takes its lock.
    pub(crate) fn open(&self) -> Result<DirectoryLock, FilesError> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(SECRET_DIR)
            .create(&self.root)
            .map_err(FilesError::io("create", &self.root))?;
        let path = self.lock_file();
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(pki::files::SECRET)
            .custom_flags(NOFOLLOW_NONBLOCK)
            .open(&path)
            .map_err(FilesError::io("open", &path))?;
        self.lock(lock)
    }

    /// Takes the lock if the lock file exists; creates nothing.
    pub(super) fn lock_existing(&self) -> Result<Option<DirectoryLock>, FilesError> {
        let path = self.lock_file();
        match File::options()
            .read(true)
            .custom_flags(NOFOLLOW_NONBLOCK)
            .open(&path)
        {
            Ok(lock) => self.lock(lock).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(FilesError::io("open", &path)(error)),
        }
    }

    fn lock(&self, file: File) -> Result<DirectoryLock, FilesError> {
        DirectoryLock::take(file)
            .map_err(FilesError::io("lock", &self.lock_file()))?
            .ok_or_else(|| FilesError::Locked(self.root.clone()))
    }

    /// Removes what a crash left in the staging directories; these are never part of a membership.
    ///
    /// Moves an identity that a restore had moved aside back, unless that restore was completed.
    pub(crate) fn clean_up(&self) -> Result<(), FilesError> {
        let (aside, node) = (self.identity_aside(), self.node());
        let exists = |path: &Path| path.try_exists().map_err(FilesError::io("look at", path));
        if self.is_member()? {
            // A completed restore leaves its marker until the first start.
            if exists(&self.marker())? {
                self.remove_identity_aside()?;
            }
        } else {
            if exists(&aside)? {
                remove_tree(&node)?;
                fs::rename(&aside, &node).map_err(FilesError::io("move back", &aside))?;
            }
            pki::files::remove(&self.marker())?;
            // Removes the raft directory only if it is empty. Left there, it would make an identity
            // that is placed before its raft state look like a membership that lost its state.
            let _ = fs::remove_dir(self.raft());
        }
        let staged = [self.raft(), self.node()].map(|path| pki::files::staging_path(&path));
        for path in staged {
            remove_tree(&path)?;
        }
        Ok(pki::files::remove(&pki::files::staging_path(
            &self.marker(),
        ))?)
    }

    /// Moves key, certificate and membership of a previous identity aside.
    pub(super) fn move_identity_aside(&self) -> Result<(), FilesError> {
        let node = self.node();
        match fs::rename(&node, self.identity_aside()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(FilesError::io("move aside", &node)(error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Removes the identity that was moved aside, if there is one.
    pub(super) fn remove_identity_aside(&self) -> Result<(), FilesError> {
        remove_tree(&self.identity_aside())
    }

    /// Removes the identity placed by a restore that does not go on to place its raft state, and
    /// moves the previous identity back.
    pub(super) fn undo_identity(&self) -> Result<(), FilesError> {
        remove_tree(&self.node())?;
        self.clean_up()
    }

    /// Whether raft state makes this node a member. An empty raft directory does so only beside a
    /// membership file: its state was lost, and the node must not start as a new one.
    ///
    /// # Errors
    /// [`FilesError::GoDaemon`] for a directory of the Go implementation.
    pub(super) fn is_member(&self) -> Result<bool, FilesError> {
        let raft = self.raft();
        match fs::read_dir(&raft) {
            Ok(mut entries) => match entries.next() {
                Some(Err(error)) => Err(FilesError::io("list", &raft)(error)),
                Some(Ok(_)) => self.refuse_go_daemon().map(|()| true),
                None => {
                    let path = self.membership();
                    path.try_exists().map_err(FilesError::io("look at", &path))
                }
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            // Opening it later reports what is wrong with it.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(true),
            Err(error) => Err(FilesError::io("look at", &raft)(error)),
        }
    }

    /// Fails if the raft directory is one of the Go implementation and holds no state of this one.
    fn refuse_go_daemon(&self) -> Result<(), FilesError> {
        let has = |name: &str| {
            let path = self.raft().join(name);
            path.try_exists().map_err(FilesError::io("look at", &path))
        };
        if has("log.db")? && !has("CURRENT")? {
            return Err(FilesError::GoDaemon(self.root.clone()));
        }
        Ok(())
    }

    /// Places key, certificate and membership, replacing what a crash left there: without raft
    /// state those belong to no membership. The secrets key is that of a restored cluster. Calls `staged` just before placing them.
    pub(super) fn place_identity(
        &self,
        files: &NodeFiles,
        membership: &Membership,
        secrets_key: Option<&SecretsKey>,
        staged: impl FnOnce(),
    ) -> Result<(), FilesError> {
        let dir = self.node();
        let staging = Staging::begin(&dir, SECRET_DIR)?;
        files.stage(&staging)?;
        staging.file("join.json", &membership.to_json(), PUBLIC)?;
        if let Some(key) = secrets_key {
            staging.file(SECRETS_KEY, key.to_text().expose().as_bytes(), SECRET)?;
        }
        staged();
        remove_tree(&dir)?;
        Ok(staging.commit()?)
    }

    /// Reads the identity of this node in its cluster; `None` if it is not a member.
    pub(crate) fn read_membership(
        &self,
        config: &NodeConfig,
    ) -> Result<Option<Membership>, FilesError> {
        if !self.is_member()? {
            return Ok(None);
        }
        let path = self.membership();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(FilesError::Missing(path));
            }
            Err(error) => return Err(FilesError::io("read", &path)(error)),
        };
        let found: Membership =
            serde_json::from_str(&text).map_err(|error| FilesError::Corrupt {
                path,
                reason: error.to_string(),
            })?;
        match &config.hostname {
            Some(configured) if *configured != found.hostname => Err(FilesError::Renamed {
                configured: configured.clone(),
                stored: found.hostname,
            }),
            Some(_) | None => Ok(Some(found)),
        }
    }

    /// TLS identity of a member.
    pub(crate) fn identity(&self, member: &Membership) -> Result<Identity, FilesError> {
        let dir = self.node();
        let files = NodeFiles::load(&dir, &member.hostname).map_err(unusable(&dir))?;
        let identity = Identity::node(&files).map_err(|error| corrupt(&dir, &error))?;
        Ok(identity.with_others(&self.other_certificates(&files)))
    }

    /// CA certificate of the cluster, PEM.
    pub(super) fn authority(&self, member: &Membership) -> Result<String, FilesError> {
        let dir = self.node();
        let files = NodeFiles::load(&dir, &member.hostname).map_err(unusable(&dir))?;
        Ok(files.ca_pem)
    }

    /// Certificate and token of the setup phase, generated at the first start and kept, so that a
    /// fingerprint pinned by an operator survives a restart.
    pub(crate) fn setup(
        &self,
        hostname: &str,
        config: &NodeConfig,
    ) -> Result<(Identity, [u8; 32]), FilesError> {
        let dir = self.bootstrap();
        let (cert, key, token) = (
            dir.join("server.crt"),
            dir.join("server.key"),
            dir.join("setup-token"),
        );
        if ![&cert, &key, &token].iter().all(|path| path.exists()) {
            let staging = Staging::begin(&dir, SECRET_DIR)?;
            let made =
                BootstrapCert::generate(hostname, &config.certificate_ips, config.clock.now())?;
            let secret = random_token().map_err(|error| FilesError::Randomness(error.message))?;
            staging.file("server.crt", made.cert_pem().as_bytes(), PUBLIC)?;
            staging.file(
                "server.key",
                made.key_pem().expose().as_bytes(),
                pki::files::SECRET,
            )?;
            staging.file(
                "setup-token",
                secret.expose().as_bytes(),
                pki::files::SECRET,
            )?;
            // A set that lacks a file is of no use.
            remove_tree(&dir)?;
            staging.commit()?;
        }
        let read = |path: &Path| fs::read_to_string(path).map_err(FilesError::io("read", path));
        let cert = BootstrapCert::from_pem(&read(&cert)?, SecretString::new(read(&key)?))
            .map_err(unusable(&dir))?;
        let hash = identity::hash(read(&token)?.trim().as_bytes());
        tracing::info!(
            subsystem = "jacod",
            fingerprint = %cert.fingerprint(),
            token = %token.display(),
            "waiting for `jaco cluster init` or `jaco node join`"
        );
        Ok((Identity::bootstrap(&cert)?, hash))
    }

    /// Ends the setup phase; files that a crash leaves are removed at the next start.
    pub(super) fn remove_setup(&self) {
        let path = self.bootstrap();
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(subsystem = "jacod", path = %path.display(), %error, "setup files were not removed");
            }
            Ok(()) | Err(_) => {}
        }
    }
}

/// Removes a directory and everything in it, if it exists.
fn remove_tree(path: &Path) -> Result<(), FilesError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(FilesError::io("remove", path)(error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Maps an error over the files in `dir` to one that names a path: I/O errors carry theirs already,
/// parse errors do not.
fn unusable(dir: &Path) -> impl FnOnce(pki::Error) -> FilesError {
    let dir = dir.to_owned();
    move |error| match error {
        pki::Error::File { .. } => FilesError::Pki(error),
        other => corrupt(&dir, &other),
    }
}

fn corrupt(path: &Path, error: &dyn std::error::Error) -> FilesError {
    FilesError::Corrupt {
        path: path.to_owned(),
        reason: error.to_string(),
    }
}

impl Membership {
    /// This node and the members it joined; members without a valid fingerprint are skipped.
    pub(super) fn origin(&self) -> Origin {
        let known = self.peers.iter().filter_map(|peer| {
            let print: Fingerprint = peer.fingerprint.parse().ok()?;
            let print = *print.as_bytes();
            Some(PeerInfo::new(
                &peer.hostname,
                peer.raft_id,
                &peer.address,
                print,
            ))
        });
        Origin {
            hostname: self.hostname.clone(),
            raft_id: self.raft_id,
            members: known.collect(),
        }
    }

    /// Content of the file.
    pub(super) fn to_json(&self) -> Vec<u8> {
        // A struct of strings and numbers always serialises.
        serde_json::to_vec_pretty(self).unwrap_or_default()
    }
}
