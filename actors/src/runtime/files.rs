//! Files that this host writes for containers: configs, secrets, and what a client has shipped.
//!
//! They are in memory only, on a tmpfs of the daemon that only root may enter, in one directory per
//! replica. The engine mounts single entries of it into the container. The tmpfs outlives the daemon,
//! and a restarted one finds the files of running containers there; after a reboot they are written
//! again before a container starts.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, DirBuilder, Permissions},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, chown},
    path::{Path, PathBuf},
    sync::Arc,
};

use jaco_engine::spec::FileMount;
use jaco_net::{secrets::SecretsKey, tmpfs};
use jaco_policy::{api::files::sealed_as, runtime::replica::core::PrepareError};
use jaco_proto::{
    secret::SecretBytes,
    v1::{FileContent, FileKind, MountedFile, ReplicaDesired},
};
use jaco_state::State;
use sha2::{Digest as _, Sha256};

use crate::ingress::certificate::SecretsKeys;

/// Suffix of an entry that is being written.
const PARTIAL: &str = "part";

/// The files of this host's containers; clones share them.
#[derive(Clone, Debug)]
pub struct FileMounts {
    root: PathBuf,
    /// Whether a tmpfs is mounted at the root.
    in_memory: bool,
    keys: SecretsKeys,
}

/// A file with its content.
struct Written {
    file: MountedFile,
    content: SecretBytes,
}

impl FileMounts {
    /// Files on a tmpfs at `root`, which is mounted when the first container needs one. Secrets are
    /// opened with the newest of `keys`.
    #[must_use]
    pub fn in_memory(root: impl Into<PathBuf>, keys: SecretsKeys) -> Self {
        Self {
            root: root.into(),
            in_memory: true,
            keys,
        }
    }

    /// Files in the directory `root`, for programs without the right to mount.
    #[must_use]
    pub fn in_directory(root: impl Into<PathBuf>, keys: SecretsKeys) -> Self {
        Self {
            in_memory: false,
            ..Self::in_memory(root, keys)
        }
    }

    /// The newest of the keys.
    pub(crate) fn secrets_key(&self) -> Option<Arc<SecretsKey>> {
        self.keys.borrow().clone()
    }

    /// Writes the files of a replica, and removes those that its row does not have.
    ///
    /// # Errors
    /// [`PrepareError::SecretClosed`] if a secret does not open, else [`PrepareError::Retry`].
    pub(crate) async fn write(
        &self,
        state: &State,
        row: &ReplicaDesired,
    ) -> Result<Vec<FileMount>, PrepareError> {
        if row.files.is_empty() {
            return Ok(Vec::new());
        }
        let key = self.secrets_key();
        let contents = row.files.iter().map(|file| {
            let name = (row.deployment.clone(), file.content_id.clone());
            let content = state.file_contents.get(&name);
            let content = content.ok_or_else(|| {
                PrepareError::Retry(format!("the content of {:?} is not there", file.name))
            })?;
            let content = opened(key.as_deref(), file, content)?;
            let file = file.clone();
            Ok(Written { file, content })
        });
        let contents = contents.collect::<Result<Vec<_>, PrepareError>>()?;
        let (this, replica) = (self.clone(), row.id.clone());
        let written = tokio::task::spawn_blocking(move || this.write_now(&replica, contents)).await;
        let failed = |why: String| PrepareError::Retry(format!("files are not written: {why}"));
        match written {
            Ok(Ok(mounts)) => Ok(mounts),
            Ok(Err(error)) => Err(failed(error.to_string())),
            Err(error) => Err(failed(error.to_string())),
        }
    }

