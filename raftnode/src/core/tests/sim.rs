//! Simulated cluster.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use raft::{
    GetEntriesContext, RaftState, StorageError,
    eraftpb::{
        ConfChangeType, ConfState, Entry, HardState, Message, MessageType, Snapshot,
        SnapshotMetadata,
    },
};

use super::super::*;

#[derive(Clone, Default)]
struct Content {
    hard_state: HardState,
    conf_state: ConfState,
    truncated: (u64, u64),
    entries: Vec<Entry>,
    applied: (u64, u64),
    /// Applied proposals: (index, id).
    machine: Vec<(u64, u64)>,
}

impl Content {
    fn last(&self) -> (u64, u64) {
        let last = self.entries.last();
        last.map_or(self.truncated, |e| (e.index, e.term))
    }
}

#[derive(Default)]
struct Disk {
    cached: Content,
    synced: Content,
    writes: usize,
    syncs: usize,
}

#[derive(Clone, Default)]
pub(super) struct View(Rc<RefCell<Disk>>);

impl raft::Storage for View {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let disk = self.0.borrow();
        Ok(RaftState {
            hard_state: disk.cached.hard_state.clone(),
            conf_state: disk.cached.conf_state.clone(),
        })
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        let content = &self.0.borrow().cached;
        if low <= content.truncated.0 {
            return Err(StorageError::Compacted.into());
        }
        let offset = |index: u64| (index - content.truncated.0 - 1) as usize;
        let mut entries = content.entries[offset(low)..offset(high)].to_vec();
        raft::util::limit_size(&mut entries, max_size.into());
        Ok(entries)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        let content = &self.0.borrow().cached;
        if index == content.truncated.0 {
            return Ok(content.truncated.1);
        }
        if index < content.truncated.0 {
            return Err(StorageError::Compacted.into());
        }
        let entry = content
            .entries
            .get((index - content.truncated.0 - 1) as usize);
        entry
            .map(|e| e.term)
            .ok_or(StorageError::Unavailable.into())
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.0.borrow().cached.truncated.0 + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.0.borrow().cached.last().0)
    }

    fn snapshot(&self, _request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        let content = &self.0.borrow().cached;
        let pair = |&(index, id): &(u64, u64)| [index.to_be_bytes(), id.to_be_bytes()].concat();
        Ok(Snapshot {
            data: content.machine.iter().flat_map(pair).collect(),
            metadata: Some(SnapshotMetadata {
                conf_state: Some(content.conf_state.clone()),
                index: content.applied.0,
                term: content.applied.1,
            }),
        })
    }
}

struct Node {
    core: RaftCore<View>,
    disk: View,
}

pub(super) struct SimCluster {
    nodes: BTreeMap<u64, Node>,
    network: Vec<Message>,
    /// Snapshots that are kept instead of delivered, if any are to be.
    held: Option<Vec<Message>>,
    isolated: BTreeSet<u64>,
    /// Nodes on one side of a partition; all others are on the other side.
    side: BTreeSet<u64>,
    rng: u64,
    next_id: u64,
    runs: u64,
    /// The proposal that was first applied at an index; all nodes must apply the same.
    history: BTreeMap<u64, u64>,
    violations: Vec<String>,
    acknowledged: Vec<u64>,
    not_appended: Vec<u64>,
    unknown: Vec<u64>,
    reads: Vec<Result<u64, ReadFailure>>,
}

impl SimCluster {
    pub(super) fn new(voters: u64, seed: u64) -> Self {
        let mut cluster = Self {
            nodes: BTreeMap::new(),
            network: Vec::new(),
            held: None,
            isolated: BTreeSet::new(),
            side: BTreeSet::new(),
            rng: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            next_id: 1,
            runs: 0,
            history: BTreeMap::new(),
            violations: Vec::new(),
            acknowledged: Vec::new(),
            not_appended: Vec::new(),
            unknown: Vec::new(),
            reads: Vec::new(),
        };
        let mut content = Content {
            truncated: (1, 1),
            applied: (1, 1),
            ..Content::default()
        };
        content.conf_state.voters = (1..=voters).collect();
        (content.hard_state.term, content.hard_state.commit) = (1, 1);
        for id in 1..=voters {
            cluster.boot(id, content.clone());
        }
        cluster
    }

    /// Adds a node with an empty disk.
    pub(super) fn join(&mut self, id: u64) {
        self.boot(id, Content::default());
    }

