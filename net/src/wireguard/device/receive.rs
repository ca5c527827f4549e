//! From the peers to the interface.

use std::{
    fs::File,
    io::{self, IoSliceMut},
    net::{IpAddr, SocketAddr, SocketAddrV4},
    sync::MutexGuard,
};

use boringtun::noise::{
    Packet, TunnResult, errors::WireGuardError, handshake::parse_handshake_anon,
};
use quinn_udp::RecvMeta;

use super::{Shared, count, write_frame};
use crate::wireguard::{
    PublicKey,
    coalesce::Coalescer,
    message::{DATA_OVERHEAD, Message, classify},
    offload::LEN,
    socket::Socket,
    table::{Entry, Table},
    tunnel::{MESSAGE_ROOM, Session, Tunnel},
};

/// Buffers of one call; each takes as many datagrams as the kernel joins.
const BATCH: usize = 16;
/// Size of a buffer, in bytes.
const BUFFER: usize = 65_536;

/// Decrypts the datagrams of one socket.
pub(super) struct Receiver<'a> {
    shared: &'a Shared,
    queue: &'a File,
    socket: &'a Socket,
    buffers: Vec<u8>,
    coalescer: Coalescer,
    /// Where a packet is decrypted to, behind the room for the kernel's header.
    frame: Vec<u8>,
    /// Where messages to the peer are written.
    reply: Vec<u8>,
    /// The error that tells that the interface is gone.
    gone: Option<io::Error>,
}

impl<'a> Receiver<'a> {
    /// `udp`: whether the interface takes joined UDP datagrams.
    pub(super) fn new(shared: &'a Shared, queue: &'a File, socket: &'a Socket, udp: bool) -> Self {
        Self {
            shared,
            queue,
            socket,
            buffers: vec![0; BATCH * BUFFER],
            coalescer: Coalescer::new(udp),
            frame: vec![0; LEN + BUFFER],
            reply: vec![0; BUFFER + DATA_OVERHEAD],
            gone: None,
        }
    }

    /// Handles what one call receives; `false` if nothing was there.
    pub(super) fn turn(&mut self) -> io::Result<bool> {
        let mut buffers = std::mem::take(&mut self.buffers);
        let outcome = self.receive(&mut buffers);
        self.buffers = buffers;
        outcome
    }

