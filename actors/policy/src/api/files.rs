//! Files of an apply: finds the content of each mounted file, and which contents are new.

use std::collections::{BTreeMap, BTreeSet};

use jaco_proto::{
    Error, ErrorCode,
    manifest::{
        Bind, MAX_FILE_BYTES, Resolved,
        compose::{FileSource, Project},
    },
    secret::SecretBytes,
    v1::{FileContent, FileKind, FileValue, MountedFile},
};
use jaco_state::{State, cluster_file_key};
use sha2::{Digest as _, Sha256};

/// Limit of all contents of a deployment, in bytes.
pub const MAX_TOTAL: usize = 4 << 20;
/// Limit of the contents of a deployment.
pub const MAX_CONTENTS: usize = 1000;

/// Seals the values of secrets.
pub trait Sealer {
    /// Opens a stored secret; `None` if this key does not open it.
    fn open(&self, content: &FileContent) -> Option<SecretBytes>;

    /// Seals a value as `content`, which has everything but the sealed value.
    ///
    /// # Errors
    /// `rand_failed`.
    fn seal(&self, content: &FileContent, value: &[u8]) -> Result<Vec<u8>, Error>;

    /// Returns a new random id.
    ///
    /// # Errors
    /// `rand_failed`.
    fn random_id(&self) -> Result<String, Error>;
}

/// Entity and version that the value of a secret is sealed as. The id is random and belongs to one
/// value, so that a deployment that takes over a secret of the cluster copies the sealed value.
#[must_use]
pub fn sealed_as(content: &FileContent) -> (String, u64) {
    (format!("file_content/{}", content.id), 0)
}

/// Returns the content of a config, by the id that equal content has.
#[must_use]
pub fn plain(deployment: &str, content: &[u8]) -> FileContent {
    FileContent {
        deployment: deployment.to_owned(),
        id: hex::encode(Sha256::digest(content)),
        size: content.len() as u64,
        content: content.to_vec(),
        sealed: Vec::new(),
    }
}

/// Seals the value of a secret under a new id.
///
/// # Errors
/// Those of the sealer.
pub fn sealed(deployment: &str, value: &[u8], sealer: &impl Sealer) -> Result<FileContent, Error> {
    let content = FileContent {
        deployment: deployment.to_owned(),
        id: sealer.random_id()?,
        size: value.len() as u64,
        ..FileContent::default()
    };
    let sealed = sealer.seal(&content, value)?;
    Ok(FileContent { sealed, ..content })
}

/// Fails if a content is too large.
///
/// # Errors
/// `validation_failed` with the size and the limit.
pub fn check_size(kind: FileKind, name: &str, bytes: usize) -> Result<(), Error> {
    if bytes <= MAX_FILE_BYTES {
        return Ok(());
    }
    let what = noun(kind);
    let message = format!("{what} {name:?} has {bytes} bytes, more than {MAX_FILE_BYTES}");
    Err(Error::new(ErrorCode::ValidationFailed, message)
        .with("name", name)
        .with("bytes", bytes)
        .with("limit", MAX_FILE_BYTES))
}

/// Names a kind of file in messages.
#[must_use]
pub fn noun(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Secret => "secret",
        FileKind::Bind => "file",
        FileKind::Config | FileKind::Unspecified => "config",
    }
}

/// Sets the content of every file of `resolved`, adds the files of shipped binds, and returns the
/// contents that the deployment does not have yet.
///
/// # Errors
/// `config_missing` and `secret_missing` for a content that neither the request nor the cluster has,
/// `validation_failed` for sizes, numbers and paths out of range, and those of the sealer.
pub fn assign(
    state: &State,
    resolved: &mut Resolved,
    values: &[FileValue],
    sealer: &impl Sealer,
) -> Result<Vec<FileContent>, Error> {
    let values = Values::new(values)?;
    let mut assignment = Assignment {
        state,
        deployment: resolved.deployment.clone(),
        sealer,
        contents: BTreeMap::new(),
    };
    let mut ids: BTreeMap<(FileKind, &str), String> = BTreeMap::new();
    for ((kind, name), source) in &resolved.file_sources {
        let id = assignment.declared(*kind, name, source, &values)?;
        ids.insert((*kind, name), id);
    }
    let mut shipped: BTreeMap<&str, Vec<MountedFile>> = BTreeMap::new();
    for bind in &resolved.binds {
        let files = assignment.bind(bind, &values)?;
        shipped.entry(&bind.service).or_default().extend(files);
    }
    for service in &mut resolved.services {
        for file in &mut service.files {
            let id = ids.get(&(file.kind(), file.name.as_str()));
            file.content_id = id.cloned().unwrap_or_default();
        }
        let own = shipped.remove(service.name.as_str());
        service.files.extend(own.unwrap_or_default());
    }
    assignment.finish()
}

