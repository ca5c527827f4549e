//! Network namespaces by name, in the layout of `ip netns`.

use std::{
    fs::{self, File},
    io,
    net::SocketAddr,
    os::{fd::AsFd as _, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Directory where `ip netns` mounts namespaces.
const DIRECTORY: &str = "/run/netns";

/// The file that refers to a namespace.
#[must_use]
pub fn path(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(name)
}

/// Creates a namespace, with its loopback interface up.
///
/// # Errors
/// When there is one of that name already, or without the rights.
pub fn create(name: &str) -> Result<()> {
    ip(None, &["netns", "add", name])?;
    ip(Some(name), &["link", "set", "lo", "up"])
}

/// Removes a namespace and its interfaces, as soon as no process is left in it.
///
/// # Errors
/// When there is none.
pub fn delete(name: &str) -> Result<()> {
    ip(None, &["netns", "delete", name])
}

/// Names of all namespaces that begin with `prefix`, sorted.
#[must_use]
pub fn list(prefix: &str) -> Vec<String> {
    let mut found: Vec<String> = fs::read_dir(DIRECTORY)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with(prefix))
        .collect();
    found.sort();
    found
}

/// Ids of the processes whose first thread is in a namespace; none if there is no such namespace.
#[must_use]
pub fn processes(name: &str) -> Vec<u32> {
    let Ok(wanted) = fs::metadata(path(name)).map(|file| (file.dev(), file.ino())) else {
        return Vec::new();
    };
    let is_in = |pid: &u32| {
        let seen = fs::metadata(format!("/proc/{pid}/ns/net"));
        seen.is_ok_and(|file| (file.dev(), file.ino()) == wanted)
    };
    let pids = fs::read_dir("/proc").into_iter().flatten();
    pids.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(is_in)
        .collect()
}

/// Runs `work` on a thread inside a namespace and returns its result. Sockets made there stay in
/// the namespace.
///
/// # Errors
/// When there is no such namespace, or `work` panicked.
pub fn within<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> Result<T> {
    let file = File::open(path(name)).with_context(|| format!("namespace {name}"))?;
    std::thread::scope(|scope| {
        let inside = scope.spawn(move || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok::<T, io::Error>(work())
        });
        let result = inside.join();
        let result = result.map_err(|_| anyhow::anyhow!("panicked in namespace {name}"))?;
        Ok(result?)
    })
}

/// A command that runs in a namespace, with the mounts of the caller: `ip netns exec` would hide
/// the control groups, which a container engine needs.
#[must_use]
pub fn command(name: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("nsenter");
    command
        .arg(format!("--net={}", path(name).display()))
        .arg("--")
        .arg(program);
    command
}

/// Connects from within a namespace.
///
/// # Errors
/// The error of the connection attempt.
pub async fn connect(name: &str, to: SocketAddr) -> Result<tokio::net::TcpStream> {
    let name = name.to_owned();
    // A socket belongs to the namespace it was created in, so only its creation needs a thread
    // there.
    let made = tokio::task::spawn_blocking(move || within(&name, tokio::net::TcpSocket::new_v4));
    Ok(made.await???.connect(to).await?)
}

/// Writes a setting below `/proc/sys/net` in a namespace.
///
/// # Errors
/// When there is no such setting.
pub(crate) fn set(name: &str, key: &str, value: &str) -> Result<()> {
    let file = Path::new("/proc/sys/net").join(key);
    within(name, || fs::write(&file, value))?.with_context(|| format!("{key} in {name}"))
}

/// Runs `ip` in a namespace, or in that of the caller.
pub(crate) fn ip(name: Option<&str>, args: &[&str]) -> Result<()> {
    batch(name, &args.join(" "))
}

/// Runs several commands of `ip` in one process.
pub(crate) fn batch(name: Option<&str>, lines: &str) -> Result<()> {
    let mut command = Command::new("ip");
    if let Some(name) = name {
        command.args(["-netns", name]);
    }
    let mut process = command
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("iproute2 is needed; install it with `make setup`")?;
    let mut stdin = process.stdin.take().context("a pipe")?;
    io::Write::write_all(&mut stdin, lines.as_bytes())?;
    drop(stdin);
    let output = process.wait_with_output()?;
    let why = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip: {lines:?}: {why}");
    Ok(())
}
