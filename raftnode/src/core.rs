//! Raft without I/O: events in, writes and outcomes out.
//!
//! [`RaftCore`] wraps raft-rs. The driver calls `handle_*`, and after every event takes each
//! [`Action`] from [`RaftCore::poll_action`]: it performs a [`Write`] and reports back with
//! [`RaftCore::handle_written`], and it answers its requests by their [`Outcome`]s. The core reads
//! the log through `raft::Storage` and uses nothing else: no clock, no disk, no socket. raft-rs
//! counts time in ticks, so no event carries a time.
//!
//! The core is deterministic. Election timeouts, which raft-rs draws from the thread's random
//! generator, are replaced by draws from [`Config::seed`] before a tick can use them. Equal events
//! lead to equal actions, byte for byte.

mod compact;
mod config;
mod entry;
mod inbound;
mod member;
mod quorum;
mod reads;
mod snapshot;
mod status;
mod track;
mod write;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use raft::{
    RawNode, StateRole, Storage,
    eraftpb::{ConfChangeV2, Entry, Message, MessageType},
};

pub use config::Config;
pub use entry::{Committed, Payload};
pub(crate) use entry::{Decoded, decode};
pub use inbound::Refused;
pub use member::{ChangeRefused, MemberChange};
pub use reads::ReadFailure;
pub use snapshot::SnapshotId;
pub use status::{Progress, RaftStatus, Role, Writes};
pub use track::ProposalLoss;
pub use write::Write;

use quorum::QuorumTracker;
use reads::{PeerRequests, Reads};
use track::Proposals;
use write::Stage;

/// Id that the driver gives to a proposal or a read, unique while the core lives.
pub type Ticket = u64;

/// Failure of raft itself; the core must not be used after one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Raft rejected its configuration or could not read its log.
    #[error("raft failed")]
    Raft(#[from] raft::Error),
    /// A committed configuration change does not decode.
    #[error("configuration change at log index {index} is damaged")]
    ConfChange {
        /// Log index of the change.
        index: u64,
    },
}

/// Outcome of a proposal or a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The proposal was not, or may not have been, committed. Committed proposals come back as
    /// [`Committed::ticket`].
    Proposal(Ticket, ProposalLoss),
    /// The state at or after this index answers the read linearizably.
    Read(Ticket, Result<u64, ReadFailure>),
}

/// Action that the driver must carry out.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "an action is only moved to the driver, and a box would be allocated for every step"
)]
pub enum Action {
    /// Perform this step and report it with [`RaftCore::handle_written`].
    Write(Write),
    /// Answer a request.
    Outcome(Outcome),
}

/// The raft state of one node.
pub struct RaftCore<S: Storage> {
    config: Config,
    raw: RawNode<S>,
    stage: Stage,
    proposals: Proposals,
    reads: Reads,
    peer_requests: PeerRequests,
    quorum: QuorumTracker,
    outcomes: VecDeque<Outcome>,
    applied_term: u64,
    /// Whether the state machine has stopped applying entries.
    halted: bool,
}

impl<S: Storage> RaftCore<S> {
    /// Loads the raft state from `storage`.
    ///
    /// # Errors
    /// [`Error::Raft`] if the configuration is invalid or the storage cannot be read.
    pub fn new(config: &Config, storage: S, logger: &slog::Logger) -> Result<Self, Error> {
        let applied_term = storage.term(config.applied)?;
        let mut core = Self {
            config: config.clone(),
            raw: RawNode::new(&config.raft(), storage, logger)?,
            stage: Stage::Idle,
            proposals: Proposals::default(),
            reads: Reads::new(config.id, config.incarnation),
            peer_requests: PeerRequests::default(),
            quorum: QuorumTracker::default(),
            outcomes: VecDeque::new(),
            applied_term,
            halted: false,
        };
        core.after_event();
        Ok(core)
    }

    /// Starts an election at once if this node is the only voter; otherwise timeouts decide.
    ///
    /// # Errors
    /// [`Error::Raft`] if the log cannot be read.
    pub fn handle_start(&mut self) -> Result<(), Error> {
        let conf = self.raw.raft.prs().conf().to_conf_state();
        if conf.voters == [self.raw.raft.id] && conf.voters_outgoing.is_empty() {
            self.raw.campaign()?;
        }
        self.after_event();
        Ok(())
    }

