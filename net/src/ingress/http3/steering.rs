//! Which socket of a reuseport group gets a packet.
//!
//! A group has two sets of sockets, each with one socket per worker, so that a process and its
//! successor can serve at the same time: new connections go to one set, packets of known connections
//! to the set that their connection id names. No socket of the group may be closed as long as one is
//! read: the kernel would number the others anew.

use std::{io, net::UdpSocket};

use nix::{libc, sys::socket::setsockopt, sys::socket::sockopt::AttachReusePortCbpf};

/// One of the two sets of sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Generation {
    Even,
    Odd,
}

impl Generation {
    /// The set that a successor uses.
    pub(super) fn next(self) -> Self {
        match self {
            Self::Even => Self::Odd,
            Self::Odd => Self::Even,
        }
    }

    /// The bit in connection ids, and the position of the set.
    pub(super) fn bit(self) -> u8 {
        match self {
            Self::Even => 0,
            Self::Odd => 1,
        }
    }

    pub(super) fn from_bit(bit: u8) -> Option<Self> {
        match bit {
            0 => Some(Self::Even),
            1 => Some(Self::Odd),
            _ => None,
        }
    }

    /// Of the two values, that of this set.
    pub(super) fn of<T>(self, sets: &[T; 2]) -> &T {
        let [even, odd] = sets;
        match self {
            Self::Even => even,
            Self::Odd => odd,
        }
    }
}

/// Lets the kernel pick among the sockets of the group of `socket`: two sets of `count` each, bound
/// in the order of their numbers. New connections go to the set `newest`.
///
/// The first byte of a connection id names the number, the lowest bit of the second the set. A
/// client chooses the id of its first packets, which are Initial ones.
///
/// Source: RFC 8999, section 5; RFC 9000, section 17.2.
///
/// # Errors
/// If the kernel does not take the program.
pub(super) fn attach(socket: &UdpSocket, count: usize, newest: Generation) -> io::Result<()> {
    const LOAD_BYTE: u16 = 0x30; // BPF_LD | BPF_B | BPF_ABS
    const JUMP: u16 = 0x05; // BPF_JMP | BPF_JA
    const JUMP_IF_SET: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K
    const JUMP_IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    const LOAD: u16 = 0x00; // BPF_LD | BPF_IMM
    const AND: u16 = 0x54; // BPF_ALU | BPF_AND | BPF_K
    const MULTIPLY: u16 = 0x24; // BPF_ALU | BPF_MUL | BPF_K
    const MODULO: u16 = 0x94; // BPF_ALU | BPF_MOD | BPF_K
    const KEEP: u16 = 0x07; // BPF_MISC | BPF_TAX
    const ADD_KEPT: u16 = 0x0c; // BPF_ALU | BPF_ADD | BPF_X
    const RETURN: u16 = 0x16; // BPF_RET | BPF_A
    let count = u32::try_from(count).map_err(io::Error::other)?;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        step(LOAD_BYTE, 0, 0, 0),
        step(JUMP_IF_SET, 6, 0, 0x80), // a long header has version and length before the id
        step(LOAD_BYTE, 0, 0, 2),
        step(AND, 0, 0, 1),
        step(MULTIPLY, 0, 0, count),
        step(KEEP, 0, 0, 0),
        step(LOAD_BYTE, 0, 0, 1),
        step(JUMP, 0, 0, 9),
        step(AND, 0, 0, 0x30),
        step(JUMP_IF_EQUAL, 2, 0, 0x20), // a Handshake packet
        step(LOAD, 0, 0, u32::from(newest.bit())),
        step(JUMP, 0, 0, 2),
        step(LOAD_BYTE, 0, 0, 7),
        step(AND, 0, 0, 1),
        step(MULTIPLY, 0, 0, count),
        step(KEEP, 0, 0, 0),
        step(LOAD_BYTE, 0, 0, 6),
        step(MODULO, 0, 0, count),
        step(ADD_KEPT, 0, 0, 0),
        step(RETURN, 0, 0, 0),
    ];
    let length = u16::try_from(program.len()).map_err(io::Error::other)?;
    let filter = libc::sock_fprog {
        len: length,
        filter: program.as_mut_ptr(),
    };
    setsockopt(socket, AttachReusePortCbpf, &filter).map_err(io::Error::from)
}