    fn receive(&mut self, buffers: &mut [u8]) -> io::Result<bool> {
        let mut received = [RecvMeta::default(); BATCH];
        let mut chunks = buffers.chunks_mut(BUFFER);
        let mut slices: [_; BATCH] =
            std::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
        match self.socket.receive(&mut slices, &mut received) {
            Ok(messages) => {
                self.take(buffers, &received[..messages])?;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Handles the datagrams of one call, then writes what was joined.
    fn take(&mut self, buffers: &[u8], received: &[RecvMeta]) -> io::Result<()> {
        let table = self.shared.table.load();
        for (buffer, meta) in buffers.chunks(BUFFER).zip(received) {
            let SocketAddr::V4(from) = meta.addr else {
                continue;
            };
            let datagrams = &buffer[..meta.len.min(BUFFER)];
            self.take_datagrams(&table, from, datagrams.chunks(meta.stride.max(1)));
        }
        let (queue, shared, gone) = (self.queue, self.shared, &mut self.gone);
        self.coalescer.flush(&mut |frame| {
            if let Err(error) = write_frame(queue, frame, shared) {
                *gone = Some(error);
            }
        });
        self.gone.take().map_or(Ok(()), Err)
    }

    /// Handles datagrams of one sender.
    fn take_datagrams<'b>(
        &mut self,
        table: &Table<Tunnel>,
        from: SocketAddrV4,
        datagrams: impl Iterator<Item = &'b [u8]>,
    ) {
        // Data of one session mostly follows each other, and the session stays locked over it.
        let mut held: Option<(u32, MutexGuard<'_, Session>)> = None;
        for datagram in datagrams {
            let Some(message) = classify(datagram) else {
                count(&self.shared.drops.invalid);
                continue;
            };
            let receiver = match message {
                Message::Data { receiver } => receiver,
                Message::Response { receiver } | Message::Cookie { receiver } => {
                    held = None;
                    match table.by_receiver(receiver) {
                        Some(entry) => self.handshake(entry, from, datagram),
                        None => count(&self.shared.drops.unknown_peer),
                    }
                    continue;
                }
                Message::Initiation => {
                    held = None;
                    self.initiation(table, from, datagram);
                    continue;
                }
            };
            let Some(entry) = table.by_receiver(receiver) else {
                count(&self.shared.drops.unknown_peer);
                continue;
            };
            if held.as_ref().is_none_or(|(index, _)| *index != entry.index) {
                held = None;
            }
            let locked = held.is_none();
            let (_, mut session) = held
                .take()
                .unwrap_or_else(|| (entry.index, entry.tunnel.lock()));
            // boringtun decrypts into a copy; it needs as much room as the datagram.
            match session
                .core
                .decapsulate(None, datagram, &mut self.frame[LEN..])
            {
                TunnResult::WriteToTunnelV4(packet, source) => {
                    let end = LEN + packet.len();
                    entry.tunnel.roam(from);
                    if locked {
                        self.drain(&mut session, from);
                    }
                    let owner = table.route(source);
                    if owner.is_none_or(|owner| owner.index != entry.index) {
                        count(&self.shared.drops.wrong_source);
                        held = Some((entry.index, session));
                        continue;
                    }
                    let mut session = Some(session);
                    self.deliver(end, || session = None);
                    held = session.map(|session| (entry.index, session));
                }
                result @ (TunnResult::WriteToTunnelV6(..) | TunnResult::Done) => {
                    if matches!(result, TunnResult::WriteToTunnelV6(..)) {
                        count(&self.shared.drops.wrong_source);
                    }
                    entry.tunnel.roam(from);
                    self.drain(&mut session, from);
                    held = Some((entry.index, session));
                }
                TunnResult::Err(_) | TunnResult::WriteToNetwork(_) => {
                    count(&self.shared.drops.invalid);
                    held = Some((entry.index, session));
                }
            }
        }
    }

    /// Passes a decrypted packet on; `release` is called before the first system call.
    fn deliver(&mut self, end: usize, mut release: impl FnMut()) {
        let (queue, shared, gone) = (self.queue, self.shared, &mut self.gone);
        self.coalescer.push(&mut self.frame[..end], &mut |frame| {
            release();
            if let Err(error) = write_frame(queue, frame, shared) {
                *gone = Some(error);
            }
        });
    }

    /// Finds the peer that begins a handshake by the key in its message.
    fn initiation(&mut self, table: &Table<Tunnel>, from: SocketAddrV4, datagram: &[u8]) {
        let identity = &self.shared.identity;
        let mut cookie = [0; MESSAGE_ROOM];
        let source = Some(IpAddr::V4(*from.ip()));
        // Cheap checks before the expensive key exchange.
        let checked = identity
            .limiter
            .verify_packet(source, datagram, &mut cookie);
        let packet = match checked {
            Ok(Packet::HandshakeInit(packet)) => packet,
            Err(TunnResult::WriteToNetwork(cookie)) => {
                let _ = self.socket.send(from, cookie);
                return;
            }
            Ok(_) | Err(_) => return count(&self.shared.drops.invalid),
        };
        let Ok(half) = parse_handshake_anon(&identity.secret, &identity.public, &packet) else {
            return count(&self.shared.drops.invalid);
        };
        match table.by_key(PublicKey(half.peer_static_public)) {
            Some(entry) => self.handshake(entry, from, datagram),
            None => count(&self.shared.drops.unknown_peer),
        }
    }

    /// Handles a handshake message of a peer, and sends what the peer then gets.
    fn handshake(&mut self, entry: &Entry<Tunnel>, from: SocketAddrV4, datagram: &[u8]) {
        let mut session = entry.tunnel.lock();
        let source = Some(IpAddr::V4(*from.ip()));
        match session.core.decapsulate(source, datagram, &mut self.reply) {
            TunnResult::WriteToNetwork(reply) => {
                let kind = classify(reply);
                // A cookie goes to senders that are not authenticated.
                if !matches!(kind, Some(Message::Cookie { .. })) {
                    entry.tunnel.roam(from);
                }
                let _ = self.socket.send(from, reply);
                // A session that the peer began is used only once the peer has used it.
                if matches!(kind, Some(Message::Data { .. })) {
                    self.drain(&mut session, from);
                }
            }
            TunnResult::Done => {}
            // The latter is a response after both sides began a handshake and the other one won.
            TunnResult::Err(WireGuardError::UnderLoad | WireGuardError::UnexpectedPacket) => {}
            TunnResult::Err(_)
            | TunnResult::WriteToTunnelV4(..)
            | TunnResult::WriteToTunnelV6(..) => count(&self.shared.drops.invalid),
        }
    }

    /// Sends the packets that waited for a session. A session that the peer began is used once the
    /// peer has used it, be it with a keepalive or, if that is late or lost, with a packet; newer
    /// packets wait for the lock meanwhile.
    fn drain(&mut self, session: &mut Session, to: SocketAddrV4) {
        while let TunnResult::WriteToNetwork(datagram) =
            session.core.decapsulate(None, &[], &mut self.reply)
        {
            // A handshake instead of data: there still is no session, and the packet was kept.
            let waits = matches!(classify(datagram), Some(Message::Initiation));
            let _ = self.socket.send(to, datagram);
            if waits {
                break;
            }
        }
    }
}
