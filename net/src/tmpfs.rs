//! File systems in memory, for files that must not reach a disk.

use std::{
    ffi::CStr,
    fs, io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::Path,
};

use rustix::{
    fs::statfs,
    io::Errno,
    mount::{MountFlags, UnmountFlags, mount, unmount},
};

/// `TMPFS_MAGIC` of `linux/magic.h`.
const TMPFS: i64 = 0x0102_1994;

/// Options of the mount, in order of preference: without swap, which Linux has from 6.4 on.
const OPTIONS: [&CStr; 2] = [c"mode=0700,noswap", c"mode=0700"];

/// Mounts a tmpfs at `path`, which only root may enter, unless it is one already; creates the
/// directory. The mount outlives the process.
///
/// # Errors
/// Those of the system; without `CAP_SYS_ADMIN`, [`io::ErrorKind::PermissionDenied`].
pub fn ensure(path: &Path) -> io::Result<()> {
    if is_mounted(path)? {
        return Ok(());
    }
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let mut outcome = Ok(());
    for options in OPTIONS {
        outcome = mount(c"jaco", path, c"tmpfs", flags, options);
        if outcome != Err(Errno::INVAL) {
            break;
        }
    }
    Ok(outcome?)
}

/// Whether a tmpfs of its own is mounted at `path`.
///
/// # Errors
/// Those of the system, except that `path` does not exist.
pub fn is_mounted(path: &Path) -> io::Result<bool> {
    let found = match fs::metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let parent = fs::metadata(path.join(".."))?;
    Ok(found.dev() != parent.dev() && statfs(path)?.f_type == TMPFS)
}

/// Unmounts the tmpfs at `path`, if there is one; its files live until nothing uses them.
///
/// # Errors
/// Those of the system.
pub fn remove(path: &Path) -> io::Result<()> {
    if is_mounted(path)? {
        unmount(path, UnmountFlags::DETACH)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn mount_is_made_once_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("files");
        assert!(!is_mounted(&path).unwrap());
        remove(&path).unwrap();
        ensure(&path).unwrap();
        fs::write(path.join("a"), "x").unwrap();
        ensure(&path).unwrap();
        assert_eq!(fs::read(path.join("a")).unwrap(), b"x");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o700);
        assert!(is_mounted(&path).unwrap());
        remove(&path).unwrap();
        assert!(!is_mounted(&path).unwrap());
        assert!(!path.join("a").exists());
    }
}
