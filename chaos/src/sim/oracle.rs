//! Invariants checked from outside, with the knowledge of every machine.
//!
//! The oracle applies every committed entry itself, one by one, and keeps each state: the state
//! that a node reaches after its own batches, restarts and snapshots must be equal.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use jaco_proto::v1::{self, ReplicaState, command::Payload as Op, service_spec::PlacementMode};
use jaco_raftnode::{
    apply::{Applier, Probe},
    core::{Committed, Payload},
};
use jaco_state::State;
use raft::eraftpb::Entry;

use blocks::FreedBlocks;
use follow::Compared;

use super::{
    contents::wrong_content,
    expected::meets,
    issuance::needless_renewal,
    mutation::Mutation,
    proposals::{changes_owner, takes_route},
    sharing::freed_in_use,
};

mod blocks;
mod follow;

/// A property that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Short name of the property.
    pub invariant: &'static str,
    /// Description of the observation that violates it.
    pub what: String,
}

/// A container that was created at any time.
#[derive(Clone, Debug)]
pub(super) struct CreatedContainer {
    pub(super) replica: String,
    pub(super) host: String,
    pub(super) raft_index: u64,
}

/// One committed entry.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CommittedEntry {
    term: u64,
    /// Encoded command; empty for entries without one.
    data: Vec<u8>,
}

/// Whether the state machine accepted the command.
struct Accepted(bool);

impl Probe for Accepted {
    fn end(&mut self, _index: u64, _command: &v1::Command, accepted: bool) {
        self.0 = accepted;
    }
}

/// Checks invariants over all machines.
pub(super) struct Oracle {
    mutation: Option<Mutation>,
    violation: Option<Violation>,
    /// Leader of each term.
    leaders: BTreeMap<u64, u64>,
    /// Content of each entry of any log, and the term of the entry before it.
    logged: HashMap<(u64, u64), (u64, u64)>,
    committed: Vec<CommittedEntry>,
    /// Index of `committed[0]`.
    first: u64,
    /// Highest index committed in each term: that of the leader that committed it, which may be
    /// later than the term of the entry.
    committed_in: BTreeMap<u64, u64>,
    applier: Applier,
    /// State after each committed entry, beginning with the bootstrap state.
    states: Vec<Arc<State>>,
    /// Number of times each client's command was committed.
    commits: BTreeMap<String, u32>,
    /// Highest index reported as committed to any requester.
    pub(super) acknowledged: u64,
    /// Highest commit index that was found on a majority of disks.
    pub(super) durable: u64,
    /// Acknowledged entries that the oracle has not applied yet.
    acknowledged_ahead: BTreeMap<u64, Vec<u8>>,
    revisions: BTreeMap<String, BTreeSet<u64>>,
    raft_ids: BTreeSet<u64>,
    freed: FreedBlocks,
    /// Rollouts that have ended, by outcome.
    pub(super) rollouts: BTreeMap<&'static str, u64>,
    /// Host of each row ever issued, by replica and log index.
    rows: BTreeMap<(String, u64), String>,
    containers: BTreeMap<String, CreatedContainer>,
    /// Rows of jobs that were reported as completed.
    pub(super) completed: BTreeSet<(String, u64)>,
    /// Index of the state that a scheduler pass was planned on, by the hash of its command.
    planned: HashMap<u64, u64>,
    /// Index of the last scheduler pass.
    last_pass: u64,
    /// Deployment revision that each row was last placed for.
    placed_for: BTreeMap<String, u64>,
    /// Last state of each node that was compared.
    compared: BTreeMap<u64, Compared>,
    /// The run contains no reason to move a replica.
    pub(super) nothing_moves: bool,
}

impl Oracle {
    /// Starts from the bootstrap state, which every founding member holds at index 1.
    pub(super) fn new(founded: State, mutation: Option<Mutation>) -> Self {
        let mut applier = Applier::new(State::default());
        let raft_ids = founded.nodes.values().map(|node| node.raft_id).collect();
        applier.install(founded);
        let states = vec![Arc::clone(applier.state())];
        Self {
            mutation,
            violation: None,
            leaders: BTreeMap::new(),
            logged: HashMap::new(),
            committed: Vec::new(),
            first: 2,
            committed_in: BTreeMap::from([(1, 1)]),
            applier,
            states,
            commits: BTreeMap::new(),
            acknowledged: 0,
            durable: 1,
            acknowledged_ahead: BTreeMap::new(),
            revisions: BTreeMap::new(),
            raft_ids,
            freed: FreedBlocks::default(),
            rollouts: BTreeMap::new(),
            rows: BTreeMap::new(),
            containers: BTreeMap::new(),
            completed: BTreeSet::new(),
            planned: HashMap::new(),
            last_pass: 0,
            placed_for: BTreeMap::new(),
            compared: BTreeMap::new(),
            nothing_moves: false,
        }
    }

