//! Writes that raft requests, one step at a time.

use std::mem;

use raft::{
    LightReady, Ready, Storage,
    eraftpb::{Entry, HardState, Message, Snapshot},
};

use super::{
    Committed, Error, Outcome, Payload, RaftCore,
    entry::{Decoded, decode},
};

/// One raft step for the driver to perform, in the order of the fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Write {
    /// Messages to send at once.
    pub messages: Vec<Message>,
    /// Snapshot to install in place of everything stored; the driver has checked its data.
    pub snapshot: Option<Snapshot>,
    /// Entries to append; they replace stored entries from their first index on.
    pub entries: Vec<Entry>,
    /// Term, vote and commit index to store.
    pub hard_state: Option<HardState>,
    /// Entries to apply, in the same write as the fields above.
    pub committed: Vec<Committed>,
    /// Whether the write must be on disk before [`RaftCore::handle_written`].
    pub sync: bool,
    /// Messages to send only after the write, which they acknowledge.
    pub messages_after: Vec<Message>,
}

/// State of the step that the driver performs.
pub(super) enum Stage {
    Idle,
    /// A step is being performed.
    Ready(Box<Ready>),
    /// Raft has more work after a finished step; the driver has not taken it yet.
    Follow(Box<LightReady>),
    /// The follow-up is being performed.
    Light,
}

impl<S: Storage> RaftCore<S> {
    /// Returns the next step; `None` if none is left or one is being performed.
    pub(super) fn next_write(&mut self) -> Result<Option<Write>, Error> {
        let mut write = Write::default();
        let committed;
        match mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Follow(mut light) => {
                write.messages = light.take_messages();
                committed = light.take_committed_entries();
                write.hard_state = light.commit_index().map(|_| self.raw.raft.hard_state());
                self.stage = Stage::Light;
            }
            Stage::Idle if self.raw.has_ready() => {
                let mut ready = self.raw.ready();
                write.messages = ready.take_messages();
                write.messages_after = ready.take_persisted_messages();
                write.entries = ready.take_entries();
                write.hard_state = ready.hs().cloned();
                write.snapshot = Some(ready.snapshot().clone()).filter(|s| !s.is_empty());
                write.sync = ready.must_sync();
                committed = ready.take_committed_entries();
                for state in ready.take_read_states() {
                    let answered = self.reads.answered(&state.request_ctx).into_iter();
                    let index = state.index;
                    self.outcomes
                        .extend(answered.map(|ticket| Outcome::Read(ticket, Ok(index))));
                }
                self.stage = Stage::Ready(Box::new(ready));
            }
            Stage::Idle => return Ok(None),
            // The current step must be reported before the next one.
            stage @ (Stage::Ready(_) | Stage::Light) => {
                self.stage = stage;
                return Ok(None);
            }
        }
        for mut entry in committed {
            let payload = match decode(&mut entry)? {
                Decoded::Plain(payload) => payload,
                Decoded::ConfChange(change) => {
                    Payload::ConfChange(self.raw.apply_conf_change(&change)?)
                }
            };
            write.committed.push(Committed {
                index: entry.index,
                term: entry.term,
                payload,
                ticket: self.proposals.committed(entry.index, entry.term),
            });
        }
        Ok(Some(write))
    }

    /// Reports that the step is written, and synced if [`Write::sync`] is set. `applied` is the
    /// applied index of the state machine, and `applied_term` the term of that entry.
    pub fn handle_written(&mut self, applied: u64, applied_term: u64) {
        match mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Ready(ready) => {
                let light = self.raw.advance_append(*ready);
                let idle = light.commit_index().is_none()
                    && light.committed_entries().is_empty()
                    && light.messages().is_empty();
                if !idle {
                    self.stage = Stage::Follow(Box::new(light));
                }
            }
            Stage::Light => {}
            // No step was in progress.
            stage @ (Stage::Idle | Stage::Follow(_)) => {
                self.stage = stage;
                return;
            }
        }
        if applied > self.raw.raft.raft_log.applied() {
            self.raw.advance_apply_to(applied);
            self.applied_term = applied_term;
        }
        self.after_event();
    }
}
