use proptest::prelude::*;

use super::*;
use crate::wireguard::segment::tests::{header, large, packets};

/// Pushes packets, and returns the frames that were written.
fn coalesce(packets: &[Vec<u8>], udp: bool) -> Vec<Vec<u8>> {
    let mut coalescer = Coalescer::new(udp);
    let mut written = Vec::new();
    for packet in packets {
        let mut frame = vec![0xff; LEN];
        frame.extend_from_slice(packet);
        coalescer.push(&mut frame, &mut |frame| written.push(frame.to_vec()));
    }
    coalescer.flush(&mut |frame| written.push(frame.to_vec()));
    written
}

/// The packets that the kernel makes of frames.
fn split_again(frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let split = frames.iter().flat_map(|frame| {
        let mut frame = frame.clone();
        let (header, packet) = Header::split_off(&mut frame).unwrap();
        packets(header, packet.to_vec())
    });
    split.collect()
}

fn tcp(payload: usize) -> Vec<Vec<u8>> {
    packets(
        header(offload::TCP, 1000),
        large(PROTOCOL_TCP, &vec![7; payload], ACK | PSH),
    )
}

fn udp(payload: usize) -> Vec<Vec<u8>> {
    packets(
        header(offload::UDP, 1000),
        large(PROTOCOL_UDP, &vec![7; payload], 0),
    )
}

/// The packet with another byte, and the checksums made right again.
fn with(mut packet: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    packet[at] = value;
    let whole = packet.len() - if packet[9] == PROTOCOL_TCP { 52 } else { 28 };
    let kind = if packet[9] == PROTOCOL_TCP {
        offload::TCP
    } else {
        offload::UDP
    };
    packets(header(kind, whole), packet).remove(0)
}

#[test]
fn packets_of_a_flow_become_one() {
    for (packets, kind) in [(tcp(5500), offload::TCP), (udp(5500), offload::UDP)] {
        let frames = coalesce(&packets, true);
        assert_eq!(frames.len(), 1);
        let (header, _) = Header::split_off(&mut frames[0].clone())
            .map(|(h, p)| (h, p.len()))
            .unwrap();
        assert_eq!((header.kind, header.segment, header.flags), (kind, 1000, 1));
        assert_eq!(split_again(&frames), packets);
    }
}

#[test]
fn single_packet_is_unchanged() {
    for packet in [tcp(10), udp(10)] {
        let frames = coalesce(&packet, true);
        assert_eq!(frames.len(), 1);
        assert_eq!(frames[0][..LEN], [0; LEN]);
        assert_eq!(frames[0][LEN..], packet[0]);
    }
}

#[test]
fn datagrams_stay_apart_on_old_kernels() {
    assert_eq!(coalesce(&udp(5000), false).len(), 5);
    assert_eq!(coalesce(&tcp(5000), false).len(), 1);
}

#[test]
fn interleaved_flows_are_joined_separately() {
    let (mut other, first) = (tcp(4000), tcp(4000));
    for packet in &mut other {
        *packet = with(packet.clone(), 21, 0x91);
    }
    let mixed: Vec<_> = first
        .iter()
        .zip(&other)
        .flat_map(|(a, b)| [a.clone(), b.clone()])
        .collect();
    assert_eq!(coalesce(&mixed, true).len(), 2);
}

#[test]
fn packet_that_does_not_continue_begins_anew() {
    let run = tcp(4000);
    for (what, at, value) in [
        ("sequence", 26, 0x11),
        ("acknowledgement", 31, 78),
        ("flags", 33, ACK | 0x01),
        ("window", 35, 9),
        ("options", 51, 9),
        ("type of service", 1, 0),
        ("time to live", 8, 63),
    ] {
        let mut changed = run.clone();
        changed[1] = with(changed[1].clone(), at, value);
        let frames = coalesce(&changed, true);
        assert!(frames.len() >= 2, "{what}");
        assert_eq!(
            split_again(&frames),
            changed,
            "{what}: nothing is lost or reordered"
        );
    }
}

