//! Restores a cluster from a backup, on a host whose daemon does not run.
//!
//! Nothing is written before the archive was read to its end. Everything is then built in staging
//! directories. The raft state makes the host a member and is renamed into place last, so a crash
//! at any point leaves either a host without a cluster, on which the restore can be retried, or a
//! member.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Read},
    ops::ControlFlow,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use jaco_net::{
    pki::{
        self, ClusterCa, check_hostname,
        files::{NodeFiles, SECRET, SECRET_DIR, Staging},
    },
    process::UserSwitch,
    secrets::SecretsKey,
};
use jaco_policy::scheduler::imported::with_own_hashes;
use jaco_proto::{secret::SecretString, v1};
use jaco_raftnode::{
    archive::{self, Archive, ArchiveLimits},
    storage,
};
use jaco_state::restore::restored;

use super::{
    NodeConfig,
    config::text,
    files::{FilesError, Layout, Membership},
    lock::DirectoryLock,
    restore_marker::RestoreMarker,
};

/// Why a cluster was not restored; the host is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The name is not a valid node name.
    #[error("{0:?} cannot be a node's name")]
    Hostname(String),
    /// The configuration sets another name, so the daemon would not start.
    #[error("hostname {configured:?} is configured, not {asked:?}")]
    Renamed {
        /// Name in the configuration.
        configured: String,
        /// Name asked for.
        asked: String,
    },
    /// The host holds raft state: it is a member of a cluster, or was one.
    #[error("{0} holds raft state; refusing to overwrite it")]
    Occupied(PathBuf),
    /// The archive cannot be used.
    #[error(transparent)]
    Archive(#[from] archive::Error),
    /// The archive's authority cannot sign for its cluster.
    #[error("the cluster authority in the archive cannot be used")]
    Authority(#[source] pki::Error),
    /// The key is not the one that seals the archive's values.
    #[error("the secrets key {key_id} is not that of the archive")]
    SecretsKey {
        /// Id of the key.
        key_id: String,
        /// Id of the key that the archive names; empty if it names none.
        expected: String,
    },
    /// The data directory is in use, or cannot be read or written.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The `step` callback stopped the restore.
    #[error("the restore was stopped after {0:?}")]
    Stopped(RestoreStep),
}

/// Result of a restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Id of the cluster.
    pub cluster_id: String,
    /// Log index of the snapshot, after which the log continues.
    pub snapshot_index: u64,
    /// SHA-256 over every entity of the archived state, before the restore dropped any.
    pub state_digest: [u8; 32],
    /// When the backup was taken; RFC 3339.
    pub taken_at: String,
    /// Members at that time other than this host; their certificates are refused from here on.
    pub former_members: Vec<String>,
    /// Fields of the snapshot that this version does not know and has dropped.
    pub unknown_fields: BTreeSet<u32>,
    /// Whether the restore ran as root in a data directory that root owns, with everything in it: a
    /// daemon of another user cannot use it.
    pub owned_by_root: bool,
    /// Id of the secrets key that the archive names and the restore was not given.
    pub missing_secrets_key: Option<String>,
}

/// Progress of a restore; a crash between two steps leaves what the first describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreStep {
    /// The archive was read and validated; nothing is written.
    Read,
    /// The data directory exists and is locked.
    Claimed,
    /// The staging directory of the raft state exists and is empty.
    StateBegun,
    /// The raft state is complete in its staging directory.
    StateStaged,
    /// Key and certificate are complete in their staging directory.
    IdentityStaged,
    /// Key and certificate are in place.
    IdentityPlaced,
    /// The marker of the restore is in place.
    MarkerPlaced,
    /// The raft state is in place: the host is a member.
    StatePlaced,
}

impl RestoreStep {
    /// Every step, in order.
    pub const ALL: [Self; 8] = [
        Self::Read,
        Self::Claimed,
        Self::StateBegun,
        Self::StateStaged,
        Self::IdentityStaged,
        Self::IdentityPlaced,
        Self::MarkerPlaced,
        Self::StatePlaced,
    ];
}

/// Makes `hostname` the only member of the cluster in the archive `input`: [`Prepared::read`]
/// followed by [`Prepared::place`]. Calls `step` after each step.
///
/// # Errors
/// [`RestoreError`]; nothing of what was built stays in place.
pub fn restore(
    config: &NodeConfig,
    hostname: &str,
    input: impl Read,
    mut step: impl FnMut(RestoreStep),
) -> Result<Restored, RestoreError> {
    let mut step = |done| {
        step(done);
        ControlFlow::Continue(())
    };
    Prepared::read(config, hostname, input, &mut step)?.place(&mut step)
}

/// A restore that is ready to be placed: the archive was read, and the data directory is locked.
#[derive(Debug)]
pub struct Prepared {
    config: NodeConfig,
    hostname: String,
    archive: Archive,
    files: NodeFiles,
    secrets_key: Option<SecretsKey>,
    cluster_id: String,
    layout: Layout,
    _lock: DirectoryLock,
}