    /// Records the first violation; later ones follow from it.
    pub(super) fn violate(&mut self, invariant: &'static str, what: impl Into<String>) {
        let what = what.into();
        self.violation.get_or_insert(Violation { invariant, what });
    }

    pub(super) fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// The state after all entries known to be committed.
    pub(super) fn newest(&self) -> &Arc<State> {
        self.applier.state()
    }

    /// Index of the last entry known to be committed.
    pub(super) fn last(&self) -> u64 {
        self.newest().applied_index
    }

    fn committed_entry(&self, index: u64) -> Option<&CommittedEntry> {
        let at = index.checked_sub(self.first)?;
        self.committed.get(usize::try_from(at).ok()?)
    }

    /// Term of the committed entry at `index`, if it is known.
    pub(super) fn committed_term(&self, index: u64) -> Option<u64> {
        match index {
            1 => Some(1),
            _ => self.committed_entry(index).map(|entry| entry.term),
        }
    }

    /// Records that everything up to `index` is committed in `term`, or was in an earlier one.
    pub(super) fn record_commit(&mut self, term: u64, index: u64) {
        if index > self.committed_up_to(term) {
            self.committed_in.insert(term, index);
        }
    }

    /// Highest index that was committed in `term` or an earlier one.
    fn committed_up_to(&self, term: u64) -> u64 {
        let committed_in = self.committed_in.range(..=term);
        committed_in.map(|(_, index)| *index).max().unwrap_or(1)
    }

    /// Index of the last known entry that was committed in a term before `term`.
    pub(super) fn last_before(&self, term: u64) -> u64 {
        let last = self.committed_up_to(term.saturating_sub(1));
        last.min(self.last())
    }

    /// Node `id` leads `term`, and its log holds an entry of term `holds` at the last index that
    /// was committed in earlier terms. An entry of an earlier term that a later leader committed
    /// may be missing: a node that was paused may still take the votes of `term`, and lead for a
    /// moment.
    pub(super) fn check_leader(&mut self, id: u64, term: u64, holds: Option<u64>) {
        let known = *self.leaders.entry(term).or_insert(id);
        if known != id {
            let what = format!("{known} and {id} both led term {term}");
            self.violate("election safety", what);
        }
        let last = self.last_before(term);
        let expected = self.committed_term(last);
        if holds != expected {
            let what = format!(
                "{id} leads term {term} with term {holds:?} at committed index {last}, \
                 not {expected:?}"
            );
            self.violate("leader completeness", what);
        }
    }

    /// Node `id` appends these entries to its log, after one of term `before`.
    pub(super) fn check_log(&mut self, id: u64, mut before: u64, entries: &[Entry]) {
        for entry in entries {
            let content = (hash(&entry.data), before);
            let place = (entry.index, entry.term);
            let known = *self.logged.entry(place).or_insert(content);
            if known != content {
                let what = format!("{id} has another entry at {place:?}, or behind another one");
                self.violate("log matching", what);
            }
            before = entry.term;
        }
    }

    /// Node `id` in `term` applies these entries.
    pub(super) fn check_applied(&mut self, id: u64, term: u64, entries: &[Committed]) {
        if let Some(last) = entries.last() {
            // The leader that committed them may have lost its term in the same step.
            let known = self.committed_in.values().max();
            if known.is_none_or(|known| last.index > *known) {
                self.record_commit(term, last.index);
            }
        }
        for entry in entries {
            let data = match &entry.payload {
                Payload::Command(data) => data.as_slice(),
                Payload::Noop | Payload::ConfChange(_) => &[],
            };
            let expected = self.last() + 1;
            if entry.index > expected {
                let what = format!("{id} applies {} before {expected}", entry.index);
                return self.violate("order of entries", what);
            }
            if let Some(known) = self.committed_entry(entry.index) {
                if known.term != entry.term || known.data != data {
                    let what = format!(
                        "{id} applies another entry at {}, of term {} instead of {}",
                        entry.index, entry.term, known.term
                    );
                    self.violate("state machine safety", what);
                }
                continue;
            }
            self.commit(entry, data);
        }
    }

