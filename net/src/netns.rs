//! Network namespaces without a name.
//!
//! A namespace lives as long as a [`Namespace`] or a socket, device or process in it, so a program
//! that is killed leaves none behind.

use std::{fs::File, io, os::fd::AsFd as _};

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// A network namespace (network_namespaces(7)); needs `CAP_SYS_ADMIN`.
#[derive(Debug)]
pub struct Namespace(File);

impl Namespace {
    /// Creates a namespace that holds nothing but a loopback interface, which is down.
    ///
    /// # Errors
    /// Without `CAP_SYS_ADMIN`, or at the limit of `/proc/sys/user/max_net_namespaces`.
    pub fn create() -> io::Result<Self> {
        let inside = on_thread(|| {
            #[expect(unsafe_code, reason = "unsharing descriptors would break I/O safety")]
            // SAFETY: the flag names the network namespace only; descriptors stay shared.
            unsafe {
                unshare_unsafe(UnshareFlags::NEWNET)?;
            }
            Self::current()
        });
        inside?
    }

    /// Opens the namespace of the calling thread.
    ///
    /// # Errors
    /// When `/proc` is not mounted.
    pub fn current() -> io::Result<Self> {
        File::open("/proc/thread-self/ns/net").map(Self)
    }

    /// Opens the namespace of a process, for example of a container's.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn of_process(pid: u32) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/ns/net")).map(Self)
    }

    /// Runs `work` on a thread inside the namespace and returns its result. Sockets, devices and
    /// processes made there stay in the namespace.
    ///
    /// # Errors
    /// Without `CAP_SYS_ADMIN`, or when `work` panicked.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        on_thread(|| {
            self.enter()?;
            Ok(work())
        })?
    }

    /// Moves the calling thread into the namespace.
    ///
    /// # Errors
    /// Without `CAP_SYS_ADMIN`.
    pub(crate) fn enter(&self) -> io::Result<()> {
        let network = Some(LinkNameSpaceType::Network);
        Ok(move_into_link_name_space(self.0.as_fd(), network)?)
    }

    /// The namespace that `file`, one of `/proc/PID/ns/net` or a mount of it, refers to.
    #[must_use]
    pub fn from_file(file: File) -> Self {
        Self(file)
    }

    /// The file that refers to the namespace, for example to move a link into it.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.0
    }
}

/// Runs `work` on a thread of its own, whose namespace ends with it.
fn on_thread<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("netns".to_owned());
        let result = thread.spawn_scoped(scope, work)?.join();
        result.map_err(|_| io::Error::other("the work in the network namespace panicked"))
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::interfaces;

    #[test]
    fn namespaces_have_interfaces_and_ports_of_their_own() {
        let [one, other] = [(); 2].map(|()| Namespace::create().unwrap());
        for namespace in [&one, &other] {
            let found = namespace.within(interfaces::list).unwrap().unwrap();
            assert!(found.iter().all(|interface| interface.name == "lo"));
        }
        let opened = one.within(|| crate::tun::open("jt0")).unwrap().unwrap();
        // Each has its own names, so the second is not refused.
        let _second = other.within(|| crate::tun::open("jt0")).unwrap().unwrap();
        drop(opened);
        let bound = one.within(|| TcpListener::bind("0.0.0.0:7")).unwrap();
        bound.unwrap();
    }

    #[test]
    fn panic_in_a_namespace_is_an_error() {
        let namespace = Namespace::create().unwrap();
        let outcome = namespace.within(|| assert_eq!(1, 2));
        assert!(outcome.is_err());
    }
}
