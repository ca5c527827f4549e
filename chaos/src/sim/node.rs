//! The raft part of one daemon: drives the core and the state machine in the same steps as the
//! production driver.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use jaco_raftnode::{
    Role, State,
    apply::Applier,
    core::{
        Action, MemberChange, Outcome, ProposalLoss, RaftCore, RaftStatus, ReadFailure, SnapshotId,
        Ticket,
    },
};
use raft::eraftpb::{Message, MessageType};

use super::{
    bridges::Bridges,
    calls::{Reply, Requester},
    certificates::Certificates,
    cluster::{Cluster, Event, Inbox, Local},
    control::Control,
    disk::{Batch, View},
    fault::Promise,
    ipam::Ipam,
    isolation::Isolation,
    mesh::Mesh,
    mutation::Mutation,
    proposals::Proposal,
    routing::Routing,
    runtime::Runtime,
    step::Step,
    time::{MS, SECOND, Time},
};

/// An input of raft, queued in order.
#[derive(Debug)]
pub(super) enum Input {
    Tick,
    Message(Box<Message>),
    Propose(Ticket, Vec<u8>),
    Read(Ticket),
    Unreachable(u64),
    SnapshotSent(u64, SnapshotId, bool),
    Change(MemberChange),
    Transfer(u64),
}

/// Purpose of a consistent read that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reader {
    /// The node's own check that it has caught up, in this attempt.
    Confirm(u64),
    Client(u64),
}

/// A running daemon.
pub(super) struct Daemon {
    pub(super) core: RaftCore<View>,
    pub(super) applier: Applier,
    inbox: Inbox,
    pub(super) writing: Option<Step>,
    /// Number of writes that were begun.
    pub(super) writes: u64,
    /// The write under way takes so long that the node counts as stalled.
    pub(super) stalled: bool,
    /// The newest state that is on disk.
    pub(super) state: Arc<State>,
    pub(super) status: RaftStatus,
    next_ticket: Ticket,
    pub(super) proposals: BTreeMap<Ticket, Proposal>,
    pub(super) reads: BTreeMap<Ticket, Reader>,
    /// Calls to other nodes that have no reply yet.
    pub(super) calls: BTreeMap<u64, Requester>,
    /// Requests that complete when the local state reaches their index.
    pub(super) waiting: Vec<(u64, Requester)>,
    /// Reads that complete when the local state reaches their index.
    pub(super) waiting_reads: Vec<(u64, Reader)>,
    /// The change of a deployment that is under way: the next one is judged on the state after it.
    pub(super) commit_lock: Option<Ticket>,
    /// The actors have a notification of a new state that they have not handled yet.
    pub(super) notified: bool,
    pub(super) control: Control,
    pub(super) runtime: Runtime,
    /// The state that the network's actors handled last.
    pub(super) observed: Arc<State>,
    pub(super) ipam: Ipam,
    pub(super) bridges: Bridges,
    pub(super) isolation: Isolation,
    pub(super) mesh: Mesh,
    pub(super) routing: Routing,
    pub(super) certificates: Certificates,
}

impl Daemon {
    pub(super) fn new(now: Instant, core: RaftCore<View>, state: &Arc<State>, host: &str) -> Self {
        Self {
            status: core.status(),
            core,
            applier: Applier::new(State::clone(state)),
            inbox: Inbox::new(),
            writing: None,
            writes: 0,
            stalled: false,
            state: Arc::clone(state),
            next_ticket: 0,
            proposals: BTreeMap::new(),
            reads: BTreeMap::new(),
            calls: BTreeMap::new(),
            waiting: Vec::new(),
            waiting_reads: Vec::new(),
            commit_lock: None,
            notified: true,
            control: Control::new(host),
            runtime: Runtime::new(state),
            observed: Arc::new(State::default()),
            ipam: Ipam::default(),
            bridges: Bridges::default(),
            isolation: Isolation::new(now, host, state),
            mesh: Mesh::new(now, host),
            routing: Routing::new(state, host),
            certificates: Certificates::new(),
        }
    }

