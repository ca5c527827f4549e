//! Values of the variables in compose files.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fmt, fs, io,
    path::{Path, PathBuf},
};

use jaco_proto::manifest::env_file;

use super::Sources;
use crate::client::failure::{Failure, Local};

/// Values by name, and variables that the files expanded without a value.
#[derive(Default)]
pub(super) struct Variables {
    pub(super) values: BTreeMap<String, String>,
    pub(super) unset: BTreeSet<String>,
}

/// Reads the environment file of `jaco.yaml`, else those of the command line, else `.env` of the
/// project directory. The environment of the process is never read, so that no secret in a shell
/// reaches the cluster by accident.
pub(super) fn read(
    environment: Option<&Path>,
    sources: &Sources,
    directory: Option<&Path>,
) -> Result<Variables, Failure> {
    let mut variables = Variables::default();
    if let Some(path) = environment {
        if !sources.env_files.is_empty() {
            let message = format!(
                "jaco.yaml names the environment file {}, so --env-file has no effect: remove one \
                 of them",
                path.display()
            );
            return Err(Failure::new(Local::UsageError, message));
        }
        variables.add(path)?;
    } else if !sources.env_files.is_empty() {
        for path in &sources.env_files {
            variables.add(path)?;
        }
    } else if let Some(directory) = directory {
        variables.add_default(&directory.join(".env"))?;
    }
    Ok(variables)
}

impl Variables {
    fn add(&mut self, path: &Path) -> Result<(), Failure> {
        let bytes = fs::read(path).map_err(|error| failed(path, &error))?;
        self.parse(path, &bytes)
    }

    /// Reads a file that need not exist.
    fn add_default(&mut self, path: &Path) -> Result<(), Failure> {
        match fs::read(path) {
            Ok(bytes) => self.parse(path, &bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            // A directory of this name is some tool's, not a file with variables.
            Err(_) if path.is_dir() => Ok(()),
            Err(error) => Err(failed(path, &error)),
        }
    }

    fn parse(&mut self, path: &Path, bytes: &[u8]) -> Result<(), Failure> {
        let parsed = env_file::parse(bytes, |name| self.values.get(name).cloned())
            .map_err(|error| failed(path, &error).with("line", error.line))?;
        self.values.extend(parsed.values);
        self.unset.extend(parsed.unset);
        Ok(())
    }
}

fn failed(path: &Path, why: &dyn fmt::Display) -> Failure {
    let message = format!("load environment file {}: {why}", path.display());
    Failure::new(Local::EnvFileError, message).with("path", path.display())
}

/// Home directory of the user, which `~` and `$HOME` mean.
pub(super) fn home() -> Option<PathBuf> {
    let home = env::var_os("HOME").filter(|home| !home.is_empty())?;
    Some(PathBuf::from(home))
}

/// Warning about a variable without a value.
pub(super) fn warning(name: &str) -> String {
    let empty = format!("variable {name} is not set, so it is empty");
    if env::var_os(name).is_some() {
        format!("{empty}: it is set in this shell, which is not read; write it to .env")
    } else {
        empty
    }
}
