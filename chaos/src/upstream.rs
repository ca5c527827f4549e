//! The image of `jaco-upstream`, a web server whose answers name the container that gave them.

use std::{collections::BTreeMap, path::Path, process::Command, time::Duration};

use anyhow::{Context, Result, ensure};

use crate::{Engine, daemon::program};

/// Reference of the image.
pub const IMAGE: &str = "jaco-test/upstream:1";
/// Path of the program in the image.
pub const PROGRAM: &str = "/bin/jaco-upstream";
/// Port of HTTP in the container.
pub const HTTP_PORT: u16 = 8080;
/// Port in the container that sends the name of the container as a line, then echoes.
pub const ECHO_PORT: u16 = 9000;
/// Header with the hostname of the container: the first digits of its engine id.
pub const REPLICA_HEADER: &str = "x-replica";
/// Path of answers after [`SLOW`].
pub const SLOW_PATH: &str = "/slow";
/// Path of answers whose body comes in [`PIECES`].
pub const STREAM_PATH: &str = "/stream";
/// Wait before the answers of [`SLOW_PATH`].
pub const SLOW: Duration = Duration::from_millis(50);
/// Pieces of the body of [`STREAM_PATH`].
pub const PIECES: u32 = 10;
/// Wait before each piece.
pub const PIECE_PAUSE: Duration = Duration::from_millis(20);

/// Digits of a container's id in its hostname.
const HOSTNAME_DIGITS: usize = 12;

/// The name that a container with this engine id gives in its answers.
#[must_use]
pub fn name_of(container_id: &str) -> &str {
    container_id.get(..HOSTNAME_DIGITS).unwrap_or(container_id)
}

/// Imports [`IMAGE`] into an engine: the program and the shared libraries it needs.
///
/// # Errors
/// When the program was not built, or the engine refuses.
pub async fn import(engine: &Engine) -> Result<()> {
    let program = program("jaco-upstream")?;
    let mut files = libraries(&program)?;
    let inside = PROGRAM.trim_start_matches('/').to_owned();
    files.insert(inside, std::fs::read(&program)?);
    engine.import_files(IMAGE, "a web server", &files).await
}

/// The shared libraries of a program by their paths in the image, the dynamic linker included.
fn libraries(program: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let listed = Command::new("ldd").arg(program).output().context("ldd")?;
    ensure!(listed.status.success(), "ldd: {listed:?}");
    let text = String::from_utf8(listed.stdout)?;
    let paths = text.split_whitespace().filter(|word| word.starts_with('/'));
    let file = |path: &str| {
        let content = std::fs::read(path).with_context(|| path.to_owned())?;
        Ok((path.trim_start_matches('/').to_owned(), content))
    };
    paths.map(file).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_include_the_dynamic_linker() {
        let found = libraries(Path::new("/bin/sh")).unwrap();
        assert!(
            found.keys().any(|path| path.contains("/ld-")),
            "{:?}",
            found.keys()
        );
        assert!(
            found
                .values()
                .all(|content| content.starts_with(b"\x7fELF"))
        );
    }
}
