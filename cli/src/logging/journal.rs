//! Entries for the systemd journal in its native form.
//!
//! Source: systemd's "Native Journal Protocol": one datagram an entry, a field a line, or its
//! length in front where the value has several lines.

use std::{
    io,
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
};

use serde_json::Value;
use tracing::Level;

use super::event::Line;

/// Longest value of one field; a datagram must fit into the socket's buffer.
const MAX_VALUE_BYTES: usize = 16 * 1024;

/// The way to the journal.
pub(super) struct Journal {
    socket: UnixDatagram,
    path: PathBuf,
    identifier: &'static str,
}

impl Journal {
    /// Makes sure that somebody listens at `path`, and speaks as `identifier`.
    ///
    /// # Errors
    /// What the system says when nobody listens there.
    pub(super) fn connect(path: &Path, identifier: &'static str) -> io::Result<Self> {
        UnixDatagram::unbound()?.connect(path)?;
        Ok(Self {
            socket: UnixDatagram::unbound()?,
            path: path.to_owned(),
            identifier,
        })
    }

    /// Sends one entry; one that the journal does not take is lost.
    pub(super) fn send(&self, line: &Line) {
        // By its path each time: a journal that was restarted listens on a new socket.
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

/// A field name as the journal accepts it.
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
    fn an_entry_arrives_field_by_field() {
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
    fn journal_that_was_restarted_is_found_again() {
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
    fn nobody_listening_is_an_error() {
        assert!(Journal::connect(Path::new("/nonexistent/socket"), "jacod").is_err());
    }

    #[test]
    fn a_huge_value_is_cut_between_characters() {
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
