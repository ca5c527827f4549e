//! Sends entries to the systemd journal.
//!
//! Source: systemd's "Native Journal Protocol": one datagram per entry and one line per field; a
//! value with several lines is preceded by its length.

use std::{
    io,
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
};

use serde_json::Value;
use tracing::Level;

use super::event::Line;

/// Maximum length of a field's value; a datagram must fit into the socket's buffer.
const MAX_VALUE_BYTES: usize = 16 * 1024;

/// A connection to the journal.
pub(super) struct Journal {
    socket: UnixDatagram,
    path: PathBuf,
    identifier: &'static str,
}

impl Journal {
    /// Checks that a socket is listening at `path`; entries will carry `identifier`.
    ///
    /// # Errors
    /// The system's error if the socket cannot be connected to.
    pub(super) fn connect(path: &Path, identifier: &'static str) -> io::Result<Self> {
        UnixDatagram::unbound()?.connect(path)?;
        Ok(Self {
            socket: UnixDatagram::unbound()?,
            path: path.to_owned(),
            identifier,
        })
    }

    /// Sends one entry; an entry that the journal does not accept is lost.
    pub(super) fn send(&self, line: &Line) {
        // Addressed by path each time, because a restarted journal listens on a new socket.
        let _ = self
            .socket
            .send_to(&entry(line, self.identifier), &self.path);
    }
}

fn entry(line: &Line, identifier: &str) -> Vec<u8> {
    let mut entry = Vec::new();
    field(&mut entry, "MESSAGE", &line.message);
    field(&mut entry, "PRIORITY", priority(line.level));
    field(&mut entry, "SYSLOG_IDENTIFIER", identifier);
    field(&mut entry, "SUBSYSTEM", &line.subsystem);
    for (key, value) in &line.fields {
        match value {
            Value::String(text) => field(&mut entry, &name(key), text),
            other => field(&mut entry, &name(key), &other.to_string()),
        }
    }
    entry
}

fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        _ => "7", // debug and trace
    }
}

/// Converts a key to a field name that the journal accepts.
fn name(key: &str) -> String {
    let upper = key.to_ascii_uppercase();
    let name: String = upper
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect();
    if name.starts_with(|c: char| c.is_ascii_uppercase()) {
        name
    } else {
        format!("X{name}")
    }
}

fn field(entry: &mut Vec<u8>, name: &str, value: &str) {
    let mut end = value.len().min(MAX_VALUE_BYTES);
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    let value = &value.as_bytes()[..end];
    entry.extend(name.as_bytes());
    if value.contains(&b'\n') {
        entry.push(b'\n');
        entry.extend((value.len() as u64).to_le_bytes());
    } else {
        entry.push(b'=');
    }
    entry.extend(value);
    entry.push(b'\n');
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn entry_is_sent_in_the_native_protocol() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let journal = UnixDatagram::bind(&path).unwrap();
        let line = Line {
            subsystem: "raft".to_owned(),
            message: "two\nlines".to_owned(),
            fields: vec![("peer.addr", "h:1".into()), ("_n", 3.into())],
            ..Line::new(UNIX_EPOCH, Level::ERROR)
        };

        Journal::connect(&path, "jacod").unwrap().send(&line);

        let mut buffer = [0; 512];
        let length = journal.recv(&mut buffer).unwrap();
        assert_eq!(
            &buffer[..length],
            b"MESSAGE\n\x09\0\0\0\0\0\0\0two\nlines\nPRIORITY=3\nSYSLOG_IDENTIFIER=jacod\nSUBSYSTEM=raft\nPEER_ADDR=h:1\nX_N=3\n"
        );
    }

    #[test]
    fn restarted_journal_receives_entries() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let first = UnixDatagram::bind(&path).unwrap();
        let journal = Journal::connect(&path, "jacod").unwrap();
        drop(first);
        std::fs::remove_file(&path).unwrap();
        let line = Line::new(UNIX_EPOCH, Level::INFO);
        journal.send(&line); // lost
        let second = UnixDatagram::bind(&path).unwrap();
        journal.send(&line);
        second.set_nonblocking(true).unwrap();
        assert!(second.recv(&mut [0; 512]).is_ok());
    }

    #[test]
    fn connecting_to_a_missing_journal_fails() {
        assert!(Journal::connect(Path::new("/nonexistent/socket"), "jacod").is_err());
    }

    #[test]
    fn long_value_is_cut_at_a_character() {
        let mut entry = Vec::new();
        field(&mut entry, "A", &"é".repeat(MAX_VALUE_BYTES));
        assert_eq!(entry.len(), MAX_VALUE_BYTES + 3);
        field(
            &mut entry,
            "A",
            &format!("x{}", "é".repeat(MAX_VALUE_BYTES)),
        );
        assert_eq!(entry.len(), 2 * (MAX_VALUE_BYTES + 3) - 1);
    }
}
