//! Network interfaces whose packets a program reads and writes.

use std::{fs::File, io, os::fd::OwnedFd};

use rustix::{
    ioctl::{Getter, IntegerSetter, Setter, ioctl},
    net::{AddressFamily, SocketType, socket},
};

/// `TUNSETIFF` of `linux/if_tun.h`: creates the interface and attaches it to the descriptor.
const TUNSETIFF: rustix::ioctl::Opcode = 0x4004_54ca;
/// `TUNGETIFF` of `linux/if_tun.h`: the name and the flags of the interface.
const TUNGETIFF: rustix::ioctl::Opcode = 0x8004_54d2;
/// `TUNSETOFFLOAD` of `linux/if_tun.h`: which packets the kernel may leave unfinished.
const TUNSETOFFLOAD: rustix::ioctl::Opcode = 0x4004_54d0;
/// `SIOCSIFMTU` of `linux/sockios.h`.
const SIOCSIFMTU: rustix::ioctl::Opcode = 0x8922;
/// Frames instead of IP packets.
const IFF_TAP: u16 = 0x0002;
/// Whole IP packets, without a driver header.
const FLAGS: u16 = 0x0001 | 0x1000; // IFF_TUN | IFF_NO_PI
/// Several descriptors for one interface.
const IFF_MULTI_QUEUE: u16 = 0x0100;
/// A `struct virtio_net_hdr` before each packet.
const IFF_VNET_HDR: u16 = 0x4000;
/// Flags of a queue with offloads.
const QUEUE_FLAGS: u16 = FLAGS | IFF_MULTI_QUEUE | IFF_VNET_HDR;
/// The interface must not exist.
const IFF_TUN_EXCL: u16 = 0x8000;
/// Checksums and the splitting of TCP segments over IPv4: `TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO_ECN`.
const TCP_OFFLOADS: usize = 0x01 | 0x02 | 0x08;
/// The splitting of UDP datagrams, since Linux 6.2: `TUN_F_USO4 | TUN_F_USO6`, only together.
const UDP_OFFLOADS: usize = 0x20 | 0x40;
/// Longest name of an interface, in bytes.
const NAME_MAX: usize = 15;

/// `struct ifreq` of netdevice(7).
#[repr(C)]
struct Request {
    name: [u8; NAME_MAX + 1],
    value: [u8; 24],
}

/// The descriptors of an interface with offloads.
#[derive(Debug)]
pub struct Queues {
    /// One descriptor for each queue. The kernel keeps the packets of a flow in one queue.
    pub files: Vec<File>,
    /// Whether UDP datagrams are split and joined, too; if not, only TCP segments.
    pub udp: bool,
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
    attach(name, FLAGS)
}

/// Creates a TUN interface with `count` queues whose packets carry a `struct virtio_net_hdr`, 10
/// bytes in the byte order of the machine.
///
/// The kernel hands over TCP segments and UDP datagrams of up to 64 KiB that are yet to be split,
/// with checksums yet to be completed, and takes such packets. Otherwise as [`open`].
///
/// # Errors
/// If the name is too long or taken, or without the capability `CAP_NET_ADMIN`.
pub fn open_queues(name: &str, count: usize) -> io::Result<Queues> {
    let mut files = vec![attach(name, QUEUE_FLAGS | IFF_TUN_EXCL)?];
    for _ in 1..count {
        files.push(attach(name, QUEUE_FLAGS)?);
    }
    offload(files)
}

/// Takes over the queues of an interface that another process opened with [`open_queues`].
///
/// # Errors
/// If a descriptor is none of a queue of the interface `name` with offloads, or there is none.
pub fn resume_queues(name: &str, queues: Vec<OwnedFd>) -> io::Result<Queues> {
    let files: Vec<File> = queues.into_iter().map(File::from).collect();
    let wanted = request(name, QUEUE_FLAGS.to_ne_bytes())?;
    for file in &files {
        let found = interface(file)?;
        let [low, high, ..] = found.value;
        let flags = u16::from_ne_bytes([low, high]) & (QUEUE_FLAGS | IFF_TAP);
        if found.name != wanted.name || flags != QUEUE_FLAGS {
            return Err(io::ErrorKind::InvalidInput.into());
        }
    }
    match files.is_empty() {
        true => Err(io::ErrorKind::InvalidInput.into()),
        false => offload(files),
    }
}

fn offload(files: Vec<File>) -> io::Result<Queues> {
    let udp = set_offloads(&files[0], TCP_OFFLOADS | UDP_OFFLOADS).is_ok();
    if !udp {
        set_offloads(&files[0], TCP_OFFLOADS)?;
    }
    Ok(Queues { files, udp })
}

/// Sets the largest packet of an interface in the network namespace of the calling thread, in bytes.
///
/// # Errors
/// If there is no such interface, or without the capability `CAP_NET_ADMIN`.
pub fn set_mtu(name: &str, mtu: u16) -> io::Result<()> {
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let request = request(name, i32::from(mtu).to_ne_bytes())?;
    #[expect(unsafe_code, reason = "the kernel reads a structure behind a pointer")]
    // SAFETY: this opcode takes a pointer to `struct ifreq`, whose size and layout `Request` has.
    unsafe {
        ioctl(&socket, Setter::<SIOCSIFMTU, Request>::new(request))?;
    }
    Ok(())
}

/// Attaches a new descriptor to the interface.
fn attach(name: &str, flags: u16) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let request = request(name, flags.to_ne_bytes())?;
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

/// The interface of a descriptor.
fn interface(file: &File) -> io::Result<Request> {
    #[expect(unsafe_code, reason = "the kernel writes a structure behind a pointer")]
    // SAFETY: this opcode takes a pointer to `struct ifreq`, whose size and layout `Request` has.
    let found = unsafe { ioctl(file, Getter::<TUNGETIFF, Request>::new()) };
    Ok(found?)
}

fn set_offloads(file: &File, offloads: usize) -> io::Result<()> {
    #[expect(
        unsafe_code,
        reason = "the kernel is given an integer of its own coding"
    )]
    // SAFETY: this opcode takes an integer and no pointer.
    unsafe {
        ioctl(file, IntegerSetter::<TUNSETOFFLOAD>::new_usize(offloads))?;
    }
    Ok(())
}

fn request<const N: usize>(name: &str, value: [u8; N]) -> io::Result<Request> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut request = Request {
        name: [0; NAME_MAX + 1],
        value: [0; 24],
    };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    request.value[..N].copy_from_slice(&value);
    Ok(request)
}
