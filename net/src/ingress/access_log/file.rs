//! A file that is replaced when it has grown.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions, rename},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// A file of limited length and its predecessors: `log`, `log.1` (the newest) to `log.5`.
///
/// It is opened again when another program has moved it away.
#[derive(Debug)]
pub struct RotatedFile {
    path: PathBuf,
    max_bytes: u64,
    kept: u32,
    open: Option<(File, u64)>,
}

impl RotatedFile {
    /// Opens `path` for appending; readable by its owner and group only.
    ///
    /// # Errors
    /// If the file cannot be opened or created.
    pub fn open(path: PathBuf, max_bytes: u64, kept: u32) -> io::Result<Self> {
        let mut file = Self {
            path,
            max_bytes,
            kept,
            open: None,
        };
        file.file()?;
        Ok(file)
    }

    /// The file in use, with its length.
    fn file(&mut self) -> io::Result<&mut (File, u64)> {
        let moved = match &self.open {
            Some((file, _)) => !is_at(file, &self.path)?,
            None => false,
        };
        if moved {
            self.open = None;
        }
        match &mut self.open {
            Some(open) => Ok(open),
            slot @ None => {
                let file = OpenOptions::new()
                    .append(true)
                    .create(true)
                    .mode(0o640)
                    .open(&self.path)?;
                let length = file.metadata()?.len();
                Ok(slot.insert((file, length)))
            }
        }
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.open = None;
        for number in (1..self.kept).rev() {
            match rename(self.numbered(number), self.numbered(number + 1)) {
                Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
                Ok(()) | Err(_) => {}
            }
        }
        rename(&self.path, self.numbered(1))
    }

    fn numbered(&self, number: u32) -> PathBuf {
        let mut name = OsString::from(self.path.as_os_str());
        name.push(format!(".{number}"));
        name.into()
    }
}

/// Whether `path` still names `file`.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let open = file.metadata()?;
    match path.metadata() {
        Ok(named) => Ok((named.dev(), named.ino()) == (open.dev(), open.ino())),
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(why) => Err(why),
    }
}

impl Write for RotatedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let added = bytes.len() as u64;
        let length = self.file()?.1;
        if length > 0 && length + added > self.max_bytes {
            self.rotate()?;
        }
        let (file, length) = self.file()?;
        let written = file.write(bytes)?;
        *length += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn full_file_makes_room_and_the_oldest_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access.log");
        let mut file = RotatedFile::open(path.clone(), 10, 2).unwrap();
        for line in ["one 45678\n", "two\n", "and\n", "three 678\n", "four\n"] {
            file.write_all(line.as_bytes()).unwrap();
        }
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(read("access.log"), "four\n");
        assert_eq!(read("access.log.1"), "three 678\n");
        assert_eq!(read("access.log.2"), "two\nand\n");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }

    #[test]
    fn length_of_an_earlier_run_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access.log");
        fs::write(&path, "12345678").unwrap();
        let mut file = RotatedFile::open(path.clone(), 10, 1).unwrap();
        file.write_all(b"abc").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "abc");
    }

    #[test]
    fn file_moved_by_another_program_is_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access.log");
        let mut file = RotatedFile::open(path.clone(), 100, 1).unwrap();
        file.write_all(b"a").unwrap();
        fs::rename(&path, dir.path().join("moved")).unwrap();
        file.write_all(b"b").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "b");
    }
}
