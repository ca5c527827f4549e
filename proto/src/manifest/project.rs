//! Compose files as people write them, resolved to the one document that a daemon receives.
//!
//! Several files are merged, `include` and `extends` followed, variables replaced, services of
//! inactive profiles left out, relative paths made absolute, and `env_file` and `label_file` folded.
//! Files are read through a function of the caller, so that resolution is pure.

mod extends;
mod include;
mod merge;
mod name;
mod origin;
mod paths;
mod profiles;
mod unique;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    path::{Path, PathBuf},
};

use crate::{
    Error, ErrorCode,
    manifest::fault::{FILE_NUMBER, Located, bounded, invalid, invalid_yaml},
    secret::SecretString,
    yaml::{self, Map, Node, Position, Scalar, Value},
};

use super::{
    env_file::{self, FoldError},
    interpolate,
};
use origin::Origins;
use paths::Base;

pub use name::project_name;
pub use paths::RelativeBinds;
pub use profiles::Inactive;

/// Maximum of files that make up a document.
const MAX_FILES: usize = 1000;

/// Maximum of nodes of all files together, copies by `extends` and `include` counted again.
const MAX_NODES: usize = 2_000_000;

/// Maximum of files and services that refer to each other in a chain.
const MAX_CHAIN: usize = 100;

/// Text of a document in place of the value of a secret.
pub const HIDDEN: &str = "<hidden>";

/// Returns the content of a file.
pub type ReadFile<'a> = &'a mut dyn FnMut(&Path) -> io::Result<Vec<u8>>;

/// A compose file of the command line.
#[derive(Clone)]
pub struct Given {
    /// Path as written, for messages.
    pub path: PathBuf,
    /// Content of the file.
    pub bytes: Vec<u8>,
}

/// Omits the content, which may be secret.
impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Given")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// Settings of a resolution.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Absolute directory of relative paths; `None` for a file from standard input, in which
    /// relative paths are refused.
    pub directory: Option<PathBuf>,
    /// Home directory, in place of `~`.
    pub home: Option<PathBuf>,
    /// Values of variables.
    pub variables: BTreeMap<String, String>,
    /// Active profiles; `*` activates all.
    pub profiles: BTreeSet<String>,
}

/// A resolved document.
#[derive(Clone)]
pub struct Resolved {
    /// Text of the document: the file itself if nothing had to be resolved.
    pub bytes: Vec<u8>,
    /// Value of the key `name`.
    pub name: Option<String>,
    /// Text of `x-jaco`, a `jaco.yaml` in the compose file.
    pub jaco: Option<Vec<u8>>,
    /// Services that were left out.
    pub inactive: Inactive,
    /// Variables that were expanded without a value, sorted.
    pub unset: BTreeSet<String>,
    /// Paths of the client that services mount.
    pub relative_binds: RelativeBinds,
    /// Values of secrets that stood in the document, by key; the text has [`HIDDEN`] instead.
    pub secrets: BTreeMap<String, SecretString>,
    /// Every file that was read as a compose file.
    files: Vec<Given>,
    origins: Origins,
}

/// Omits the content, which may be secret.
impl fmt::Debug for Resolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolved")
            .field("name", &self.name)
            .field("inactive", &self.inactive)
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

impl Resolved {
    /// Returns the file and the position at which a part of the document was written, by the line
    /// and column in its text.
    pub fn origin(&self, line: u32, col: u32) -> Option<(&Given, Position)> {
        let at = self.origins.find(line, col)?;
        Some((self.files.get(usize::from(at.file))?, at))
    }

    /// Whether the text differs from the file, so that positions in it mean nothing to its author.
    pub fn is_edited(&self) -> bool {
        self.files
            .first()
            .is_none_or(|file| file.bytes != self.bytes)
    }
}

