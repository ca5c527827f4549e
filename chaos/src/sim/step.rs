//! One step of raft: send, apply, write and answer, in the order of the production driver.

use std::{collections::BTreeSet, sync::Arc};

use jaco_raftnode::{
    apply::{Answer, Applier, Progress},
    core::{Committed, Payload, Ticket, Write},
    storage::Row,
};
use jaco_state::{Rules, State};
use raft::eraftpb::Message;

use super::{
    cluster::{Cluster, Event, Local},
    disk::Batch,
    mutation::Mutation,
    proposals::Proposal,
    time::{MS, SECOND, Time},
};

/// Time that one write of raft may take until the node counts it as stalled.
const STALLED_AFTER: Time = 3 * SECOND;

/// A step of raft that is being written.
#[derive(Debug)]
pub(super) struct Step {
    sync: bool,
    messages_after: Vec<Message>,
    position: Option<(u64, u64)>,
    answers: Vec<(Ticket, Answer)>,
    installed: bool,
}

impl Cluster {
    /// Begins one step of raft: sends, applies and writes.
    pub(super) fn perform(&mut self, id: u64, write: Write) {
        self.send(id, write.messages);
        let mutation = self.plan.mutation;
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let Some(daemon) = &mut machine.daemon else {
            return;
        };
        for entry in &write.entries {
            let mut waiting = daemon.proposals.values_mut();
            let same = |p: &&mut Proposal| p.index.is_none() && p.data == entry.data;
            if let Some(proposal) = waiting.find(same) {
                proposal.index = Some(entry.index);
            }
        }
        let mut batch = Batch {
            entries: write.entries,
            hard_state: write.hard_state,
            ..Batch::default()
        };
        let mut position = None;
        let installed = write.snapshot.is_some();
        if let Some(snapshot) = write.snapshot {
            let metadata = snapshot.metadata.unwrap_or_default();
            let read = State::read_snapshot(metadata.index, &*snapshot.data, &Rules::MEMBER);
            let state = match read {
                Ok(read) => read.state,
                Err(error) => {
                    let what = format!("{id} cannot read a snapshot: {error}");
                    return self.oracle.violate("snapshots are whole", what);
                }
            };
            position = Some((metadata.index, metadata.term));
            let rows: Vec<Row> = rows_of(&state);
            if mutation == Some(Mutation::InstallOverRows) {
                batch.rows.extend(rows_of(&daemon.state));
            }
            batch.rows.extend(rows.iter().cloned());
            batch.install = Some((metadata, rows));
            daemon.applier.install(state);
        }
        let members = self.oracle.newest().nodes.clone();
        if !write.committed.is_empty() {
            let term = daemon.core.status().term;
            self.oracle.check_applied(id, term, &write.committed);
        }
        if !self.oracle.newest().nodes.ptr_eq(&members) {
            self.agenda.add(self.now, Event::Members);
        }
        let now = machine.clock.timestamp(self.now);
        let progress = apply(&mut daemon.applier, write.committed, mutation, now);
        position = progress.applied.or(position);
        if position.is_some() {
            batch.applied = Some(daemon.applier.state().applied_index);
        }
        batch.rows.extend(progress.rows);
        batch.conf_state = progress.conf_state;
        let (before, entries) = {
            let disk = machine.disk.borrow();
            let first = batch.entries.first().map_or(0, |entry| entry.index);
            let before = disk.current().term(first.saturating_sub(1));
            (before, batch.entries.clone())
        };
        if let Some(first) = entries.first() {
            // The entry follows an installed snapshot: take the term of that.
            let before = match &batch.install {
                Some((metadata, _)) if metadata.index + 1 == first.index => Some(metadata.term),
                _ => before,
            };
            self.oracle.check_log(id, before.unwrap_or(0), &entries);
        }
        if mutation == Some(Mutation::ForgetVote)
            && let Some(hard_state) = &mut batch.hard_state
        {
            hard_state.vote = 0;
        }
        let step = Step {
            sync: write.sync && mutation != Some(Mutation::SkipSync),
            messages_after: write.messages_after,
            position,
            answers: progress.answers,
            installed,
        };
        // A disk that stalls ends its writes after the stall.
        let slow = machine.slow + machine.stalled_until.saturating_sub(self.now);
        let takes = match (write.sync, self.disk_chance.within(0..100)) {
            (true, 0) => self.disk_chance.within(20 * MS..400 * MS),
            (true, _) => self.disk_chance.within(MS / 2..8 * MS),
            (false, 0) => self.disk_chance.within(0..10 * MS),
            (false, _) => 0,
        };
        let takes = takes + if batch.is_empty() { 0 } else { slow };
        if mutation == Some(Mutation::ApplyBeforePersist) && write.sync && !installed {
            let behind = Batch {
                entries: std::mem::take(&mut batch.entries),
                hard_state: batch.hard_state.take(),
                ..Batch::default()
            };
            let written = machine.disk.borrow_mut().write_behind(behind);
            self.check_write(id, written);
            self.schedule_local(id, takes + 20 * MS, Local::Flush);
            return self.finish_now(
                id,
                batch,
                Step {
                    sync: false,
                    ..step
                },
            );
        }
        if takes == 0 || batch.is_empty() {
            return self.finish_now(id, batch, step);
        }
        machine.disk.borrow_mut().begin(batch);
        daemon.writing = Some(step);
        daemon.writes += 1;
        let write = daemon.writes;
        self.schedule_local(id, takes, Local::Written);
        if takes > STALLED_AFTER {
            self.schedule_local(id, STALLED_AFTER, Local::Stalled(write));
        }
    }