    fn boot(&mut self, id: u64, content: Content) {
        self.runs += 1;
        let config = Config::new(id, content.applied.0, self.runs);
        let disk = View(Rc::new(RefCell::new(Disk {
            cached: content.clone(),
            synced: content,
            ..Disk::default()
        })));
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let mut core = RaftCore::new(&config, disk.clone(), &logger).unwrap();
        core.handle_start().unwrap();
        self.nodes.insert(id, Node { core, disk });
        self.drive(id);
    }

    /// Stops a node and restarts it from its disk; without `clean`, unsynced writes are lost.
    pub(super) fn restart(&mut self, id: u64, clean: bool) {
        let node = self.nodes.remove(&id).unwrap();
        let disk = node.disk.0.borrow();
        let content = if clean { &disk.cached } else { &disk.synced };
        self.boot(id, content.clone());
    }

    pub(super) fn status(&self, id: u64) -> RaftStatus {
        self.nodes[&id].core.status()
    }

    pub(super) fn compaction(&self, id: u64, limit: u64) -> Option<u64> {
        let first = self.nodes[&id].disk.first_index().unwrap();
        self.nodes[&id].core.compaction(first, limit)
    }

    pub(super) fn syncs(&self, id: u64) -> usize {
        self.nodes[&id].disk.0.borrow().syncs
    }

    pub(super) fn writes(&self, id: u64) -> usize {
        self.nodes[&id].disk.0.borrow().writes
    }

    pub(super) fn applied_ids(&self, id: u64) -> Vec<u64> {
        let disk = self.nodes[&id].disk.0.borrow();
        disk.cached.machine.iter().map(|&(_, id)| id).collect()
    }

    pub(super) fn acknowledged(&self) -> Vec<u64> {
        self.acknowledged.clone()
    }

    pub(super) fn not_appended(&self) -> Vec<u64> {
        self.not_appended.clone()
    }

    pub(super) fn unknown(&self) -> Vec<u64> {
        self.unknown.clone()
    }

    pub(super) fn reads(&self) -> Vec<Result<u64, ReadFailure>> {
        self.reads.clone()
    }

    pub(super) fn isolate(&mut self, id: u64) {
        self.isolated.insert(id);
    }

    pub(super) fn heal(&mut self) {
        self.isolated.clear();
        self.side.clear();
    }

    /// Cuts the nodes of `side` off from all others.
    pub(super) fn split(&mut self, side: &[u64]) {
        self.side = side.iter().copied().collect();
    }

    pub(super) fn transfer(&mut self, id: u64, to: u64) {
        self.core(id).handle_transfer(to);
        self.drive(id);
    }

    pub(super) fn halt(&mut self, id: u64, halted: bool) {
        assert_ne!(self.core(id).is_halted(), halted);
        self.core(id).handle_halted(halted);
        self.drive(id);
    }

    /// Reports to `from` whether `to` received a snapshot.
    pub(super) fn report_snapshot(&mut self, from: u64, to: u64, id: SnapshotId, delivered: bool) {
        self.core(from).handle_snapshot_sent(to, id, delivered);
        self.drive(from);
    }

    pub(super) fn needs_snapshot(&self, id: u64, from: u64, snapshot: SnapshotId) -> bool {
        self.nodes[&id].core.needs_snapshot(from, snapshot)
    }

    /// Keeps snapshots from now on, instead of delivering them.
    pub(super) fn hold_snapshots(&mut self) {
        self.held = Some(Vec::new());
    }