    fn commit(&mut self, entry: &Committed, data: &[u8]) {
        self.committed.push(CommittedEntry {
            term: entry.term,
            data: data.to_vec(),
        });
        if let Some(acknowledged_ahead) = self.acknowledged_ahead.remove(&entry.index) {
            self.acknowledged = self.acknowledged.max(entry.index);
            if acknowledged_ahead != data {
                let what = format!("the write acknowledged at {} is not there", entry.index);
                self.violate("acknowledged writes", what);
            }
        }
        let before = Arc::clone(self.newest());
        let one = Committed {
            ticket: None,
            ..entry.clone()
        };
        let mut accepted = Accepted(false);
        self.applier.apply(vec![one], &mut accepted);
        if let Some(patched) = self.mutation.and_then(|m| m.patch(self.applier.state())) {
            self.applier.install(patched);
        }
        if let Some(reason) = self.applier.halted() {
            let what = format!("entry {}: {reason}", entry.index);
            return self.violate("known commands", what);
        }
        let after = Arc::clone(self.newest());
        if let Ok(command) = jaco_state::fsm::decode(data) {
            self.count(&command, accepted.0);
            self.check_assigned(&before, &after, entry.index);
            self.check_finished_rows(&before, &after, entry.index, self.planned_on(data));
            let seen = self.planned_on(data).and_then(|index| self.state_at(index));
            let seen = seen.as_deref().unwrap_or(&before);
            self.check_rollouts(seen, &before, &after);
            self.check_cordons(seen, &before, &after);
            self.check_routes(&before, &after, &command, accepted.0);
            self.check_pass(data, entry.index);
            self.check_moves(&before, &after, data);
            if let Some(what) = needless_renewal(&before, &after) {
                self.violate("one certificate lands", what);
            }
            if let Some(what) = freed_in_use(&before, &after) {
                self.violate("shared blocks stay", what);
            }
            if let Some(what) = wrong_content(&before, &after) {
                self.violate("files have their contents", what);
            }
            let early = self.freed.record(&before, &after, &command);
            // The other half of that bug is to be found by the connections it allows.
            if let Some(what) = early.filter(|_| self.mutation != Some(Mutation::StaleBlocksKept)) {
                self.violate("freed blocks rest", what);
            }
        }
        self.states.push(after);
    }

    /// Checks that each client command is committed at most once, by its identity, and that no
    /// revision is assigned twice.
    fn count(&mut self, command: &v1::Command, accepted: bool) {
        if command.identity.starts_with("op-") {
            let times = self.commits.entry(command.identity.clone()).or_default();
            *times += 1;
            if *times > 1 {
                let what = format!("{} was committed {times} times", command.identity);
                self.violate("at most once", what);
            }
        }
        match &command.payload {
            Some(Op::ReplicaObservedUpdate(update)) => {
                update
                    .replica
                    .iter()
                    .for_each(|seen| self.check_report(seen));
            }
            Some(Op::DeploymentApply(apply)) if accepted => {
                let given = self.revisions.entry(apply.deployment.clone()).or_default();
                if !given.insert(apply.revision) {
                    let what = format!(
                        "{} was given revision {} again",
                        apply.deployment, apply.revision
                    );
                    self.violate("revisions are unique", what);
                }
            }
            // A deployment that is created again after its deletion starts its revisions anew.
            Some(Op::DeploymentDelete(delete)) if accepted => {
                self.revisions.remove(&delete.deployment);
            }
            Some(Op::Batch(batch)) => {
                for child in &batch.children {
                    self.count(child, accepted);
                }
            }
            Some(_) | None => {}
        }
    }

    /// Checks that a container reported as running was created on that node, from the row it names.
    fn check_report(&mut self, seen: &v1::ReplicaObserved) {
        self.note_end(seen);
        if seen.state() != ReplicaState::Running {
            return;
        }
        let true_to_fact = self
            .containers
            .get(&seen.container_id)
            .is_some_and(|created| {
                created.replica == seen.id
                    && created.host == seen.host
                    && created.raft_index == seen.desired_raft_index
            });
        if !true_to_fact {
            let created = self.containers.get(&seen.container_id);
            let what = format!(
                "{} reports that {} runs row {} of {}, but it is {created:?}",
                seen.host, seen.container_id, seen.desired_raft_index, seen.id
            );
            self.violate("reports are true", what);
        }
    }

