//! What happens to packets on a bad line, decided from a seed.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use crate::Rng;

/// Most bytes that are held at once; what comes on top is lost, as in any queue.
const HELD_MAX: usize = 64 << 20;
/// How long a packet is held back for others to overtake it.
pub const OVERTAKEN_BY: Duration = Duration::from_millis(10);

/// How bad a line is, in one direction. Shares are from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Impairment {
    /// Share of packets that never arrive.
    pub loss: f64,
    /// How much longer every packet takes.
    pub delay: Duration,
    /// At most so much more, drawn evenly for each packet; so packets overtake each other.
    pub jitter: Duration,
    /// Share of packets that are held back by [`OVERTAKEN_BY`] more.
    pub reorder: f64,
    /// Share of packets that arrive twice.
    pub duplicate: f64,
}

/// A direction: sender and receiver.
pub type Direction = (Ipv4Addr, Ipv4Addr);

/// The packets under way; equal seeds, packets and times give equal fates.
#[derive(Debug)]
pub(crate) struct Line {
    rng: Rng,
    impaired: BTreeMap<Direction, Impairment>,
    held: BTreeMap<(Instant, u64), Vec<u8>>,
    held_bytes: usize,
    counter: u64,
}

impl Line {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            impaired: BTreeMap::new(),
            held: BTreeMap::new(),
            held_bytes: 0,
            counter: 0,
        }
    }

    /// Replaces what is impaired; packets under way keep their fate.
    pub(crate) fn set(&mut self, impaired: BTreeMap<Direction, Impairment>) {
        self.impaired = impaired;
    }

    /// Takes one IP packet. One that is of no impaired direction passes at once.
    pub(crate) fn handle_packet(&mut self, now: Instant, packet: &[u8]) {
        let how = direction(packet).and_then(|direction| self.impaired.get(&direction));
        let how = how.copied().unwrap_or_default();
        if self.happens(how.loss) {
            return;
        }
        let copies = 1 + u8::from(self.happens(how.duplicate));
        for _ in 0..copies {
            let mut due = now + how.delay;
            if !how.jitter.is_zero() {
                due += self.rng.below(how.jitter);
            }
            if self.happens(how.reorder) {
                due += OVERTAKEN_BY;
            }
            if self.held_bytes + packet.len() <= HELD_MAX {
                self.counter += 1;
                self.held_bytes += packet.len();
                self.held.insert((due, self.counter), packet.to_vec());
            }
        }
    }

    /// The next packet that is due; the earlier due come first, and of these the earlier taken.
    pub(crate) fn poll_packet(&mut self, now: Instant) -> Option<Vec<u8>> {
        let first = self
            .held
            .first_entry()
            .filter(|first| first.key().0 <= now)?;
        let packet = first.remove();
        self.held_bytes -= packet.len();
        Some(packet)
    }

    /// When [`Line::poll_packet`] will have one.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        Some(self.held.first_key_value()?.0.0)
    }

    /// Draws only for what can happen, so that one kind of fault does not shift another's fate.
    fn happens(&mut self, share: f64) -> bool {
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

    /// When each of 1000 packets, sent a millisecond apart, comes out.
    fn fates(seed: u64, how: Impairment) -> Vec<(u16, Duration)> {
        let start = Instant::now();
        let mut line = Line::new(seed);
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
    fn a_share_is_lost_and_the_same_one_with_the_same_seed() {
        let how = Impairment {
            loss: 0.05,
            ..Impairment::default()
        };
        let survivors = fates(1, how);
        assert!(
            (930..=970).contains(&survivors.len()),
            "{}",
            survivors.len()
        );
        assert!(survivors.iter().all(|(_, took)| took.is_zero()));
        assert_eq!(survivors, fates(1, how));
        assert_ne!(survivors, fates(2, how));
        let all = Impairment { loss: 1.0, ..how };
        assert!(fates(1, all).is_empty());
    }

    #[test]
    fn a_delay_keeps_the_order_and_jitter_does_not() {
        let mut how = Impairment {
            delay: Duration::from_millis(200),
            ..Impairment::default()
        };
        let late = fates(1, how);
        assert_eq!(late.len(), 1000);
        assert!(late.iter().all(|(_, took)| *took == how.delay));
        assert!(late.is_sorted());
        how.jitter = Duration::from_millis(50);
        let jittered = fates(1, how);
        let most = how.delay + how.jitter;
        assert!(
            jittered
                .iter()
                .all(|(_, took)| (how.delay..=most).contains(took))
        );
        assert!(!jittered.iter().map(|(mark, _)| mark).is_sorted());
    }

    #[test]
    fn some_are_overtaken_and_some_come_twice() {
        let reordered = fates(
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
        let doubled = fates(
            1,
            Impairment {
                duplicate: 0.5,
                ..Impairment::default()
            },
        );
        assert!((1450..=1550).contains(&doubled.len()), "{}", doubled.len());
    }

    #[test]
    fn the_other_direction_and_foreign_bytes_pass() {
        let now = Instant::now();
        let mut line = Line::new(1);
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
    fn what_does_not_fit_is_lost() {
        let now = Instant::now();
        let mut line = Line::new(1);
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