/// Reason why files cannot be resolved.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// A file cannot be read.
    #[error("read {}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A variable cannot be replaced.
    #[error(transparent)]
    Interpolate(#[from] interpolate::Error),
    /// An environment file of an `include` is invalid.
    #[error("load environment file {}: {source}", path.display())]
    Variables {
        /// Path of the file.
        path: PathBuf,
        /// Line and kind of the error.
        source: env_file::Error,
    },
    /// An `env_file` or a `label_file` cannot be folded.
    #[error(transparent)]
    Fold(#[from] FoldError),
    /// A rule of compose files is violated; the details have the file, the line and the column.
    #[error("{0}")]
    Invalid(Error),
}

/// Resolves `files`, each over the ones before it.
///
/// # Errors
/// [`ResolveError`], with the place where the fault was written.
pub fn resolve(
    files: Vec<Given>,
    options: &Options,
    read: ReadFile<'_>,
) -> Result<Resolved, ResolveError> {
    let mut loader = Loader {
        read,
        home: options.home.clone(),
        files: Vec::new(),
        unset: BTreeSet::new(),
        nodes: 0,
        relative: RelativeBinds::default(),
    };
    let result = loader.document(files, options);
    result.map_err(|error| loader.located(error))
}

/// Scope of the files of one project: that of the command line, or that of an `include`.
#[derive(Clone, Copy)]
struct Scope<'a> {
    directory: Option<&'a Path>,
    variables: &'a BTreeMap<String, String>,
    /// Files whose `include` led here, outermost first.
    chain: &'a [PathBuf],
}

struct Loader<'a> {
    read: ReadFile<'a>,
    home: Option<PathBuf>,
    files: Vec<Given>,
    unset: BTreeSet<String>,
    nodes: usize,
    relative: RelativeBinds,
}

impl Loader<'_> {
    fn document(&mut self, files: Vec<Given>, options: &Options) -> Result<Resolved, ResolveError> {
        let single = files.len() == 1;
        // A daemon says that it requires a file; nothing has to be resolved before.
        if let [file] = files.as_slice()
            && file.bytes.is_empty()
        {
            return Ok(Resolved {
                bytes: Vec::new(),
                name: None,
                jaco: None,
                inactive: Inactive::new(),
                unset: BTreeSet::new(),
                relative_binds: RelativeBinds::default(),
                secrets: BTreeMap::new(),
                files,
                origins: Origins::default(),
            });
        }
        let scope = Scope {
            directory: options.directory.as_deref(),
            variables: &options.variables,
            chain: &[],
        };
        let mut root = self.model(files, scope)?;
        let inactive = profiles::select(&mut root, &options.profiles)?;
        let directory = options.directory.is_some();
        let mut content = |path: &str| (self.read)(Path::new(path));
        let reader: Option<env_file::ReadFile<'_>> =
            if directory { Some(&mut content) } else { None };
        let (mut root, unset) = env_file::fold_node(root, reader)?;
        self.unset.extend(unset);
        let secrets = hide_secrets(&mut root);
        let text = |key: &str| {
            let node = root.as_map()?.get(key)?;
            node.text().filter(|_| !node.is_null()).map(str::to_owned)
        };
        let name = text("name");
        let jaco = root.as_map().and_then(|map| map.get("x-jaco"));
        let jaco = jaco.map(|node| yaml::to_string(node).into_bytes());
        let verbatim = self.files.first().filter(|_| single).filter(|file| {
            let document = yaml::parse_part(&file.bytes, 0).ok();
            document.and_then(|document| document.root).as_ref() == Some(&root)
        });
        let (bytes, origins) = match verbatim {
            Some(file) => (file.bytes.clone(), Origins::default()),
            None => {
                let text = yaml::to_string(&root).into_bytes();
                let origins = Origins::of(&root, &text);
                (text, origins)
            }
        };
        Ok(Resolved {
            bytes,
            name,
            jaco,
            inactive,
            unset: std::mem::take(&mut self.unset),
            relative_binds: std::mem::take(&mut self.relative),
            secrets,
            files: std::mem::take(&mut self.files),
            origins,
        })
    }

    /// Merges the files of a project, with absolute paths.
    fn model(&mut self, files: Vec<Given>, scope: Scope<'_>) -> Result<Node, ResolveError> {
        let mut whole: Option<Node> = None;
        for file in files {
            let mut part = self.part(file, scope)?;
            // Before a merge too, which leaves out entries that are there already.
            unique::unique(&mut part);
            whole = Some(match whole {
                Some(base) => {
                    let mut merged = merge::merge(base, part, &mut Vec::new())?;
                    unique::unique(&mut merged);
                    merged
                }
                None => part,
            });
        }
        let whole = whole.ok_or_else(|| invalid("no compose file is given"))?;
        let mut whole = merge::finish(whole);
        if let Some(directory) = scope.directory {
            let home = self.home.clone();
            let base = Base {
                directory,
                home: home.as_deref(),
            };
            paths::resolve(&mut whole, base, &mut self.relative)?;
        }
        Ok(whole)
    }

    /// Reads one file, and follows its `include` and `extends`.
    fn part(&mut self, file: Given, scope: Scope<'_>) -> Result<Node, ResolveError> {
        let path = file.path.clone();
        let mut root = self.parse(file, scope.variables)?;
        if root.as_map().is_some_and(|map| map.contains("include")) {
            root = include::apply(self, root, &path, scope)?;
        }
        extends::apply(self, root, &path, scope.variables)
    }

    /// Parses a file and replaces its variables.
    fn parse(
        &mut self,
        file: Given,
        variables: &BTreeMap<String, String>,
    ) -> Result<Node, ResolveError> {
        let number = u16::try_from(self.files.len()).ok();
        let number = number.filter(|_| self.files.len() < MAX_FILES);
        let Some(number) = number else {
            let message = format!("a document is made of {MAX_FILES} files at most");
            return Err(invalid(message).into());
        };
        let path = file.path.display().to_string();
        let parsed = yaml::parse_part(&file.bytes, number);
        self.files.push(file);
        let document = parsed.map_err(|error| {
            let code = ErrorCode::ValidationFailed;
            invalid_yaml(code, "compose load", &error)
        })?;
        if let Some(next) = document.next {
            let message = "a compose file holds one document, here starts a second";
            return Err(invalid(message).at(next).into());
        }
        let start = Position {
            file: number,
            ..Position::START
        };
        let root = document.root.filter(|root| !root.is_null());
        let root = root.ok_or_else(|| invalid("empty compose file").at(start))?;
        let (root, unset) = interpolate::expand_node(root, &path, variables)?;
        self.unset.extend(unset);
        self.spend(&root)?;
        match root.value {
            Value::Map(_) => Ok(root),
            Value::Seq(_) | Value::Scalar(_) => {
                let kind = root.kind();
                let message = format!("compose load: expected a mapping, not {kind}");
                Err(invalid(message).at(root.at).into())
            }
        }
    }

    /// Counts the nodes of a tree that was read or copied.
    fn spend(&mut self, node: &Node) -> Result<(), ResolveError> {
        self.nodes += count(node);
        if self.nodes <= MAX_NODES {
            return Ok(());
        }
        let message = format!("the files have more than {MAX_NODES} values, copies included");
        Err(invalid(message).at(node.at).into())
    }

    fn read(&mut self, path: &Path) -> Result<Given, ResolveError> {
        match (self.read)(path) {
            Ok(bytes) => Ok(Given {
                path: path.to_owned(),
                bytes,
            }),
            Err(source) => Err(ResolveError::Read {
                path: path.to_owned(),
                source,
            }),
        }
    }

    /// Names the file in which a fault is.
    fn located(&self, error: ResolveError) -> ResolveError {
        let ResolveError::Invalid(mut error) = error else {
            return error;
        };
        let number = error.details.remove(FILE_NUMBER);
        if !error.details.contains_key("line") {
            return ResolveError::Invalid(bounded(error));
        }
        let number = number.map_or(Ok(0), |text| text.parse::<usize>());
        let file = number.ok().and_then(|number| self.files.get(number));
        ResolveError::Invalid(bounded(match file {
            Some(file) => error.with("file", file.path.display()),
            None => error,
        }))
    }
}