/// Values of a request by kind, name and path.
struct Values<'a>(BTreeMap<(i32, &'a str), BTreeMap<&'a str, &'a FileValue>>);

impl<'a> Values<'a> {
    fn new(values: &'a [FileValue]) -> Result<Self, Error> {
        let mut known: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
        for value in values {
            let FileValue {
                kind, name, path, ..
            } = value;
            check_size(value.kind(), name, value.content.len())?;
            let paths = known.entry((*kind, name.as_str())).or_default();
            let is_bind = value.kind() == FileKind::Bind;
            let fits = if is_bind {
                is_inside(path)
            } else {
                path.is_empty()
            };
            if !fits || value.mode > 0o7777 {
                return Err(invalid("files", name, "has a path or a mode out of range"));
            }
            if paths.insert(path.as_str(), value).is_some() {
                return Err(invalid("files", name, "is sent twice"));
            }
            if paths.len() > 1 && paths.contains_key("") {
                return Err(invalid("files", name, "is a file and a directory"));
            }
        }
        Ok(Self(known))
    }

    /// Value of a config or a secret.
    fn one(&self, kind: FileKind, name: &str) -> Option<&'a FileValue> {
        self.0.get(&(kind.into(), name))?.get("").copied()
    }

    /// Files of a bind, by path.
    fn bind(&self, source: &str) -> Vec<&'a FileValue> {
        let files = self.0.get(&(FileKind::Bind.into(), source));
        files
            .into_iter()
            .flat_map(BTreeMap::values)
            .copied()
            .collect()
    }
}

/// Whether a path stays below a directory; an empty one is the file itself.
fn is_inside(path: &str) -> bool {
    let part = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
    path.is_empty() || path.split('/').all(part)
}

fn invalid(field: &str, name: &str, what: &str) -> Error {
    Error::new(ErrorCode::ValidationFailed, format!("{name:?} {what}"))
        .with("field", field)
        .with("name", name)
}

struct Assignment<'a, S> {
    state: &'a State,
    deployment: String,
    sealer: &'a S,
    /// Contents of this apply by id, and whether the state lacks each.
    contents: BTreeMap<String, (FileContent, bool)>,
}

