//! Applies committed entries to the state machine.

use std::{collections::BTreeSet, sync::Arc};

use jaco_proto::{Error, chain, v1};
use jaco_state::{Event, State, fsm};
use raft::eraftpb::ConfState;

use crate::{
    core::{Committed, Payload, Ticket},
    storage::Row,
};

/// Callbacks around the application of each command.
pub trait Probe {
    /// A command is about to be applied.
    fn begin(&mut self) {}

    /// A command was applied, and accepted or rejected.
    fn end(&mut self, _index: u64, _command: &v1::Command, _accepted: bool) {}
}

/// Ignores all calls.
impl Probe for () {}

/// Maximum of indexes with a requested state: other members choose them.
const WANTED: usize = 64;

/// Applies committed entries in order; pure.
#[derive(Clone, Debug)]
pub struct Applier {
    state: Arc<State>,
    halted: Option<String>,
    /// Indexes for which the state was requested.
    wanted: BTreeSet<u64>,
}

/// Result of applying entries. None of it may be published before `rows` are written.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// Rows to write, in order.
    pub rows: Vec<Row>,
    /// Voters and learners after the last applied change of them, if any; written with `rows`.
    pub conf_state: Option<ConfState>,
    /// Changes, in order.
    pub events: Vec<Event>,
    /// Answers to the proposals among the entries.
    pub answers: Vec<(Ticket, Answer)>,
    /// Index and term of the last applied entry, if any.
    pub applied: Option<(u64, u64)>,
    /// States requested with [`Applier::want`], by ascending index.
    pub wanted: Vec<Arc<State>>,
}

/// Result of a proposal that was committed.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Applied at this index.
    Applied(u64),
    /// Rejected by the state machine; the state is unchanged.
    Rejected(Error),
    /// Committed, but this node has stopped applying entries.
    Halted(String),
}

impl Applier {
    /// Creates an applier that continues from `state`.
    #[must_use]
    pub fn new(state: State) -> Self {
        Self {
            state: Arc::new(state),
            halted: None,
            wanted: BTreeSet::new(),
        }
    }

    /// The state after the last applied entry.
    #[must_use]
    pub fn state(&self) -> &Arc<State> {
        &self.state
    }

    /// Reason why this node has stopped applying entries, if it has.
    #[must_use]
    pub fn halted(&self) -> Option<&str> {
        self.halted.as_deref()
    }

    /// Puts the state right after entry `index` into [`Progress::wanted`] once it is applied. Of
    /// more than 64 indexes the highest are dropped.
    pub fn want(&mut self, index: u64) {
        self.wanted.insert(index);
        if self.wanted.len() > WANTED {
            self.wanted.pop_last();
        }
    }

    /// Stops applying for `reason`; keeps the first reason.
    pub fn halt(&mut self, reason: String) {
        self.halted.get_or_insert(reason);
    }

    /// Continues from the state of a received snapshot, which this version decoded completely. It
    /// includes the effect of the entry, or of the snapshot, that stopped this node, so applying
    /// resumes.
    pub fn install(&mut self, state: State) {
        *self = Self::new(state);
    }

    /// Applies `entries`.
    ///
    /// Stops permanently before the first entry that this version does not understand: skipping it
    /// would make this node's state diverge. A newer version continues from there.
    pub fn apply(&mut self, entries: Vec<Committed>, probe: &mut impl Probe) -> Progress {
        let mut progress = Progress::default();
        let mut state = State::clone(&self.state);
        for entry in entries {
            if let Some(reason) = &self.halted {
                let answer = Answer::Halted(reason.clone());
                progress.answers.extend(entry.ticket.map(|t| (t, answer)));
                continue;
            }
            let answer = match apply_one(&mut state, entry.index, &entry.payload, probe) {
                Ok(Some(applied)) => {
                    progress.events.extend(applied.events);
                    progress
                        .rows
                        .extend(applied.mutations.into_iter().map(Row::from));
                    match applied.result {
                        Ok(()) => Answer::Applied(entry.index),
                        Err(error) => Answer::Rejected(error),
                    }
                }
                Ok(None) => {
                    state.applied_index = entry.index;
                    Answer::Applied(entry.index)
                }
                Err(reason) => {
                    self.halted = Some(reason.clone());
                    progress
                        .answers
                        .extend(entry.ticket.map(|t| (t, Answer::Halted(reason))));
                    continue;
                }
            };
            if let Payload::ConfChange(conf_state) = entry.payload {
                progress.conf_state = Some(conf_state);
            }
            progress.applied = Some((entry.index, entry.term));
            if !self.wanted.is_empty() && self.wanted.remove(&entry.index) {
                progress.wanted.push(Arc::new(state.clone()));
            }
            progress.answers.extend(entry.ticket.map(|t| (t, answer)));
        }
        if progress.applied.is_some() {
            self.state = Arc::new(state);
        }
        progress
    }
}

fn apply_one(
    state: &mut State,
    index: u64,
    payload: &Payload,
    probe: &mut impl Probe,
) -> Result<Option<fsm::Effects>, String> {
    let data = match payload {
        Payload::Noop | Payload::ConfChange(_) => return Ok(None),
        Payload::Command(data) => data,
    };
    let command = fsm::decode(data).map_err(|e| format!("entry {index}: {}", chain(&e)))?;
    probe.begin();
    let applied = fsm::apply_in_place(state, index, &command).map_err(|e| chain(&e))?;
    probe.end(index, &command, applied.result.is_ok());
    Ok(Some(applied))
}

#[cfg(test)]
mod tests {
    use jaco_proto::v1;
    use prost::Message as _;

