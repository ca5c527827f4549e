//! Files of the client that a deployment mounts: contents of configs and secrets, and relative binds
//! of files.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    io::{self, Read as _},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
};

use jaco_proto::{
    Error, ErrorCode,
    manifest::{
        MAX_DIRECTORY_FILES, MAX_FILE_BYTES,
        compose::{FileSource, MountSource, Project},
        project::Resolved,
    },
    v1::{FileKind, FileValue},
};

use rustix::io::Errno;

use crate::client::failure::{Failure, Local};

/// Relative binds of a document.
#[derive(Default)]
pub(super) struct Binds {
    /// Files that are sent in place of paths of the machines.
    pub(super) files: Vec<FileValue>,
    /// Services that may want to write to a shipped file, each with its path.
    pub(super) writable: BTreeSet<(String, String)>,
    /// Whether a relative bind stays a path of each machine.
    pub(super) is_local: bool,
}

/// Reads the files that the services bind by relative paths.
///
/// # Errors
/// `file_error` for one that cannot be read.
pub(super) fn binds(resolved: &Resolved) -> Result<Binds, Failure> {
    let relative = &resolved.relative_binds;
    let mut binds = Binds {
        is_local: relative.to_home,
        ..Binds::default()
    };
    // The daemon refuses an invalid document.
    let Ok(project) = Project::parse(&resolved.bytes) else {
        binds.is_local |= !relative.to_project.is_empty();
        return Ok(binds);
    };
    let mut mounts: BTreeMap<&str, Vec<(&str, bool)>> = BTreeMap::new();
    for (name, service) in &project.services {
        for mount in &service.volumes {
            if let MountSource::Bind { path, .. } = &mount.source
                && relative.to_project.contains(path)
            {
                let users = mounts.entry(path).or_default();
                users.push((name, mount.read_only));
            }
        }
    }
    for (path, users) in mounts {
        let is_read_only = users.iter().all(|(_, read_only)| *read_only);
        let shipped =
            shipped(path, is_read_only).map_err(|error| unreadable(Path::new(path), &error))?;
        let Some(files) = shipped else {
            binds.is_local = true;
            continue;
        };
        binds.files.extend(files);
        let writers = users.iter().filter(|(_, read_only)| !read_only);
        let writers = writers.map(|(name, _)| ((*name).to_owned(), path.to_owned()));
        binds.writable.extend(writers);
    }
    Ok(binds)
}