impl<S: Sealer> Assignment<'_, S> {
    /// Returns the id of the content of a config or a secret.
    fn declared(
        &mut self,
        kind: FileKind,
        name: &str,
        source: &FileSource,
        values: &Values<'_>,
    ) -> Result<String, Error> {
        let sent = values.one(kind, name).map(|value| value.content.as_slice());
        let inline = match source {
            FileSource::External(external) => return self.external(kind, name, external),
            // A client takes the value of a secret out of the document.
            FileSource::Content(text) if kind != FileKind::Secret => Some(text.expose().as_bytes()),
            FileSource::Content(_) | FileSource::File(_) | FileSource::Environment(_) => None,
        };
        let Some(value) = inline.or(sent) else {
            let origin = match source {
                FileSource::File(path) => format!("is read from the file {path:?}"),
                FileSource::Environment(variable) => {
                    format!("is read from the variable {variable}")
                }
                FileSource::Content(_) | FileSource::External(_) => {
                    "stands in the document".to_owned()
                }
            };
            let message = format!(
                "{} {name:?} {origin}, which only `jaco apply` sends",
                noun(kind)
            );
            return Err(missing(kind, name, message));
        };
        check_size(kind, name, value.len())?;
        match kind {
            FileKind::Secret => self.secret(value),
            FileKind::Unspecified | FileKind::Config | FileKind::Bind => {
                Ok(self.add(plain(&self.deployment, value)))
            }
        }
    }

    /// Takes over the content of a config or a secret of the cluster.
    fn external(&mut self, kind: FileKind, name: &str, external: &str) -> Result<String, Error> {
        let key = cluster_file_key(kind, external);
        let file = self.state.cluster_files.get(&key);
        let Some(content) = file.and_then(|file| file.content.clone()) else {
            let create = match kind {
                FileKind::Secret => "jaco secret create --cluster",
                FileKind::Unspecified | FileKind::Config | FileKind::Bind => "jaco config create",
            };
            let message = format!(
                "the cluster has no {} {external:?}: create it with `{create} {external} FILE`",
                noun(kind)
            );
            return Err(missing(kind, name, message).with("external", external));
        };
        Ok(self.add(FileContent {
            deployment: self.deployment.clone(),
            ..content
        }))
    }

    /// Returns the id of a secret that is stored already, else seals it under a new one.
    fn secret(&mut self, value: &[u8]) -> Result<String, Error> {
        let from = (self.deployment.clone(), String::new());
        let stored = self.state.file_contents.range(from..);
        let stored = stored.take_while(|((owner, _), _)| *owner == self.deployment);
        let stored = stored.map(|(_, content)| &**content);
        let now = self.contents.values().map(|(content, _)| content);
        let size = value.len() as u64;
        let same = stored.chain(now).find(|content| {
            let fits = !content.sealed.is_empty() && content.size == size;
            let opened = fits.then(|| self.sealer.open(content)).flatten();
            opened.is_some_and(|opened| opened.expose() == value)
        });
        let content = match same {
            Some(same) => same.clone(),
            None => sealed(&self.deployment, value, self.sealer)?,
        };
        Ok(self.add(content))
    }

    /// Returns the files of a bind that the client has sent; none for a path of the host.
    fn bind(&mut self, bind: &Bind, values: &Values<'_>) -> Result<Vec<MountedFile>, Error> {
        let files = values.bind(&bind.source).into_iter();
        let files = files.map(|value| MountedFile {
            kind: FileKind::Bind.into(),
            name: bind.source.clone(),
            target: bind.target.clone(),
            path: value.path.clone(),
            uid: value.uid,
            gid: value.gid,
            mode: value.mode,
            content_id: self.add(plain(&self.deployment, &value.content)),
        });
        Ok(files.collect())
    }

    fn add(&mut self, content: FileContent) -> String {
        let key = (self.deployment.clone(), content.id.clone());
        let is_new = !self.state.file_contents.contains_key(&key);
        let id = content.id.clone();
        self.contents.entry(id.clone()).or_insert((content, is_new));
        id
    }

    /// Checks the limits of the deployment, and returns the contents that the state lacks.
    fn finish(self) -> Result<Vec<FileContent>, Error> {
        let sizes = self.contents.values().map(|(content, _)| content.size);
        let total: u64 = sizes.sum();
        let count = self.contents.len();
        let limits = [
            ("bytes", total, MAX_TOTAL as u64),
            ("contents", count as u64, MAX_CONTENTS as u64),
        ];
        for (what, found, limit) in limits {
            if found > limit {
                let message = format!(
                    "the files of the deployment have {found} {what} together, more than {limit}"
                );
                return Err(Error::new(ErrorCode::ValidationFailed, message)
                    .with(what, found)
                    .with("limit", limit));
            }
        }
        let contents = self.contents.into_values();
        let new = contents.filter(|(_, is_new)| *is_new);
        Ok(new.map(|(content, _)| content).collect())
    }
}

fn missing(kind: FileKind, name: &str, message: String) -> Error {
    let code = match kind {
        FileKind::Secret => ErrorCode::SecretMissing,
        FileKind::Unspecified | FileKind::Config | FileKind::Bind => ErrorCode::ConfigMissing,
    };
    Error::new(code, message).with("name", name)
}

/// Deployments whose document names a config or secret of the cluster, by its kind and name.
#[must_use]
pub fn users(state: &State) -> BTreeMap<(FileKind, String), BTreeSet<String>> {
    let mut users: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
    for deployment in state.deployments.values() {
        let mounts = deployment
            .services
            .iter()
            .any(|service| !service.files.is_empty());
        if !mounts {
            continue;
        }
        let project = Project::parse(&deployment.compose_yaml);
        let Ok(project) = project else { continue };
        for ((kind, _), source) in project.file_sources() {
            if let FileSource::External(name) = source {
                let users = users.entry((kind, name)).or_default();
                users.insert(deployment.name.clone());
            }
        }
    }
    users
}

#[cfg(test)]
mod tests;
