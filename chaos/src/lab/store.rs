//! A store of descriptors, as systemd keeps one for a service.

use std::{
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    os::{fd::OwnedFd, unix::net::UnixDatagram},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use command_fds::{CommandFdExt as _, FdMapping};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

/// First descriptor of a service (`SD_LISTEN_FDS_START`).
const FIRST: i32 = 3;
/// Time after which an idle store sees that it has ended.
const IDLE: Duration = Duration::from_millis(100);

/// Receives what a daemon has kept, and passes it to the next one.
#[derive(Debug)]
pub(super) struct Store {
    path: PathBuf,
    kept: Arc<Mutex<Vec<(String, OwnedFd)>>>,
    ended: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl Store {
    /// Receives at `path` from now on.
    pub(super) fn start(path: PathBuf) -> io::Result<Self> {
        let socket = UnixDatagram::bind(&path)?;
        socket.set_read_timeout(Some(IDLE))?;
        let kept = Arc::default();
        let ended = Arc::new(AtomicBool::new(false));
        let (shared, end) = (Arc::clone(&kept), Arc::clone(&ended));
        let reader = thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                if let Ok((message, descriptor)) = receive(&socket) {
                    apply(&mut guard(&shared), &message, descriptor);
                }
            }
        });
        Ok(Self {
            path,
            kept,
            ended,
            reader: Some(reader),
        })
    }

    /// Where a daemon sends to (`NOTIFY_SOCKET`).
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Passes copies of the descriptors to the process of a command, as systemd does.
    pub(super) fn pass(&self, mut command: Command) -> io::Result<Command> {
        let kept = guard(&self.kept);
        let names: Vec<&str> = kept.iter().map(|(name, _)| name.as_str()).collect();
        // The shell knows the process id before the program takes its place.
        let mut shell = Command::new("/bin/sh");
        shell
            .args(["-c", "LISTEN_PID=$$ exec \"$0\" \"$@\""])
            .arg(command.get_program())
            .args(command.get_args())
            .env("LISTEN_FDS", names.len().to_string())
            .env("LISTEN_FDNAMES", names.join(":"));
        for (name, value) in command.get_envs() {
            if let Some(value) = value {
                shell.env(name, value);
            }
        }
        command = shell;
        let mappings = kept.iter().zip(FIRST..).map(|((_, descriptor), child_fd)| {
            let parent_fd = descriptor.try_clone()?;
            Ok(FdMapping {
                parent_fd,
                child_fd,
            })
        });
        let mappings = mappings.collect::<io::Result<Vec<_>>>()?;
        command.fd_mappings(mappings).map_err(io::Error::other)?;
        Ok(command)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join(); // a panic ended it
        }
    }
}

fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn receive(socket: &UnixDatagram) -> io::Result<(String, Option<OwnedFd>)> {
    let (mut bytes, mut space) = ([0; 1024], [MaybeUninit::uninit(); 64]);
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let text = String::from_utf8_lossy(&bytes[..received.bytes]);
    Ok((text.into_owned(), descriptor))
}

/// Carries out a message of sd_notify(3).
fn apply(kept: &mut Vec<(String, OwnedFd)>, message: &str, descriptor: Option<OwnedFd>) {
    let name = message
        .lines()
        .find_map(|line| line.strip_prefix("FDNAME="));
    let Some(name) = name else {
        return;
    };
    if message.lines().any(|line| line == "FDSTOREREMOVE=1") {
        kept.retain(|(other, _)| other != name);
    } else if let Some(descriptor) = descriptor {
        kept.push((name.to_owned(), descriptor));
    }
}
