//! From the interface to the peers.

use std::{
    fs::File,
    io::{self, Read as _},
    sync::MutexGuard,
};

use boringtun::noise::TunnResult;

use super::{Shared, count, is_gone};
use crate::wireguard::{
    checksum::address,
    message::DATA_OVERHEAD,
    offload::{Header, LEN},
    segment::{Segments, split},
    socket::{Batch, Socket},
    table::{Entry, Table},
    tunnel::{MESSAGE_ROOM, Tunnel},
};

/// Frames that are read before the other direction and other threads get their turn.
const BURST_FRAMES: usize = 64;
/// The same in bytes.
const BURST_BYTES: usize = 128 << 10;

/// Encrypts the packets of one queue.
pub(super) struct Sender<'a> {
    shared: &'a Shared,
    queue: &'a File,
    socket: &'a Socket,
    frame: Vec<u8>,
    batch: Batch,
}

impl<'a> Sender<'a> {
    pub(super) fn new(shared: &'a Shared, queue: &'a File, socket: &'a Socket) -> Self {
        Self {
            shared,
            queue,
            socket,
            frame: vec![0; LEN + 65_536],
            batch: Batch::new(),
        }
    }

    /// Sends a burst of packets; `false` if the queue is empty.
    pub(super) fn turn(&mut self) -> io::Result<bool> {
        let mut frame = std::mem::take(&mut self.frame);
        let outcome = self.send_burst(&mut frame);
        self.frame = frame;
        outcome
    }

    fn send_burst(&mut self, frame: &mut [u8]) -> io::Result<bool> {
        let table = self.shared.table.load();
        // The batch is for the peer whose turn is held.
        let mut turn: Option<(u32, MutexGuard<'_, ()>)> = None;
        let mut bytes = 0;
        let mut more = true;
        for _ in 0..BURST_FRAMES {
            match self.queue.read(frame) {
                Ok(len) => {
                    bytes += len;
                    let Some((entry, packets)) = self.accept(&table, &mut frame[..len]) else {
                        continue;
                    };
                    if turn.as_ref().is_none_or(|(index, _)| *index != entry.index) {
                        self.flush()?;
                        // Two turns at once could wait for each other.
                        drop(turn.take());
                        turn = Some((entry.index, entry.tunnel.take_turn()));
                    }
                    self.send_packets(&entry.tunnel, packets)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => more = false,
                Err(error) if is_gone(&error) => return Err(error),
                Err(_) => return Err(io::Error::other("the interface cannot be read")),
            }
            if !more || bytes >= BURST_BYTES {
                break;
            }
        }
        self.flush()?;
        Ok(more)
    }

    /// Finds the peer of a frame, and prepares its packets.
    fn accept<'t, 'f>(
        &self,
        table: &'t Table<Tunnel>,
        frame: &'f mut [u8],
    ) -> Option<(&'t Entry<Tunnel>, Segments<'f>)> {
        let drops = &self.shared.drops;
        let (header, packet) = Header::split_off(frame)?;
        // The mesh is IPv4 only.
        let is_ipv4 = packet.len() >= 20 && packet[0] >> 4 == 4;
        let entry = is_ipv4.then(|| table.route(address(packet, 16))).flatten();
        let Some(entry) = entry else {
            count(&drops.unroutable);
            return None;
        };
        let Ok(packets) = split(header, packet) else {
            count(&drops.refused);
            return None;
        };
        Some((entry, packets))
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
