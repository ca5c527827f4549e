//! The network between the machines: latency, loss, duplication and partitions.

use std::collections::BTreeMap;

use super::time::{MS, Time};
use crate::Rng;

/// A disturbance of the network while it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NetworkFault {
    /// Drops all messages between the machines whose bit is set and the others.
    Partition(u64),
    /// Drops all messages from one machine to another; the reverse direction is open.
    OneWay(u64, u64),
    /// Share of messages lost, in thousandths.
    Loss(u64),
    /// Longest additional delay, drawn for each message, which reorders them.
    Delay(Time),
    /// Share of messages that arrive twice, in thousandths.
    Twice(u64),
}

/// The network and its disturbances, each under the number of the fault that causes it.
#[derive(Debug)]
pub(super) struct Network {
    chance: Rng,
    pub(super) faults: BTreeMap<usize, NetworkFault>,
    /// Share of messages lost without any fault, in thousandths.
    pub(super) base_loss: u64,
    /// Longest additional delay without any fault.
    pub(super) base_delay: Time,
}

impl Network {
    pub(super) fn new(chance: Rng) -> Self {
        Self {
            chance,
            faults: BTreeMap::new(),
            base_loss: 0,
            base_delay: 0,
        }
    }

    /// Whether all messages from one machine to the other are dropped.
    pub(super) fn is_cut(&self, from: u64, to: u64) -> bool {
        self.faults.values().any(|fault| match *fault {
            NetworkFault::Partition(side) => (side >> (from % 64)) & 1 != (side >> (to % 64)) & 1,
            NetworkFault::OneWay(a, b) => (from, to) == (a, b),
            NetworkFault::Loss(_) | NetworkFault::Delay(_) | NetworkFault::Twice(_) => false,
        })
    }

    /// Delays after which copies of a message of `bytes` arrive: one, two, or none if it is lost.
    pub(super) fn deliveries(&mut self, from: u64, to: u64, bytes: usize) -> Vec<Time> {
        let (mut loss, mut twice, mut longest) = (self.base_loss, 0, self.base_delay);
        for fault in self.faults.values() {
            match *fault {
                NetworkFault::Loss(share) => loss = loss.max(share),
                NetworkFault::Twice(share) => twice = twice.max(share),
                NetworkFault::Delay(delay) => longest = longest.max(delay),
                NetworkFault::Partition(_) | NetworkFault::OneWay(..) => {}
            }
        }
        let lost = self.chance.within(0..1000) < loss;
        let copies = 1 + usize::from(self.chance.within(0..1000) < twice);
        if lost || self.is_cut(from, to) {
            return Vec::new();
        }
        // Bandwidth of 10 MB/s, which delays snapshots.
        let transfer = bytes as Time / 10;
        (0..copies)
            .map(|_| {
                let usual = self.chance.within(MS / 5..2 * MS);
                // One message in a hundred waits for a retransmission.
                let again = match self.chance.within(0..100) {
                    0 => self.chance.within(10 * MS..100 * MS),
                    _ => 0,
                };
                usual + again + transfer + self.chance.within(0..longest + 1)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partition_cuts_both_ways_one_way_cut_one() {
        let mut network = Network::new(Rng::new(1));
        network.faults.insert(0, NetworkFault::Partition(0b0010));
        assert!(network.is_cut(1, 2) && network.is_cut(2, 1));
        assert!(!network.is_cut(2, 3) && network.deliveries(2, 3, 1).len() == 1);
        assert!(network.deliveries(1, 2, 1).is_empty());
        network.faults.insert(0, NetworkFault::OneWay(1, 2));
        assert!(network.is_cut(1, 2) && !network.is_cut(2, 1));
    }

    #[test]
    fn loss_and_duplication_match_their_rates() {
        let mut network = Network::new(Rng::new(2));
        network.faults.insert(0, NetworkFault::Loss(300));
        network.faults.insert(1, NetworkFault::Twice(100));
        let count = |n: &mut Network| n.deliveries(1, 2, 10).len();
        let mut seen = [0; 3];
        (0..10_000).for_each(|_| seen[count(&mut network)] += 1);
        assert!((2_700..3_300).contains(&seen[0]), "{seen:?}");
        assert!((550..850).contains(&seen[2]), "{seen:?}");
    }
}