    /// Appends `batch` in order, in one step. Each item gets exactly one answer: as
    /// [`Committed::ticket`] or as [`Outcome::Proposal`].
    pub fn handle_propose(&mut self, batch: Vec<(Ticket, Vec<u8>)>) {
        if batch.is_empty() {
            return;
        }
        let raft = &mut self.raw.raft;
        let refuse = |outcomes: &mut VecDeque<Outcome>, batch: Vec<(Ticket, Vec<u8>)>| {
            outcomes.extend(
                batch
                    .into_iter()
                    .map(|(t, _)| Outcome::Proposal(t, ProposalLoss::NotAppended)),
            );
        };
        // raft-rs would forward the entries of a follower, whose tickets could not be matched then.
        if raft.state != StateRole::Leader {
            return refuse(&mut self.outcomes, batch);
        }
        let before = raft.raft_log.last_index();
        let (tickets, entries): (Vec<_>, Vec<_>) = batch
            .into_iter()
            .map(|(ticket, data)| {
                (
                    ticket,
                    Entry {
                        data,
                        ..Entry::default()
                    },
                )
            })
            .unzip();
        let mut message = Message {
            from: raft.id,
            entries,
            ..Message::default()
        };
        message.set_msg_type(MessageType::MsgPropose);
        match raft.step(message) {
            Ok(()) => self.proposals.track(raft.term, before + 1, tickets),
            // raft-rs drops the message as a whole, during a leadership transfer.
            Err(_) => {
                let lost = |t| Outcome::Proposal(t, ProposalLoss::NotAppended);
                self.outcomes.extend(tickets.into_iter().map(lost));
            }
        }
        self.after_event();
    }

