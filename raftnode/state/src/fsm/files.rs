//! Contents of mounted files, and the configs and secrets of the cluster.

use std::collections::BTreeSet;

use jaco_proto::{
    Error, ErrorCode,
    v1::{self, AuditEventType, FileKind, MountedFile},
};

use super::{Origin, Tx, audit, reject};
use crate::{State, state::cluster_file_key};

/// Stores contents of a deployment.
pub(super) fn add(
    tx: &mut Tx,
    deployment: &str,
    contents: &[v1::FileContent],
) -> Result<(), Error> {
    for content in contents {
        if content.deployment != deployment {
            return Err(reject::invalid("contents", "of another deployment"));
        }
        tx.put(content.clone())?;
    }
    Ok(())
}

/// Fails if a service has a file whose content the deployment lacks: it could never start.
pub(super) fn require(
    tx: &Tx,
    deployment: &str,
    services: &[v1::ServiceSpec],
) -> Result<(), Error> {
    for file in services.iter().flat_map(|service| &service.files) {
        let key = (deployment.to_owned(), file.content_id.clone());
        if !tx.state().file_contents.contains_key(&key) {
            return Err(missing(file));
        }
    }
    Ok(())
}

fn missing(file: &MountedFile) -> Error {
    let (code, kind) = match file.kind() {
        FileKind::Secret => (ErrorCode::SecretMissing, "secret"),
        FileKind::Unspecified | FileKind::Config | FileKind::Bind => {
            (ErrorCode::ConfigMissing, "config")
        }
    };
    let message = format!("the content of {kind} {:?} is not there", file.name);
    Error::new(code, message).with("name", &file.name)
}

/// Removes the contents of a deployment that neither its two revisions nor its replicas have.
pub(super) fn sweep(tx: &mut Tx, deployment: &str) {
    let state = tx.state();
    let from = (deployment.to_owned(), String::new());
    let own = state.file_contents.range(from..);
    let own = own.take_while(|((owner, _), _)| owner == deployment);
    let mut ids: Vec<String> = own.map(|((_, id), _)| id.clone()).collect();
    // Most deployments have none, and the replicas are not read for them.
    if ids.is_empty() {
        return;
    }
    let used = used(state, deployment);
    ids.retain(|id| !used.contains(id));
    for id in ids {
        tx.remove::<v1::FileContent>(&(deployment.to_owned(), id));
    }
}

/// Removes the contents that only `row` had, which is replaced or removed.
pub(super) fn sweep_after(tx: &mut Tx, row: &v1::ReplicaDesired) {
    if row.files.is_empty() {
        return;
    }
    let deployment = tx.state().deployments.get(&row.deployment);
    let in_revision = |id: &str| {
        deployment.is_some_and(|deployment| revisions(deployment).any(|file| file.content_id == id))
    };
    if row.files.iter().all(|file| in_revision(&file.content_id)) {
        return;
    }
    sweep(tx, &row.deployment);
}

/// Ids of the contents that the revisions and the replicas of a deployment have.
fn used(state: &State, deployment: &str) -> BTreeSet<String> {
    let applied = state.deployments.get(deployment).into_iter();
    let applied = applied.flat_map(|deployment| revisions(deployment));
    let rows = state.replicas_desired.values();
    let rows = rows.filter(|row| row.deployment == deployment);
    let files = applied.chain(rows.flat_map(|row| &row.files));
    files.map(|file| file.content_id.clone()).collect()
}

/// Files of the revision in force, and of the one that a rollback restores.
fn revisions(deployment: &v1::Deployment) -> impl Iterator<Item = &MountedFile> {
    let previous = deployment.previous.iter().flat_map(|one| &one.services);
    let services = deployment.services.iter().chain(previous);
    services.flat_map(|service| &service.files)
}

/// Replaces the sealed form of a secret.
pub(super) fn reseal(tx: &mut Tx, command: &v1::FileContentReseal) -> Result<(), Error> {
    let content = reject::required("content", command.content.as_ref())?;
    let key = (content.deployment.clone(), content.id.clone());
    if tx.get::<v1::FileContent>(&key).is_none() {
        return Ok(());
    }
    tx.put(content.clone())
}

/// Stores a config or secret of the cluster; one that differs in the sealed form alone is the same
/// under another secrets key.
pub(super) fn put(
    tx: &mut Tx,
    origin: &Origin<'_>,
    command: &v1::ClusterFilePut,
) -> Result<(), Error> {
    let file = reject::required("file", command.file.as_ref())?;
    let content = reject::required("content", file.content.as_ref())?;
    let key = key(file.kind, &file.name)?;
    if let Some(before) = tx.get::<v1::ClusterFile>(&key) {
        let known = before.content.as_ref();
        if known.is_none_or(|known| known.id != content.id) {
            let message = format!(
                "the cluster has a {} {:?} with another content: remove it first",
                key.0, file.name
            );
            return Err(Error::new(ErrorCode::FileExists, message)
                .with("kind", &key.0)
                .with("name", &file.name));
        }
        return tx.put(v1::ClusterFile {
            content: Some(content.clone()),
            ..v1::ClusterFile::clone(&before)
        });
    }
    tx.put(v1::ClusterFile {
        created_at: Some(origin.ts),
        created_by: origin.identity.to_owned(),
        ..file.clone()
    })?;
    let (kind, name) = key;
    audit::record(
        tx,
        origin,
        AuditEventType::ClusterFileCreated,
        [("kind", kind), ("name", name)],
    )
}

/// Removes a config or secret of the cluster.
pub(super) fn remove(
    tx: &mut Tx,
    origin: &Origin<'_>,
    command: &v1::ClusterFileRemove,
) -> Result<(), Error> {
    let key = key(command.kind, &command.name)?;
    if tx.remove::<v1::ClusterFile>(&key).is_none() {
        let code = match command.kind() {
            FileKind::Secret => ErrorCode::SecretNotFound,
            FileKind::Unspecified | FileKind::Config | FileKind::Bind => ErrorCode::ConfigNotFound,
        };
        let message = format!("the cluster has no {} {:?}", key.0, command.name);
        return Err(Error::new(code, message).with("name", &command.name));
    }
    let (kind, name) = key;
    audit::record(
        tx,
        origin,
        AuditEventType::ClusterFileRemoved,
        [("kind", kind), ("name", name)],
    )
}

fn key(kind: i32, name: &str) -> Result<(String, String), Error> {
    match FileKind::try_from(kind) {
        Ok(kind @ (FileKind::Config | FileKind::Secret)) => Ok(cluster_file_key(kind, name)),
        Ok(FileKind::Unspecified | FileKind::Bind) | Err(_) => {
            Err(reject::invalid("kind", "neither a config nor a secret"))
        }
    }
}