impl Prepared {
    /// Reads the archive `input` for the member `hostname`, and locks the data directory, which is
    /// created when missing.
    ///
    /// Directory, addresses, version and clock are those of `config`. As root, everything here and
    /// in [`Prepared::place`] is done with the rights of the data directory's owner, and links in
    /// it are followed only as far as those rights reach. Threads that the database starts keep
    /// these rights: a process that restores for another user should do nothing else. `step` is
    /// called after each step and returns whether to continue.
    ///
    /// # Errors
    /// [`RestoreError`]; at most an empty data directory with its lock file was created then.
    pub fn read(
        config: &NodeConfig,
        hostname: &str,
        input: impl Read,
        step: &mut impl FnMut(RestoreStep) -> ControlFlow<()>,
    ) -> Result<Self, RestoreError> {
        check_hostname(hostname).map_err(|_| RestoreError::Hostname(hostname.to_owned()))?;
        let layout = Layout::new(&config.data_dir);
        let _acting = act_as_owner(&config.data_dir)?;
        let held = layout.lock_existing()?;
        if let Some(configured) = config.hostname.as_ref().filter(|name| *name != hostname) {
            return Err(RestoreError::Renamed {
                configured: configured.clone(),
                asked: hostname.to_owned(),
            });
        }
        refuse_occupied(&layout)?;

        let archive = archive::read(input, &config.version, &ArchiveLimits::default())?;
        let (files, cluster_id) = identity(config, hostname, &archive)?;
        report_step(step, RestoreStep::Read)?;

        let lock = match held {
            Some(lock) => lock,
            None => layout.open()?,
        };
        // A daemon may have held the lock in between and bootstrapped a cluster.
        refuse_occupied(&layout)?;
        report_step(step, RestoreStep::Claimed)?;
        Ok(Self {
            config: config.clone(),
            hostname: hostname.to_owned(),
            archive,
            files,
            secrets_key: None,
            cluster_id,
            layout,
            _lock: lock,
        })
    }

    /// Adds the secrets key of the backed-up cluster, which no archive contains.
    ///
    /// # Errors
    /// [`RestoreError::SecretsKey`] if the archive's values are sealed with another key.
    pub fn with_secrets_key(mut self, key: SecretsKey) -> Result<Self, RestoreError> {
        let cluster = self.archive.state.cluster.as_deref();
        let expected = cluster.map_or("", |cluster| cluster.secrets_key_id.as_str());
        let key_id = key.id();
        if key_id != expected {
            return Err(RestoreError::SecretsKey {
                key_id,
                expected: expected.to_owned(),
            });
        }
        self.secrets_key = Some(key);
        Ok(self)
    }

    /// Builds the node and puts it in place; `step` as in [`Prepared::read`].
    ///
    /// # Errors
    /// [`RestoreError`]; the data directory is unchanged then.
    pub fn place(
        self,
        step: &mut impl FnMut(RestoreStep) -> ControlFlow<()>,
    ) -> Result<Restored, RestoreError> {
        let acting = act_as_owner(&self.config.data_dir)?;
        // Files of an earlier, interrupted restore may be in the way, or be the previous identity.
        self.layout.clean_up()?;
        let mut replaced = false;
        let placed = self.build(&mut replaced, step);
        if placed.is_err() && replaced && !self.layout.is_member().unwrap_or(true) {
            // The caller gets the original failure.
            let _ = self.layout.undo_identity();
        }
        placed?;
        let root = rustix::process::geteuid().is_root();
        let former_members = self.archive.state.nodes.keys();
        let missing_secrets_key = match &self.secrets_key {
            Some(_) => None,
            None => named_secrets_key(&self.archive),
        };
        Ok(Restored {
            cluster_id: self.cluster_id,
            snapshot_index: self.archive.meta.snapshot_index,
            state_digest: self.archive.state.digest(),
            former_members: former_members
                .filter(|name| **name != self.hostname)
                .cloned()
                .collect(),
            taken_at: self.archive.meta.taken_at,
            unknown_fields: self.archive.unknown_fields,
            owned_by_root: root && acting.is_none(),
            missing_secrets_key,
        })
    }

