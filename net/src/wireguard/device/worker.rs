//! A thread that carries the packets of one queue and one socket, both ways.
//!
//! One thread for both directions: the acknowledgements that the kernel makes while it takes a packet
//! are in the same queue, so they leave without waking another thread, and without a wait for the
//! session, which one thread at a time uses.

use std::{fs::File, io};

use super::{Shared, receive::Receiver, transmit::Sender};
use crate::wireguard::socket::Socket;

/// Runs until the device stops.
pub(super) fn run(shared: &Shared, queue: &File, socket: &Socket, udp: bool) -> io::Result<()> {
    let mut receiver = Receiver::new(shared, queue, socket, udp);
    let mut sender = Sender::new(shared, queue, socket);
    loop {
        let received = receiver.turn()?;
        let sent = sender.turn()?;
        let stopped = if received || sent {
            shared.stopping.is_stopped()
        } else {
            shared.stopping.wait_readable(queue, socket)?
        };
        if stopped {
            return Ok(());
        }
    }
}
