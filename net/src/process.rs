//! What a daemon inherits from who started it, whose rights it uses, and how it leaves in a hurry.

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

/// First descriptor that is passed on.
const FIRST: RawFd = 3;
/// More descriptors than any service manager passes.
const MOST: RawFd = 1024;

/// Takes the descriptors that a service manager has passed to this process; the first one that
/// is a listening unix stream socket is returned, the others are closed.
///
/// To be called once, at the very start of `main`: the descriptors count as this function's, and
/// the variables that announced them are removed.
///
/// Source: sd_listen_fds(3).
///
/// # Errors
/// When descriptors were announced that are not there, or when the process has more than one
/// thread already.
pub fn inherited_listener() -> io::Result<Option<UnixListener>> {
    let variable = |name| env::var(name).ok();
    let (pid, count) = (variable("LISTEN_PID"), variable("LISTEN_FDS"));
    if pid.is_none() && count.is_none() {
        return Ok(None);
    }
    if fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("other threads run already"));
    }
    for name in ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"] {
        #[expect(unsafe_code, reason = "the one way to remove a variable")]
        // SAFETY: no other thread is there to read the environment.
        unsafe {
            env::remove_var(name);
        }
    }
    let mut found = None;
    for fd in FIRST..FIRST + passed(pid, count, process::id()) {
        let socket = own(fd)?;
        fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
        if found.is_none() && is_unix_listener(&socket) {
            found = Some(UnixListener::from(socket));
        }
    }
    Ok(found)
}

/// The rights of another user in place of root's: of this thread, and of those that it starts,
/// until this is dropped.
///
/// Root that writes into a directory of somebody else follows the links which that user has put
/// there, and changes them under its hands. With the rights of the owner that leads nowhere.
#[derive(Debug)]
pub struct ActingAs {
    user: Uid,
    group: Gid,
    groups: Vec<Gid>,
    /// It is about one thread.
    _here: PhantomData<*const ()>,
}

impl ActingAs {
    /// Takes the rights of `user` and `group`, and of no other group.
    ///
    /// # Errors
    /// For whoever may not do that; nothing has changed then.
    pub fn begin(user: u32, group: u32) -> io::Result<Self> {
        // Its end is dropped if the beginning fails half-way.
        let acting = Self {
            user: geteuid(),
            group: getegid(),
            groups: getgroups()?,
            _here: PhantomData,
        };
        let same = (None::<Uid>, None::<Gid>);
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
        set_thread_groups(&[group])?;
        set_thread_res_gid(same.1, group, same.1)?;
        set_thread_res_uid(same.0, user, same.0)?;
        Ok(acting)
    }
}

impl Drop for ActingAs {
    fn drop(&mut self) {
        // Whoever cannot go back goes on with fewer rights.
        let _ = set_thread_res_uid(None::<Uid>, self.user, None::<Uid>);
        let _ = set_thread_res_gid(None::<Gid>, self.group, None::<Gid>);
        let _ = set_thread_groups(&self.groups);
    }
}

/// How many descriptors are meant for the process `own`.
fn passed(pid: Option<String>, count: Option<String>, own: u32) -> RawFd {
    let for_us = pid.and_then(|pid| pid.parse().ok()) == Some(own);
    let count = count.and_then(|count| count.parse().ok());
    count
        .filter(|count| for_us && (0..=MOST).contains(count))
        .unwrap_or(0)
}

fn own(fd: RawFd) -> io::Result<OwnedFd> {
    fs::symlink_metadata(format!("/proc/self/fd/{fd}"))
        .map_err(|_| io::Error::other(format!("descriptor {fd} was announced, but is not open")))?;
    #[expect(unsafe_code, reason = "descriptors come as numbers")]
    // SAFETY: it is open, and it was passed for this process to own; its owner is made once,
    // because the variables that announced it are gone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn is_unix_listener(socket: &OwnedFd) -> bool {
    sockopt::socket_domain(socket) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(socket) == Ok(SocketType::STREAM)
        && sockopt::socket_acceptconn(socket) == Ok(true)
}

/// Ends the process at once.
///
/// Unlike [`std::process::exit`] it runs no destructor of any library, which could meet threads
/// that still use what it destroys.
pub fn exit_now(status: i32) -> ! {
    #[expect(unsafe_code, reason = "foreign function")]
    // SAFETY: it takes no pointer and does not return.
    unsafe {
        nix::libc::_exit(status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_meant_for_this_process_is_taken() {
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
    fn only_a_listening_unix_stream_socket_will_do() {
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