    use super::*;

    #[derive(Default)]
    struct Recorder(Vec<(u64, &'static str, bool)>);

    impl Probe for Recorder {
        fn end(&mut self, index: u64, command: &v1::Command, accepted: bool) {
            self.0.push((index, crate::command_name(command), accepted));
        }
    }

    fn entry(index: u64, data: Vec<u8>) -> Committed {
        Committed {
            index,
            term: 2,
            payload: Payload::Command(data),
            ticket: Some(index * 10),
        }
    }

    fn voters(ids: &[u64]) -> ConfState {
        ConfState {
            voters: ids.to_vec(),
            ..ConfState::default()
        }
    }

    fn store(key: &str) -> Vec<u8> {
        let blob = v1::CertBlob {
            key: key.into(),
            ..v1::CertBlob::default()
        };
        let upsert = v1::CertBlobUpsert { blob: Some(blob) };
        v1::Command {
            payload: Some(v1::command::Payload::CertBlobUpsert(upsert)),
            ..v1::Command::default()
        }
        .encode_to_vec()
    }

    #[test]
    fn entries_without_command_advance_applied_index_only() {
        let mut applier = Applier::new(State::default());
        let change = Payload::ConfChange(voters(&[1, 2]));
        let entries = [(3, Payload::Noop), (4, change)];
        let progress = applier.apply(
            entries
                .map(|(index, payload)| Committed {
                    index,
                    term: 7,
                    payload,
                    ticket: None,
                })
                .into(),
            &mut (),
        );
        assert_eq!(progress.applied, Some((4, 7)));
        assert_eq!(applier.state().applied_index, 4);
        assert_eq!(progress.conf_state, Some(voters(&[1, 2])));
        assert!(progress.rows.is_empty() && progress.events.is_empty());
    }

    #[test]
    fn requested_state_is_captured_right_after_its_entry() {
        let mut applier = Applier::new(State::default());
        applier.want(2);
        applier.want(9);
        let entries = ["a", "b", "c"].into_iter().zip(1..);
        let entries = entries.map(|(key, index)| entry(index, store(key)));
        let progress = applier.apply(entries.collect(), &mut ());
        let keys = |s: &State| s.cert_blobs.keys().cloned().collect::<Vec<_>>();
        assert_eq!(progress.wanted.len(), 1);
        assert_eq!(progress.wanted[0].applied_index, 2);
        assert_eq!(keys(&progress.wanted[0]), ["a", "b"]);
        assert_eq!(keys(applier.state()), ["a", "b", "c"]);
        let again = applier.apply(vec![entry(4, store("d"))], &mut ());
        assert!(again.wanted.is_empty());
        // Other members choose the indexes.
        for index in 0..1000 {
            applier.want(u64::MAX - index);
        }
        assert_eq!(applier.wanted.len(), WANTED);
    }

    #[test]
    fn entry_of_newer_version_stops_the_node() {
        let mut applier = Applier::new(State::default());
        let unknown = vec![0x82, 0x7d, 0x00];
        let mut recorder = Recorder::default();
        let entries = vec![
            entry(1, store("a")),
            entry(2, unknown),
            entry(3, store("b")),
        ];
        let progress = applier.apply(entries, &mut recorder);
        assert_eq!(recorder.0, [(1, "cert_blob_upsert", true)]);
        assert_eq!(progress.applied, Some((1, 2)));
        assert_eq!(progress.answers[0], (10, Answer::Applied(1)));
        for (ticket, answer) in &progress.answers[1..] {
            assert!(matches!(answer, Answer::Halted(_)), "{ticket}: {answer:?}");
        }
        assert_eq!(applier.state().applied_index, 1);
        assert!(applier.state().cert_blobs.contains_key("a"));
        assert!(!applier.state().cert_blobs.contains_key("b"));
        assert!(applier.halted().is_some());
        assert_eq!(
            applier.apply(vec![entry(4, store("c"))], &mut ()).applied,
            None
        );
    }

    #[test]
    fn configuration_stays_that_of_the_applied_index() {
        let mut applier = Applier::new(State::default());
        let change = |index, ids: &[u64]| Committed {
            index,
            term: 2,
            payload: Payload::ConfChange(voters(ids)),
            ticket: None,
        };
        let unknown = entry(3, vec![0x82, 0x7d, 0x00]);
        let entries = vec![
            change(1, &[1, 2]),
            change(2, &[1, 2, 3]),
            unknown,
            change(4, &[2, 3]),
        ];
        let progress = applier.apply(entries, &mut ());
        assert_eq!(progress.applied, Some((2, 2)));
        assert_eq!(progress.conf_state, Some(voters(&[1, 2, 3])));
        let progress = applier.apply(vec![change(5, &[2])], &mut ());
        assert_eq!((progress.applied, progress.conf_state), (None, None));
    }

    #[test]
    fn installing_a_known_state_resumes_applying() {
        let mut applier = Applier::new(State::default());
        applier.halt("first".to_owned());
        applier.halt("second".to_owned());
        assert_eq!(applier.halted(), Some("first"));
        let progress = applier.apply(vec![entry(1, store("a"))], &mut ());
        assert_eq!(progress.applied, None);
        assert_eq!(progress.answers, [(10, Answer::Halted("first".into()))]);
        applier.install(State {
            applied_index: 4,
            ..State::default()
        });
        assert_eq!(applier.halted(), None);
        let progress = applier.apply(vec![entry(5, store("a"))], &mut ());
        assert_eq!(progress.applied, Some((5, 2)));
    }
}
