//! Reading a password from stdin or, without an echo, from a terminal.

use std::io::{self, BufRead, IsTerminal};

use jaco_proto::secret::SecretBytes;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::client::{
    blocking,
    failure::{Failure, Local},
    output::Ui,
};

/// Longest first line that is read.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// The first line of stdin without the blanks around it.
///
/// At a terminal it is asked for, unless `--password-stdin` is `given`.
///
/// # Errors
/// `usage_error` for an empty password or an endless line; `file_error` if stdin breaks.
///
/// # Cancel safety
/// A terminal shows again what is typed when this is dropped; a line that was typed by then is
/// lost.
pub(super) async fn from_user(given: bool, ui: &mut Ui<'_>) -> Result<SecretBytes, Failure> {
    let terminal = !given && io::stdin().is_terminal();
    let silence = terminal.then(Silence::new);
    if terminal {
        // Not a note: whoever is to type must know it, however quiet the command is to be.
        let _ = write!(ui.err, "Password: "); // a stderr that fails cannot be complained about
        let _ = ui.err.flush();
    } else if !given {
        ui.warn("the password is read from stdin; --password-stdin says that this is meant");
    }
    let line = blocking(|| first_line(io::stdin().lock())).await;
    if terminal {
        let _ = writeln!(ui.err); // the line break that was typed was not shown
    }
    drop(silence);
    let line = line?.map_err(|error| {
        Failure::new(
            Local::FileError,
            format!("read the password from stdin: {error}"),
        )
    })?;
    password(&line)
}

/// The first line, cut where it is too long for a password by one byte.
fn first_line(input: impl BufRead) -> io::Result<SecretBytes> {
    let mut line = Vec::new();
    input
        .take(MAX_LINE_BYTES + 1)
        .read_until(b'\n', &mut line)?;
    Ok(SecretBytes::new(line))
}

fn password(line: &SecretBytes) -> Result<SecretBytes, Failure> {
    let line = line.expose();
    if line.len() as u64 > MAX_LINE_BYTES {
        let message = format!("the password is longer than {MAX_LINE_BYTES} bytes");
        return Err(Failure::new(Local::UsageError, message));
    }
    match line.trim_ascii() {
        b"" => Err(Failure::new(Local::UsageError, "empty password")),
        password => Ok(SecretBytes::new(password.to_vec())),
    }
}

/// Keeps the terminal behind stdin from showing what is typed.
struct Silence(Option<Termios>);

impl Silence {
    fn new() -> Self {
        let Ok(before) = tcgetattr(io::stdin()) else {
            return Self(None);
        };
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        let silenced = tcsetattr(io::stdin(), OptionalActions::Flush, &silent);
        Self(silenced.is_ok().then_some(before))
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before); // it is gone, then
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(input: &[u8]) -> Result<Vec<u8>, Failure> {
        let line = first_line(input).unwrap();
        password(&line).map(|password| password.expose().to_vec())
    }

    #[test]
    fn the_first_line_counts_without_the_blanks_around_it() {
        for (input, expected) in [
            (&b"p w \r\n"[..], &b"p w"[..]),
            (b"\t secret\nmore\n", b"secret"),
            (b"no line break", b"no line break"),
            (b"\xff\xfe\n", b"\xff\xfe"),
        ] {
            assert_eq!(read(input).unwrap(), expected);
        }
    }

    #[test]
    fn nothing_is_not_a_password() {
        for input in [&b""[..], b"\n", b" \t\r\nsecret\n"] {
            let failure = read(input).unwrap_err();
            assert_eq!(
                (failure.code.as_str(), failure.message.as_str()),
                ("usage_error", "empty password")
            );
        }
    }

    #[test]
    fn a_line_is_at_most_a_mebibyte() {
        let longest = vec![b'x'; MAX_LINE_BYTES as usize];
        assert_eq!(read(&longest).unwrap(), longest);
        let mut ended = longest.clone();
        ended.pop();
        ended.extend(b"\nmore");
        assert_eq!(read(&ended).unwrap().len(), longest.len() - 1);
        let failure = read(&vec![b'x'; longest.len() + 1]).unwrap_err();
        assert_eq!(failure.code, "usage_error");
        assert!(failure.message.contains("1048576"), "{}", failure.message);
    }
}
