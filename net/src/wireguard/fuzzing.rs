//! Properties that hold for any input, for the fuzz target of `jaco-fuzz`.

use std::{cell::RefCell, net::Ipv4Addr, sync::Arc};

use boringtun::{
    noise::{Packet, Tunn, TunnResult, rate_limiter::RateLimiter},
    x25519,
};

use super::{
    allowed_ips::AllowedIps,
    coalesce::Coalescer,
    message::{Message, classify},
    offload::{Header, LEN},
    segment::split,
};

/// A frame of the kernel: packets that are joined again and split again are what they were.
///
/// # Panics
/// If the property does not hold.
pub fn frame(frame: &[u8]) {
    let Some(packets) = packets(frame) else {
        return;
    };
    let mut coalescer = Coalescer::new(true);
    let mut again = Vec::new();
    let mut take = |frame: &[u8]| {
        let packets = packets_of_own(frame);
        again.extend(packets);
    };
    for packet in &packets {
        let mut frame = vec![0; LEN];
        frame.extend_from_slice(packet);
        coalescer.push(&mut frame, &mut take);
    }
    coalescer.flush(&mut take);
    assert!(again == packets, "packets differ after joining");
}

fn packets_of_own(frame: &[u8]) -> Vec<Vec<u8>> {
    let packets = packets(frame);
    assert!(packets.is_some(), "a joined packet cannot be split");
    packets.unwrap_or_default()
}

fn packets(frame: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut frame = frame.to_vec();
    let (header, packet) = Header::split_off(&mut frame)?;
    let mut segments = split(header, packet).ok()?;
    let mut packets = Vec::new();
    while let Some(packet) = segments.next() {
        packets.push(packet.to_vec());
    }
    Some(packets)
}

/// A datagram of anyone: it is classified as the protocol core reads it, and is never believed.
///
/// # Panics
/// If the property does not hold.
pub fn datagram(datagram: &[u8]) {
    let expected = match Tunn::parse_incoming_packet(datagram) {
        Ok(Packet::HandshakeInit(_)) => Some(Message::Initiation),
        Ok(Packet::HandshakeResponse(p)) => Some(Message::Response {
            receiver: p.receiver_idx,
        }),
        Ok(Packet::PacketCookieReply(p)) => Some(Message::Cookie {
            receiver: p.receiver_idx,
        }),
        Ok(Packet::PacketData(p)) => Some(Message::Data {
            receiver: p.receiver_idx,
        }),
        Err(_) => None,
    };
    assert_eq!(classify(datagram), expected);
    if datagram.is_empty() {
        return;
    }
    SESSION.with_borrow_mut(|session| {
        let mut buffer = vec![0; datagram.len() + 256];
        match session.decapsulate(Some(Ipv4Addr::LOCALHOST.into()), datagram, &mut buffer) {
            TunnResult::Err(_) => {}
            other => panic!("a forged message was believed: {other:?}"),
        }
    });
}

thread_local! {
    static SESSION: RefCell<Tunn> = RefCell::new(session());
}

/// A session that was established with another one.
fn session() -> Tunn {
    let secrets = [[1; 32], [2; 32]].map(x25519::StaticSecret::from);
    let publics = [0, 1].map(|at| x25519::PublicKey::from(&secrets[at]));
    let make = |own: usize, other: usize| {
        let limiter = Arc::new(RateLimiter::new(&publics[own], u64::MAX));
        Tunn::new(
            secrets[own].clone(),
            publics[other],
            None,
            None,
            1,
            Some(limiter),
        )
    };
    let (mut one, mut other) = (make(0, 1), make(1, 0));
    let (mut there, mut back) = ([0; 256], [0; 256]);
    let mut message = match one.format_handshake_initiation(&mut there, false) {
        TunnResult::WriteToNetwork(message) => message.to_vec(),
        _ => Vec::new(),
    };
    for turn in [1, 0, 1] {
        let core = if turn == 1 { &mut other } else { &mut one };
        message = match core.decapsulate(None, &message, &mut back) {
            TunnResult::WriteToNetwork(message) => message.to_vec(),
            _ => Vec::new(),
        };
    }
    one
}

/// Networks, each as address, prefix length and peer, and an address: the longest network wins.
///
/// # Panics
/// If the property does not hold.
pub fn allowed_ips(data: &[u8]) {
    let Some((address, rest)) = data.split_first_chunk::<4>() else {
        return;
    };
    let networks = rest.chunks_exact(6).map(|chunk| {
        let address = Ipv4Addr::new(chunk[0], chunk[1], chunk[2], chunk[3]);
        (address, chunk[4], u16::from(chunk[5]))
    });
    let networks: Vec<_> = networks.collect();
    let Ok(table) = AllowedIps::new(networks.iter().copied()) else {
        return;
    };
    let address = Ipv4Addr::from(*address);
    let contains = |network: &Ipv4Addr, length: u8| {
        let shift = 32 - u32::from(length);
        let bits = |address: Ipv4Addr| u32::from(address).checked_shr(shift).unwrap_or(0);
        bits(*network) == bits(address)
    };
    let mut best = None;
    for (network, length, slot) in &networks {
        if contains(network, *length) && best.is_none_or(|(longest, _)| *length >= longest) {
            best = Some((*length, *slot));
        }
    }
    assert_eq!(table.lookup(address), best.map(|(_, slot)| slot));
}