    /// Current term.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.raw.raft.term
    }

    /// Ticks since a majority of voters was last in contact.
    #[must_use]
    pub fn ticks_without_quorum(&self) -> u64 {
        self.quorum.ticks_without_quorum()
    }

    /// Whether proposals of this node are not committed yet.
    #[must_use]
    pub fn awaits_majority(&self) -> bool {
        let committed = self.raw.raft.raft_log.committed;
        self.proposals.last().is_some_and(|index| index > committed)
    }

    /// Proposes a change of voters or learners, whether it applies to them or not.
    ///
    /// # Errors
    /// [`ChangeRefused`]; nothing was appended.
    pub fn handle_conf_change(&mut self, change: &ConfChangeV2) -> Result<(), ChangeRefused> {
        if self.raw.raft.state != StateRole::Leader {
            return Err(ChangeRefused::NotLeader);
        }
        if self.raw.raft.has_pending_conf() {
            return Err(ChangeRefused::Pending);
        }
        let proposed = self.raw.propose_conf_change(Vec::new(), change.clone());
        proposed.map_err(|_| ChangeRefused::NotLeader)
    }

    /// Starts a leadership transfer to `to`; does nothing unless this node leads.
    pub fn handle_transfer(&mut self, to: u64) {
        // raft-rs would forward the request of a follower.
        if self.raw.raft.state == StateRole::Leader {
            self.raw.transfer_leader(to);
        }
        self.after_event();
    }

    /// Handles whether the state machine has stopped.
    ///
    /// While it is stopped this node votes and stores the log as before, but it transfers
    /// leadership and does not stand for election, because it cannot answer proposals or reads.
    pub fn handle_halted(&mut self, halted: bool) {
        if std::mem::replace(&mut self.halted, halted) != halted {
            self.after_event();
        }
    }

    /// Whether the state machine has stopped, as last reported.
    #[must_use]
    pub fn is_halted(&self) -> bool {
        self.halted
    }

    /// Handles a message of a peer.
    ///
    /// # Errors
    /// [`Refused`] for a message that no correct peer sends; the state is unchanged then.
    pub fn handle_message(&mut self, message: Message) -> Result<(), Refused> {
        inbound::check(&self.raw, &message)?;
        let from = message.from;
        // raft-rs would forward the read under the sender's id, which peers reject, and confirm later
        // reads by answers to an earlier copy; drop such a read, the sender retries.
        let for_leader = message.get_msg_type() == MessageType::MsgReadIndex;
        let leads = self.raw.raft.state == StateRole::Leader;
        let mut is_new = |entry: &Entry| self.peer_requests.handle_request(from, &entry.data);
        if for_leader && !(leads && message.entries.first().is_some_and(&mut is_new)) {
            self.quorum.record_message(from, self.raw.raft.leader_id);
            return Ok(());
        }
        if self.halted && message.get_msg_type() == MessageType::MsgTimeoutNow {
            self.quorum.record_message(from, self.raw.raft.leader_id);
            return Ok(());
        }
        // An error of raft-rs (a response of an unknown peer) is treated like a lost message.
        let _ = self.raw.step(message);
        self.quorum.record_message(from, self.raw.raft.leader_id);
        self.after_event();
        Ok(())
    }

    /// Reports that a message to `peer` could not be delivered.
    pub fn handle_unreachable(&mut self, peer: u64) {
        self.raw.report_unreachable(peer);
        self.after_event();
    }

    /// Advances raft's clock by one tick, of which raft-rs counts its timeouts. There is no `now`:
    /// the driver counts the ticks that have passed before it handles any other event, and sleeps
    /// through those that [`RaftCore::quiet_ticks`] allows.
    pub fn handle_tick(&mut self) {
        self.raw.tick();
        self.reads.tick();
        self.quorum.tick();
        self.after_event();
    }

    /// Number of the next ticks without an effect, apart from the age of contacts, if no other event
    /// comes before them.
    ///
    /// Only a follower of a known leader has any: a leader sends heartbeats, a candidate counts
    /// votes, and reads are sent again.
    #[must_use]
    pub fn quiet_ticks(&self) -> u64 {
        let raft = &self.raw.raft;
        let follows = raft.state == StateRole::Follower && raft.leader_id != raft::INVALID_ID;
        if !follows || !self.reads.is_empty() || self.quorum_lost() {
            return 0;
        }
        let loss = self.quorum_lost_after() - self.quorum.ticks_without_quorum();
        let election = if raft.promotable() {
            let elapsed = raft.election_elapsed as u64;
            (raft.randomized_election_timeout() as u64).saturating_sub(elapsed)
        } else {
            u64::MAX
        };
        loss.min(election).saturating_sub(1)
    }

    /// Requests the log index at which a linearizable read can be answered.
    pub fn handle_read(&mut self, ticket: Ticket) {
        self.reads.add(ticket);
        self.after_event();
    }

    /// Takes the next action: the steps, each once the one before it is reported with
    /// [`RaftCore::handle_written`], and then the outcomes, oldest first. While a step is being
    /// performed there are only outcomes, so report it before the next call.
    ///
    /// # Errors
    /// [`Error::ConfChange`] for a committed entry that does not decode, [`Error::Raft`] for a
    /// configuration that raft rejects.
    pub fn poll_action(&mut self) -> Result<Option<Action>, Error> {
        if let Some(write) = self.next_write()? {
            return Ok(Some(Action::Write(write)));
        }
        Ok(self.outcomes.pop_front().map(Action::Outcome))
    }

    /// Keeps a node that cannot apply entries from leading.
    fn avoid_leading(&mut self) {
        let raft = &mut self.raw.raft;
        match raft.state {
            // The election timeout passed; restart it as a follower.
            StateRole::PreCandidate | StateRole::Candidate => {
                raft.become_follower(raft.term, raft::INVALID_ID);
            }
            StateRole::Leader if raft.lead_transferee.is_none() => {
                if let Some(target) = self.status().transfer_target() {
                    self.raw.transfer_leader(target);
                }
            }
            StateRole::Leader | StateRole::Follower => {}
        }
    }

    /// Derives the consequences of an event: lost proposals, reads to send or to expire.
    fn after_event(&mut self) {
        if self.halted {
            self.avoid_leading();
        }
        let timeout = self.config.election_timeout(self.raw.raft.term);
        self.raw.raft.set_randomized_election_timeout(timeout);
        let raft = &self.raw.raft;
        let leading = raft.state == StateRole::Leader;
        for ticket in self.proposals.lost(leading.then_some(raft.term)) {
            self.outcomes
                .push_back(Outcome::Proposal(ticket, ProposalLoss::Unknown));
        }
        let ready = !leading || raft.commit_to_current_term();
        if raft.leader_id != raft::INVALID_ID && ready {
            for context in self.reads.due() {
                self.raw.read_index(context);
            }
        }
        let raft = &self.raw.raft;
        if self.quorum.changed(raft.leader_id) {
            let conf = raft.prs().conf().to_conf_state();
            self.quorum.update(raft.id, raft.leader_id, &conf);
        }
        let has_leader = self.raw.raft.leader_id != raft::INVALID_ID;
        let lost = self.quorum_lost();
        for (ticket, failure) in self.reads.expired(has_leader, lost) {
            self.outcomes.push_back(Outcome::Read(ticket, Err(failure)));
        }
    }
}
