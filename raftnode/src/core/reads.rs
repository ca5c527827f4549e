//! Linearizable reads: request the leader's commit index, once it has confirmed its leadership.
//!
//! Each request costs a round of messages to all members, so reads that arrive while requests are
//! open share the next one. A response also answers every read requested before it.
//!
//! raft-rs confirms requests in the order in which it got them, and a request by the responses with
//! its context. So no context may be passed to it twice: a late response to the first copy would
//! confirm reads that came before the second. A request that is sent again gets another context, and
//! a leader passes on no copy of another member's request.
//!
//! Source: Ongaro, "Consensus: Bridging Theory and Practice", section 6.4.

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
};

use super::Ticket;

/// Ticks after which an unanswered request is sent again, because messages get lost.
const RESEND_TICKS: u64 = 5;
/// Ticks after which a read expires: two election timeouts without a majority.
const EXPIRY_TICKS: u64 = 20;
/// Number of open requests beyond which the next one waits, for at most a tick because the
/// responses may be lost.
const OPEN: usize = 2;

/// Reason why a read has no index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFailure {
    /// No leader is known.
    NoLeader,
    /// A leader is known but no majority confirmed it, or no majority is in contact.
    QuorumLost,
}

#[derive(Clone, Copy, Debug)]
struct Read {
    ticket: Ticket,
    since: u64,
}

/// The reads that share a request.
#[derive(Debug)]
struct Round {
    reads: Vec<Read>,
    since: u64,
    /// Number of the request to send now.
    due: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Reads {
    id: u64,
    incarnation: u64,
    next: u64,
    tick: u64,
    /// Reads for the next request.
    waiting: Vec<Read>,
    /// Open rounds, by the number of their first request.
    rounds: BTreeMap<u64, Round>,
}

/// Number of runs of one member whose requests are known.
const RUNS: usize = 4;

/// The newest requests of other members.
#[derive(Debug, Default)]
pub(super) struct PeerRequests {
    /// Newest number of each of the last runs, by member.
    newest: BTreeMap<u64, VecDeque<(u64, u64)>>,
}

impl PeerRequests {
    /// Handles a request of member `from`; returns whether it is new. Requests that an earlier one
    /// has overtaken do not count as new: the member sends another one.
    pub(super) fn handle_request(&mut self, from: u64, context: &[u8]) -> bool {
        let Some((id, incarnation, number)) = parse(context) else {
            return false;
        };
        if id != from {
            return false;
        }
        let runs = self.newest.entry(from).or_default();
        if let Some((_, newest)) = runs.iter_mut().find(|(run, _)| *run == incarnation) {
            let is_new = number > *newest;
            *newest = number.max(*newest);
            return is_new;
        }
        runs.push_back((incarnation, number));
        if runs.len() > RUNS {
            runs.pop_front();
        }
        true
    }
}

impl Reads {
    pub(super) fn new(id: u64, incarnation: u64) -> Self {
        Self {
            id,
            incarnation,
            next: 0,
            tick: 0,
            waiting: Vec::new(),
            rounds: BTreeMap::new(),
        }
    }

    pub(super) fn add(&mut self, ticket: Ticket) {
        let since = self.tick;
        self.waiting.push(Read { ticket, since });
    }

    /// Whether no read is open.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.rounds.is_empty()
    }

    pub(super) fn tick(&mut self) {
        self.tick += 1;
        // The response to the newest request answers all of them.
        if let Some(mut newest) = self.rounds.last_entry() {
            let newest = newest.get_mut();
            if (self.tick - newest.since).is_multiple_of(RESEND_TICKS) {
                newest.due = Some(self.next);
                self.next += 1;
            }
        }
    }

    /// Returns the contexts of the requests to pass to raft now.
    pub(super) fn due(&mut self) -> Vec<Vec<u8>> {
        let newest = self.rounds.last_key_value();
        let asked = newest.is_some_and(|(_, round)| round.since == self.tick);
        if !self.waiting.is_empty() && (self.rounds.len() < OPEN || !asked) {
            let round = Round {
                reads: mem::take(&mut self.waiting),
                since: self.tick,
                due: Some(self.next),
            };
            self.rounds.insert(self.next, round);
            self.next += 1;
        }
        let (id, incarnation) = (self.id, self.incarnation);
        let due = self
            .rounds
            .values_mut()
            .filter_map(|round| round.due.take());
        due.map(|number| context(id, incarnation, number)).collect()
    }

    /// Returns the reads answered by the response with context `answer`; none if they were answered
    /// or expired before, or belong to another run.
    pub(super) fn answered(&mut self, answer: &[u8]) -> Vec<Ticket> {
        let number = match parse(answer) {
            Some((id, run, number)) if (id, run) == (self.id, self.incarnation) => number,
            _ => return Vec::new(),
        };
        if number >= self.next {
            return Vec::new();
        }
        let later = self.rounds.split_off(&(number + 1));
        let answered = mem::replace(&mut self.rounds, later).into_values();
        answered
            .flat_map(|round| round.reads)
            .map(|read| read.ticket)
            .collect()
    }

    /// Removes expired reads: those that are too old, or all once no majority is known to be in
    /// contact.
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
        let tick = self.tick;
        let mut keep = |read: &Read| {
            let keep = tick - read.since < EXPIRY_TICKS && !quorum_lost;
            if !keep {
                expired.push((read.ticket, failure));
            }
            keep
        };
        self.rounds.retain(|_, round| {
            round.reads.retain(&mut keep);
            !round.reads.is_empty()
        });
        self.waiting.retain(&mut keep);
        expired
    }
}

