//! Driver of the raft core: performs its effects on disk and peers, and answers callers.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use jaco_proto::v1;
use protobuf::Message as _;
use raft::eraftpb::{Message, MessageType};

use super::{
    Applied, Observe, RaftArgs,
    batch_delay::{BatchDecision, BatchDelay},
    handle::{HandleInner, ReadError},
    incoming::Received,
    msg::{Msg, ReadReply},
    proposal::PendingProposal,
    state_at::PendingStates,
};
use crate::{
    Committed, OutgoingSnapshot, ProposeError,
    apply::{Answer, Applier, Probe, Progress},
    command_name,
    core::{
        self, Action, Config, Outcome, ProposalLoss, RaftCore, ReadFailure, SnapshotId, Ticket,
        Write,
    },
    snapshot::{self, SizeLimit},
    storage::{self, LogView, Update},
};

/// Reason why the actor ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The storage has failed; the process must exit.
    #[error(transparent)]
    Storage(#[from] storage::Error),
    /// Raft has failed; a restart of the actor reloads it.
    #[error(transparent)]
    Core(#[from] core::Error),
}

/// Follow-up that the driver requests after a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FollowUp {
    Nothing,
    /// Send a [`Msg::Flush`], behind the messages that are in the mailbox now.
    Flush,
    /// Send a [`Msg::HoldTimeout`] after this time.
    HoldTimeout(Duration),
}

pub(super) struct Driver {
    args: RaftArgs,
    shared: Arc<HandleInner>,
    core: RaftCore<LogView>,
    applier: Applier,
    /// Proposals not yet passed to raft.
    batch: Vec<(Ticket, Vec<u8>)>,
    /// Encoded bytes of `batch`.
    batch_bytes: usize,
    batch_delay: BatchDelay,
    /// Whether a [`Msg::HoldTimeout`] is scheduled.
    hold_timer_set: bool,
    /// Whether a [`Msg::Flush`] is in the mailbox.
    flush_queued: bool,
    proposals: HashMap<Ticket, PendingProposal>,
    reads: HashMap<Ticket, ReadReply>,
    pending_states: PendingStates,
    /// Results to send once the published state and status include them.
    answers: Vec<(Ticket, Answer)>,
    /// Content of the snapshot that raft is about to install.
    received: Option<Box<Received>>,
    next_ticket: Ticket,
    /// Whether it was logged that the state is too large to be sent.
    oversize_logged: Arc<AtomicBool>,
    /// Time of the last contact with a majority, once that is lost.
    quorum_lost_since: Option<Instant>,
    /// Number of rejected peer messages.
    refused: u64,
    /// Time of the last log line about them.
    rejection_logged_at: Option<Instant>,
}

/// Bytes of a received snapshot that even a slow disk writes in a second.
const INSTALL_RATE: u64 = 8 << 20;
/// Minimum interval between two log lines about rejected messages: a peer controls their number.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

impl Driver {
    /// Reloads everything from the storage; publishes nothing yet.
    pub(super) fn load(args: RaftArgs, incarnation: u64) -> Result<Self, Failure> {
        let storage = &args.storage;
        if let Some(failure) = storage.failure() {
            return Err(storage::Error::Failed(failure.to_owned()).into());
        }
        let shared = Arc::clone(&args.handle.shared);
        // A large state takes longer than a single step may.
        let state = storage.load_state_with(|| shared.note_progress())?;
        let config = Config::new(storage.raft_id(), state.applied_index, incarnation);
        let view = LogView(Arc::clone(storage));
        let core = RaftCore::new(&config, view, &super::logger::tracing_logger())?;
        shared.set_storage(storage);
        shared.incoming.reset();
        if let Err(error) = snapshot::clear(&shared.snapshots()) {
            tracing::warn!(subsystem = "raft", %error, "old snapshots cannot be removed");
        }
        shared.note_progress();
        let driver = Self {
            shared,
            core,
            applier: Applier::new(state),
            batch: Vec::new(),
            batch_bytes: 0,
            batch_delay: BatchDelay::new(args.limits.batch_delay),
            hold_timer_set: false,
            flush_queued: false,
            proposals: HashMap::new(),
            reads: HashMap::new(),
            pending_states: PendingStates::default(),
            answers: Vec::new(),
            received: None,
            next_ticket: 0,
            oversize_logged: Arc::default(),
            quorum_lost_since: None,
            refused: 0,
            rejection_logged_at: None,
            args,
        };
        // Registers the state that snapshots are made of; rewrites the applied index unchanged.
        driver.args.storage.write(Update {
            state: Some(Arc::clone(driver.applier.state())),
            ..Update::default()
        })?;
        Ok(driver)
    }