    /// Takes the snapshots kept so far.
    pub(super) fn held(&mut self) -> Vec<Message> {
        self.held.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Delivers a snapshot that was kept, and all later ones at once.
    pub(super) fn release(&mut self, message: Message) {
        self.held = None;
        self.deliver(message);
    }

    pub(super) fn member(&mut self, id: u64, change: MemberChange) -> Result<(), ChangeRefused> {
        let appended = self.core(id).handle_member_change(change);
        self.drive(id);
        appended
    }

    /// Advances the clock of all nodes by one tick.
    pub(super) fn tick_all(&mut self) {
        let ids: Vec<_> = self.nodes.keys().copied().collect();
        for id in ids {
            self.tick(id);
        }
    }

    /// Advances the clocks of all nodes by `ticks` and delivers all messages.
    pub(super) fn pass(&mut self, ticks: u32) {
        for _ in 0..ticks {
            self.tick_all();
            self.deliver_all();
        }
    }

    /// Advances the clock of a node by one tick, which has no effect if it counts as quiet.
    pub(super) fn tick(&mut self, id: u64) {
        let core = self.core(id);
        let (quiet, before) = (core.quiet_ticks(), core.status());
        core.handle_tick();
        if quiet > 0 {
            let reachable = before.reachable.clone();
            let after = core.status();
            assert_eq!(RaftStatus { reachable, ..after }, before, "node {id}");
            assert_eq!(core.poll_action().unwrap(), None, "node {id}");
            assert!(core.quiet_ticks() >= quiet - 1, "node {id}");
        }
        self.drive(id);
    }

    pub(super) fn read(&mut self, id: u64) {
        self.core(id).handle_read(u64::MAX);
        self.drive(id);
    }

    pub(super) fn inject(&mut self, id: u64, message: Message) -> Result<(), Refused> {
        self.core(id).handle_message(message)
    }

    /// Carries out the pending actions of a node after [`SimCluster::inject`].
    pub(super) fn answer(&mut self, id: u64) {
        self.drive(id);
    }

    pub(super) fn change(&mut self, id: u64, changes: &[(u64, ConfChangeType)]) -> bool {
        let appended = self.core(id).handle_conf_change(&super::change(changes));
        self.drive(id);
        appended.is_ok()
    }

    /// Proposes `count` new ids in one batch; each id is its own ticket.
    pub(super) fn propose(&mut self, id: u64, count: u64) -> Vec<u64> {
        let ids: Vec<_> = (self.next_id..self.next_id + count).collect();
        self.next_id += count;
        let batch = ids.iter().map(|id| (*id, id.to_be_bytes().to_vec()));
        let batch = batch.collect();
        self.core(id).handle_propose(batch);
        self.drive(id);
        ids
    }

    /// Advances time until a connected node leads.
    pub(super) fn elect(&mut self) -> u64 {
        for _ in 0..500 {
            let reachable: Vec<_> = self.reachable();
            for id in reachable {
                self.tick(id);
                self.deliver_all();
                if self.status(id).leading {
                    return id;
                }
            }
        }
        panic!("no leader after 500 rounds");
    }

    /// Advances time until all nodes agree; `false` if they do not.
    pub(super) fn converge(&mut self) -> bool {
        for _ in 0..1000 {
            self.deliver_all();
            let all: Vec<_> = self.nodes.keys().map(|&id| self.status(id)).collect();
            let last = all.iter().map(|s| s.last_index).max();
            let agreed = all
                .iter()
                .all(|s| Some(s.applied) == last && s.leader_id == all[0].leader_id);
            if agreed && all[0].leader_id.is_some() {
                return self.check().is_ok();
            }
            for id in self.reachable() {
                self.tick(id);
            }
        }
        false
    }

    pub(super) fn deliver_all(&mut self) {
        for _ in 0..10_000 {
            if self.network.is_empty() {
                return;
            }
            let message = self.network.remove(0);
            self.deliver(message);
        }
        panic!("messages never stop");
    }

    /// Performs one random event.
    pub(super) fn step(&mut self) {
        let node = 1 + self.random(self.nodes.len() as u64);
        match self.random(100) {
            0..40 if !self.network.is_empty() => {
                let at = self.random(self.network.len() as u64) as usize;
                let message = self.network.swap_remove(at);
                self.deliver(message);
            }
            40..45 if !self.network.is_empty() => {
                let at = self.random(self.network.len() as u64) as usize;
                let message = self.network.swap_remove(at);
                self.lose(&message);
            }
            45..80 => self.tick(node),
            80..92 => {
                let count = 1 + self.random(3);
                self.propose(node, count);
            }
            92..94 => {
                let clean = self.random(2) == 0;
                self.restart(node, clean);
            }
            94..96 => self.isolate(node),
            96..99 => self.heal(),
            _ => self.compact(node),
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        match self.violations.first() {
            Some(violation) => Err(violation.clone()),
            None => Ok(()),
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.rng ^= self.rng << 13;
        self.rng ^= self.rng >> 7;
        self.rng ^= self.rng << 17;
        self.rng % below
    }

    fn reachable(&self) -> Vec<u64> {
        let ids = self.nodes.keys().copied();
        ids.filter(|id| !self.isolated.contains(id)).collect()
    }

    fn core(&mut self, id: u64) -> &mut RaftCore<View> {
        &mut self.nodes.get_mut(&id).unwrap().core
    }

    /// Drops all applied entries from the node's log, so that slow nodes need a snapshot.
    pub(super) fn compact(&mut self, id: u64) {
        let mut disk = self.nodes[&id].disk.0.borrow_mut();
        for content in [0, 1] {
            let content = match content {
                0 => &mut disk.cached,
                _ => &mut disk.synced,
            };
            content.entries.retain(|e| e.index > content.applied.0);
            content.truncated = content.applied;
        }
    }

    fn deliver(&mut self, message: Message) {
        let split = self.side.contains(&message.from) != self.side.contains(&message.to);
        let lone = self.isolated.contains(&message.from) || self.isolated.contains(&message.to);
        let cut = split || lone;
        if cut || !self.nodes.contains_key(&message.to) {
            return self.lose(&message);
        }
        let (from, to) = (message.from, message.to);
        let snapshot = message.get_msg_type() == MessageType::MsgSnapshot;
        if let Some(held) = self.held.as_mut().filter(|_| snapshot) {
            return held.push(message);
        }
        let id = SnapshotId::of(&message);
        if let Err(refused) = self.core(to).handle_message(message) {
            self.violations
                .push(format!("{to} refused {from}: {refused}"));
        }
        self.drive(to);
        if snapshot {
            self.report_snapshot(from, to, id, true);
        }
    }

    fn lose(&mut self, message: &Message) {
        if message.get_msg_type() == MessageType::MsgSnapshot {
            let id = SnapshotId::of(message);
            return self.report_snapshot(message.from, message.to, id, false);
        }
        self.core(message.from).handle_unreachable(message.to);
        self.drive(message.from);
    }

    /// Carries out the pending actions of the core of `id`, like the driver.
    fn drive(&mut self, id: u64) {
        while let Some(action) = self.core(id).poll_action().unwrap() {
            let write = match action {
                Action::Write(write) => write,
                Action::Outcome(outcome) => {
                    self.record(outcome);
                    continue;
                }
            };
            let early = write.messages.iter().find(|m| promises(m));
            if let Some(message) = early.filter(|_| write.sync) {
                let kind = message.get_msg_type();
                self.violations
                    .push(format!("{id} sent {kind:?} before its disk was synced"));
            }
            self.network.extend(write.messages.iter().cloned());
            let (applied, term) = self.perform(id, &write);
            self.network.extend(write.messages_after);
            self.core(id).handle_written(applied, term);
            for entry in &write.committed {
                self.acknowledged.extend(entry.ticket);
            }
        }
    }

    fn record(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Proposal(id, ProposalLoss::NotAppended) => self.not_appended.push(id),
            Outcome::Proposal(id, ProposalLoss::Unknown) => self.unknown.push(id),
            Outcome::Read(_, result) => self.reads.push(result),
        }
    }

    fn perform(&mut self, id: u64, write: &Write) -> (u64, u64) {
        let mut disk = self.nodes[&id].disk.0.borrow_mut();
        disk.writes += 1;
        let durable = disk.synced.last().0;
        let content = &mut disk.cached;
        if let Some(snapshot) = &write.snapshot {
            let metadata = snapshot.get_metadata();
            content.truncated = (metadata.index, metadata.term);
            content.applied = content.truncated;
            content.entries.clear();
            content.conf_state = metadata.get_conf_state().clone();
            let number = |b: &[u8]| u64::from_be_bytes(b.try_into().unwrap());
            let pairs = snapshot.data.chunks(16);
            content.machine = pairs.map(|p| (number(&p[..8]), number(&p[8..]))).collect();
        }
        if let Some(first) = write.entries.first() {
            assert!(first.index > content.applied.0, "applied entries are final");
            assert!(first.index <= content.last().0 + 1, "gap");
            content.entries.retain(|e| e.index < first.index);
            content.entries.extend(write.entries.iter().cloned());
        }
        if let Some(hard_state) = &write.hard_state {
            content.hard_state = hard_state.clone();
        }
        for entry in &write.committed {
            if entry.index > durable {
                self.violations
                    .push(format!("{id} applies {} before it is on disk", entry.index));
            }
            if entry.index != content.applied.0 + 1 {
                let at = content.applied.0;
                self.violations
                    .push(format!("{id} applies {} after {at}", entry.index));
            }
            content.applied = (entry.index, entry.term);
            if let Payload::ConfChange(conf_state) = &entry.payload {
                content.conf_state = conf_state.clone();
            }
            if let Payload::Command(data) = &entry.payload {
                let proposal = u64::from_be_bytes(data[..].try_into().unwrap());
                content.machine.push((entry.index, proposal));
                let known = *self.history.entry(entry.index).or_insert(proposal);
                if known != proposal {
                    let what = format!("{id} applied {proposal} at {}, not {known}", entry.index);
                    self.violations.push(what);
                }
            }
        }
        if write.sync {
            disk.syncs += 1;
            disk.synced = disk.cached.clone();
        }
        disk.cached.applied
    }
}

/// Whether a message acknowledges a write to the sender's disk.
fn promises(message: &Message) -> bool {
    let kind = message.get_msg_type();
    let promise = [
        MessageType::MsgAppendResponse,
        MessageType::MsgRequestVote,
        MessageType::MsgRequestVoteResponse,
    ];
    promise.contains(&kind) && !message.reject
}