    /// Raft waits for this write for too long: until it ends, the node does not count itself as
    /// leading, follows no leader and confirms no read.
    pub(super) fn stalled(&mut self, id: u64, write: u64) {
        let Some(daemon) = self.daemon(id) else {
            return;
        };
        if daemon.writing.is_none() || daemon.writes != write {
            return;
        }
        daemon.stalled = true;
        daemon.status.leader_id = None;
        self.reachability.hinder(id, self.now);
        self.isolation_leader(id);
        let Some(daemon) = self.daemon(id) else {
            return;
        };
        if std::mem::replace(&mut daemon.status.leading, false) {
            self.leadership(id, false);
        }
    }

    fn finish_now(&mut self, id: u64, batch: Batch, step: Step) {
        if let Some(machine) = self.machines.get(&id)
            && !batch.is_empty()
        {
            let written = machine.disk.borrow_mut().write(batch, step.sync);
            self.check_write(id, written);
        }
        self.finish(id, step);
    }

    pub(super) fn check_write(&mut self, id: u64, written: Result<(), String>) {
        if let Err(error) = written {
            let what = format!("{id} writes what its storage refuses: {error}");
            self.oracle.violate("log is continuous", what);
        }
    }

    pub(super) fn flush(&mut self, id: u64) {
        if let Some(machine) = self.machines.get(&id) {
            let written = machine.disk.borrow_mut().flush();
            self.check_write(id, written);
        }
    }

    /// The disk is done with the step under way, unless it stalls.
    pub(super) fn written(&mut self, id: u64) {
        let stalled_until = self.machines.get(&id).map_or(0, |m| m.stalled_until);
        if stalled_until > self.now {
            let write = self.daemon(id).map_or(0, |daemon| daemon.writes);
            self.schedule_local(id, STALLED_AFTER, Local::Stalled(write));
            return self.schedule_local(id, stalled_until - self.now, Local::Written);
        }
        let Some(daemon) = self.daemon(id) else {
            return;
        };
        daemon.stalled = false;
        let Some(step) = daemon.writing.take() else {
            return;
        };
        if let Some(machine) = self.machines.get(&id) {
            let written = machine.disk.borrow_mut().finish(step.sync);
            self.check_write(id, written);
        }
        self.finish(id, step);
        self.drive(id);
    }

    /// Completes a step that is on disk: its messages and answers may now be sent.
    fn finish(&mut self, id: u64, step: Step) {
        self.send(id, step.messages_after);
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let Some(daemon) = &mut machine.daemon else {
            return;
        };
        let (applied, term) = step.position.unwrap_or_default();
        daemon.core.handle_written(applied, term);
        if step.position.is_some() {
            let state = Arc::clone(daemon.applier.state());
            machine.disk.borrow_mut().state = Some(Arc::clone(&state));
            daemon.state = Arc::clone(&state);
            if step.installed {
                self.count("snapshots installed");
            }
            self.note(&[7, id, applied, term], || {
                let how = if step.installed {
                    "installs"
                } else {
                    "applies"
                };
                format!("n{id} {how} up to {applied} of term {term}")
            });
            self.oracle.check_state(id, &state);
            self.update_orphans(id);
            self.notify(id);
        }
        self.observe(id);
        self.answer_proposals(id, step.answers);
    }

    /// Schedules a notification of the newest state to the actors.
    pub(super) fn notify(&mut self, id: u64) {
        let soon = self.chance.within(0..5 * MS);
        if let Some(daemon) = self.daemon(id)
            && !std::mem::replace(&mut daemon.notified, true)
        {
            self.schedule_local(id, soon, Local::Notification);
        }
    }
}

/// Writes that make the rows of `before` those of `after`.
fn replacing(before: &State, after: &State) -> Vec<Row> {
    let mut writes = rows_of(after);
    let kept: BTreeSet<_> = writes.iter().map(|row| row.key.clone()).collect();
    let gone = before.rows().filter(|(key, _)| !kept.contains(key));
    writes.extend(gone.map(|(key, _)| Row { key, value: None }));
    writes
}

fn rows_of(state: &State) -> Vec<Row> {
    let rows = state.rows();
    rows.map(|(key, value)| Row {
        key,
        value: Some(value),
    })
    .collect()
}

/// Applies entries, with the planted bug if there is one.
fn apply(
    applier: &mut Applier,
    entries: Vec<Committed>,
    mutation: Option<Mutation>,
    now: prost_types::Timestamp,
) -> Progress {
    match mutation {
        Some(Mutation::ApplyWithLocalClock) => {
            let entries = entries.into_iter().map(|entry| with_clock(entry, now));
            applier.apply(entries.collect(), &mut ())
        }
        Some(mutation) if mutation.patches() => {
            let mut all = Progress::default();
            for entry in entries {
                let one = applier.apply(vec![entry], &mut ());
                all.applied = one.applied.or(all.applied);
                all.conf_state = one.conf_state.or(all.conf_state);
                all.rows.extend(one.rows);
                all.answers.extend(one.answers);
                if let Some(patched) = mutation.patch(applier.state()) {
                    all.rows.extend(replacing(applier.state(), &patched));
                    applier.install(patched);
                }
            }
            all
        }
        _ => applier.apply(entries, &mut ()),
    }
}

/// The entry with the time of its command replaced by `now`.
fn with_clock(mut entry: Committed, now: prost_types::Timestamp) -> Committed {
    if let Payload::Command(data) = &mut entry.payload
        && let Ok(mut command) = jaco_state::fsm::decode(data)
    {
        command.ts = Some(now);
        *data = prost::Message::encode_to_vec(&command);
    }
    entry
}
