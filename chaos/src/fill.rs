//! A small disk that can be filled.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

/// A file system in memory, mounted where a test wants it.
#[derive(Debug)]
pub struct SmallDisk {
    path: PathBuf,
    ballast: PathBuf,
}

impl SmallDisk {
    /// Mounts one of `size` bytes at `path`, which is created.
    ///
    /// # Errors
    /// When mounting is not allowed: it needs root.
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
            ballast: path.join("ballast"),
        })
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes until nothing fits any more.
    ///
    /// # Errors
    /// Any failure but a full disk.
    pub fn fill(&self) -> io::Result<()> {
        let mut file = File::options()
            .create(true)
            .append(true)
            .open(&self.ballast)?;
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

    /// Takes the ballast away.
    ///
    /// # Errors
    /// When there is none.
    pub fn free(&self) -> io::Result<()> {
        fs::remove_file(&self.ballast)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily, because a daemon that is being killed may still hold a file.
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}