    /// Sets `replaced` once the previous identity is moved aside: any identity in place is then
    /// that of this restore.
    fn build(
        &self,
        replaced: &mut bool,
        step: &mut impl FnMut(RestoreStep) -> ControlFlow<()>,
    ) -> Result<(), RestoreError> {
        let (config, layout) = (&self.config, &self.layout);
        let now = config.clock.timestamp();
        let own = v1::Node {
            hostname: self.hostname.clone(),
            address: text(config.cluster_addr),
            grpc_address: text(config.listen_addr),
            server_cert_fingerprint: self.files.cert.fingerprint().as_bytes().to_vec(),
            joined_at: Some(now),
            version: config.version.clone(),
            ..Default::default()
        };
        let meta = &self.archive.meta;
        let (state, raft_id) = restored(&self.archive.state, own);
        let state = with_own_hashes(&state);
        let raft = Staging::begin(&layout.raft(), SECRET_DIR).map_err(FilesError::from)?;
        report_step(step, RestoreStep::StateBegun)?;
        storage::restore(raft.path(), raft_id, meta.position(), &state).map_err(|source| {
            FilesError::Storage {
                path: raft.path().to_owned(),
                source,
            }
        })?;
        keep_secret(raft.path())?;
        report_step(step, RestoreStep::StateStaged)?;

        let membership = Membership {
            cluster_id: meta.cluster_id.clone(),
            hostname: self.hostname.clone(),
            raft_id,
            advertise_addr: text(config.cluster_addr),
            peers: Vec::new(),
        };
        let mut go_on = Ok(());
        // Even without raft state, the previous identity may hold the only copy of this node's key.
        layout.move_identity_aside()?;
        *replaced = true;
        let secrets_key = self.secrets_key.as_ref();
        layout.place_identity(&self.files, &membership, secrets_key, || {
            go_on = report_step(step, RestoreStep::IdentityStaged);
        })?;
        go_on?;
        report_step(step, RestoreStep::IdentityPlaced)?;
        let marker = RestoreMarker::new(meta, now);
        pki::files::replace(&layout.marker(), marker.to_text().as_bytes(), SECRET)
            .map_err(FilesError::from)?;
        report_step(step, RestoreStep::MarkerPlaced)?;
        raft.commit().map_err(FilesError::from)?;
        // The restore is complete, whatever `step` returns; the identity that was moved aside is
        // removed at the next start at the latest.
        let _ = layout.remove_identity_aside();
        let _ = step(RestoreStep::StatePlaced);
        Ok(())
    }
}

/// Id of the secrets key that the archive names.
fn named_secrets_key(archive: &Archive) -> Option<String> {
    let cluster = archive.state.cluster.as_deref()?;
    let id = &cluster.secrets_key_id;
    (!id.is_empty()).then(|| id.clone())
}

/// Calls `step`; an error if the restore is to stop there.
fn report_step(
    step: &mut impl FnMut(RestoreStep) -> ControlFlow<()>,
    done: RestoreStep,
) -> Result<(), RestoreError> {
    match step(done) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(RestoreError::Stopped(done)),
    }
}

fn refuse_occupied(layout: &Layout) -> Result<(), RestoreError> {
    if layout.is_member()? {
        return Err(RestoreError::Occupied(layout.raft()));
    }
    Ok(())
}

/// A new key for this host with a certificate of the restored authority, and the cluster's id.
fn identity(
    config: &NodeConfig,
    hostname: &str,
    archive: &Archive,
) -> Result<(NodeFiles, String), RestoreError> {
    // The archive was checked to hold a cluster.
    let cluster = archive.state.cluster.as_deref().cloned();
    let v1::ClusterMeta {
        cluster_id,
        ca_cert,
        ca_key,
        ..
    } = cluster.unwrap_or_default();
    let ca_key = SecretString::new(
        String::from_utf8(ca_key)
            .map_err(|_| RestoreError::Authority(pki::Error::Pem("CA key")))?,
    );
    let ca = ClusterCa::from_pem(&String::from_utf8_lossy(&ca_cert), &ca_key)
        .map_err(RestoreError::Authority)?;
    let files = NodeFiles::bootstrap(&ca, hostname, &config.certificate_ips, config.clock.now())
        .map_err(RestoreError::Authority)?;
    Ok((files, cluster_id))
}

/// Assumes the rights of the data directory's owner, if this process is root and the owner is not.
fn act_as_owner(data_dir: &Path) -> Result<Option<UserSwitch>, FilesError> {
    let found = match fs::metadata(data_dir) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(FilesError::io("look at", data_dir)(error)),
    };
    if found.uid() == 0 || !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let acting = UserSwitch::begin(found.uid(), found.gid());
    acting
        .map(Some)
        .map_err(FilesError::io("act as the owner of", data_dir))
}

/// Makes the database files private: the database creates them as the umask says, and they hold the
/// keys of the cluster.
fn keep_secret(dir: &Path) -> Result<(), FilesError> {
    for entry in fs::read_dir(dir).map_err(FilesError::io("list", dir))? {
        let path = entry.map_err(FilesError::io("list", dir))?.path();
        fs::set_permissions(&path, fs::Permissions::from_mode(SECRET))
            .and_then(|()| fs::File::open(&path)?.sync_all())
            .map_err(FilesError::io("change the mode of", &path))?;
    }
    Ok(())
}
