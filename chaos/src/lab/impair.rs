//! Loss, delay, reordering and duplication of packets, decided from a seed.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use crate::Rng;

/// Limit of the bytes in the queue; packets beyond it are dropped (tail drop).
const HELD_MAX: usize = 64 << 20;
/// Additional delay of a reordered packet, in which others overtake it.
pub const OVERTAKEN_BY: Duration = Duration::from_millis(10);

/// Impairment of one direction of a link. Shares are from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Impairment {
    /// Share of packets that are dropped.
    pub loss: f64,
    /// Additional delay of every packet.
    pub delay: Duration,
    /// Upper bound of a further delay, uniform for each packet; reorders packets.
    pub jitter: Duration,
    /// Share of packets that are delayed by [`OVERTAKEN_BY`] more.
    pub reorder: f64,
    /// Share of packets that are delivered twice.
    pub duplicate: f64,
    /// Size in bytes above which packets are dropped without notice, as by a path whose routers
    /// send no ICMP.
    pub largest: Option<usize>,
}

/// A direction: sender and receiver.
pub type Direction = (Ipv4Addr, Ipv4Addr);

/// The queue of packets; equal seeds, packets and times give equal outcomes.
#[derive(Debug)]
pub(crate) struct PacketQueue {
    rng: Rng,
    impaired: BTreeMap<Direction, Impairment>,
    held: BTreeMap<(Instant, u64), Vec<u8>>,
    held_bytes: usize,
    counter: u64,
}

impl PacketQueue {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            impaired: BTreeMap::new(),
            held: BTreeMap::new(),
            held_bytes: 0,
            counter: 0,
        }
    }

    /// Replaces the impairments; queued packets keep their delays.
    pub(crate) fn set(&mut self, impaired: BTreeMap<Direction, Impairment>) {
        self.impaired = impaired;
    }

    /// Enqueues one IP packet. A packet of no impaired direction is due at once.
    pub(crate) fn handle_packet(&mut self, now: Instant, packet: &[u8]) {
        let how = direction(packet).and_then(|direction| self.impaired.get(&direction));
        let how = how.copied().unwrap_or_default();
        let too_large = how.largest.is_some_and(|largest| packet.len() > largest);
        if too_large || self.draw(how.loss) {
            return;
        }
        let copies = 1 + u8::from(self.draw(how.duplicate));
        for _ in 0..copies {
            let mut due = now + how.delay;
            if !how.jitter.is_zero() {
                due += self.rng.below(how.jitter);
            }
            if self.draw(how.reorder) {
                due += OVERTAKEN_BY;
            }
            if self.held_bytes + packet.len() <= HELD_MAX {
                self.counter += 1;
                self.held_bytes += packet.len();
                self.held.insert((due, self.counter), packet.to_vec());
            }
        }
    }

    /// Takes the next packet that is due, ordered by due time and then by arrival.
    pub(crate) fn poll_packet(&mut self, now: Instant) -> Option<Vec<u8>> {
        let first = self
            .held
            .first_entry()
            .filter(|first| first.key().0 <= now)?;
        let packet = first.remove();
        self.held_bytes -= packet.len();
        Some(packet)
    }

    /// Due time of the next packet.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        Some(self.held.first_key_value()?.0.0)
    }

    /// Draws a number only if `share` is not zero, so that enabling one kind of impairment does not
    /// change the outcomes of the others.
    fn draw(&mut self, share: f64) -> bool {
        const STEPS: u32 = 1 << 24;
        share > 0.0 && {
            let drawn = u32::try_from(self.rng.within(0..u64::from(STEPS))).unwrap_or(0);
            f64::from(drawn) < share * f64::from(STEPS)
        }
    }
}

