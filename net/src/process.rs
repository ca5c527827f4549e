//! Inherited sockets, temporary change of user, and immediate exit.

use std::{
    env, fs, io,
    marker::PhantomData,
    os::{
        fd::{FromRawFd, OwnedFd, RawFd},
        unix::net::UnixListener,
    },
    process,
};

use rustix::{
    io::{FdFlags, fcntl_setfd},
    net::{AddressFamily, SocketType, sockopt},
    process::{Gid, Uid, getegid, geteuid, getgroups},
    thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};

use crate::handover::NamedSocket;

/// First inherited descriptor (`SD_LISTEN_FDS_START`).
const FIRST_FD: RawFd = 3;
/// Largest accepted `LISTEN_FDS`; no service manager passes more.
const MAX_FDS: RawFd = 1024;

/// Descriptors that a service manager passed to this process.
#[derive(Debug, Default)]
pub struct Passed {
    /// The first listening unix stream socket.
    pub control: Option<UnixListener>,
    /// The others that have a name, among them those that an earlier process of this service had
    /// stored (`FDSTORE=1`).
    pub named: Vec<NamedSocket>,
}

/// Takes over the descriptors that a service manager passed to this process; those that are neither
/// the control socket nor named are closed.
///
/// To be called once, at the very start of `main`: the function takes ownership of the descriptors
/// and removes the environment variables that announced them.
///
/// Source: sd_listen_fds(3), sd_pid_notify_with_fds(3).
///
/// # Errors
/// If an announced descriptor is not open, or the process already has more than one thread.
pub fn passed_descriptors() -> io::Result<Passed> {
    let variable = |name| env::var(name).ok();
    let (pid, count) = (variable("LISTEN_PID"), variable("LISTEN_FDS"));
    if pid.is_none() && count.is_none() {
        return Ok(Passed::default());
    }
    let names = variable("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    if fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("other threads run already"));
    }
    for name in ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"] {
        #[expect(unsafe_code, reason = "the one way to remove a variable")]
        // SAFETY: no other thread exists that could read the environment.
        unsafe {
            env::remove_var(name);
        }
    }
    let mut found = Passed::default();
    for fd in FIRST_FD..FIRST_FD + passed(pid, count, process::id()) {
        let name = names.next().unwrap_or_default();
        let socket = own(fd)?;
        fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
        if found.control.is_none() && is_unix_listener(&socket) {
            found.control = Some(UnixListener::from(socket));
        } else if !name.is_empty() {
            found.named.push((name.to_owned(), socket));
        }
    }
    Ok(found)
}

/// Switches the calling thread from root to another user until it is dropped; threads started
/// meanwhile inherit the user.
///
/// Root that writes into a user's directory follows the symbolic links in it, which the user can
/// replace at any time. With the owner's rights such a link leads nowhere the user could not write.
#[derive(Debug)]
pub struct UserSwitch {
    user: Uid,
    group: Gid,
    groups: Vec<Gid>,
    /// Not `Send`: the credentials are those of one thread.
    _not_send: PhantomData<*const ()>,
}

impl UserSwitch {
    /// Switches to `user` and `group`, without supplementary groups of the old user.
    ///
    /// # Errors
    /// If the thread lacks the privilege; its credentials are unchanged then.
    pub fn begin(user: u32, group: u32) -> io::Result<Self> {
        // Dropping it restores the credentials if a later step fails.
        let acting = Self {
            user: geteuid(),
            group: getegid(),
            groups: getgroups()?,
            _not_send: PhantomData,
        };
        let same = (None::<Uid>, None::<Gid>);
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
        set_thread_groups(&[group])?;
        set_thread_res_gid(same.1, group, same.1)?;
        set_thread_res_uid(same.0, user, same.0)?;
        Ok(acting)
    }
}

impl Drop for UserSwitch {
    fn drop(&mut self) {
        // If restoring fails, the thread continues with fewer rights.
        let _ = set_thread_res_uid(None::<Uid>, self.user, None::<Uid>);
        let _ = set_thread_res_gid(None::<Gid>, self.group, None::<Gid>);
        let _ = set_thread_groups(&self.groups);
    }
}

/// Number of descriptors passed to the process `own`.
fn passed(pid: Option<String>, count: Option<String>, own: u32) -> RawFd {
    let for_us = pid.and_then(|pid| pid.parse().ok()) == Some(own);
    let count = count.and_then(|count| count.parse().ok());
    count
        .filter(|count| for_us && (0..=MAX_FDS).contains(count))
        .unwrap_or(0)
}

fn own(fd: RawFd) -> io::Result<OwnedFd> {
    fs::symlink_metadata(format!("/proc/self/fd/{fd}"))
        .map_err(|_| io::Error::other(format!("descriptor {fd} was announced, but is not open")))?;
    #[expect(unsafe_code, reason = "descriptors come as numbers")]
    // SAFETY: it is open and was passed to this process; it is wrapped only once, because the
    // variables that announced it are gone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn is_unix_listener(socket: &OwnedFd) -> bool {
    sockopt::socket_domain(socket) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(socket) == Ok(SocketType::STREAM)
        && sockopt::socket_acceptconn(socket) == Ok(true)
}

/// Exits the process immediately.
///
/// Unlike [`std::process::exit`] it runs no library destructors, which could destroy data that
/// other threads still use.
pub fn exit_now(status: i32) -> ! {
    #[expect(unsafe_code, reason = "foreign function")]
    // SAFETY: `_exit` takes no pointer and does not return.
    unsafe {
        nix::libc::_exit(status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_for_other_processes_are_ignored() {
        for (pid, count, expected) in [
            (Some("7"), Some("2"), 2),
            (Some("8"), Some("2"), 0),
            (None, Some("2"), 0),
            (Some("7"), None, 0),
            (Some("7"), Some("0"), 0),
            (Some("7"), Some("-1"), 0),
            (Some("7"), Some("many"), 0),
            (Some("7"), Some("99999999"), 0),
            (Some(" 7"), Some("1"), 0),
        ] {
            let of = |text: Option<&str>| text.map(str::to_owned);
            assert_eq!(passed(of(pid), of(count), 7), expected, "{pid:?} {count:?}");
        }
    }

    #[test]
    fn only_listening_unix_stream_sockets_are_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("s")).unwrap();
        let (connected, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        let datagram = std::os::unix::net::UnixDatagram::unbound().unwrap();
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(is_unix_listener(&listener.into()));
        assert!(!is_unix_listener(&connected.into()));
        assert!(!is_unix_listener(&datagram.into()));
        assert!(!is_unix_listener(&tcp.into()));
        let file = fs::File::open(dir.path()).unwrap();
        assert!(!is_unix_listener(&file.into()));
    }
}
