//! Requests for the state at a given log index.

use std::{collections::BTreeMap, sync::Arc};

use jaco_state::State;
use tokio::sync::oneshot;

/// Maximum of pending requests; beyond it those with the highest index are dropped unanswered.
const LIMIT: usize = 64;

#[derive(Debug, Default)]
pub(super) struct PendingStates {
    waiting: BTreeMap<u64, Vec<oneshot::Sender<Arc<State>>>>,
}

impl PendingStates {
    /// Adds a request, or answers it with `newest` if that state is at or past `index`. Returns
    /// whether the applier has to keep the state at `index`.
    pub(super) fn add(
        &mut self,
        index: u64,
        reply: oneshot::Sender<Arc<State>>,
        newest: &Arc<State>,
    ) -> bool {
        if newest.applied_index >= index {
            // The receiver may have been dropped.
            let _ = reply.send(Arc::clone(newest));
            return false;
        }
        self.waiting.retain(|_, replies| {
            replies.retain(|reply| !reply.is_closed());
            !replies.is_empty()
        });
        if self.waiting.values().map(Vec::len).sum::<usize>() >= LIMIT {
            // An index far ahead of all others is the least likely to be reached.
            self.waiting.pop_last();
        }
        self.waiting.entry(index).or_default().push(reply);
        true
    }

    /// Answers the requests for the states in `wanted`. Requests for an index that was skipped, as
    /// by an installed snapshot, get `newest`.
    pub(super) fn answer(&mut self, wanted: &[Arc<State>], newest: &Arc<State>) {
        while let Some(first) = self.waiting.first_entry() {
            let index = *first.key();
            if index > newest.applied_index {
                return;
            }
            let exact = wanted.iter().find(|state| state.applied_index == index);
            for reply in first.remove() {
                let _ = reply.send(Arc::clone(exact.unwrap_or(newest)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(index: u64) -> Arc<State> {
        Arc::new(State {
            applied_index: index,
            ..State::default()
        })
    }

    fn ask(
        pending_states: &mut PendingStates,
        index: u64,
        newest: u64,
    ) -> (bool, oneshot::Receiver<Arc<State>>) {
        let (reply, answer) = oneshot::channel();
        (pending_states.add(index, reply, &at(newest)), answer)
    }

    #[test]
    fn reached_index_answers_exact_or_newest_state() {
        let mut pending_states = PendingStates::default();
        let (kept, mut past) = ask(&mut pending_states, 5, 5);
        assert!(!kept);
        assert_eq!(past.try_recv().unwrap().applied_index, 5);
        let (kept, mut exact) = ask(&mut pending_states, 7, 5);
        assert!(kept);
        let (_, mut skipped) = ask(&mut pending_states, 8, 5);
        let (_, mut later) = ask(&mut pending_states, 20, 5);
        pending_states.answer(&[], &at(6));
        assert!(exact.try_recv().is_err());
        pending_states.answer(&[at(7)], &at(9));
        assert_eq!(exact.try_recv().unwrap().applied_index, 7);
        assert_eq!(skipped.try_recv().unwrap().applied_index, 9);
        assert!(later.try_recv().is_err());
    }

    #[test]
    fn pending_requests_are_bounded_and_closed_ones_dropped() {
        let mut pending_states = PendingStates::default();
        drop(ask(&mut pending_states, 3, 1));
        let mut answers: Vec<_> = (0..100)
            .map(|n| ask(&mut pending_states, 10 + n, 1).1)
            .collect();
        assert_eq!(pending_states.waiting.len(), LIMIT);
        pending_states.answer(&[], &at(1000));
        let answered = answers.iter_mut().filter_map(|a| a.try_recv().ok()).count();
        assert_eq!(answered, LIMIT);
    }
}