/// Sender and receiver of an IPv4 packet (RFC 791, section 3.1).
fn direction(packet: &[u8]) -> Option<Direction> {
    let address = |at: usize| {
        let bytes: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
        Some(Ipv4Addr::from(bytes))
    };
    (packet.first()? >> 4 == 4).then_some((address(12)?, address(16)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    fn packet(from: Ipv4Addr, to: Ipv4Addr, mark: u16) -> Vec<u8> {
        let mut packet = vec![0; 22];
        packet[0] = 0x45;
        packet[12..16].copy_from_slice(&from.octets());
        packet[16..20].copy_from_slice(&to.octets());
        packet[20..].copy_from_slice(&mark.to_be_bytes());
        packet
    }

    fn mark(packet: &[u8]) -> u16 {
        u16::from_be_bytes([packet[20], packet[21]])
    }

    /// Delays of 1000 packets sent a millisecond apart, in the order of delivery.
    fn delays(seed: u64, how: Impairment) -> Vec<(u16, Duration)> {
        let start = Instant::now();
        let mut line = PacketQueue::new(seed);
        line.set(BTreeMap::from([((A, B), how)]));
        let mut out = Vec::new();
        for ms in 0..2000_u16 {
            let now = start + Duration::from_millis(ms.into());
            if ms < 1000 {
                line.handle_packet(now, &packet(A, B, ms));
            }
            while let Some(packet) = line.poll_packet(now) {
                let sent = Duration::from_millis(mark(&packet).into());
                out.push((mark(&packet), now - start - sent));
            }
        }
        assert_eq!((line.poll_timeout(), line.held_bytes), (None, 0));
        out
    }

    #[test]
    fn loss_matches_its_share_and_seed() {
        let how = Impairment {
            loss: 0.05,
            ..Impairment::default()
        };
        let survivors = delays(1, how);
        assert!(
            (930..=970).contains(&survivors.len()),
            "{}",
            survivors.len()
        );
        assert!(survivors.iter().all(|(_, took)| took.is_zero()));
        assert_eq!(survivors, delays(1, how));
        assert_ne!(survivors, delays(2, how));
        let all = Impairment { loss: 1.0, ..how };
        assert!(delays(1, all).is_empty());
    }

    #[test]
    fn delay_keeps_order_and_jitter_does_not() {
        let mut how = Impairment {
            delay: Duration::from_millis(200),
            ..Impairment::default()
        };
        let late = delays(1, how);
        assert_eq!(late.len(), 1000);
        assert!(late.iter().all(|(_, took)| *took == how.delay));
        assert!(late.is_sorted());
        how.jitter = Duration::from_millis(50);
        let jittered = delays(1, how);
        let most = how.delay + how.jitter;
        assert!(
            jittered
                .iter()
                .all(|(_, took)| (how.delay..=most).contains(took))
        );
        assert!(!jittered.iter().map(|(mark, _)| mark).is_sorted());
    }

    #[test]
    fn packets_are_reordered_and_duplicated() {
        let reordered = delays(
            1,
            Impairment {
                reorder: 0.25,
                ..Impairment::default()
            },
        );
        let held = reordered
            .iter()
            .filter(|(_, took)| *took == OVERTAKEN_BY)
            .count();
        assert!((200..=300).contains(&held), "{held}");
        assert!(!reordered.iter().map(|(mark, _)| mark).is_sorted());
        let doubled = delays(
            1,
            Impairment {
                duplicate: 0.5,
                ..Impairment::default()
            },
        );
        assert!((1450..=1550).contains(&doubled.len()), "{}", doubled.len());
    }

    #[test]
    fn other_directions_and_malformed_packets_pass() {
        let now = Instant::now();
        let mut line = PacketQueue::new(1);
        let lost = Impairment {
            loss: 1.0,
            ..Impairment::default()
        };
        line.set(BTreeMap::from([((A, B), lost)]));
        for bytes in [
            &packet(B, A, 1)[..],
            &packet(A, A, 2),
            &[],
            &[0x60],
            &[0x45; 19],
        ] {
            line.handle_packet(now, bytes);
            assert_eq!(line.poll_packet(now).as_deref(), Some(bytes));
        }
        line.handle_packet(now, &packet(A, B, 3));
        assert_eq!(line.poll_packet(now), None);
    }

    #[test]
    fn packets_above_the_largest_size_vanish() {
        let now = Instant::now();
        let mut line = PacketQueue::new(1);
        let narrow = Impairment {
            largest: Some(1300),
            ..Impairment::default()
        };
        line.set(BTreeMap::from([((A, B), narrow)]));
        for (size, passes) in [(1300, true), (1301, false)] {
            let mut sized = packet(A, B, 0);
            sized.resize(size, 0);
            line.handle_packet(now, &sized);
            assert_eq!(line.poll_packet(now).is_some(), passes, "{size} bytes");
        }
    }

    #[test]
    fn full_queue_drops_packets() {
        let now = Instant::now();
        let mut line = PacketQueue::new(1);
        let slow = Impairment {
            delay: Duration::from_secs(1),
            ..Impairment::default()
        };
        line.set(BTreeMap::from([((A, B), slow)]));
        let mut large = packet(A, B, 0);
        large.resize(HELD_MAX / 2 + 1, 0);
        line.handle_packet(now, &large);
        line.handle_packet(now, &large);
        assert_eq!(line.held.len(), 1);
    }
}
