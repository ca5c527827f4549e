//! A small disk that can be filled.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

/// A tmpfs of limited size, mounted at a path that a test chooses.
#[derive(Debug)]
pub struct SmallDisk {
    path: PathBuf,
    filler: PathBuf,
}

impl SmallDisk {
    /// Mounts a tmpfs of `size` bytes at `path`, which is created.
    ///
    /// # Errors
    /// When mounting is not permitted: it needs root.
    pub fn mount(path: &Path, size: u64) -> Result<Self> {
        fs::create_dir_all(path)?;
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "jaco-test"])
            .arg(path);
        let output = mount.output().context("run mount")?;
        let why = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "mount {}: {why}", path.display());
        Ok(Self {
            path: path.to_owned(),
            filler: path.join("ballast"),
        })
    }

    /// Path of its mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file until the disk is full.
    ///
    /// # Errors
    /// Any error other than a full disk.
    pub fn fill(&self) -> io::Result<()> {
        let mut file = File::options()
            .create(true)
            .append(true)
            .open(&self.filler)?;
        for block in [64 * 1024, 4096, 1] {
            let zeros = vec![0; block];
            loop {
                match file.write_all(&zeros) {
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::StorageFull => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Removes the file of [`SmallDisk::fill`].
    ///
    /// # Errors
    /// When there is no such file.
    pub fn free(&self) -> io::Result<()> {
        fs::remove_file(&self.filler)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A lazy unmount, because a daemon that is being killed may still hold a file open.
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}
