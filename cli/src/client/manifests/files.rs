//! The compose files of a command.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf, absolute},
};

use jaco_proto::{manifest::project::Given, yaml};

use super::Sources;
use crate::client::{
    failure::{Failure, Local},
    validate::read,
};

/// Default names of a compose file, in order of precedence.
///
/// Source: Compose Specification, 03-compose-file.md.
pub(super) const NAMES: [&str; 4] = [
    "compose.yaml",
    "compose.yml",
    "docker-compose.yaml",
    "docker-compose.yml",
];

/// Path that stands for standard input.
const STDIN: &str = "-";

/// The compose files before resolution.
pub(super) struct Compose {
    pub(super) files: Vec<Given>,
    /// Absolute base of relative paths; `None` for stdin.
    pub(super) directory: Option<PathBuf>,
}

impl Compose {
    /// Reads the files of the command line, else those beside `jaco`, else those of the project
    /// directory.
    pub(super) fn find(jaco: Option<&Path>, sources: &Sources) -> Result<Self, Failure> {
        let given = sources.project_directory.as_deref();
        let paths = match (sources.files.as_slice(), jaco) {
            ([], Some(jaco)) => beside(directory(jaco), "next to jaco.yaml")?,
            ([], None) => beside(given.unwrap_or(Path::new("")), "and no jaco.yaml")
                .map_err(|failure| nothing_given(&failure))?,
            (files, _) => files.to_vec(),
        };
        let mut files = Vec::new();
        for path in &paths {
            files.push(if path == Path::new(STDIN) {
                stdin()?
            } else {
                Given {
                    bytes: read(path)?,
                    path: path.clone(),
                }
            });
        }
        let base = match (given, paths.first()) {
            (Some(given), _) => Some(given),
            (None, Some(first)) if first == Path::new(STDIN) => None,
            (None, first) => first.map(|first| directory(first)),
        };
        let directory = base.map(resolved).transpose()?;
        Ok(Self { files, directory })
    }

    /// Environment file that `x-jaco` of the first file names.
    pub(super) fn environment(&self) -> Option<PathBuf> {
        let file = self.files.first()?;
        let document = yaml::parse_part(&file.bytes, 0).ok()?;
        let root = document.root?;
        let jaco = root.as_map()?.get("x-jaco")?.as_map()?;
        let path = jaco.get("environment").filter(|node| !node.is_null())?;
        Some(directory(&file.path).join(path.text()?))
    }

    /// Path of the first file, for messages.
    pub(super) fn shown(&self) -> String {
        let first = self.files.first();
        first
            .map(|file| file.path.display().to_string())
            .unwrap_or_default()
    }

    /// Content of a file that an error names; empty if it is gone meanwhile.
    pub(super) fn bytes(&self, path: &str) -> Vec<u8> {
        let known = self.files.iter().find(|file| file.path == Path::new(path));
        match known {
            Some(file) => file.bytes.clone(),
            None => fs::read(path).unwrap_or_default(),
        }
    }
}

pub(super) fn directory(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

/// An absolute path without symbolic links in it, so that `..` leads where the system would go.
fn resolved(path: &Path) -> Result<PathBuf, Failure> {
    let path = if path == Path::new("") {
        Path::new(".")
    } else {
        path
    };
    let found = fs::canonicalize(path).or_else(|_| absolute(path));
    found.map_err(|error| {
        let shown = path.display();
        Failure::new(Local::FileError, format!("directory {shown}: {error}")).with("path", shown)
    })
}

fn stdin() -> Result<Given, Failure> {
    let mut bytes = Vec::new();
    io::stdin()
        .lock()
        .read_to_end(&mut bytes)
        .map_err(|error| {
            let message = format!("read the compose file from stdin: {error}");
            Failure::new(Local::FileError, message)
        })?;
    let path = PathBuf::from("stdin");
    Ok(Given { path, bytes })
}

/// Names the arguments that are missing where no file is found without them.
fn nothing_given(failure: &Failure) -> Failure {
    let message = format!("{}, or give JACO", failure.message);
    Failure {
        details: failure.details.clone(),
        ..Failure::new(Local::UsageError, message)
    }
}

/// Returns the compose file of a directory, and its override if there is one.
fn beside(directory: &Path, place: &str) -> Result<Vec<PathBuf>, Failure> {
    let mut candidates = NAMES.iter().map(|name| directory.join(name));
    let found = candidates.find(|path| path.is_file()).ok_or_else(|| {
        let shown = if directory == Path::new("") {
            Path::new(".")
        } else {
            directory
        };
        let message = format!(
            "no compose file found {place} in {}; name one with -f",
            shown.display()
        );
        Failure::new(Local::FileError, message)
            .with("directory", shown.display())
            .with("tried", NAMES.join(" "))
    })?;
    let stem = found
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let overrides = ["yaml", "yml"].map(|end| directory.join(format!("{stem}.override.{end}")));
    let over = overrides.into_iter().find(|path| path.is_file());
    Ok([found].into_iter().chain(over).collect())
}
