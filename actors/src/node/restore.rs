//! Restoring a cluster from a backup, on one host whose daemon does not run.
//!
//! Nothing is written before the archive was read to its end. Then everything is built beside
//! its place; the raft state is renamed into place last and makes the host a member, so a crash
//! at any moment leaves a host without a cluster, on which the restore can be tried again, or a
//! member.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Read},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use jaco_net::{
    pki::{
        self, ClusterCa, check_hostname,
        files::{NodeFiles, SECRET, SECRET_DIR, Staging},
    },
    process::ActingAs,
};
use jaco_proto::{secret::SecretString, v1};
use jaco_raftnode::{
    archive::{self, Archive, Limits},
    restore::restored,
    storage,
};

use super::{
    NodeConfig,
    announce::text,
    files::{FilesError, Layout, Membership},
    marker::Marker,
};

/// Why a cluster was not restored; the host is as it was before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The name cannot be a node's.
    #[error("{0:?} cannot be a node's name")]
    Hostname(String),
    /// The configuration insists on another name, so the daemon would not start.
    #[error("hostname {configured:?} is configured, not {asked:?}")]
    Renamed {
        /// Name in the configuration.
        configured: String,
        /// Name asked for.
        asked: String,
    },
    /// The host is a member of a cluster, or holds what is left of one.
    #[error("{0} holds raft state; refusing to overwrite it")]
    Occupied(PathBuf),
    /// The archive cannot be used.
    #[error(transparent)]
    Archive(#[from] archive::Error),
    /// The archive's authority cannot sign for its cluster.
    #[error("the cluster authority in the archive cannot be used")]
    Authority(#[source] pki::Error),
    /// The data directory is in use, or cannot be read or written.
    #[error(transparent)]
    Files(#[from] FilesError),
}

/// What was restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Id of the cluster.
    pub cluster_id: String,
    /// Log index at which it goes on.
    pub snapshot_index: u64,
    /// SHA-256 over every entity of the state in the archive, before what is gone was taken out.
    pub state_digest: [u8; 32],
    /// When the backup was taken; RFC 3339.
    pub taken_at: String,
    /// Members at that time, this host apart; their certificates are refused from here on.
    pub former_members: Vec<String>,
    /// Fields of the snapshot that this version does not know and has left out.
    pub unknown_fields: BTreeSet<u32>,
}

/// How far a restore has come; a crash between any two leaves what the first describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreStep {
    /// The archive was read and found good; nothing is written.
    Read,
    /// The data directory is there and locked.
    Claimed,
    /// The raft state is complete beside its place.
    StateStaged,
    /// Key and certificate are complete beside their place.
    IdentityStaged,
    /// They are in their place.
    IdentityPlaced,
    /// So is the marker of the restore.
    MarkerPlaced,
    /// The raft state is in its place: the host is a member.
    StatePlaced,
}

impl RestoreStep {
    /// Every step, in order.
    pub const ALL: [Self; 7] = [
        Self::Read,
        Self::Claimed,
        Self::StateStaged,
        Self::IdentityStaged,
        Self::IdentityPlaced,
        Self::MarkerPlaced,
        Self::StatePlaced,
    ];
}

