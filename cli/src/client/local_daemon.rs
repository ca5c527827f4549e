//! Configuration of this machine's daemon, for commands that work on its files.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
};

use jaco_proto::config::DaemonConfig;

use super::failure::{Failure, Local};
use crate::daemon;

/// Default path of the daemon's configuration.
const CONFIG: &str = "/etc/jaco/jacod.yaml";

/// Flags that locate the daemon's data.
#[derive(clap::Args)]
pub(crate) struct LocalDaemonArgs {
    /// Data directory of the daemon [env: JACO_DATA_DIR] [default: from the configuration]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,

    /// Configuration file of the daemon [env: JACO_CONFIG] [default: /etc/jaco/jacod.yaml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Configuration of this machine's daemon.
pub(crate) struct LocalDaemon {
    /// Its configuration, with the data directory to work on.
    pub(crate) config: DaemonConfig,
    /// The data directory in its configuration file, if that is a different one.
    pub(crate) configured_data_dir: Option<PathBuf>,
}

impl LocalDaemonArgs {
    /// Whether one of the flags is set.
    pub(crate) fn is_given(&self) -> bool {
        self.data_dir.is_some() || self.config.is_some()
    }

    /// Reads the configuration. A flag takes precedence over an environment variable, and that over
    /// the file.
    ///
    /// # Errors
    /// `file_error` if the file cannot be read or parsed.
    pub(crate) fn resolve(&self) -> Result<LocalDaemon, Failure> {
        self.resolve_with(|name| env::var_os(name).filter(|value| !value.is_empty()))
    }

    fn resolve_with(&self, var: impl Fn(&str) -> Option<OsString>) -> Result<LocalDaemon, Failure> {
        let given = |flag: &Option<PathBuf>, name| flag.clone().or_else(|| Some(var(name)?.into()));
        let path = given(&self.config, "JACO_CONFIG").unwrap_or_else(|| CONFIG.into());
        let mut config = daemon::config::read(&path).map_err(|error| unreadable(&path, &error))?;
        let mut configured_data_dir = None;
        if let Some(data_dir) = given(&self.data_dir, "JACO_DATA_DIR") {
            let configured = std::mem::replace(&mut config.data_dir, data_dir);
            configured_data_dir = (configured != config.data_dir).then_some(configured);
        }
        Ok(LocalDaemon {
            config,
            configured_data_dir,
        })
    }
}

fn unreadable(path: &Path, error: &anyhow::Error) -> Failure {
    Failure::new(Local::FileError, format!("{error:#}")).with("path", path.display())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn flag_precedes_variable_and_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("jacod.yaml");
        fs::write(&file, "data_dir: /of/file\n").unwrap();
        let none = dir.path().join("none.yaml");
        let path = |text: &str| Some(PathBuf::from(text));
        for (config, flag, var, expected, configured_data_dir) in [
            (&file, None, None, "/of/file", None),
            (&file, None, Some("/of/var"), "/of/var", path("/of/file")),
            (
                &file,
                path("/of/flag"),
                Some("/of/var"),
                "/of/flag",
                path("/of/file"),
            ),
            (&file, path("/of/file"), None, "/of/file", None),
            (&none, None, None, "/var/lib/jaco", None),
        ] {
            let args = LocalDaemonArgs {
                data_dir: flag,
                config: None,
            };
            let local_daemon = args.resolve_with(|name| match name {
                "JACO_CONFIG" => Some(config.into()),
                "JACO_DATA_DIR" => var.map(OsString::from),
                other => panic!("{other} is read"),
            });
            let local_daemon = local_daemon.unwrap();
            assert_eq!(local_daemon.config.data_dir, Path::new(expected));
            assert_eq!(local_daemon.configured_data_dir, configured_data_dir);
        }
    }

    #[test]
    fn invalid_configuration_is_reported_with_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("jacod.yaml");
        fs::write(&file, "data_dri: /x\n").unwrap();
        let args = LocalDaemonArgs {
            data_dir: None,
            config: Some(file.clone()),
        };
        let failure = args.resolve_with(|_| None).err().unwrap();
        assert_eq!(failure.code, "file_error");
        assert!(failure.message.contains("data_dri"), "{failure:?}");
        assert_eq!(failure.details["path"], file.display().to_string());
    }
}
