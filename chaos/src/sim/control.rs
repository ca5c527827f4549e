//! Cluster decisions of a node: the scheduler's passes, and the state that the cores of health and
//! membership start from.

use std::collections::BTreeMap;

use jaco_actors::{
    health::{contact, core as judge},
    membership::policy::Policy,
    scheduler::{
        pace::{self, Pace},
        projects::Projects,
        reconcile::{Memo, Pass, reconcile},
    },
};
use jaco_proto::v1::{self, NodeStatus, command::Payload};
use jaco_state::{State, command};
use prost::Message as _;

use super::{
    calls::{Ask, Reply, Who},
    documents,
    fault::Actor,
    mutation::Mutation,
    time::Time,
    world::{Local, World},
};

/// The deciding cores of one daemon.
pub(super) struct Control {
    pace: Pace,
    memo: Memo,
    /// Epoch of leadership.
    stint: u64,
    /// A pass is proposed; the proposal outlives the epoch.
    proposing: bool,
    /// A pass is due and waits for an earlier one to end.
    waiting: bool,
    schedule_at: Option<Time>,
    pub(super) policy: Policy,
    /// Time of each follower's last answer.
    pub(super) followers: BTreeMap<u64, Time>,
    pub(super) judge: judge::Core,
    pub(super) contact: contact::Core,
    /// Latest term of a leader whose heartbeat arrived.
    pub(super) leader_term: u64,
    pub(super) was_ready: bool,
    pub(super) returning: bool,
    pub(super) next_return: Time,
}

impl Control {
    pub(super) fn new(host: &str) -> Self {
        Self {
            pace: Pace::default(),
            memo: memo(),
            stint: 0,
            proposing: false,
            waiting: false,
            schedule_at: None,
            policy: Policy::new(),
            followers: BTreeMap::new(),
            judge: judge::Core::new(host),
            contact: contact::Core::default(),
            leader_term: 0,
            was_ready: false,
            returning: false,
            next_return: 0,
        }
    }

    pub(super) fn is_current(&self) -> bool {
        self.contact.is_current()
    }
}

/// One scheduler pass on `host`, with the planted bug if there is one.
pub(super) fn plan(
    host: &str,
    state: &State,
    memo: &mut Memo,
    ts: prost_types::Timestamp,
    mutation: Option<Mutation>,
) -> Pass {
    let seen = mutation.and_then(|mutation| mutation.see(state, host));
    let pass = reconcile(seen.as_ref().unwrap_or(state), memo, ts);
    match mutation {
        Some(mutation) => mutation.forget(pass),
        None => pass,
    }
}

pub(super) fn memo() -> Memo {
    Memo {
        projects: Projects::reading_with(documents::templates),
        ..Memo::default()
    }
}

impl World {
    /// Node `id` becomes or ceases to be leader.
    pub(super) fn leadership(&mut self, id: u64, leads: bool) {
        let Some((instant, daemon)) = self.running(id) else {
            return;
        };
        let control = &mut daemon.control;
        control.pace.handle_leadership(leads, instant);
        control.stint += 1;
        control.waiting = false;
        control.schedule_at = None;
        control.policy = Policy::new();
        control.followers.clear();
        if leads {
            control.memo = memo();
        }
        self.arm_scheduler(id);
    }

    /// Lets the actors of node `id` handle the newest state.
    pub(super) fn noticed(&mut self, id: u64) {
        let now = self.now;
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let (instant, host) = (machine.clock.instant(now), machine.host.clone());
        let Some(daemon) = &mut machine.daemon else {
            return;
        };
        daemon.noticed = false;
        let control = &mut daemon.control;
        let state = &daemon.state;
        control.pace.handle_change(instant);
        let status = |node: &std::sync::Arc<v1::Node>| node.status();
        let roster: BTreeMap<String, NodeStatus> = state
            .nodes
            .iter()
            .map(|(host, node)| (host.clone(), status(node)))
            .collect();
        let own = roster.get(&host).copied();
        let condemned = matches!(own, Some(NodeStatus::Unhealthy | NodeStatus::Offline));
        let verdicts = control.judge.handle(instant, judge::Input::Members(roster));
        let condemned = contact::Input::Condemned(condemned);
        let confirm = control.contact.handle(instant, condemned);
        self.health_effects(id, verdicts, confirm);
        self.dispatch(id);
        self.arm_scheduler(id);
    }