    pub(super) fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        self.next_ticket
    }

    /// Releases the commit lock if this proposal holds it.
    pub(super) fn release(&mut self, ticket: Ticket) {
        self.commit_lock.take_if(|holder| *holder == ticket);
    }

    /// Withdraws a proposal that raft has not taken yet; `false` if it has.
    pub(super) fn withdraw(&mut self, ticket: Ticket) -> bool {
        let before = self.inbox.len();
        self.inbox
            .retain(|input| !matches!(input, Input::Propose(queued, _) if *queued == ticket));
        let withdrawn = self.inbox.len() < before;
        if withdrawn {
            self.proposals.remove(&ticket);
            self.release(ticket);
        }
        withdrawn
    }

    /// Whether a proposal may be appended in `term`.
    fn may_append(&self, ticket: Ticket, term: u64) -> bool {
        let proposal = self.proposals.get(&ticket);
        let bound = proposal.and_then(|proposal| proposal.term);
        bound.is_none_or(|bound| bound == term)
    }

    /// Requesters that will never get an answer because this daemon ended.
    pub(super) fn unanswered(self) -> Vec<Requester> {
        let own = self.proposals.into_values().filter_map(Proposal::requester);
        let readers = self
            .reads
            .into_values()
            .chain(self.waiting_reads.into_iter().map(|(_, reader)| reader));
        let readers = readers.filter_map(|reader| match reader {
            Reader::Client(op) => Some(Requester::Client(op)),
            Reader::Confirm(_) => None,
        });
        own.chain(self.calls.into_values())
            .chain(self.waiting.into_iter().map(|(_, requester)| requester))
            .chain(readers)
            .collect()
    }
}

impl Cluster {
    /// Queues an input for raft, handled now or when the write under way is done.
    pub(super) fn input(&mut self, id: u64, input: Input) {
        if let Some(daemon) = self.daemon(id) {
            daemon.inbox.push_back(input);
        }
        self.drive(id);
    }

    pub(super) fn tick(&mut self, id: u64) {
        let Some(clock) = self.machines.get(&id).map(|m| m.clock) else {
            return;
        };
        let after = clock.after(self.now, 100 * MS) - self.now;
        self.schedule_local(id, after, Local::Tick);
        self.health_tick(id);
        self.input(id, Input::Tick);
    }

    pub(super) fn unreachable(&mut self, id: u64, peer: u64) {
        self.input(id, Input::Unreachable(peer));
    }

    pub(super) fn deliver(&mut self, message: Message) {
        let (from, to) = (message.from, message.to);
        let kind = message.get_msg_type();
        let up = self.machines.get(&to).is_some_and(|m| m.daemon.is_some());
        if kind == MessageType::MsgSnapshot {
            let snapshot = SnapshotId::of(&message);
            self.input(from, Input::SnapshotSent(to, snapshot, up));
        }
        // Peers reject messages of a removed node: its certificate belongs to no member.
        let member = self.machines.get(&from).is_some_and(|m| !m.removed);
        if up && member {
            self.input(to, Input::Message(Box::new(message)));
        }
    }

    /// Runs raft until it waits for a write or for input.
    pub(super) fn drive(&mut self, id: u64) {
        let mut outcomes = Vec::new();
        loop {
            let Some(daemon) = self.daemon(id) else {
                return;
            };
            if daemon.writing.is_some() {
                return;
            }
            match daemon.core.poll_action() {
                Err(error) => {
                    let what = format!("raft of {id} failed: {error}");
                    return self.oracle.violate("raft runs", what);
                }
                Ok(Some(Action::Write(write))) => self.perform(id, write),
                Ok(Some(Action::Outcome(outcome))) => outcomes.push(outcome),
                Ok(None) => {
                    self.publish_outcomes(id, std::mem::take(&mut outcomes));
                    if !self.handle_inbox(id) {
                        return;
                    }
                }
            }
        }
    }

