//! From the interface to the peers.

use std::{
    fs::File,
    io::{self, Read as _},
};

use boringtun::noise::TunnResult;

use super::{Shared, count, is_gone};
use crate::wireguard::{
    checksum::address,
    message::DATA_OVERHEAD,
    offload::{Header, LEN},
    segment::{Segments, split},
    socket::{Batch, Socket},
    table::Table,
    tunnel::{MESSAGE_ROOM, Tunnel},
};

/// Carries packets of one queue until the device stops.
pub(super) fn run(shared: &Shared, queue: &File, socket: &Socket) -> io::Result<()> {
    let mut frame = vec![0; LEN + 65_536];
    let mut sender = Sender {
        shared,
        socket,
        batch: Batch::new(),
    };
    loop {
        match (&*queue).read(&mut frame) {
            Ok(len) => sender.send_frame(&mut frame[..len])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                sender.flush()?;
                if shared.stopping.wait_readable(queue)? {
                    return Ok(());
                }
            }
            Err(error) if is_gone(&error) => return Err(error),
            Err(_) => return Err(io::Error::other("the interface cannot be read")),
        }
        if shared.stopping.is_stopped() {
            return Ok(());
        }
    }
}

struct Sender<'a> {
    shared: &'a Shared,
    socket: &'a Socket,
    batch: Batch,
}

impl Sender<'_> {
    /// Encrypts and sends the packets of one frame; the last of them may stay in the batch.
    fn send_frame(&mut self, frame: &mut [u8]) -> io::Result<()> {
        let shared = self.shared;
        let Some((header, packet)) = Header::split_off(frame) else {
            return Ok(());
        };
        // The mesh is IPv4 only.
        if packet.len() < 20 || packet[0] >> 4 != 4 {
            count(&shared.drops.unroutable);
            return Ok(());
        }
        let destination = address(packet, 16);
        let table: arc_swap::Guard<std::sync::Arc<Table<Tunnel>>> = shared.table.load();
        let Some(entry) = table.route(destination) else {
            count(&shared.drops.unroutable);
            return Ok(());
        };
        match split(header, packet) {
            Ok(packets) => self.send_packets(&entry.tunnel, packets),
            Err(_) => {
                count(&shared.drops.refused);
                Ok(())
            }
        }
    }

    fn send_packets(&mut self, tunnel: &Tunnel, mut packets: Segments<'_>) -> io::Result<()> {
        let Some(to) = tunnel.endpoint() else {
            count(&self.shared.drops.no_endpoint);
            return Ok(());
        };
        let mut session = tunnel.lock();
        while let Some(packet) = packets.next() {
            let expected = packet.len() + DATA_OVERHEAD;
            if !self.batch.takes(to, expected) {
                // The system call takes long; the other direction needs the session meanwhile.
                drop(session);
                self.flush()?;
                session = tunnel.lock();
            }
            let room = expected.max(MESSAGE_ROOM);
            match session
                .core
                .encapsulate(packet, &mut self.batch.space()[..room])
            {
                TunnResult::WriteToNetwork(datagram) if datagram.len() == expected => {
                    self.batch.add(to, expected);
                }
                TunnResult::WriteToNetwork(datagram) => {
                    // The packet waits in the session for the handshake that begins here.
                    let _ = self.socket.send(to, datagram);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Sends the batch, and waits for room in the kernel's buffer: the queue of the interface then
    /// fills, and the kernel slows its senders down.
    fn flush(&mut self) -> io::Result<()> {
        loop {
            match self.socket.send_batch(&mut self.batch) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.shared.stopping.wait_writable(self.socket)? {
                        return Ok(());
                    }
                }
                // A path that does not work, like an unreachable network, is not a failure.
                Ok(()) | Err(_) => return Ok(()),
            }
        }
    }
}