    /// Checks that the raft ids assigned by entry `index` are new, and records the rows it issued.
    fn check_assigned(&mut self, before: &State, after: &State, index: u64) {
        if !before.nodes.ptr_eq(&after.nodes) {
            for (host, node) in &after.nodes {
                if !before.nodes.contains_key(host) && !self.raft_ids.insert(node.raft_id) {
                    let what = format!("{host} was given raft id {} again", node.raft_id);
                    self.violate("raft ids are unique", what);
                }
            }
        }
        if !before.replicas_desired.ptr_eq(&after.replicas_desired) {
            for (id, row) in &after.replicas_desired {
                if row.raft_index == index {
                    self.rows.insert((id.clone(), index), row.host.clone());
                }
            }
        }
    }

    /// Checks that no deployment takes a route of another one, and that the proposer of a change
    /// knew of every route that was taken before it.
    fn check_routes(
        &mut self,
        before: &State,
        after: &State,
        command: &v1::Command,
        accepted: bool,
    ) {
        let deploys = matches!(
            command.payload,
            Some(Op::DeploymentApply(_) | Op::DeploymentRollback(_))
        );
        if changes_owner(before, after) || deploys && !accepted && takes_route(before, command) {
            let (index, identity) = (after.applied_index, &command.identity);
            let what = format!("{identity}, entry {index}, wants a route that is taken");
            self.violate("one owner per route", what);
        }
    }

    /// Checks that the scheduler pass at `index` was planned on a state that contains the one
    /// before it.
    fn check_pass(&mut self, data: &[u8], index: u64) {
        let Some(planned) = self.planned_on(data) else {
            return;
        };
        let before = std::mem::replace(&mut self.last_pass, index);
        if planned < before {
            let what = format!("the pass at {index} was planned on {planned}, before {before}");
            self.violate("passes build on each other", what);
        }
    }

    /// Index of the state that a scheduler pass was planned on.
    fn planned_on(&self, pass: &[u8]) -> Option<u64> {
        self.planned.get(&hash(pass)).copied()
    }

    /// State after the entry at `index`, unless it is older than the run.
    fn state_at(&self, index: u64) -> Option<Arc<State>> {
        let at = usize::try_from(index.checked_sub(1)?).ok()?;
        self.states.get(at).cloned()
    }

    /// Row of `replica` that the entry at `index` issued.
    pub(super) fn row(&self, replica: &str, index: u64) -> Option<Arc<v1::ReplicaDesired>> {
        let state = self.state_at(index)?;
        let row = state.replicas_desired.get(replica);
        row.filter(|row| row.raft_index == index).cloned()
    }

    pub(super) fn count_rollout(&mut self, what: &'static str) {
        *self.rollouts.entry(what).or_default() += 1;
    }

    /// Records that a scheduler pass about to be proposed was planned on the state at `index`.
    pub(super) fn record_plan(&mut self, pass: &[u8], index: u64) {
        self.planned.insert(hash(pass), index);
    }

    /// Records the revision each row was placed for. A row that changes its host within one
    /// revision was moved because of an event in the cluster, which is a violation if nothing may
    /// move. A replica that waits for its turn to leave a host that the revision does not list is
    /// moved by the revision.
    fn check_moves(&mut self, before: &State, after: &State, data: &[u8]) {
        if before.replicas_desired.ptr_eq(&after.replicas_desired) {
            return;
        }
        let planned = self.planned.get(&hash(data)).copied();
        let seen = planned.and_then(|index| self.state_at(index));
        let seen = seen.as_deref().unwrap_or(before);
        self.placed_for
            .retain(|id, _| after.replicas_desired.contains_key(id));
        for (id, row) in &after.replicas_desired {
            let known = before.replicas_desired.get(id);
            if known.is_some_and(|known| known.raft_index == row.raft_index) {
                continue;
            }
            let deployment = seen.deployments.get(&row.deployment);
            let revision = deployment.map_or(0, |deployment| deployment.applied_revision);
            let last = self.placed_for.insert(id.clone(), revision);
            let allows =
                |host: &str| deployment.is_none_or(|of| allows_host(before, of, row, host));
            if let Some(known) = known.filter(|known| known.host != row.host)
                && self.nothing_moves
                && last == Some(revision)
                && allows(&known.host)
            {
                let what = format!(
                    "{id} moves from {} to {} within revision {revision}",
                    known.host, row.host
                );
                return self.violate("nuisances move nothing", what);
            }
        }
    }

