//! The files of a node under its data directory, apart from the raft database.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use jaco_net::{
    pki::{
        self, BootstrapCert, Fingerprint, NodeCert,
        files::{NodeFiles, PUBLIC, SECRET_DIR, Staging},
    },
    tls::Identity,
};
use jaco_proto::{secret::SecretString, v1};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::{NodeConfig, lock::DirectoryLock};
use crate::{
    api::admission,
    node::random_token,
    peer::{Origin, Record},
};

/// Flags with which a file that is no link is opened, and nothing that one would wait for.
const NO_LINK: i32 = OFlags::NOFOLLOW
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
        /// What was tried.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// Another daemon uses the directory.
    #[error("another daemon is using {0}")]
    Locked(PathBuf),
    /// A file holds something else than it should.
    #[error("{path} is corrupt: {reason}")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Raft state without the membership that belongs to it, or the other way round.
    #[error("{0} is missing, although this node is a member of a cluster")]
    Missing(PathBuf),
    /// The configured name is not the one the node joined with.
    #[error("hostname {configured:?} is configured, but this node is a member as {stored:?}")]
    Renamed {
        /// Name in the configuration.
        configured: String,
        /// Name in the cluster.
        stored: String,
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
        /// What is wrong with it.
        #[source]
        source: jaco_raftnode::storage::Error,
    },
    /// The system has no randomness.
    #[error("no randomness: {0}")]
    Randomness(String),
}

impl FilesError {
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }
}

/// Certificates that are remembered after they were in force.
const FORMER: usize = 4;

/// The certificates of a bundle of this node's own making; what does not parse is left out.
fn split(bundle: &str) -> Vec<NodeCert> {
    let each = bundle.split_inclusive("-----END CERTIFICATE-----");
    each.filter_map(|pem| NodeCert::from_pem(pem).ok())
        .collect()
}

/// `node/join.json`: who this node is in its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Membership {
    pub(super) cluster_id: String,
    pub(super) hostname: String,
    pub(super) raft_id: u64,
    pub(super) advertise_addr: String,
    /// The members it joined, as the leader told them; empty for the founder.
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
    /// The member that a Node row speaks of.
    pub(super) fn of(node: &v1::Node) -> Self {
        let print = <[u8; 32]>::try_from(node.server_cert_fingerprint.as_slice());
        Self {
            hostname: node.hostname.clone(),
            raft_id: node.raft_id,
            address: node.address.clone(),
            // A member that has not told its fingerprint yet is known once the state is there.
            fingerprint: print
                .map(|bytes| Fingerprint::from_bytes(bytes).to_string())
                .unwrap_or_default(),
        }
    }
}

/// Paths under one data directory.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    root: PathBuf,
}

