//! Secrets that containers have as files, sealed with the secrets key.

use std::sync::Arc;

use jaco_net::secrets::SecretsKey;
use jaco_policy::api::files::{Sealer, sealed_as};
use jaco_proto::{
    Error, ErrorCode,
    secret::SecretBytes,
    v1::{self, FileContent, command::Payload},
};
use jaco_state::State;

use super::reseal::key_missing;

/// Seals with the secrets key of the cluster.
#[derive(Debug)]
pub(crate) struct KeySealer(pub(crate) Arc<SecretsKey>);

impl Sealer for KeySealer {
    fn open(&self, content: &FileContent) -> Option<SecretBytes> {
        let (entity, version) = sealed_as(content);
        self.0.open(&entity, version, &content.sealed).ok()
    }

    fn seal(&self, content: &FileContent, value: &[u8]) -> Result<Vec<u8>, Error> {
        let (entity, version) = sealed_as(content);
        self.0.seal(&entity, version, value).map_err(not_sealed)
    }

    fn random_id(&self) -> Result<String, Error> {
        let mut id = [0; 16];
        getrandom::fill(&mut id).map_err(not_sealed)?;
        Ok(hex::encode(id))
    }
}

pub(super) fn not_sealed(why: impl std::fmt::Display) -> Error {
    Error::new(ErrorCode::RandFailed, "a secret could not be sealed").because(why.to_string())
}

/// Returns the commands that seal every secret anew.
///
/// # Errors
/// `secrets_key_missing` if there are secrets and no old key.
pub(crate) fn reseal(
    state: &State,
    old: Option<&SecretsKey>,
    new: &SecretsKey,
) -> Result<Vec<Payload>, Error> {
    let again = |content: &FileContent| -> Result<Option<FileContent>, Error> {
        if content.sealed.is_empty() {
            return Ok(None);
        }
        let old = old.ok_or_else(key_missing)?;
        let (entity, version) = sealed_as(content);
        let Ok(opened) = old.open(&entity, version, &content.sealed) else {
            tracing::warn!(
                subsystem = "state",
                deployment = content.deployment,
                id = content.id,
                "a secret cannot be sealed anew"
            );
            return Ok(None);
        };
        let sealed = new.seal(&entity, version, opened.expose());
        Ok(Some(FileContent {
            sealed: sealed.map_err(not_sealed)?,
            ..content.clone()
        }))
    };
    let mut payloads = Vec::new();
    for content in state.file_contents.values() {
        if let Some(content) = again(content)? {
            let content = Some(content);
            payloads.push(Payload::FileContentReseal(v1::FileContentReseal {
                content,
            }));
        }
    }
    for file in state.cluster_files.values() {
        let content = file.content.as_ref().map(again).transpose()?.flatten();
        if content.is_some() {
            let file = v1::ClusterFile {
                content,
                ..v1::ClusterFile::clone(file)
            };
            let put = v1::ClusterFilePut { file: Some(file) };
            payloads.push(Payload::ClusterFilePut(put));
        }
    }
    Ok(payloads)
}