    fn write_now(&self, replica: &str, files: Vec<Written>) -> io::Result<Vec<FileMount>> {
        if self.in_memory {
            tmpfs::ensure(&self.root)?;
        }
        let directory = self.root.join(replica);
        DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(&directory)?;
        // The files of one directory are mounted as one.
        let mut entries: BTreeMap<(String, String), Vec<Written>> = BTreeMap::new();
        for written in files {
            let file = &written.file;
            let key = (file.target.clone(), file.name.clone());
            entries.entry(key).or_default().push(written);
        }
        let mut mounts = Vec::new();
        let mut names = BTreeSet::new();
        for ((target, source), files) in entries {
            let name = name(&files);
            let path = directory.join(&name);
            write_entry(&path, &files)?;
            let is_bind = files.iter().any(|one| one.file.kind() == FileKind::Bind);
            mounts.push(FileMount {
                source: path.display().to_string(),
                target,
                replaces: is_bind.then_some(source),
            });
            names.insert(name);
        }
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            if !entry
                .file_name()
                .to_str()
                .is_some_and(|name| names.contains(name))
            {
                remove(&entry.path())?;
            }
        }
        Ok(mounts)
    }

    /// Removes the files of the replicas that are not kept.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn retain(&self, keep: impl Fn(&str) -> bool) -> io::Result<()> {
        let entries = match fs::read_dir(&self.root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            if !entry.file_name().to_str().is_some_and(&keep) {
                remove(&entry.path())?;
            }
        }
        Ok(())
    }
}

/// Returns the content of a file in the clear.
fn opened(
    key: Option<&SecretsKey>,
    file: &MountedFile,
    content: &FileContent,
) -> Result<SecretBytes, PrepareError> {
    if content.sealed.is_empty() {
        return Ok(SecretBytes::new(content.content.clone()));
    }
    let closed = |reason: &str| PrepareError::SecretClosed {
        name: file.name.clone(),
        reason: reason.to_owned(),
    };
    let key = key.ok_or_else(|| closed("this node does not have the cluster's secrets key"))?;
    let (entity, version) = sealed_as(content);
    let opened = key.open(&entity, version, &content.sealed);
    opened.map_err(|error| closed(&error.to_string()))
}

/// Name of an entry, from all that is in it.
fn name(files: &[Written]) -> String {
    let mut hash = Sha256::new();
    for Written { file, .. } in files {
        let (uid, gid, mode) = (file.uid, file.gid, file.mode);
        let path = &file.path;
        hash.update(format!("{} {uid} {gid} {mode} {path}\0", file.content_id));
    }
    let mut name = hex::encode(hash.finalize());
    name.truncate(32);
    name
}

/// Writes an entry, unless it is there as it should be: a container may have it mounted.
fn write_entry(path: &Path, files: &[Written]) -> io::Result<()> {
    if files
        .iter()
        .all(|one| is_written(&place(path, &one.file), one))
    {
        return Ok(());
    }
    let partial = path.with_extension(PARTIAL);
    remove(&partial)?;
    for one in files {
        let place = place(&partial, &one.file);
        if !one.file.path.is_empty() {
            directories(&partial, &one.file.path)?;
        }
        write_file(&place, one)?;
    }
    remove(path)?;
    fs::rename(&partial, path)
}

fn place(entry: &Path, file: &MountedFile) -> PathBuf {
    match file.path.is_empty() {
        true => entry.to_owned(),
        false => entry.join(&file.path),
    }
}

fn is_written(place: &Path, one: &Written) -> bool {
    let file = &one.file;
    let is_same = fs::symlink_metadata(place).is_ok_and(|found| {
        found.is_file()
            && (found.uid(), found.gid()) == (file.uid, file.gid)
            && found.permissions().mode() & 0o7777 == file.mode
            && found.len() == one.content.expose().len() as u64
    });
    is_same
        && fs::read(place)
            .map(SecretBytes::new)
            .is_ok_and(|found| found == one.content)
}

fn write_file(place: &Path, one: &Written) -> io::Result<()> {
    let file = &one.file;
    fs::write(place, one.content.expose())?;
    chown(place, Some(file.uid), Some(file.gid))?;
    fs::set_permissions(place, Permissions::from_mode(file.mode))
}

/// Creates the directories of a shipped file, which every user of the container may read.
fn directories(entry: &Path, path: &str) -> io::Result<()> {
    let mut directory = entry.to_owned();
    let mut parts = path.split('/').peekable();
    while let Some(part) = parts.next() {
        fs::create_dir_all(&directory)?;
        fs::set_permissions(&directory, Permissions::from_mode(0o755))?; // whatever the umask
        if parts.peek().is_some() {
            directory.push(part);
        }
    }
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests;