    /// Passes queued inputs to raft; `false` if there were none.
    fn handle_inbox(&mut self, id: u64) -> bool {
        let counts_stale_votes = self.has(Mutation::StaleVote);
        let Some(daemon) = self.daemon(id) else {
            return false;
        };
        // An outcome may have led to a proposal that is being written by now.
        if daemon.inbox.is_empty() || daemon.writing.is_some() {
            return false;
        }
        let mut batch = Vec::new();
        let mut refused = Vec::new();
        let mut late = Vec::new();
        for input in std::mem::take(&mut daemon.inbox) {
            if let Input::Propose(ticket, data) = input {
                match daemon.may_append(ticket, daemon.core.status().term) {
                    true => batch.push((ticket, data)),
                    false => late.push(ticket),
                }
                continue;
            }
            daemon.core.handle_propose(std::mem::take(&mut batch));
            match input {
                Input::Tick => daemon.core.handle_tick(),
                Input::Message(mut message) => {
                    if counts_stale_votes {
                        count_stale(&mut message, &daemon.core.status());
                    }
                    let from = message.from;
                    if let Err(error) = daemon.core.handle_message(*message) {
                        refused.push(format!("{id} refused a message of {from}: {error}"));
                    }
                }
                Input::Propose(..) => {}
                Input::Read(ticket) => daemon.core.handle_read(ticket),
                Input::Unreachable(peer) => daemon.core.handle_unreachable(peer),
                Input::SnapshotSent(peer, snapshot, delivered) => {
                    daemon.core.handle_snapshot_sent(peer, snapshot, delivered);
                }
                Input::Change(change) => {
                    // A refused change is not retried: the policy runs again.
                    let _ = daemon.core.handle_member_change(change);
                }
                Input::Transfer(peer) => daemon.core.handle_transfer(peer),
            }
        }
        daemon.core.handle_propose(batch);
        for what in refused {
            self.oracle.violate("messages are accepted", what);
        }
        for ticket in late {
            self.proposal_lost(id, ticket, ProposalLoss::NotAppended);
        }
        self.observe(id);
        true
    }

    /// Checks the commit index and the leadership that raft claims after each step.
    pub(super) fn observe(&mut self, id: u64) {
        let Some(machine) = self.machines.get(&id) else {
            return;
        };
        let Some(daemon) = &machine.daemon else {
            return;
        };
        let status = daemon.core.status();
        if status.role != Role::Leader {
            return;
        }
        let (term, commit) = (status.term, status.commit);
        let elected = daemon.status.role != Role::Leader || daemon.status.term != term;
        self.oracle.record_commit(term, commit);
        if commit > self.oracle.durable {
            let wanted = machine.disk.borrow().current().term(commit);
            let durable = |voters: &[u64]| {
                let on_disk = voters.iter().filter(|voter| {
                    self.machines.get(voter).is_some_and(|m| {
                        let disk = m.disk.borrow();
                        let synced = disk.synced();
                        synced.truncated.0 >= commit || synced.term(commit) == wanted
                    })
                });
                2 * on_disk.count() > voters.len()
            };
            // The configuration may have changed with the very entries that were committed.
            if durable(&status.voters) || durable(&daemon.status.voters) {
                self.oracle.durable = commit;
            } else {
                let what = format!(
                    "{id} commits {commit} in term {term}, which is not on a majority of disks"
                );
                self.oracle.violate("committed is durable", what);
            }
        }
        if elected {
            let last = self.oracle.last_before(term);
            let holds = machine.disk.borrow().current().term(last);
            let below = machine.disk.borrow().current().truncated.0 > last;
            let holds = if below {
                self.oracle.committed_term(last)
            } else {
                holds
            };
            self.count("elections");
            self.note(&[6, id, term], || format!("n{id} leads term {term}"));
            self.oracle.check_leader(id, term, holds);
        }
    }

    /// Delivers the outcomes that raft has decided, and updates the published status.
    fn publish_outcomes(&mut self, id: u64, outcomes: Vec<Outcome>) {
        let Some(daemon) = self.daemon(id) else {
            return;
        };
        let status = daemon.core.status();
        let old = std::mem::replace(&mut daemon.status, status.clone());
        if old.leading != status.leading {
            self.leadership(id, status.leading);
        }
        if old.leader_id.is_some() != status.leader_id.is_some() {
            self.reachability.hinder(id, self.now);
            self.isolation_leader(id);
        }
        for outcome in outcomes {
            let Some(daemon) = self.daemon(id) else {
                return;
            };
            match outcome {
                Outcome::Proposal(ticket, lost) => self.proposal_lost(id, ticket, lost),
                Outcome::Read(ticket, result) => {
                    let Some(reader) = daemon.reads.remove(&ticket) else {
                        continue;
                    };
                    self.read_index(id, reader, result);
                }
            }
        }
        self.complete_waiting(id);
        self.compact(id);
    }

    fn read_index(&mut self, id: u64, reader: Reader, result: Result<u64, ReadFailure>) {
        match (reader, result) {
            (reader, Ok(index)) => {
                if let Some(daemon) = self.daemon(id) {
                    daemon.waiting_reads.push((index, reader));
                }
            }
            (Reader::Confirm(attempt), Err(_)) => self.confirmed(id, attempt, false),
            (Reader::Client(op), Err(_)) => {
                self.clients.lose(op, self.now, &mut self.agenda);
            }
        }
    }