    /// Checks that node `id`, having reached `state`, equals the oracle at that index.
    pub(super) fn check_state(&mut self, id: u64, state: &State) {
        let index = state.applied_index;
        let at = index.checked_sub(1).and_then(|at| usize::try_from(at).ok());
        let known = at.and_then(|at| self.states.get(at)).cloned();
        let Some(known) = known else {
            let what = format!("{id} is at {index}, an index that the oracle has not applied");
            return self.violate("equal states", what);
        };
        let compared = self.compared.get(&id);
        let equal = match compared.map(|compared| compared.follow(state)) {
            Some(followed) => *known == followed,
            None => *known == *state,
        };
        if equal {
            let state = state.clone();
            self.compared.insert(id, Compared { known, state });
        } else {
            let what = format!(
                "{id} at {index}: {}{}",
                difference(&known, state),
                if known.digest() == state.digest() {
                    ", with an equal digest"
                } else {
                    ""
                }
            );
            self.violate("equal states", what);
        }
    }

    /// Records that a requester received "committed at `index`" for `data`.
    pub(super) fn record_acknowledged(&mut self, index: u64, data: &[u8]) {
        if index > self.last() {
            self.acknowledged_ahead.insert(index, data.to_vec());
            return;
        }
        self.acknowledged = self.acknowledged.max(index);
        if self
            .committed_entry(index)
            .is_none_or(|entry| entry.data != data)
        {
            let what = format!("the write acknowledged at {index} is not committed there");
            self.violate("acknowledged writes", what);
        }
    }

    /// At rest every acknowledged entry must be committed.
    pub(super) fn check_acknowledged(&mut self) {
        if let Some(&index) = self.acknowledged_ahead.keys().next() {
            let what = format!("the write acknowledged at {index} was never committed");
            self.violate("acknowledged writes", what);
        }
    }

    /// Whether this raft id was ever assigned.
    pub(super) fn was_member(&self, raft_id: u64) -> bool {
        self.raft_ids.contains(&raft_id)
    }

    /// Whether any command of this identity was committed.
    pub(super) fn has_committed(&self, identity: &str) -> bool {
        self.commits.contains_key(identity)
    }

    /// Index of the row that `container` was made from.
    pub(super) fn row_of(&self, container: &str) -> Option<u64> {
        let created = self.containers.get(container);
        created.map(|created| created.raft_index)
    }

    /// Whether a container was made of row `raft_index` of `replica` before.
    pub(super) fn has_container_of(&self, replica: &str, raft_index: u64) -> bool {
        let mut made = self.containers.values();
        made.any(|it| it.replica == replica && it.raft_index == raft_index)
    }

    /// A container was made on `host`, labelled with row `raft_index`.
    pub(super) fn check_created(&mut self, container: &str, created: CreatedContainer) {
        let row = (created.replica.clone(), created.raft_index);
        if self.rows.get(&row) != Some(&created.host) {
            let what = format!(
                "{} made {container} of {row:?}, a row of {:?}",
                created.host,
                self.rows.get(&row)
            );
            self.violate("containers belong to rows", what);
        }
        self.containers.insert(container.to_owned(), created);
    }
}

/// Whether the placement of the service of `row` allows its replicas on `host`, as many as `state` has
/// there.
fn allows_host(
    state: &State,
    deployment: &v1::Deployment,
    row: &v1::ReplicaDesired,
    host: &str,
) -> bool {
    let rows = state.replicas_desired.values();
    let owner = (&row.deployment, &row.service);
    let on_host = rows.filter(|one| (&one.deployment, &one.service) == owner && one.host == host);
    let on_host = on_host.count();
    let mut services = deployment.services.iter();
    let service = services.find(|service| service.name == row.service);
    service.is_none_or(|service| {
        let limit = usize::try_from(service.max_replicas_per_node).unwrap_or(0);
        let is_crowded = limit > 0 && on_host > limit;
        let is_listed = service.placement() != PlacementMode::Hosts
            || service.hosts.iter().any(|it| it == host);
        is_listed && !is_crowded && meets(state, host, service)
    })
}

/// The first table in which two states differ.
fn difference(a: &State, b: &State) -> String {
    let mut here = a.rows();
    let mut there = b.rows();
    loop {
        match (here.next(), there.next()) {
            (Some(x), Some(y)) if x == y => {}
            (None, None) => return "the rows are the same".to_owned(),
            (x, y) => {
                let name = |row: Option<(Vec<u8>, Vec<u8>)>| {
                    row.map(|(key, _)| key.escape_ascii().to_string())
                };
                let (x, y) = (name(x), name(y));
                return format!("row {y:?} instead of {x:?}, or with another value");
            }
        }
    }
}

pub(super) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests;
