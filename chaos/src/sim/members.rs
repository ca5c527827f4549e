//! Membership: joins, the end of removals, and the leader's membership policy.

use jaco_actors::membership::view;
use jaco_policy::membership::{self, Action, Departure, View, leaving, skips_drain};
use jaco_proto::v1::{self, command::Payload};
use jaco_raftnode::core::MemberChange;
use jaco_state::State;

use super::{
    calls::{Change, Requester},
    cluster::{Cluster, Local},
    disk::{Crash, Disk},
    mesh::public_key,
    mutation::Mutation,
    node::Input,
    time::{MS, SECOND, Time},
};

/// Time for which a follower counts as active after its last answer.
const ACTIVE: Time = 2 * SECOND;

impl Cluster {
    /// Runs the leader's membership policy, and schedules its next run.
    pub(super) fn membership(&mut self, id: u64) {
        let Some(machine) = self.machines.get(&id) else {
            return;
        };
        let hurry = machine
            .daemon
            .as_ref()
            .is_some_and(|daemon| daemon.state.nodes.values().any(|node| leaving(node)));
        let tick = if hurry { 300 * MS } else { 3 * SECOND };
        let after = machine.clock.after(self.now, tick) - self.now;
        self.schedule_local(id, after, Local::Membership);
        self.plan_membership(id);
    }

    fn plan_membership(&mut self, id: u64) {
        let now = self.now;
        let even = self.has(Mutation::PromoteEverybody);
        let never_drained = self.has(Mutation::NeverDrained);
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let clock = machine.clock;
        let Some(daemon) = &mut machine.daemon else {
            return;
        };
        if !daemon.status.leading {
            return;
        }
        let status = daemon.core.status();
        let control = &mut daemon.control;
        let mut view = view(&status, &daemon.state, |follower| {
            let heard = control.followers.get(&follower);
            heard.is_some_and(|at| now - at < ACTIVE)
        });
        if never_drained {
            keep_draining(&mut view, &daemon.state);
        }
        if even && let Some(&learner) = status.learners.first() {
            // The mutation ignores the voter table.
            return self.input(id, Input::Change(MemberChange::Promote(learner)));
        }
        control.policy.handle_view(clock.instant(now), &view);
        let Some(action) = control.policy.poll_action() else {
            return;
        };
        self.count(match action {
            Action::Add(_) => "learners added",
            Action::Promote(_) => "learners promoted",
            Action::Demote(_) => "voters demoted",
            Action::Remove(_) => "members removed",
            Action::EndDrain(_) => "drains given up",
            Action::Transfer(_) | Action::DeleteRow(_) | Action::ClearMark(_) => {
                "other steps of members"
            }
        });
        self.note(&[21, id], || format!("n{id} changes members: {action:?}"));
        let change = match action {
            Action::Add(raft_id) => MemberChange::AddLearner(raft_id),
            Action::Promote(raft_id) => MemberChange::Promote(raft_id),
            Action::Demote(raft_id) => MemberChange::Demote(raft_id),
            Action::Remove(raft_id) => MemberChange::Remove(raft_id),
            Action::Transfer(raft_id) => return self.input(id, Input::Transfer(raft_id)),
            Action::DeleteRow(raft_id) => return self.remove_row(id, raft_id),
            Action::ClearMark(raft_id) => return self.clear_drain_mark(id, raft_id),
            Action::EndDrain(raft_id) => return self.end_drain(id, raft_id),
        };
        self.input(id, Input::Change(change));
    }

    /// Deletes the row of a node that is no longer in the raft configuration.
    fn remove_row(&mut self, id: u64, raft_id: u64) {
        let Some(command) = self.node_command(id, |_| {
            Payload::NodeRemove(v1::NodeRemove {
                hostname: format!("n{raft_id}"),
            })
        }) else {
            return;
        };
        self.submit(id, Requester::Detached, Change::Command(command));
    }

    /// Clears the mark of a leader that cannot leave.
    fn clear_drain_mark(&mut self, id: u64, raft_id: u64) {
        self.change_mark(id, raft_id, membership::clear_mark);
    }