    /// Completes the requests and reads whose index the local state has reached.
    pub(super) fn complete_waiting(&mut self, id: u64) {
        let Some(daemon) = self.daemon(id) else {
            return;
        };
        let applied = daemon.state.applied_index;
        let shown = |(index, _): &mut (u64, _)| *index <= applied;
        let done: Vec<(u64, Requester)> = daemon.waiting.extract_if(.., shown).collect();
        let shown = |(index, _): &mut (u64, _)| *index <= applied;
        let read: Vec<_> = daemon.waiting_reads.extract_if(.., shown).collect();
        for (index, requester) in done {
            self.complete(id, requester, Reply::Done(index));
        }
        for (_, reader) in read {
            match reader {
                Reader::Client(op) => self.read_done(op, applied),
                Reader::Confirm(attempt) => self.confirmed(id, attempt, true),
            }
        }
    }

    fn compact(&mut self, id: u64) {
        let limit = self.compact_entries;
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let Some(daemon) = &machine.daemon else {
            return;
        };
        let first = machine.disk.borrow().current().truncated.0 + 1;
        if let Some(index) = daemon.core.compaction(first, limit) {
            let batch = Batch {
                compact: Some(index),
                ..Batch::default()
            };
            let written = machine.disk.borrow_mut().write(batch, false);
            self.check_write(id, written);
            self.note(&[8, id, index], || format!("n{id} compacts up to {index}"));
        }
    }

    pub(super) fn send(&mut self, id: u64, messages: Vec<Message>) {
        for message in messages {
            self.send_one(id, message);
        }
    }

    /// Springs a trap that waits for the promise this message makes.
    fn spring_trap(&mut self, id: u64, message: &Message) {
        let promise = match message.get_msg_type() {
            _ if message.reject => return,
            MessageType::MsgRequestVoteResponse => Promise::Vote,
            MessageType::MsgAppendResponse => Promise::Entries,
            MessageType::MsgAppend => Promise::Leadership,
            _ => return,
        };
        let sprung = self.traps.iter().find(|(_, trap)| trap.0 == promise);
        if let Some((&number, &(_, crash, span))) = sprung {
            self.traps.remove(&number);
            self.count("traps sprung");
            self.agenda
                .add(self.now, Event::TrapSprung(id, crash, span));
        }
    }

    fn send_one(&mut self, id: u64, message: Message) {
        let to = message.to;
        let kind = message.get_msg_type();
        if !self.traps.is_empty() {
            self.spring_trap(id, &message);
        }
        let bytes = match &message.snapshot {
            Some(snapshot) => snapshot.data.len(),
            None => message.entries.iter().map(|e| e.data.len() + 16).sum(),
        };
        let numbers = [
            9,
            id,
            to,
            kind as u64,
            message.term,
            message.index,
            message.log_term,
            message.commit,
            message.entries.len() as u64,
            u64::from(message.reject),
        ];
        let deliveries = self.network.deliveries(id, to, bytes);
        self.note(&numbers, || {
            let lost = if deliveries.is_empty() { ", lost" } else { "" };
            format!(
                "n{id} -> n{to} {kind:?} term {} at {} of term {} commit {} with {}{}{lost}",
                message.term,
                message.index,
                message.log_term,
                message.commit,
                message.entries.len(),
                if message.reject { ", rejects" } else { "" },
            )
        });
        if deliveries.is_empty() {
            let after = self.chance.within(5 * MS..SECOND);
            if kind == MessageType::MsgSnapshot {
                self.schedule_local(id, after, Local::Unreachable(to));
                let snapshot = SnapshotId::of(&message);
                self.input_later(id, Input::SnapshotSent(to, snapshot, false));
            } else if after < SECOND / 2 {
                self.schedule_local(id, after, Local::Unreachable(to));
            }
            return;
        }
        for after in deliveries {
            let event = Event::Raft(Box::new(message.clone()));
            self.agenda.add(self.now + after, event);
        }
    }

    fn input_later(&mut self, id: u64, input: Input) {
        if let Some(daemon) = self.daemon(id) {
            daemon.inbox.push_back(input);
        }
    }
}

/// Turns a vote granted in an earlier term into one of the current term.
fn count_stale(message: &mut Message, status: &RaftStatus) {
    let vote = message.get_msg_type() == MessageType::MsgRequestVoteResponse;
    if vote && !message.reject && message.term < status.term {
        message.term = status.term;
    }
}

/// Time limit of a call to another node.
pub(super) const CALL_TIMEOUT: Time = 5 * SECOND;
