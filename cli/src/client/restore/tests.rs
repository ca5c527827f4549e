use std::{
    fs::{self, TryLockError},
    os::unix::net::UnixListener,
    thread,
};

use clap::Parser;

use super::*;
use crate::client::{
    fake::{Captured, Fake, capture, failure},
    golden::setup,
    output::Format,
};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

/// Restores a backup into `dir/data`, with the control socket `socket`.
async fn restore(dir: &Path, socket: &Path) -> (Result<(), Stop>, Captured) {
    fs::write(dir.join("archive.tgz"), setup::saved().0).unwrap();
    let config = "listen_addr: 127.0.0.1:7000\ncluster_addr: 127.0.0.1:7001\n";
    fs::write(dir.join("jacod.yaml"), config).unwrap();
    let shown = dir.display();
    let line = format!(
        "restore --input {shown}/archive.tgz --name two --config {shown}/jacod.yaml \
         --data-dir {shown}/data"
    );
    let Line { args } = Line::parse_from(line.split_whitespace());
    capture(Format::Table, async |ui| run(&args, Some(socket), ui).await).await
}

#[tokio::test]
async fn running_daemon_is_refused_with_a_hint() {
    let server = Fake::start().await;
    let dir = tempfile::tempdir().unwrap();
    let (result, _) = restore(dir.path(), &server.socket()).await;
    let failure = failure(result);
    assert_eq!(failure.code, "restore_failed");
    assert_eq!(
        failure.details["hint"],
        "systemctl stop jaco.socket jaco.service"
    );
    assert!(!dir.path().join("data/raft").exists());
    assert!(!dir.path().join("data/node").exists());
}

#[tokio::test]
async fn daemon_started_by_the_probe_finds_lock() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    let lock = dir.path().join("data/LOCK");
    // Plays an init system: each connection starts a daemon, which fails to take the lock.
    let daemon = thread::spawn(move || {
        let (connection, _) = listener.accept().unwrap();
        let taken = File::open(lock).unwrap().try_lock();
        drop(connection);
        drop(listener);
        matches!(taken, Err(TryLockError::WouldBlock))
    });
    let (result, output) = restore(dir.path(), &socket).await;
    assert_eq!(result, Ok(()), "{}", output.err);
    assert!(daemon.join().unwrap());
    assert!(dir.path().join("data/raft/CURRENT").exists());
    let warned = output.err.contains("chown -R jaco: ");
    assert_eq!(
        warned,
        rustix::process::geteuid().is_root(),
        "{}",
        output.err
    );
}