/// Makes `hostname` the only member of the cluster in the archive `input`.
///
/// Directory, addresses, version and clock are those of `config`. As root, everything is done
/// with the rights of the owner of the data directory, whose links are followed no further than
/// these reach. The threads that the database starts keep these rights: a process that restores
/// for another user had better do nothing else. `step` hears of each step once it is done.
///
/// # Errors
/// [`RestoreError`]; of what was built nothing is left in its place.
pub fn restore(
    config: &NodeConfig,
    hostname: &str,
    input: impl Read,
    mut step: impl FnMut(RestoreStep),
) -> Result<Restored, RestoreError> {
    check_hostname(hostname).map_err(|_| RestoreError::Hostname(hostname.to_owned()))?;
    if let Some(configured) = config.hostname.as_ref().filter(|name| *name != hostname) {
        return Err(RestoreError::Renamed {
            configured: configured.clone(),
            asked: hostname.to_owned(),
        });
    }
    let layout = Layout::new(&config.data_dir);
    let _acting = act_as_owner(&config.data_dir)?;
    let held = layout.claim()?;
    refuse_occupied(&layout)?;

    let archive = archive::read(input, &config.version, &Limits::default())?;
    let (files, cluster) = identity(config, hostname, &archive)?;
    step(RestoreStep::Read);

    let lock = match held {
        Some(lock) => lock,
        None => layout.open()?,
    };
    // Whoever held the lock in between may have founded a cluster.
    refuse_occupied(&layout)?;
    step(RestoreStep::Claimed);
    let placed = place(config, hostname, &layout, &archive, &files, &mut step);
    if placed.is_err() && !layout.is_member().unwrap_or(true) {
        clear(&layout);
    }
    placed?;
    drop(lock);

    let former_members = archive.state.nodes.keys();
    Ok(Restored {
        cluster_id: cluster,
        snapshot_index: archive.meta.snapshot_index,
        state_digest: archive.state.digest(),
        taken_at: archive.meta.taken_at,
        former_members: former_members
            .filter(|name| *name != hostname)
            .cloned()
            .collect(),
        unknown_fields: archive.unknown_fields,
    })
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
    let files = NodeFiles::found(&ca, hostname, &config.certificate_ips, config.clock.now())
        .map_err(RestoreError::Authority)?;
    Ok((files, cluster_id))
}

fn place(
    config: &NodeConfig,
    hostname: &str,
    layout: &Layout,
    archive: &Archive,
    files: &NodeFiles,
    step: &mut impl FnMut(RestoreStep),
) -> Result<(), FilesError> {
    let now = config.clock.timestamp();
    let own = v1::Node {
        hostname: hostname.to_owned(),
        address: text(config.cluster_addr),
        grpc_address: text(config.listen_addr),
        server_cert_fingerprint: files.cert.fingerprint().as_bytes().to_vec(),
        joined_at: Some(now),
        version: config.version.clone(),
        ..Default::default()
    };
    let (state, raft_id) = restored(&archive.state, own);
    let raft = Staging::begin(&layout.raft(), SECRET_DIR)?;
    storage::restore(raft.path(), raft_id, archive.meta.position(), &state).map_err(|source| {
        FilesError::Storage {
            path: raft.path().to_owned(),
            source,
        }
    })?;
    keep_secret(raft.path())?;
    step(RestoreStep::StateStaged);

    let membership = Membership {
        cluster_id: archive.meta.cluster_id.clone(),
        hostname: hostname.to_owned(),
        raft_id,
        advertise_addr: text(config.cluster_addr),
        peers: Vec::new(),
    };
    layout.place_identity(files, &membership, || {
        step(RestoreStep::IdentityStaged);
    })?;
    step(RestoreStep::IdentityPlaced);
    let marker = Marker::new(&archive.meta, now);
    pki::files::replace(&layout.marker(), marker.to_text().as_bytes(), SECRET)?;
    step(RestoreStep::MarkerPlaced);
    raft.commit()?;
    step(RestoreStep::StatePlaced);
    Ok(())
}

/// Takes away what a failed restore has put in place; it is nobody's without raft state.
fn clear(layout: &Layout) {
    // The failure that led here is the one to tell about.
    let _ = fs::remove_dir_all(layout.node());
    let _ = fs::remove_file(layout.marker());
}

/// The rights of whoever owns the data directory, for root where that is another user.
fn act_as_owner(data_dir: &Path) -> Result<Option<ActingAs>, FilesError> {
    let found = match fs::metadata(data_dir) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(FilesError::io("look at", data_dir)(error)),
    };
    if found.uid() == 0 || !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let acting = ActingAs::begin(found.uid(), found.gid());
    acting
        .map(Some)
        .map_err(FilesError::io("act as the owner of", data_dir))
}

/// The database makes its files as the umask says; these hold the keys of the cluster.
fn keep_secret(dir: &Path) -> Result<(), FilesError> {
    for entry in fs::read_dir(dir).map_err(FilesError::io("list", dir))? {
        let path = entry.map_err(FilesError::io("list", dir))?.path();
        fs::set_permissions(&path, fs::Permissions::from_mode(SECRET))
            .and_then(|()| fs::File::open(&path)?.sync_all())
            .map_err(FilesError::io("change the mode of", &path))?;
    }
    Ok(())
}