fn context(id: u64, incarnation: u64, number: u64) -> Vec<u8> {
    [id, incarnation, number]
        .into_iter()
        .flat_map(u64::to_be_bytes)
        .collect()
}

/// Member, run and number of the request with this context.
fn parse(context: &[u8]) -> Option<(u64, u64, u64)> {
    let bytes: &[u8; 24] = context.try_into().ok()?;
    let (parts, _) = bytes.as_chunks::<8>();
    let [id, incarnation, number] = parts else {
        return None;
    };
    let [id, incarnation, number] = [id, incarnation, number].map(|part| u64::from_be_bytes(*part));
    Some((id, incarnation, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [Ticket; 0] = [];

    #[test]
    fn unanswered_read_is_sent_again() {
        let mut reads = Reads::new(1, 7);
        reads.add(40);
        assert_eq!(reads.due().len(), 1);
        assert!(reads.due().is_empty());
        for _ in 0..RESEND_TICKS {
            reads.tick();
        }
        let again = reads.due();
        assert_eq!(again, [context(1, 7, 1)], "no context is used twice");
        assert_eq!(reads.answered(&again[0]), [40]);
        assert_eq!(reads.answered(&again[0]), NONE, "answers come once");
    }

    #[test]
    fn each_request_of_a_round_may_be_answered() {
        for answer in 0..3 {
            let mut reads = Reads::new(1, 7);
            reads.add(40);
            reads.due();
            for _ in 0..2 * RESEND_TICKS {
                reads.tick();
                reads.due();
            }
            reads.add(41);
            assert_eq!(reads.due(), [context(1, 7, 3)]);
            assert_eq!(reads.answered(&context(1, 7, answer)), [40]);
            assert_eq!(reads.answered(&context(1, 7, 3)), [41]);
        }
    }

    #[test]
    fn request_of_a_member_counts_once() {
        let mut peers = PeerRequests::default();
        for (from, asked, is_new) in [
            (2, context(2, 7, 5), true),
            (2, context(2, 7, 5), false),
            (2, context(2, 7, 4), false),
            (2, context(2, 7, 6), true),
            (3, context(3, 7, 5), true),
            (3, context(2, 7, 9), false),
            // Another run, beside late requests of the earlier one.
            (2, context(2, 8, 0), true),
            (2, context(2, 7, 6), false),
            (2, context(2, 8, 0), false),
            (2, vec![], false),
            (2, [context(2, 8, 9), vec![0]].concat(), false),
        ] {
            assert_eq!(peers.handle_request(from, &asked), is_new, "{asked:?}");
        }
        for run in 9..100 {
            assert!(peers.handle_request(2, &context(2, run, 0)));
        }
        assert_eq!(peers.newest[&2].len(), RUNS);
    }

    #[test]
    fn reads_behind_open_requests_share_the_next() {
        let mut reads = Reads::new(1, 7);
        for ticket in 0..100 {
            reads.add(ticket);
            let asked: Vec<_> = [context(1, 7, ticket)].into();
            let expected = if ticket < 2 { asked } else { vec![] };
            assert_eq!(reads.due(), expected);
        }
        assert_eq!(reads.answered(&context(1, 7, 0)), [0]);
        assert_eq!(reads.due(), [context(1, 7, 2)]);
        assert!(reads.due().is_empty());
        // The response to the last request answers the earlier ones.
        let all: Vec<_> = (1..100).collect();
        assert_eq!(reads.answered(&context(1, 7, 2)), all);
        assert_eq!(reads.answered(&context(1, 7, 1)), NONE);
    }

    #[test]
    fn lost_responses_delay_later_reads_by_a_tick() {
        let mut reads = Reads::new(1, 7);
        for ticket in 0..3 {
            reads.add(ticket);
            reads.due();
        }
        reads.tick();
        assert_eq!(reads.due(), [context(1, 7, 2)]);
        assert_eq!(
            reads.answered(&context(1, 7, 3)),
            NONE,
            "an unknown request"
        );
        assert_eq!(reads.answered(&context(1, 7, 2)), [0, 1, 2]);
    }

    #[test]
    fn waiting_read_expires() {
        let mut reads = Reads::new(1, 7);
        reads.add(40);
        for _ in 0..EXPIRY_TICKS {
            reads.tick();
        }
        reads.add(41);
        assert_eq!(reads.expired(false, false), [(40, ReadFailure::NoLeader)]);
        assert_eq!(reads.expired(true, true), [(41, ReadFailure::QuorumLost)]);
        assert!(reads.due().is_empty());
    }

    #[test]
    fn response_to_an_earlier_run_is_ignored() {
        let mut reads = Reads::new(1, 8);
        reads.add(40);
        let own = context(1, 8, 0);
        assert_eq!(reads.answered(&own), NONE, "not requested yet");
        assert_eq!(reads.due(), std::slice::from_ref(&own));
        let longer = [&own[..], &[0]].concat();
        for foreign in [
            context(1, 7, 0),
            context(2, 8, 0),
            context(1, 8, 1),
            longer,
            vec![],
            vec![0; 24],
        ] {
            assert_eq!(reads.answered(&foreign), NONE, "{foreign:?}");
        }
        assert_eq!(reads.answered(&own), [40]);
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
