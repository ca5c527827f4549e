//! Linearizable reads: ask the leader for its commit index, once it has proved that it leads.
//!
//! Source: Ongaro, "Consensus: Bridging Theory and Practice", section 6.4.

use std::collections::BTreeMap;

use super::Ticket;

/// Ticks after which an unanswered read is sent again: messages get lost.
const RESEND_TICKS: u32 = 5;
/// Ticks after which it is given up: two election timeouts without a majority.
const EXPIRY_TICKS: u32 = 20;

/// Why a read has no index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFailure {
    /// No leader is known.
    NoLeader,
    /// A leader is known, but no majority confirmed it; or no majority is in reach.
    QuorumLost,
}

#[derive(Debug)]
struct Pending {
    ticket: Ticket,
    age: u32,
    sent: bool,
}

#[derive(Debug)]
pub(super) struct Reads {
    id: u64,
    incarnation: u64,
    next: u64,
    pending: BTreeMap<u64, Pending>,
}

impl Reads {
    pub(super) fn new(id: u64, incarnation: u64) -> Self {
        Self {
            id,
            incarnation,
            next: 0,
            pending: BTreeMap::new(),
        }
    }

    pub(super) fn add(&mut self, ticket: Ticket) {
        let pending = Pending {
            ticket,
            age: 0,
            sent: false,
        };
        self.pending.insert(self.next, pending);
        self.next += 1;
    }

    pub(super) fn tick(&mut self) {
        for read in self.pending.values_mut() {
            read.age += 1;
            read.sent &= !read.age.is_multiple_of(RESEND_TICKS);
        }
    }

    /// Contexts of the reads to hand to raft now.
    pub(super) fn due(&mut self) -> Vec<Vec<u8>> {
        let (id, incarnation) = (self.id, self.incarnation);
        self.pending
            .iter_mut()
            .filter(|(_, read)| !read.sent)
            .map(|(number, read)| {
                read.sent = true;
                context(id, incarnation, *number)
            })
            .collect()
    }

    /// The read that an answer with `context` belongs to; `None` if it was answered or given up
    /// before, or is another run's.
    pub(super) fn answered(&mut self, answer: &[u8]) -> Option<Ticket> {
        let number = answer.get(16..24)?.try_into().ok()?;
        let number = u64::from_be_bytes(number);
        if answer != context(self.id, self.incarnation, number) {
            return None;
        }
        self.pending.remove(&number).map(|read| read.ticket)
    }

    /// Reads that are given up: too old, or all if it is known that no majority is in reach.
    pub(super) fn expired(
        &mut self,
        has_leader: bool,
        quorum_lost: bool,
    ) -> Vec<(Ticket, ReadFailure)> {
        let failure = if has_leader || quorum_lost {
            ReadFailure::QuorumLost
        } else {
            ReadFailure::NoLeader
        };
        let mut expired = Vec::new();
        self.pending.retain(|_, read| {
            let keep = read.age < EXPIRY_TICKS && !quorum_lost;
            if !keep {
                expired.push((read.ticket, failure));
            }
            keep
        });
        expired
    }
}

fn context(id: u64, incarnation: u64, number: u64) -> Vec<u8> {
    [id, incarnation, number]
        .into_iter()
        .flat_map(u64::to_be_bytes)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_is_sent_once_then_again_when_unanswered() {
        let mut reads = Reads::new(1, 7);
        reads.add(40);
        assert_eq!(reads.due().len(), 1);
        assert!(reads.due().is_empty());
        for _ in 0..RESEND_TICKS {
            reads.tick();
        }
        let again = reads.due();
        assert_eq!(again, [context(1, 7, 0)]);
        assert_eq!(reads.answered(&again[0]), Some(40));
        assert_eq!(reads.answered(&again[0]), None, "answers come once");
    }

    #[test]
    fn answer_to_an_earlier_run_is_nobodys() {
        let mut reads = Reads::new(1, 8);
        reads.add(40);
        for foreign in [context(1, 7, 0), context(2, 8, 0), vec![], vec![0; 24]] {
            assert_eq!(reads.answered(&foreign), None);
        }
    }

    #[test]
    fn read_without_a_majority_expires() {
        let mut reads = Reads::new(1, 7);
        reads.add(40);
        for _ in 1..EXPIRY_TICKS {
            reads.tick();
            assert!(reads.expired(true, false).is_empty());
        }
        reads.tick();
        assert_eq!(reads.expired(true, false), [(40, ReadFailure::QuorumLost)]);
    }
}
