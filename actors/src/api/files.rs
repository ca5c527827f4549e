//! Contents of mounted files: those of an apply, and the `ClusterFiles` service.

use std::sync::Arc;

use jaco_net::secrets::SecretsKey;
use jaco_policy::api::files::{self, Sealer, check_size};
use jaco_proto::{
    Error, ErrorCode,
    manifest::Resolved,
    secret::SecretBytes,
    v1::{self, FileContent, FileKind, cluster_files_server::ClusterFiles, command::Payload},
};
use jaco_raftnode::StateReader;
use jaco_state::{State, cluster_file_key};
use tonic::{Request, Response, Status};

use super::{caller::Caller, names, secrets::key_in_force};
use crate::{commit::propose, node::NodeContext, secrets::KeySealer};

/// A deployment without secrets needs no key.
struct NoSealer;

impl Sealer for NoSealer {
    fn open(&self, _: &FileContent) -> Option<SecretBytes> {
        None
    }

    fn seal(&self, _: &FileContent, _: &[u8]) -> Result<Vec<u8>, Error> {
        Err(Error::new(ErrorCode::Internal, "nothing was to be sealed"))
    }

    fn random_id(&self) -> Result<String, Error> {
        Err(Error::new(ErrorCode::Internal, "nothing was to be sealed"))
    }
}

/// Whether an apply of `resolved` seals files.
pub(super) fn has_secrets(resolved: &Resolved) -> bool {
    let mut kinds = resolved.file_sources.keys().map(|(kind, _)| *kind);
    kinds.any(|kind| kind == FileKind::Secret)
}

/// Gives the files of `resolved` their contents, and returns the new ones.
///
/// # Errors
/// Those of [`files::assign`].
pub(super) fn assign(
    state: &State,
    resolved: &mut Resolved,
    values: &[v1::FileValue],
    key: Option<&Arc<SecretsKey>>,
) -> Result<Vec<FileContent>, Error> {
    match key {
        Some(key) => files::assign(state, resolved, values, &KeySealer(Arc::clone(key))),
        None => files::assign(state, resolved, values, &NoSealer),
    }
}

pub(super) struct ClusterFilesService(pub(super) Arc<NodeContext>);

#[tonic::async_trait]
impl ClusterFiles for ClusterFilesService {
    async fn create(
        &self,
        request: Request<v1::ClusterFileCreateRequest>,
    ) -> Result<Response<v1::ClusterFileCreateResponse>, Status> {
        let caller = Caller::of(&request)?;
        let node = self.0.running()?;
        let request = request.into_inner();
        let kind = kind(request.kind)?;
        let (name, value) = (name(&request.name)?, SecretBytes::new(request.content));
        check_size(kind, &name, value.expose().len())?;
        let guard = node.sealing_lock.lock(&node.raft).await?;
        let content = match kind {
            FileKind::Secret => {
                let sealer = KeySealer(key_in_force(&node)?);
                stored(&node.raft.state(), &name, value.expose(), &sealer)?
            }
            FileKind::Unspecified | FileKind::Config | FileKind::Bind => {
                files::plain("", value.expose())
            }
        };
        let file = v1::ClusterFile {
            kind: kind.into(),
            name,
            content: Some(content),
            created_at: Some(node.clock.timestamp()),
            created_by: caller.identity.clone(),
        };
        let payload = Payload::ClusterFilePut(v1::ClusterFilePut { file: Some(file) });
        let command = node.command(&caller.identity, payload);
        guard.propose(&node.raft, command).await?;
        Ok(Response::new(v1::ClusterFileCreateResponse {}))
    }

    async fn list(
        &self,
        request: Request<v1::ClusterFileListRequest>,
    ) -> Result<Response<v1::ClusterFileListResponse>, Status> {
        let node = self.0.running()?;
        let kind = kind(request.get_ref().kind)?;
        let state = node.raft.state();
        let response = v1::ClusterFileListResponse {
            files: list(&state, kind),
        };
        Ok(node.read_response(&state, response))
    }

    async fn remove(
        &self,
        request: Request<v1::ClusterFileRemoveRequest>,
    ) -> Result<Response<v1::ClusterFileRemoveResponse>, Status> {
        let caller = Caller::of(&request)?;
        let node = self.0.running()?;
        let request = request.into_inner();
        let payload = Payload::ClusterFileRemove(v1::ClusterFileRemove {
            kind: kind(request.kind)?.into(),
            name: name(&request.name)?,
        });
        propose(&node.raft, node.command(&caller.identity, payload)).await?;
        Ok(Response::new(v1::ClusterFileRemoveResponse {}))
    }
}

/// Content of a secret of the cluster: the stored one if it has this value, so that a repeated
/// creation changes nothing, else a new one.
fn stored(
    state: &State,
    name: &str,
    value: &[u8],
    sealer: &KeySealer,
) -> Result<FileContent, Error> {
    let key = cluster_file_key(FileKind::Secret, name);
    let known = state.cluster_files.get(&key);
    let known = known.and_then(|file| file.content.as_ref());
    let same = known.filter(|content| {
        let opened = sealer.open(content);
        opened.is_some_and(|opened| opened.expose() == value)
    });
    match same {
        Some(content) => Ok(content.clone()),
        None => files::sealed("", value, sealer),
    }
}

fn list(state: &State, kind: FileKind) -> Vec<v1::ClusterFileInfo> {
    let users = files::users(state);
    let files = state.cluster_files.values();
    let files = files.filter(|file| file.kind() == kind);
    files
        .map(|file| v1::ClusterFileInfo {
            kind: file.kind,
            name: file.name.clone(),
            size: file.content.as_ref().map_or(0, |content| content.size),
            created_at: file.created_at,
            created_by: file.created_by.clone(),
            deployments: users
                .get(&(kind, file.name.clone()))
                .map(|users| users.iter().cloned().collect())
                .unwrap_or_default(),
        })
        .collect()
}

fn kind(kind: i32) -> Result<FileKind, Error> {
    match FileKind::try_from(kind) {
        Ok(kind @ (FileKind::Config | FileKind::Secret)) => Ok(kind),
        Ok(FileKind::Unspecified | FileKind::Bind) | Err(_) => {
            let message = "the kind is neither a config nor a secret";
            Err(Error::new(ErrorCode::ValidationFailed, message).with("field", "kind"))
        }
    }
}

/// Checks a name, which has the form of a key in a compose file.
fn name(given: &str) -> Result<String, Error> {
    names::require("name", given)?;
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if given.len() <= 64 && given.chars().all(known) {
        return Ok(given.to_owned());
    }
    let shown: String = given.chars().take(64).collect();
    let message = format!("{shown:?} is no name, which has at most 64 letters, digits and . _ -");
    Err(Error::new(ErrorCode::ValidationFailed, message)
        .with("field", "name")
        .with("value", shown))
}

#[cfg(test)]
pub(super) mod tests;
