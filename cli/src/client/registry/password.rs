//! Reads a password from stdin or, without echo, from a terminal.

use std::io::{self, BufRead, IsTerminal};

use jaco_proto::secret::SecretBytes;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::client::{
    blocking,
    failure::{Failure, Local},
    output::Ui,
};

/// Maximum length of the first line.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// Reads the first line of stdin, without surrounding white space.
///
/// Prompts at a terminal, unless `given`: `--password-stdin` is set.
///
/// # Errors
/// `usage_error` for an empty password or a line that is too long; `file_error` if reading fails.
///
/// # Cancel safety
/// Cancelled, it restores the echo of the terminal; a line that was typed meanwhile is lost.
pub(super) async fn from_user(given: bool, ui: &mut Ui<'_>) -> Result<SecretBytes, Failure> {
    let terminal = !given && io::stdin().is_terminal();
    let echo_guard = terminal.then(EchoGuard::new);
    if terminal {
        // Not a note: the prompt is needed even with `--quiet`.
        let _ = write!(ui.err, "Password: "); // a failing stderr is ignored
        let _ = ui.err.flush();
    } else if !given {
        ui.warn("reading the password from stdin; pass --password-stdin to make this explicit");
    }
    let line = blocking(|| first_line(io::stdin().lock())).await;
    if terminal {
        let _ = writeln!(ui.err); // the typed line break was not echoed
    }
    drop(echo_guard);
    let line = line?.map_err(|error| {
        Failure::new(
            Local::FileError,
            format!("read the password from stdin: {error}"),
        )
    })?;
    password(&line)
}

/// Reads the first line, at most one byte more than the maximum, so that the excess is noticed.
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

/// Disables the echo of the terminal on stdin until it is dropped.
struct EchoGuard(Option<Termios>);

impl EchoGuard {
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

impl Drop for EchoGuard {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before); // the terminal may be gone
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
    fn first_line_is_read_and_trimmed() {
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
    fn empty_password_is_refused() {
        for input in [&b""[..], b"\n", b" \t\r\nsecret\n"] {
            let failure = read(input).unwrap_err();
            assert_eq!(
                (failure.code.as_str(), failure.message.as_str()),
                ("usage_error", "empty password")
            );
        }
    }

    #[test]
    fn line_longer_than_a_mebibyte_is_refused() {
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
