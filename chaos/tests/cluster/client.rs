//! The client of an operator: files on its disk, commands, and what they leave on the machines.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use jaco_chaos::{Container, Lab, SecretScanner};

/// A directory with the files of a deployment.
pub(crate) struct Directory(tempfile::TempDir);

impl Directory {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

/// Runs a command that succeeds; returns what it prints.
pub(crate) async fn jaco(lab: &Lab, words: &[&str]) -> String {
    let ended = lab.node(1).jaco(words).await.unwrap();
    let shown = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
    let (out, err) = (shown(&ended.stdout), shown(&ended.stderr));
    assert!(ended.status.success(), "{words:?}: {out}{err}");
    out + &err
}

pub(crate) fn ids(containers: &[Container]) -> Vec<&str> {
    containers.iter().map(|one| one.id.as_str()).collect()
}

/// Searches every file of the machines' disks, their logs included, except below directories of
/// the names `skipped`.
pub(crate) fn search(scanner: &SecretScanner, dir: &Path, skipped: &[&str]) {
    let device = fs::metadata(dir).unwrap().dev();
    let mut pending = vec![dir.to_owned()];
    let mut read = 0;
    while let Some(path) = pending.pop() {
        let Ok(found) = fs::symlink_metadata(&path) else {
            continue;
        };
        if dir_name(&path).is_some_and(|name| skipped.contains(&name)) {
            continue;
        }
        if found.is_dir() && found.dev() == device {
            pending.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        } else if found.is_file() && found.dev() == device {
            let content = fs::read(&path).unwrap_or_default();
            read += 1;
            let leaks = scanner.found_in(&path.display().to_string(), &content);
            assert!(leaks.is_empty(), "{leaks:?}");
        }
    }
    assert!(read > 30, "only {read} files were searched");
}

fn dir_name(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}