impl Layout {
    pub(super) fn new(root: &Path) -> Self {
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

    /// Certificate and token of a node that waits to be initialised.
    pub(super) fn bootstrap(&self) -> PathBuf {
        self.root.join("bootstrap")
    }

    /// Key, certificate, CA and membership that were here when a restore put its own in their
    /// place.
    fn identity_aside(&self) -> PathBuf {
        self.root.join("node.aside")
    }

    fn membership(&self) -> PathBuf {
        self.node().join("join.json")
    }

    /// Says that this node was removed from its cluster, and is to do nothing any more.
    fn removed(&self) -> PathBuf {
        self.node().join("removed")
    }

    /// Whether this node was removed from its cluster.
    pub(super) fn is_removed(&self) -> Result<bool, FilesError> {
        let path = self.removed();
        path.try_exists().map_err(FilesError::io("look at", &path))
    }

    /// Remembers that it was.
    pub(super) fn mark_removed(&self) -> Result<(), FilesError> {
        Ok(pki::files::replace(
            &self.removed(),
            b"",
            pki::files::SECRET,
        )?)
    }

    /// Where a certificate waits until the cluster knows it.
    fn staged_certificate(&self, hostname: &str) -> PathBuf {
        self.node().join(format!("{hostname}.crt.next"))
    }

    /// Where the certificates are that were in force, or about to be, newest first.
    fn former_certificates(&self, hostname: &str) -> PathBuf {
        self.node().join(format!("{hostname}.crt.former"))
    }

    /// The certificate that waits, if one does.
    pub(super) fn staged(&self, hostname: &str) -> Option<NodeCert> {
        let pem = fs::read_to_string(self.staged_certificate(hostname)).ok()?;
        NodeCert::from_pem(&pem).ok()
    }

    /// Certificates for the key of this node besides the one in force. A member may know any of
    /// them: it has not heard yet of a newer one, or heard of it before this node did.
    pub(super) fn other_certificates(&self, files: &NodeFiles) -> Vec<NodeCert> {
        let former = fs::read_to_string(self.former_certificates(&files.hostname));
        let mut others: Vec<NodeCert> = self.staged(&files.hostname).into_iter().collect();
        others.extend(former.iter().flat_map(|pem| split(pem)));
        others
            .retain(|cert| *cert.der() != *files.cert.der() && cert.check_key(&files.key).is_ok());
        others
    }

    /// Remembers a certificate that is about to be replaced.
    fn remember_certificate(&self, hostname: &str, pem: &str) -> Result<(), FilesError> {
        let path = self.former_certificates(hostname);
        // What cannot be read is of no use to anybody.
        let known = fs::read_to_string(&path).unwrap_or_default();
        let mut former = split(pem);
        for cert in split(&known) {
            if former.iter().all(|newer| newer.der() != cert.der()) {
                former.push(cert);
            }
        }
        let former = former.iter().take(FORMER);
        let text: String = former
            .map(|cert| format!("{}\n", cert.pem().trim()))
            .collect();
        Ok(pki::files::replace(&path, text.as_bytes(), PUBLIC)?)
    }

    /// Keeps a certificate for the key of this node until the cluster knows it. One that waits
    /// already may be known to some by now.
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

    /// Puts the certificate that waits in the place of the one in force, which is remembered;
    /// `false` if none waits.
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

    /// Says that the cluster was restored; consumed at the first start after it.
    pub(super) fn marker(&self) -> PathBuf {
        self.root.join("restore.txt")
    }

    /// The file whose lock makes the directory that of one process.
    pub(super) fn lock_file(&self) -> PathBuf {
        self.root.join("LOCK")
    }

    /// Creates the directory if need be and takes its lock for the life of the process.
    pub(super) fn open(&self) -> Result<DirectoryLock, FilesError> {
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
            .custom_flags(NO_LINK)
            .open(&path)
            .map_err(FilesError::io("open", &path))?;
        self.lock(lock)
    }

    /// Takes the lock if there is one to take; creates nothing.
    pub(super) fn claim(&self) -> Result<Option<DirectoryLock>, FilesError> {
        let path = self.lock_file();
        match File::options().read(true).custom_flags(NO_LINK).open(&path) {
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

    /// Removes what a crash left of building a membership: never part of one.
    ///
    /// What a restore had set aside comes back, unless that restore was completed.
    pub(super) fn sweep(&self) -> Result<(), FilesError> {
        let (aside, node) = (self.identity_aside(), self.node());
        let exists = |path: &Path| path.try_exists().map_err(FilesError::io("look at", path));
        if self.is_member()? {
            // The marker is there until the first start after a restore that was completed.
            if exists(&self.marker())? {
                self.drop_identity_aside()?;
            }
        } else {
            if exists(&aside)? {
                remove_tree(&node)?;
                fs::rename(&aside, &node).map_err(FilesError::io("move back", &aside))?;
            }
            pki::files::remove(&self.marker())?;
            // Only an empty one goes. It would make what is placed before raft state look like a
            // membership that lost its own.
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

    /// Moves key, certificate and membership of whoever this node was out of the way.
    pub(super) fn set_identity_aside(&self) -> Result<(), FilesError> {
        let node = self.node();
        match fs::rename(&node, self.identity_aside()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(FilesError::io("move aside", &node)(error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Removes what was set aside, if anything was.
    pub(super) fn drop_identity_aside(&self) -> Result<(), FilesError> {
        remove_tree(&self.identity_aside())
    }

    /// Removes the identity that a restore has placed, if it does not go on to place its raft
    /// state, and brings back what was there before it.
    pub(super) fn undo_identity(&self) -> Result<(), FilesError> {
        remove_tree(&self.node())?;
        self.sweep()
    }

    /// Whether raft state says that this node is a member. An empty directory says nothing, unless
    /// there is a membership: then the state is lost, which nobody must take for a new node.
    pub(super) fn is_member(&self) -> Result<bool, FilesError> {
        let raft = self.raft();
        match fs::read_dir(&raft) {
            Ok(mut entries) => match entries.next() {
                Some(Err(error)) => Err(FilesError::io("list", &raft)(error)),
                Some(Ok(_)) => Ok(true),
                None => {
                    let path = self.membership();
                    path.try_exists().map_err(FilesError::io("look at", &path))
                }
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            // Whatever it is, opening it says what is wrong with it.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(true),
            Err(error) => Err(FilesError::io("look at", &raft)(error)),
        }
    }

    /// Puts key, certificate and membership in their place, in that of whatever a crash left
    /// there: without raft state they are nobody's. `staged` is called just before.
    pub(super) fn place_identity(
        &self,
        files: &NodeFiles,
        membership: &Membership,
        staged: impl FnOnce(),
    ) -> Result<(), FilesError> {
        let dir = self.node();
        let staging = Staging::begin(&dir, SECRET_DIR)?;
        files.stage(&staging)?;
        staging.file("join.json", &membership.to_json(), PUBLIC)?;
        staged();
        remove_tree(&dir)?;
        Ok(staging.commit()?)
    }

    /// Who this node is, if it is a member.
    pub(super) fn read_membership(
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

    /// What a member proves itself with.
    pub(super) fn identity(&self, member: &Membership) -> Result<Identity, FilesError> {
        let dir = self.node();
        let files = NodeFiles::load(&dir, &member.hostname).map_err(unusable(&dir))?;
        let identity = Identity::node(&files).map_err(|error| corrupt(&dir, &error))?;
        Ok(identity.with_others(&self.other_certificates(&files)))
    }

    /// Certificate of the cluster's authority, PEM.
    pub(super) fn authority(&self, member: &Membership) -> Result<String, FilesError> {
        let dir = self.node();
        let files = NodeFiles::load(&dir, &member.hostname).map_err(unusable(&dir))?;
        Ok(files.ca_pem)
    }

    /// The certificate and token of the setup phase, made on the first start and kept, so that
    /// an operator's pin survives a restart.
    pub(super) fn setup(
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
            // One that lacks a file is of no use to anybody.
            remove_tree(&dir)?;
            staging.commit()?;
        }
        let read = |path: &Path| fs::read_to_string(path).map_err(FilesError::io("read", path));
        let cert = BootstrapCert::from_pem(&read(&cert)?, SecretString::new(read(&key)?))
            .map_err(unusable(&dir))?;
        let hash = admission::hash(read(&token)?.trim().as_bytes());
        tracing::info!(
            subsystem = "jacod",
            fingerprint = %cert.fingerprint(),
            token = %token.display(),
            "waiting for `jaco cluster init` or `jaco node join`"
        );
        Ok((Identity::bootstrap(&cert)?, hash))
    }

    /// Ends the setup phase; what is left of it after a crash is removed at the next start.
    pub(super) fn remove_setup(&self) {
        let path = self.bootstrap();
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(subsystem = "jacod", path = %path.display(), %error, "setup files stay");
            }
            Ok(()) | Err(_) => {}
        }
    }
}

/// Removes a directory with everything in it, if it is there.
fn remove_tree(path: &Path) -> Result<(), FilesError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(FilesError::io("remove", path)(error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// An error over the files in `dir` that names what it is about: a file that cannot be read is
/// named already, one that does not parse is not.
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
    /// This node and the members it joined; one whose fingerprint is not one is left out.
    pub(super) fn origin(&self) -> Origin {
        let known = self.peers.iter().filter_map(|peer| {
            let print: Fingerprint = peer.fingerprint.parse().ok()?;
            let print = *print.as_bytes();
            Some(Record::new(
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

    /// The file's content.
    pub(super) fn to_json(&self) -> Vec<u8> {
        // A struct of strings and numbers always serialises.
        serde_json::to_vec_pretty(self).unwrap_or_default()
    }
}
