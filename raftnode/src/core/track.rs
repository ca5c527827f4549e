//! Maps proposals to log indexes.

use std::collections::VecDeque;

use super::Ticket;

/// Reason why a proposal was not committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProposalLoss {
    /// The proposal is not in the log of any node; a retry is safe.
    NotAppended,
    /// The proposal was appended, then leadership was lost: another leader may still commit it.
    Unknown,
}

/// Proposals appended in the current term, by index.
#[derive(Debug, Default)]
pub(super) struct Proposals {
    term: u64,
    /// Ascending by index, without gaps inside one batch.
    waiting: VecDeque<(u64, Ticket)>,
}

impl Proposals {
    pub(super) fn track(&mut self, term: u64, first: u64, tickets: Vec<Ticket>) {
        self.term = term;
        self.waiting.extend((first..).zip(tickets));
    }

    /// Returns the index of the newest proposal.
    pub(super) fn last(&self) -> Option<u64> {
        self.waiting.back().map(|&(index, _)| index)
    }

    /// Removes and returns the proposal committed as (`index`, `term`), if there is one.
    pub(super) fn committed(&mut self, index: u64, term: u64) -> Option<Ticket> {
        let &(at, ticket) = self.waiting.front()?;
        if at != index || self.term != term {
            return None;
        }
        self.waiting.pop_front();
        Some(ticket)
    }

    /// Removes and returns all pending proposals, unless this node still leads in their term.
    pub(super) fn lost(&mut self, leading: Option<u64>) -> Vec<Ticket> {
        if self.waiting.is_empty() || leading == Some(self.term) {
            return Vec::new();
        }
        self.waiting.drain(..).map(|(_, ticket)| ticket).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_with_same_index_and_term_answers_proposal() {
        let mut proposals = Proposals::default();
        proposals.track(2, 5, vec![50, 60]);
        assert_eq!(proposals.committed(4, 2), None, "not ours");
        assert_eq!(proposals.committed(5, 3), None, "another leader's");
        assert_eq!(proposals.committed(5, 2), Some(50));
        assert_eq!(proposals.committed(6, 2), Some(60));
        assert_eq!(proposals.committed(7, 2), None);
    }

    #[test]
    fn losing_the_term_loses_pending_proposals() {
        let mut proposals = Proposals::default();
        proposals.track(2, 5, vec![50, 60]);
        assert!(proposals.lost(Some(2)).is_empty());
        assert_eq!(
            proposals.lost(Some(3)),
            [50, 60],
            "leader again, of another term"
        );
        assert!(proposals.lost(None).is_empty(), "each is lost once");
    }
}