#[test]
fn damaged_packet_is_passed_on_alone() {
    for at in [10, 36, 60] {
        let mut run = tcp(3000);
        run[1][at] ^= 1;
        let frames = coalesce(&run, true);
        assert_eq!(frames.len(), 3, "byte {at}");
        assert_eq!(frames[1][LEN..], run[1]);
    }
}

#[test]
fn end_of_stream_does_not_overtake_its_data() {
    let mut run = tcp(3000);
    let mut end = run[2][..52].to_vec();
    end[2..4].copy_from_slice(&52_u16.to_be_bytes());
    end[33] = ACK | 0x01;
    run.push(end.clone());
    let frames = coalesce(&run, true);
    assert_eq!(frames.len(), 2);
    assert!(frames[1][LEN..] == end);
}

#[test]
fn more_flows_than_slots_lose_nothing() {
    let mut all = Vec::new();
    for round in 0..3_u8 {
        for port in 0..40_u8 {
            let packet = udp(100).remove(0);
            all.push(with(with(packet, 21, port), 30, round));
        }
    }
    let mut seen = split_again(&coalesce(&all, true));
    for port in 0..40_u8 {
        let rounds: Vec<_> = seen
            .iter()
            .filter(|packet| packet[21] == port)
            .map(|p| p[30])
            .collect();
        assert_eq!(rounds, [0, 1, 2], "port {port}");
    }
    seen.sort();
    all.sort();
    assert!(seen.iter().zip(&all).all(|(a, b)| a[20..] == b[20..]));
}

#[test]
fn packets_that_are_no_flow_pass() {
    let mut icmp = udp(100).remove(0);
    icmp[9] = 1;
    let mut fragment = tcp(100).remove(0);
    fragment[7] = 3;
    for packet in [vec![], vec![0x45; 5], icmp, fragment, vec![0x60; 60]] {
        let frames = coalesce(std::slice::from_ref(&packet), true);
        assert_eq!(frames.len(), 1);
        assert_eq!(
            (&frames[0][..LEN], &frames[0][LEN..]),
            ([0; LEN].as_slice(), packet.as_slice())
        );
    }
}

proptest! {
    #[test]
    fn coalesced_packets_split_into_what_they_were(
        sizes in prop::collection::vec((1..70_000_usize, 1..1400_usize, any::<bool>()), 1..4),
    ) {
        for (payload, segment, tcp) in sizes {
            let (protocol, kind, headers) =
                if tcp { (PROTOCOL_TCP, offload::TCP, 52) } else { (PROTOCOL_UDP, offload::UDP, 28) };
            let payload = payload.min(65_535 - headers).min(segment * 120);
            let run = packets(header(kind, segment), large(protocol, &vec![3; payload], ACK));
            let mut again = split_again(&coalesce(&run, true));
            // Datagrams have no number; the kernel counts those of each joined packet itself.
            let mut run = run;
            if !tcp {
                for packet in run.iter_mut().chain(&mut again) {
                    packet[4..6].fill(0);
                    packet[10..12].fill(0);
                }
            }
            prop_assert_eq!(again, run);
        }
    }

    #[test]
    fn arbitrary_packet_never_panics(
        start in 0..3_u8,
        packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 0..10),
    ) {
        let packets: Vec<_> = packets.into_iter().map(|mut packet| {
            if let Some(first) = packet.first_mut() && start > 0 {
                *first = 0x45;
            }
            if start > 1 && packet.len() > 20 {
                let total = u16::try_from(packet.len()).unwrap();
                packet[2..4].copy_from_slice(&total.to_be_bytes());
                packet[6..8].fill(0);
                packet[9] = if packet[9] & 1 == 0 { PROTOCOL_TCP } else { PROTOCOL_UDP };
            }
            packet
        }).collect();
        let total: usize = coalesce(&packets, true).iter().map(|frame| frame.len() - LEN).sum();
        prop_assert!(total <= packets.iter().map(Vec::len).sum());
    }
}