impl From<Error> for ResolveError {
    fn from(error: Error) -> Self {
        Self::Invalid(error)
    }
}

/// Takes the values of secrets out of the document.
fn hide_secrets(root: &mut Node) -> BTreeMap<String, SecretString> {
    let mut hidden = BTreeMap::new();
    let secrets = root.get_mut("secrets").map(|node| &mut node.value);
    if let Some(Value::Map(secrets)) = secrets {
        for (key, secret) in secrets.iter_mut() {
            let Some(content) = secret.get_mut("content").filter(|node| !node.is_null()) else {
                continue;
            };
            if let Value::Scalar(scalar) = &content.value {
                hidden.insert(key.text.clone(), SecretString::new(scalar.text.clone()));
                content.value = Value::Scalar(Scalar::string(HIDDEN.to_owned()));
            }
        }
    }
    hidden
}

fn count(node: &Node) -> usize {
    let inner = match &node.value {
        Value::Scalar(_) => 0,
        Value::Seq(items) => items.iter().map(count).sum(),
        Value::Map(map) => map.iter().map(|(_, node)| 1 + count(node)).sum(),
    };
    1 + inner
}

/// Returns the mapping of services, if the file has one.
fn services(root: &Node) -> Option<&Map> {
    root.as_map()?.get("services")?.as_map()
}