    fn arm_scheduler(&mut self, id: u64) {
        let now = self.now;
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let clock = machine.clock;
        let Some(daemon) = &mut machine.daemon else {
            return;
        };
        let control = &mut daemon.control;
        let due = control.pace.deadline().map(|at| clock.when(now, at));
        if due == control.schedule_at {
            return;
        }
        control.schedule_at = due;
        if let Some(at) = due {
            self.later(id, at - now, Local::Schedule);
        }
    }

    pub(super) fn schedule_due(&mut self, id: u64) {
        let now = self.now;
        let Some((instant, daemon)) = self.running(id) else {
            return;
        };
        let control = &mut daemon.control;
        control.schedule_at = control.schedule_at.filter(|at| *at > now);
        if control.pace.handle_timeout(instant) {
            control.waiting = control.proposing;
            if !control.waiting {
                self.pass(id);
            }
        }
        self.arm_scheduler(id);
    }

    fn pass(&mut self, id: u64) {
        let (now, mutation) = (self.now, self.plan.mutation);
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let (instant, ts) = (machine.clock.instant(now), machine.clock.timestamp(now));
        let Some(daemon) = &mut machine.daemon else {
            return;
        };
        let control = &mut daemon.control;
        let state = std::sync::Arc::clone(&daemon.state);
        let Pass { batch, summary } = plan(&machine.host, &state, &mut control.memo, ts, mutation);
        let stint = control.stint;
        match batch {
            None => control.pace.handle_finished(pace::Outcome::Done, instant),
            Some(batch) => {
                control.proposing = true;
                self.note(&[20, id, state.applied_index], || {
                    format!("n{id} schedules {summary:?}")
                });
                let data = batch.encode_to_vec();
                self.oracle.plans(&data, state.applied_index);
                self.submit(id, Who::Scheduler(stint), Ask::Command(batch));
            }
        }
    }

    /// Handles the outcome of the pass that was proposed in `stint`.
    pub(super) fn pass_over(&mut self, id: u64, stint: u64, reply: &Reply) {
        let Some((instant, daemon)) = self.running(id) else {
            return;
        };
        let control = &mut daemon.control;
        control.proposing = false;
        if control.stint == stint {
            let outcome = match reply {
                Reply::Done(_) => pace::Outcome::Done,
                Reply::Rejected(_) | Reply::NotAppended => pace::Outcome::Failed,
                Reply::Unknown => pace::Outcome::Unknown,
            };
            control.pace.handle_finished(outcome, instant);
        }
        if std::mem::take(&mut control.waiting) {
            self.pass(id);
        }
        self.arm_scheduler(id);
    }

    /// Crashes a deciding actor, which loses everything it held in memory.
    pub(super) fn kill_control(&mut self, id: u64, actor: Actor) {
        self.note(&[28, id], || format!("{actor:?} crashes on n{id}"));
        let Some((instant, daemon)) = self.running(id) else {
            return;
        };
        let leads = daemon.status.leading;
        let control = &mut daemon.control;
        match actor {
            Actor::Scheduler => {
                control.pace = Pace::default();
                control.pace.handle_leadership(leads, instant);
                control.memo = memo();
                control.stint += 1;
                control.waiting = false;
                control.schedule_at = None;
                self.arm_scheduler(id);
            }
            // The times of heartbeats are kept outside the actor.
            Actor::Health => {
                control.contact = contact::Core::default();
                control.judge.handle(instant, judge::Input::Leads(false));
                control.returning = false;
                self.caught_up_changed(id);
            }
            Actor::Membership => {
                control.policy = Policy::new();
                control.followers.clear();
            }
            Actor::Replica | Actor::Publisher => {}
        }
    }

    /// A command of node `id`, with the time of its wall clock.
    pub(super) fn node_command(
        &self,
        id: u64,
        payload: impl FnOnce(&str) -> Payload,
    ) -> Option<v1::Command> {
        let machine = self.machines.get(&id)?;
        let ts = machine.clock.timestamp(self.now);
        Some(command("node", ts, payload(&machine.host)))
    }
}