/// Returns a regular file, or the files of a small directory that is only read; `None` for anything
/// else.
fn shipped(source: &str, is_read_only: bool) -> io::Result<Option<Vec<FileValue>>> {
    let found = match fs::metadata(source) {
        Ok(found) => found,
        // It is created on each machine.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut files = Vec::new();
    let fits = if found.is_file() {
        add(Path::new(source), source, String::new(), &mut files)?
    } else {
        found.is_dir() && is_read_only && add_directory(Path::new(source), source, "", &mut files)?
    };
    Ok((fits && !files.is_empty()).then_some(files))
}

/// Adds the files below a directory; returns whether it can be shipped.
fn add_directory(
    directory: &Path,
    source: &str,
    below: &str,
    files: &mut Vec<FileValue>,
) -> io::Result<bool> {
    // A cycle of symbolic links does not end by itself.
    if below.matches('/').count() > MAX_DIRECTORY_FILES {
        return Ok(false);
    }
    let mut entries = match fs::read_dir(directory) {
        Ok(entries) => entries.collect::<io::Result<Vec<_>>>()?,
        Err(error) if is_dead_link(&error) => return Ok(false),
        Err(error) => return Err(error),
    };
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name();
        let Some(name) = name.to_str() else {
            return Ok(false);
        };
        let (path, below) = (entry.path(), format!("{below}{name}"));
        let found = match fs::metadata(&path) {
            Ok(found) => found,
            // A link that leads nowhere, or to itself.
            Err(error) if is_dead_link(&error) => return Ok(false),
            Err(error) => return Err(error),
        };
        let fits = if found.is_dir() {
            add_directory(&path, source, &format!("{below}/"), files)?
        } else {
            found.is_file() && add(&path, source, below, files)?
        };
        if !fits {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_dead_link(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || Errno::from_io_error(error) == Some(Errno::LOOP)
}

/// Adds one file; returns whether all fit.
fn add(path: &Path, source: &str, below: String, files: &mut Vec<FileValue>) -> io::Result<bool> {
    let sent: usize = files.iter().map(|file| file.content.len()).sum();
    let Some(content) = read(path, MAX_FILE_BYTES.saturating_sub(sent))? else {
        return Ok(false);
    };
    let found = fs::metadata(path)?;
    files.push(FileValue {
        kind: FileKind::Bind.into(),
        name: source.to_owned(),
        path: below,
        uid: found.uid(),
        gid: found.gid(),
        mode: found.permissions().mode() & 0o7777,
        content,
    });
    Ok(files.len() <= MAX_DIRECTORY_FILES)
}

/// Reads a file; `None` if it has more than `limit` bytes.
fn read(path: &Path, limit: usize) -> io::Result<Option<Vec<u8>>> {
    let mut content = Vec::new();
    let file = fs::File::open(path)?;
    file.take(limit as u64 + 1).read_to_end(&mut content)?;
    Ok((content.len() <= limit).then_some(content))
}

/// Reads the contents of the configs and secrets that services mount. A variable is one of the
/// document, else of this process: its name is written there on purpose.
///
/// # Errors
/// `file_error` for a file that cannot be read, `config_missing` or `secret_missing` for a variable
/// that is not set, `validation_failed` for a file that is too large.
pub(super) fn contents(
    resolved: &Resolved,
    variables: &BTreeMap<String, String>,
) -> Result<Vec<FileValue>, Failure> {
    let Ok(project) = Project::parse(&resolved.bytes) else {
        return Ok(Vec::new());
    };
    let mut values = Vec::new();
    for ((kind, name), source) in project.file_sources() {
        let content = match source {
            FileSource::External(_) => None,
            FileSource::Content(_) => {
                // That of a config stands in the document.
                let hidden = resolved.secrets.get(&name);
                let hidden = hidden.filter(|_| kind == FileKind::Secret);
                hidden.map(|value| value.expose().as_bytes().to_vec())
            }
            FileSource::Environment(variable) => {
                let known = variables.get(&variable).cloned();
                let value = known.or_else(|| env::var(&variable).ok());
                let value = value.ok_or_else(|| not_set(kind, &name, &variable))?;
                Some(value.into_bytes())
            }
            FileSource::File(path) => {
                let path = Path::new(&path);
                let content = read(path, MAX_FILE_BYTES);
                let content = content.map_err(|error| unreadable(path, &error))?;
                Some(content.ok_or_else(|| too_large(&name, path))?)
            }
        };
        values.extend(content.map(|content| FileValue {
            kind: kind.into(),
            name,
            content,
            ..FileValue::default()
        }));
    }
    Ok(values)
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    let shown = path.display();
    Failure::new(Local::FileError, format!("read {shown}: {error}")).with("path", shown)
}

fn not_set(kind: FileKind, name: &str, variable: &str) -> Failure {
    let (code, noun) = match kind {
        FileKind::Secret => (ErrorCode::SecretMissing, "secret"),
        FileKind::Unspecified | FileKind::Config | FileKind::Bind => {
            (ErrorCode::ConfigMissing, "config")
        }
    };
    let message = format!(
        "{noun} {name:?} is read from the variable {variable}, which is not set: export it, or write \
         it to an environment file"
    );
    let error = Error::new(code, message).with("name", name);
    error.with("variable", variable).into()
}

fn too_large(name: &str, path: &Path) -> Failure {
    let message = format!(
        "the file {} of {name:?} has more than {MAX_FILE_BYTES} bytes",
        path.display()
    );
    Error::new(ErrorCode::ValidationFailed, message)
        .with("name", name)
        .with("path", path.display())
        .with("limit", MAX_FILE_BYTES)
        .into()
}

#[cfg(test)]
mod tests;
