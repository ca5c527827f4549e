//! Cluster decisions of a node: the scheduler's passes, and the state that the cores of health and
//! membership start from.

use std::{collections::BTreeMap, time::Instant};

use jaco_policy::{
    health::{core as detector, fencing},
    membership::Policy,
    scheduler::{
        pass_timer::{self, PassTimer},
        projects::Projects,
        reconcile::{Pass, PassCache, reconcile},
        rollout::Rollouts,
    },
};
use jaco_proto::v1::{self, NodeStatus, command::Payload};
use jaco_state::{State, command};
use prost::Message as _;

use super::{
    calls::{Change, Reply, Requester},
    cluster::{Cluster, Local},
    documents,
    fault::Actor,
    mutation::Mutation,
    time::Time,
};

/// The deciding cores of one daemon.
pub(super) struct Control {
    pass_timer: PassTimer,
    pass_cache: PassCache,
    /// Epoch of leadership.
    leadership_epoch: u64,
    /// A pass is proposed; the proposal outlives the epoch.
    proposing: bool,
    /// A pass is due and waits for an earlier one to end.
    waiting: bool,
    schedule_at: Option<Time>,
    pub(super) policy: Policy,
    /// Time of each follower's last answer.
    pub(super) followers: BTreeMap<u64, Time>,
    pub(super) detector: detector::Core,
    pub(super) fencing: fencing::Core,
    /// The attempt to catch up that is under way, and the time at which it began.
    pub(super) confirming: (u64, Time),
    /// Latest term of a leader whose heartbeat arrived.
    pub(super) leader_term: u64,
    pub(super) was_ready: bool,
    pub(super) proposing_ready: bool,
    pub(super) next_ready_attempt: Time,
}

impl Control {
    pub(super) fn new(host: &str) -> Self {
        Self {
            pass_timer: PassTimer::default(),
            pass_cache: pass_cache(),
            leadership_epoch: 0,
            proposing: false,
            waiting: false,
            schedule_at: None,
            policy: Policy::new(),
            followers: BTreeMap::new(),
            detector: detector::Core::new(host),
            fencing: fencing::Core::default(),
            confirming: (0, 0),
            leader_term: 0,
            was_ready: false,
            proposing_ready: false,
            next_ready_attempt: 0,
        }
    }
}

/// One scheduler pass on `host`, with the planted bug if there is one.
pub(super) fn plan(
    host: &str,
    state: &State,
    pass_cache: &mut PassCache,
    (now, ts): (Instant, prost_types::Timestamp),
    mutation: Option<Mutation>,
) -> Pass {
    let seen = mutation.and_then(|mutation| mutation.patch_view(state, host));
    if mutation == Some(Mutation::ReplaceAtOnce) {
        pass_cache.rollouts = Rollouts::at_once();
    }
    let pass = reconcile(seen.as_ref().unwrap_or(state), pass_cache, now, ts);
    match mutation {
        Some(mutation) => mutation.patch_pass(pass),
        None => pass,
    }
}

pub(super) fn pass_cache() -> PassCache {
    PassCache {
        projects: Projects::reading_with(documents::templates),
        ..PassCache::default()
    }
}

impl Cluster {
    /// Node `id` becomes or ceases to be leader.
    pub(super) fn leadership(&mut self, id: u64, leads: bool) {
        let Some((instant, daemon)) = self.running(id) else {
            return;
        };
        let control = &mut daemon.control;
        control.pass_timer.handle_leadership(instant, leads);
        control.leadership_epoch += 1;
        control.waiting = false;
        control.schedule_at = None;
        control.policy = Policy::new();
        control.followers.clear();
        if leads {
            control.pass_cache = pass_cache();
        }
        self.certificate_leadership(id, leads);
        self.drive_scheduler(id);
    }

    /// Lets the actors of node `id` handle the newest state.
    pub(super) fn handle_notification(&mut self, id: u64) {
        let now = self.now;
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let (instant, host) = (machine.clock.instant(now), machine.host.clone());
        let Some(daemon) = &mut machine.daemon else {
            return;
        };
        daemon.notified = false;
        let control = &mut daemon.control;
        let state = &daemon.state;
        control.pass_timer.handle_change(instant);
        let status = |node: &std::sync::Arc<v1::Node>| node.status();
        let statuses: BTreeMap<String, NodeStatus> = state
            .nodes
            .iter()
            .map(|(host, node)| (host.clone(), status(node)))
            .collect();
        let own = statuses.get(&host).copied();
        control.detector.handle_members(instant, statuses);
        control.fencing.handle_status(instant, own);
        if let Some(own) = own {
            self.orphans.contacts.record_status(id, machine.run, own);
        }
        self.drive_health(id);
        self.observe_state(id);
        self.route(id);
        self.certify(id);
        self.reconcile(id);
        self.drive_scheduler(id);
    }