    /// Gives up the drain of a member.
    fn end_drain(&mut self, id: u64, raft_id: u64) {
        self.change_mark(id, raft_id, membership::end_drain);
    }

    /// Submits the update that `update` derives for a member from the leader's state.
    fn change_mark(
        &mut self,
        id: u64,
        raft_id: u64,
        update: fn(&State, &str) -> Option<v1::NodeStatusUpdate>,
    ) {
        let state = self.daemon(id).map(|daemon| &daemon.state);
        let Some(update) = state.and_then(|state| update(state, &format!("n{raft_id}"))) else {
            return;
        };
        let payload = Payload::NodeStatusUpdate(update);
        let Some(command) = self.node_command(id, |_| payload) else {
            return;
        };
        self.submit(id, Requester::Detached, Change::Command(command));
    }

    /// Lets a new machine ask the leader to join. It starts once its row is committed; if that
    /// never happens, the next joining machine asks for the same raft id.
    pub(super) fn join(&mut self) {
        let Some(leader) = self.leader() else {
            return;
        };
        if self.members().len() >= self.max_members {
            return;
        }
        let Some(daemon) = self.daemon(leader) else {
            return;
        };
        let next = daemon.state.cluster.as_ref().map(|meta| meta.next_raft_id);
        let Some(raft_id) = next.filter(|raft_id| *raft_id > 0) else {
            return;
        };
        let Some(command) = self.node_command(leader, |_| {
            Payload::NodeJoin(v1::NodeJoin {
                hostname: format!("n{raft_id}"),
                address: format!("n{raft_id}:7947"),
                grpc_address: format!("n{raft_id}:7946"),
                raft_id,
                wireguard_pubkey: public_key(raft_id).to_vec(),
                ..v1::NodeJoin::default()
            })
        }) else {
            return;
        };
        self.note(&[22, raft_id], || format!("n{raft_id} asks to join"));
        self.submit(leader, Requester::Detached, Change::Command(command));
    }

    /// Starts a machine for each member that has none yet.
    pub(super) fn start_joined(&mut self) {
        let newest = std::sync::Arc::clone(self.oracle.newest());
        let there = |id: &u64| self.machines.get(id).is_some_and(|m| !m.removed);
        let new: Vec<u64> = newest
            .nodes
            .values()
            .map(|node| node.raft_id)
            .filter(|id| !there(id))
            .collect();
        for id in new {
            self.count("joined");
            self.note(&[29, id], || format!("n{id} has joined"));
            self.add_machine(id, Disk::default());
        }
    }

    pub(super) fn transfer(&mut self) {
        let Some(leader) = self.leader() else {
            return;
        };
        let successor = self
            .daemon(leader)
            .and_then(|d| d.core.status().transfer_target());
        if let Some(to) = successor {
            self.note(&[24, leader, to], || {
                format!("n{leader} hands over to n{to}")
            });
            self.input(leader, Input::Transfer(to));
        }
    }

    /// Ends the machines whose member rows are gone; their peers reject them from now on.
    pub(super) fn stop_removed(&mut self) {
        let newest = std::sync::Arc::clone(self.oracle.newest());
        let gone: Vec<u64> = self
            .machines
            .values()
            .filter(|m| !m.removed && self.oracle.was_member(m.id))
            .filter(|m| !newest.nodes.contains_key(&m.host))
            .map(|m| m.id)
            .collect();
        for id in gone {
            if self.drains.handed_over(id) {
                self.count("members removed after a drain");
            }
            self.note(&[25, id], || format!("n{id} is no member any more"));
            self.crash(id, Crash::Kill);
            if let Some(machine) = self.machines.get_mut(&id) {
                machine.removed = true;
            }
        }
    }
}

/// The mutation finds a replica left on every member that drains.
fn keep_draining(view: &mut View, state: &State) {
    let drains = |node: &&v1::Node| leaving(node) && !skips_drain(node);
    for node in state
        .nodes
        .values()
        .map(std::convert::AsRef::as_ref)
        .filter(drains)
    {
        if let Some(row) = view.rows.get_mut(&node.raft_id) {
            row.departure = Departure::Draining;
        }
    }
}