    /// Joins the group: publishes the state, and that this node leads if it is the only voter.
    pub(super) fn start(&mut self) -> Result<(), Failure> {
        self.republish();
        self.core.handle_start()?;
        self.run()
    }

    /// Number of the next ticks without an effect, see [`RaftCore::quiet_ticks`].
    pub(super) fn quiet_ticks(&self) -> u64 {
        self.core.quiet_ticks()
    }

    /// Handles one message, after the ticks that passed before it. Most messages request a flush: messages that arrive while a write waits
    /// for the disk are combined into one step and one write.
    pub(super) fn handle(&mut self, ticks: u64, msg: Msg) -> Result<FollowUp, Failure> {
        for _ in 0..ticks {
            self.core.handle_tick();
        }
        match msg {
            Msg::Flush => {
                self.flush_queued = false;
                self.take_proposals();
                return self.flush();
            }
            Msg::HoldTimeout => {
                self.hold_timer_set = false;
                return self.flush();
            }
            Msg::Install(received) => {
                self.install(received)?;
                return Ok(FollowUp::Nothing);
            }
            Msg::UnknownSnapshot {
                from,
                snapshot,
                reason,
            } => {
                // Only the leader's state is this node's next one. A leader that this node does not
                // follow yet offers its snapshot again.
                if self.core.needs_snapshot(from, snapshot) {
                    self.applier.halt(reason);
                }
            }
            // Proposals that an earlier flush took need no flush of their own.
            Msg::Propose if !self.take_proposals() && ticks == 0 => return Ok(FollowUp::Nothing),
            Msg::Propose => {}
            Msg::Read(reply) => {
                let ticket = self.ticket();
                self.reads.insert(ticket, reply);
                self.core.handle_read(ticket);
            }
            Msg::Deliver(delivery) => self.deliver(delivery.message),
            Msg::Unreachable(peer) => self.core.handle_unreachable(peer),
            Msg::SnapshotSent(peer, snapshot, delivered) => {
                self.core.handle_snapshot_sent(peer, snapshot, delivered);
            }
            Msg::ChangeMembers(change, reply) => {
                // The receiver may have been dropped; the change goes on all the same.
                let _ = reply.send(self.core.handle_member_change(change));
            }
            Msg::StateAt(index, reply) => {
                if self.pending_states.add(index, reply, self.applier.state()) {
                    self.applier.want(index);
                }
            }
            Msg::Transfer(to) => self.core.handle_transfer(to),
            Msg::Tick => {}
        }
        let queued = std::mem::replace(&mut self.flush_queued, true);
        Ok(if queued {
            FollowUp::Nothing
        } else {
            FollowUp::Flush
        })
    }

    /// Performs raft's pending work, with the batch of proposals unless `batch_delay` holds it.
    fn flush(&mut self) -> Result<FollowUp, Failure> {
        loop {
            let decision = self.decide();
            if decision == BatchDecision::Flush {
                let batch = self.begin_batch();
                self.core.handle_propose(batch);
            }
            self.run()?;
            match decision {
                BatchDecision::Wait(left) => {
                    // Raft's own write may have completed the majority.
                    if self.core.awaits_majority() {
                        let set = std::mem::replace(&mut self.hold_timer_set, true);
                        return Ok(if set {
                            FollowUp::Nothing
                        } else {
                            FollowUp::HoldTimeout(left)
                        });
                    }
                }
                BatchDecision::Flush => return Ok(FollowUp::Nothing),
            }
        }
    }

    fn decide(&mut self) -> BatchDecision {
        let awaiting_majority = self.core.awaits_majority();
        let (proposals, bytes) = (self.batch.len(), self.batch_bytes);
        self.batch_delay
            .decide(proposals, bytes, awaiting_majority, Instant::now())
    }

    /// Moves the queued proposals to the next batch; `false` if there are none.
    fn take_proposals(&mut self) -> bool {
        let proposals = self.shared.take_proposals();
        let some = !proposals.is_empty();
        for (data, waiting) in proposals {
            let ticket = self.ticket();
            self.proposals.insert(ticket, waiting);
            self.batch_bytes += data.len();
            self.batch.push((ticket, data));
        }
        some
    }

    /// Takes the batch, without the proposals that were withdrawn or are bound to another term.
    fn begin_batch(&mut self) -> Vec<(Ticket, Vec<u8>)> {
        self.batch_bytes = 0;
        let mut batch = std::mem::take(&mut self.batch);
        let term = self.core.term();
        batch.retain(|(ticket, _)| {
            let Some(waiting) = self.proposals.get_mut(ticket) else {
                return false;
            };
            let Err(error) = waiting.begin(term) else {
                return true;
            };
            if let Some(waiting) = self.proposals.remove(ticket) {
                waiting.answer(Err(error));
            }
            false
        });
        batch
    }

    fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        self.next_ticket
    }

    /// Passes a received snapshot to raft, which ignores it if it has committed past it.
    fn install(&mut self, mut received: Box<Received>) -> Result<(), Failure> {
        let message = std::mem::take(&mut received.message);
        self.received = Some(received);
        self.deliver(message);
        let done = self.run();
        self.received = None;
        done
    }

    fn deliver(&mut self, message: Message) {
        let from = message.from;
        if let Err(error) = self.core.handle_message(message) {
            self.refused += 1;
            let due = |at: Instant| at.elapsed() >= LOG_INTERVAL;
            if self.rejection_logged_at.is_none_or(due) {
                let refused = self.refused;
                tracing::warn!(subsystem = "raft", from, %error, refused, "peer message refused");
                self.rejection_logged_at = Some(Instant::now());
            }
        }
    }

    /// Carries out every action that raft has pending, then answers the callers.
    fn run(&mut self) -> Result<(), Failure> {
        let outcomes = self.drive()?;
        let mut status = core::RaftStatus {
            halted: self.applier.halted().map(str::to_owned),
            ..self.core.status()
        };
        if status.quorum_lost {
            let lost_for = self.core.ticks_without_quorum();
            let since = *self.quorum_lost_since.get_or_insert_with(|| {
                let ticks = u32::try_from(lost_for).unwrap_or(u32::MAX);
                let now = Instant::now();
                let age = self.args.limits.tick.saturating_mul(ticks);
                now.checked_sub(age).unwrap_or(now)
            });
            status.quorum_lost_since = Some(since);
        } else {
            self.quorum_lost_since = None;
        }
        self.shared.status.send_if_modified(|old| {
            let changed = *old != status;
            if let (None, Some(reason)) = (&old.halted, &status.halted) {
                tracing::error!(subsystem = "fsm", %reason, "this version is too old: applying entries has stopped");
            }
            *old = status;
            changed
        });
        for (ticket, answer) in std::mem::take(&mut self.answers) {
            self.answer(ticket, answer);
        }
        for outcome in outcomes {
            self.answer_outcome(outcome);
        }
        self.compact()
    }

    /// Performs the writes of the core, and returns the outcomes, to be answered once the published
    /// status includes the writes.
    fn drive(&mut self) -> Result<Vec<Outcome>, Failure> {
        let mut outcomes = Vec::new();
        loop {
            while let Some(action) = self.core.poll_action()? {
                match action {
                    Action::Write(write) => self.perform(write)?,
                    Action::Outcome(outcome) => outcomes.push(outcome),
                }
            }
            let halted = self.applier.halted().is_some();
            if self.core.is_halted() == halted {
                return Ok(outcomes);
            }
            self.core.handle_halted(halted);
        }
    }

    fn perform(&mut self, write: Write) -> Result<(), Failure> {
        self.send(write.messages);
        let mut update = Update {
            entries: write.entries,
            hard_state: write.hard_state,
            sync: write.sync,
            ..Update::default()
        };
        let mut position = None;
        let installed = write.snapshot.is_some();
        if let Some(snapshot) = write.snapshot {
            let metadata = snapshot.metadata.unwrap_or_default();
            let received = self.received.take();
            // Only `install` passes snapshots to raft, and raft takes them at once.
            let received = received.filter(|r| r.state.applied_index == metadata.index);
            let Some(received) = received else {
                let reason = "its content is not at hand";
                return Err(storage::Error::corrupt("received snapshot", reason).into());
            };
            position = Some((metadata.index, metadata.term));
            let seconds = received.rows.bytes() / INSTALL_RATE;
            self.shared.allow(Duration::from_secs(seconds));
            update.install = Some((metadata, received.rows));
            self.applier.install(received.state);
        }
        let observer = &*self.args.observer;
        for entry in &write.committed {
            if let Some(waiting) = entry.ticket.and_then(|t| self.proposals.get(&t)) {
                observer.committed(waiting.age());
            }
        }
        let mut probe = ApplyTimer::new(observer);
        let progress = self.applier.apply(write.committed, &mut probe);
        position = progress.applied.or(position);
        if position.is_some() {
            update.state = Some(Arc::clone(self.applier.state()));
        }
        let Progress {
            rows,
            conf_state,
            events,
            answers,
            wanted,
            ..
        } = progress;
        update.rows.extend(rows);
        update.conf_state = conf_state;
        self.args.storage.write(update)?;
        self.shared.note_progress();
        self.send(write.messages_after);
        let (applied, term) = position.unwrap_or_default();
        self.core.handle_written(applied, term);
        if position.is_some() {
            let state = Arc::clone(self.applier.state());
            let index = state.applied_index;
            // State before events: a subscriber that reacts to an event reads the state.
            self.shared.publish(Arc::clone(&state));
            self.pending_states.answer(&wanted, &state);
            if installed {
                self.shared.hub.reset(index);
            }
            if !events.is_empty() {
                self.shared.hub.publish(events);
            }
        }
        self.answers.extend(answers);
        Ok(())
    }

    fn send(&self, messages: Vec<Message>) {
        for message in messages {
            let bytes = match message.write_to_bytes() {
                Ok(bytes) => bytes,
                Err(error) => {
                    tracing::error!(subsystem = "raft", %error, "raft message does not encode");
                    if message.get_msg_type() == MessageType::MsgSnapshot {
                        let lost = SnapshotId::of(&message);
                        self.args.handle.snapshot_sent(message.to, lost, false);
                    }
                    continue;
                }
            };
            if message.get_msg_type() == MessageType::MsgSnapshot {
                self.send_snapshot(&message, bytes);
            } else {
                self.args.transport.send(message.to, bytes);
            }
        }
    }

    fn send_snapshot(&self, message: &Message, bytes: Vec<u8>) {
        let (to, id) = (message.to, SnapshotId::of(message));
        let handle = self.args.handle.clone();
        let report = move |delivered| handle.snapshot_sent(to, id, delivered);
        let Some(state) = self.args.storage.take_outgoing(to, id.index) else {
            // Raft has requested a newer snapshot since; this one is lost.
            return report(false);
        };
        tracing::debug!(
            subsystem = "raft",
            to,
            index = id.index,
            "sending a snapshot"
        );
        let limit = SizeLimit {
            bytes: self.args.limits.snapshot_bytes,
            logged: Arc::clone(&self.oversize_logged),
        };
        let snapshot = OutgoingSnapshot::new(bytes, state, limit, report);
        self.args.transport.send_snapshot(to, snapshot);
    }

    fn answer(&mut self, ticket: Ticket, answer: Answer) {
        let result = match answer {
            Answer::Applied(index) => Ok(Committed { index }),
            Answer::Rejected(error) => Err(ProposeError::Rejected(error)),
            Answer::Halted(reason) => Err(ProposeError::Unknown(reason)),
        };
        if let Some(waiting) = self.proposals.remove(&ticket) {
            waiting.answer(result);
        }
    }

    fn answer_outcome(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Proposal(ticket, lost) => {
                let error = match lost {
                    ProposalLoss::NotAppended => ProposeError::NoLeader,
                    ProposalLoss::Unknown => ProposeError::Unknown("leadership was lost".into()),
                };
                if let Some(waiting) = self.proposals.remove(&ticket) {
                    waiting.answer(Err(error));
                }
            }
            Outcome::Read(ticket, result) => {
                let result = result.map_err(|failure| match failure {
                    ReadFailure::NoLeader => ReadError::NoLeader,
                    ReadFailure::QuorumLost => ReadError::QuorumLost,
                });
                if let Some(reply) = self.reads.remove(&ticket) {
                    let _ = reply.send(result);
                }
            }
        }
    }

    fn compact(&mut self) -> Result<(), Failure> {
        let first = self.args.storage.log_range().0.index + 1;
        let storage = &self.args.storage;
        let limits = &self.args.limits;
        let many = self.core.compaction(first, limits.compact_entries);
        let heavy = storage.log_excess(limits.log_bytes);
        let heavy = heavy.map(|index| index.min(storage.applied()));
        if let Some(index) = many.max(heavy).filter(|&index| index >= first) {
            storage.write(Update {
                compact: Some(index),
                ..Update::default()
            })?;
            tracing::debug!(subsystem = "raft", index, "log compacted");
        }
        Ok(())
    }

    /// Publishes the reloaded state. Resets the watchers if the last run wrote more than it
    /// published.
    fn republish(&self) {
        let state = Arc::clone(self.applier.state());
        let published = self.shared.state.borrow().applied_index;
        let index = state.applied_index;
        if published != index {
            self.shared.publish(state);
            self.shared.hub.reset(index);
        }
    }
}

/// Reports each applied command to the log and the observer.
struct ApplyTimer<'a> {
    observer: &'a dyn Observe,
    since: Instant,
}

impl<'a> ApplyTimer<'a> {
    fn new(observer: &'a dyn Observe) -> Self {
        let since = Instant::now();
        Self { observer, since }
    }
}

impl Probe for ApplyTimer<'_> {
    fn begin(&mut self) {
        self.since = Instant::now();
    }

    fn end(&mut self, index: u64, command: &v1::Command, accepted: bool) {
        let op = command_name(command);
        self.observer.applied(&Applied {
            index,
            op,
            ts: command.ts,
            accepted,
            took: self.since.elapsed(),
        });
        tracing::debug!(subsystem = "fsm", op, index, "applied");
    }
}