    /// Lets the network's actors of node `id` handle the newest state, as far as it concerns them.
    fn observe_state(&mut self, id: u64) {
        let Some(daemon) = self.daemon(id) else {
            return;
        };
        let state = std::sync::Arc::clone(&daemon.state);
        let last = std::mem::replace(&mut daemon.observed, std::sync::Arc::clone(&state));
        let blocks = !last.subnets.ptr_eq(&state.subnets);
        let nodes = !last.nodes.ptr_eq(&state.nodes);
        if blocks {
            self.observe_networks(id);
        }
        let declared = !last.deployments.ptr_eq(&state.deployments);
        let replicas = !last.replicas_desired.ptr_eq(&state.replicas_desired)
            || !last.replicas_observed.ptr_eq(&state.replicas_observed);
        if blocks || nodes || declared || replicas {
            self.drive_isolation(id, |core, now| {
                core.handle_state(now, std::sync::Arc::clone(&state))
            });
        }
        if blocks || nodes {
            self.drive_mesh(id, |core, now| core.handle_state(now, &state));
        }
    }

    /// Runs the actions of the pass timer, then schedules its deadline.
    fn drive_scheduler(&mut self, id: u64) {
        let now = self.now;
        while let Some(action) = self
            .daemon(id)
            .and_then(|daemon| daemon.control.pass_timer.poll_action())
        {
            match action {
                pass_timer::Action::Pass => self.begin_pass(id),
            }
        }
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let clock = machine.clock;
        let Some(daemon) = &mut machine.daemon else {
            return;
        };
        let control = &mut daemon.control;
        let due = control
            .pass_timer
            .poll_timeout()
            .map(|at| clock.time_of(now, at));
        if due == control.schedule_at {
            return;
        }
        control.schedule_at = due;
        if let Some(at) = due {
            self.schedule_local(id, at - now, Local::Schedule);
        }
    }

    pub(super) fn schedule_due(&mut self, id: u64) {
        let now = self.now;
        let Some((instant, daemon)) = self.running(id) else {
            return;
        };
        let control = &mut daemon.control;
        control.schedule_at = control.schedule_at.filter(|at| *at > now);
        control.pass_timer.handle_timeout(instant);
        self.drive_scheduler(id);
    }

    /// Begins a pass, or lets it wait for the end of an earlier proposal.
    fn begin_pass(&mut self, id: u64) {
        let Some(daemon) = self.daemon(id) else {
            return;
        };
        let control = &mut daemon.control;
        control.waiting = control.proposing;
        if !control.waiting {
            self.pass(id);
        }
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
        let Pass { batch, summary } = plan(
            &machine.host,
            &state,
            &mut control.pass_cache,
            (instant, ts),
            mutation,
        );
        control
            .pass_timer
            .schedule(control.pass_cache.poll_timeout());
        let leadership_epoch = control.leadership_epoch;
        match batch {
            None => control
                .pass_timer
                .handle_finished(instant, pass_timer::Outcome::Done),
            Some(batch) => {
                control.proposing = true;
                self.note(&[20, id, state.applied_index], || {
                    format!("n{id} schedules {summary:?}")
                });
                let data = batch.encode_to_vec();
                self.oracle.record_plan(&data, state.applied_index);
                self.submit(
                    id,
                    Requester::Scheduler(leadership_epoch),
                    Change::Command(batch),
                );
            }
        }
    }

    /// Handles the outcome of the pass that was proposed in `leadership_epoch`.
    pub(super) fn pass_finished(&mut self, id: u64, leadership_epoch: u64, reply: &Reply) {
        let Some((instant, daemon)) = self.running(id) else {
            return;
        };
        let control = &mut daemon.control;
        control.proposing = false;
        if control.leadership_epoch == leadership_epoch {
            let outcome = match reply {
                Reply::Done(_) => pass_timer::Outcome::Done,
                Reply::Rejected(_) | Reply::NotAppended => pass_timer::Outcome::Failed,
                Reply::Block(_) | Reply::Exhausted | Reply::Unknown => pass_timer::Outcome::Unknown,
            };
            control.pass_timer.handle_finished(instant, outcome);
        }
        if std::mem::take(&mut control.waiting) {
            self.pass(id);
        }
        self.drive_scheduler(id);
    }

    /// Crashes a deciding actor, which loses everything it held in memory.
    pub(super) fn crash_control(&mut self, id: u64, actor: Actor) {
        self.note(&[28, id], || format!("{actor:?} crashes on n{id}"));
        let Some((instant, daemon)) = self.running(id) else {
            return;
        };
        let leads = daemon.status.leading;
        let control = &mut daemon.control;
        match actor {
            Actor::Scheduler => {
                control.pass_timer = PassTimer::default();
                control.pass_timer.handle_leadership(instant, leads);
                control.pass_cache = pass_cache();
                control.leadership_epoch += 1;
                control.waiting = false;
                control.schedule_at = None;
                self.drive_scheduler(id);
            }
            // The times of heartbeats are kept outside the actor.
            Actor::Health => {
                control.fencing.handle_restart();
                control.detector.handle_leads(instant, false);
                control.proposing_ready = false;
                let run = self.machines.get(&id).map_or(0, |machine| machine.run);
                self.orphans.contacts.forget_confirmed(id, run);
                self.caught_up_changed(id);
            }
            Actor::Membership => {
                control.policy = Policy::new();
                control.followers.clear();
            }
            Actor::Firewall => self.crash_firewall(id),
            Actor::Mesh => self.crash_mesh(id),
            Actor::Bridges => self.crash_bridges(id),
            Actor::Ipam => self.crash_ipam(id),
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
