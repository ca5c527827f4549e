use proptest::prelude::*;

use super::*;

/// An IPv4 packet with TCP (with options) or UDP over it, as the kernel hands it over.
pub(in crate::wireguard) fn large(protocol: u8, payload: &[u8], flags: u8) -> Vec<u8> {
    let transport_len = if protocol == PROTOCOL_TCP {
        32
    } else {
        UDP_HEADER
    };
    let mut packet = vec![0; 20 + transport_len];
    packet[0] = 0x45;
    packet[1] = 0x02;
    packet[4..6].copy_from_slice(&0xfffe_u16.to_be_bytes());
    packet[6] = 0x40;
    packet[8] = 64;
    packet[9] = protocol;
    packet[12..20].copy_from_slice(&[10, 244, 1, 2, 10, 244, 2, 3]);
    packet[20..24].copy_from_slice(&[0x1f, 0x90, 0xc0, 0x01]);
    if protocol == PROTOCOL_TCP {
        packet[24..28].copy_from_slice(&0xffff_f000_u32.to_be_bytes());
        packet[28..32].copy_from_slice(&77_u32.to_be_bytes());
        packet[32] = 8 << 4;
        packet[33] = flags;
        packet[34..36].copy_from_slice(&[1, 0]);
        packet[40..52].copy_from_slice(&[1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8]);
    }
    packet.extend_from_slice(payload);
    packet
}

pub(in crate::wireguard) fn header(kind: u8, segment: usize) -> Header {
    Header {
        flags: offload::NEEDS_CHECKSUM,
        kind,
        segment: segment.try_into().unwrap(),
        ..Header::default()
    }
}

pub(in crate::wireguard) fn packets(header: Header, mut packet: Vec<u8>) -> Vec<Vec<u8>> {
    let mut segments = split(header, &mut packet).unwrap();
    std::iter::from_fn(|| segments.next().map(|packet| packet.to_vec())).collect()
}

fn is_intact(packet: &[u8]) -> bool {
    let len = u16::try_from(packet.len() - 20).unwrap();
    let sum = Sum::pseudo(&packet[12..16], &packet[16..20], packet[9], len);
    let total = u16::from_be_bytes([packet[2], packet[3]]);
    usize::from(total) == packet.len()
        && Sum::default().add(&packet[..20]).is_valid()
        && sum.add(&packet[20..]).is_valid()
}

#[test]
fn tcp_segment_is_split_into_a_sequence() {
    let payload: Vec<u8> = (0..2500_u32).map(|at| at.to_le_bytes()[0]).collect();
    let flags = CWR | 0x10 | FIN_PSH;
    let packets = packets(
        header(offload::TCP, 1000),
        large(PROTOCOL_TCP, &payload, flags),
    );
    let lengths: Vec<_> = packets.iter().map(Vec::len).collect();
    assert_eq!(lengths, [1052, 1052, 552]);
    let expected = [
        (0xfffe, 0xffff_f000, CWR | 0x10),
        (0xffff, 0xffff_f3e8, 0x10),
        (0, 0xffff_f7d0, 0x10 | FIN_PSH),
    ];
    for (at, (packet, (id, sequence, flags))) in packets.iter().zip(expected).enumerate() {
        assert!(is_intact(packet), "packet {at}");
        assert_eq!(packet[4..6], u16::to_be_bytes(id), "packet {at}");
        assert_eq!(packet[24..28], u32::to_be_bytes(sequence), "packet {at}");
        assert_eq!(packet[33], flags, "packet {at}");
        assert_eq!(packet[40..52], [1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8]);
    }
    let joined: Vec<u8> = packets
        .iter()
        .flat_map(|packet| packet[52..].to_vec())
        .collect();
    assert_eq!(joined, payload);
}

#[test]
fn whole_packet_gets_its_checksum() {
    let mut packet = large(PROTOCOL_UDP, b"odd", 0);
    packet[2..4].copy_from_slice(&31_u16.to_be_bytes());
    packet[24..26].copy_from_slice(&11_u16.to_be_bytes());
    set_ipv4(&mut packet[..20]);
    let pseudo = Sum::pseudo(&packet[12..16], &packet[16..20], PROTOCOL_UDP, 11).fold();
    packet[26..28].copy_from_slice(&pseudo);
    let mut whole = header(0, 0);
    (whole.checksum_start, whole.checksum_offset) = (20, 6);
    assert!(is_intact(&packets(whole, packet.clone())[0]));
    // Without the flag the packet is as it is.
    whole.flags = 0;
    assert_eq!(packets(whole, packet.clone()), [packet]);
}

#[test]
fn contradictory_frame_is_refused() {
    let tcp = || large(PROTOCOL_TCP, &[0; 3000], 0x10);
    let refused = |header: Header, mut packet: Vec<u8>| split(header, &mut packet).is_err();
    assert!(refused(header(offload::TCP, 0), tcp()), "no segment size");
    assert!(refused(header(3, 1000), tcp()), "unknown kind");
    assert!(
        refused(header(offload::UDP, 1000), tcp()),
        "another protocol"
    );
    assert!(refused(header(offload::TCP, 1000), Vec::new()), "empty");
    for len in [1, 19, 20, 32, 33, 51, 52] {
        assert!(
            refused(header(offload::TCP, 1000), tcp()[..len].to_vec()),
            "{len} bytes"
        );
    }
    let mut short = tcp();
    short[32] = 4 << 4;
    assert!(
        refused(header(offload::TCP, 1000), short),
        "TCP header of 16 bytes"
    );
    let mut outside = header(0, 0);
    (outside.checksum_start, outside.checksum_offset) = (20, 5000);
    assert!(refused(outside, tcp()), "checksum outside the packet");
}

proptest! {
    #[test]
    fn packets_carry_the_payload_in_order(
        tcp in any::<bool>(),
        payload in prop::collection::vec(any::<u8>(), 1..9000),
        segment in 1..2000_usize,
    ) {
        let (protocol, kind) =
            if tcp { (PROTOCOL_TCP, offload::TCP) } else { (PROTOCOL_UDP, offload::UDP) };
        let packets = packets(header(kind, segment), large(protocol, &payload, 0x18));
        prop_assert_eq!(packets.len(), payload.len().div_ceil(segment));
        let headers = if tcp { 52 } else { 28 };
        let mut joined = Vec::new();
        for packet in &packets {
            prop_assert!(is_intact(packet));
            prop_assert!(packet.len() <= headers + segment);
            joined.extend_from_slice(&packet[headers..]);
        }
        prop_assert_eq!(joined, payload);
    }

    #[test]
    fn arbitrary_frame_never_panics(mut frame in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Some((header, packet)) = Header::split_off(&mut frame)
            && let Ok(mut segments) = split(header, packet)
        {
            while segments.next().is_some() {}
        }
    }
}
