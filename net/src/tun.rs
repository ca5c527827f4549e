//! Network interfaces whose packets a program reads and writes.

use std::{fs::File, io};

use rustix::ioctl::{Setter, ioctl};

/// `TUNSETIFF` of `linux/if_tun.h`: creates the interface and attaches it to the descriptor.
const TUNSETIFF: rustix::ioctl::Opcode = 0x4004_54ca;
/// Whole IP packets, without a driver header.
const FLAGS: u16 = 0x0001 | 0x1000; // IFF_TUN | IFF_NO_PI
/// Longest name of an interface, in bytes.
const NAME_MAX: usize = 15;

/// The part of `struct ifreq` that `TUNSETIFF` reads.
#[repr(C)]
struct Request {
    name: [u8; NAME_MAX + 1],
    flags: u16,
    rest: [u8; 22],
}

/// Creates a TUN interface in the network namespace of the calling thread.
///
/// A read returns one IP packet that was routed to the interface; a write injects one packet as
/// received by it. Reads that would block fail with [`io::ErrorKind::WouldBlock`]. The interface is
/// down at first, and is removed when the file is closed.
///
/// Source: the kernel's `Documentation/networking/tuntap.rst`.
///
/// # Errors
/// If the name is too long or taken, or without the capability `CAP_NET_ADMIN`.
pub fn open(name: &str) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut request = Request {
        name: [0; NAME_MAX + 1],
        flags: FLAGS,
        rest: [0; 22],
    };
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = File::options()
        .read(true)
        .write(true)
        .custom_flags(nonblocking)
        .open("/dev/net/tun")?;
    #[expect(unsafe_code, reason = "the kernel reads a structure behind a pointer")]
    // SAFETY: this opcode takes a pointer to `struct ifreq`, whose size and layout `Request` has.
    unsafe {
        ioctl(&file, Setter::<TUNSETIFF, Request>::new(request))?;
    }
    Ok(file)
}
