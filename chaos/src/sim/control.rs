//! What a node decides for the cluster: the scheduler, who belongs to it, and who is alive.

use std::collections::{BTreeMap, BTreeSet};

use jaco_actors::{
    health::{contact, core as judge, ready},
    membership::{
        leaving,
        policy::{self, Action, Policy, Verdict},
    },
    scheduler::{
        pace::{self, Pace},
        projects::Projects,
        reconcile::{Memo, Pass, reconcile},
    },
};
use jaco_proto::v1::{self, NodeStatus, command::Payload};
use jaco_raftnode::{command, core::MemberChange};

use super::{
    calls::{Ask, Reply, Who},
    disk::{Crash, Disk},
    documents,
    node::{Input, Reader},
    time::{MS, SECOND, Time},
    world::{Event, Heartbeat, Local, World},
};

/// Value of `NodeStatusUpdate.drain_mark` that sets the mark.
const DRAIN_SET: i32 = 1;

/// A follower is active that answered within this time.
const ACTIVE: Time = 2 * SECOND;

/// The deciding parts of one daemon.
pub(super) struct Control {
    pace: Pace,
    memo: Memo,
    /// Stretch of leadership.
    stint: u64,
    /// A pass is proposed; it outlives the stretch.
    proposing: bool,
    /// A pass has begun and waits for an earlier one to be over.
    waiting: bool,
    schedule_at: Option<Time>,
    policy: Policy,
    /// When each follower answered last.
    followers: BTreeMap<u64, Time>,
    judge: judge::Core,
    contact: contact::Core,
    /// Latest term of a leader that was heard.
    leader_term: u64,
    was_ready: bool,
    returning: bool,
    next_return: Time,
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

pub(super) fn memo() -> Memo {
    Memo {
        projects: Projects::reading_with(documents::templates),
        ..Memo::default()
    }
}

impl World {
    /// Node `id` begins or ceases to lead.
    pub(super) fn leadership(&mut self, id: u64, leads: bool) {
        let now = self.now;
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let instant = machine.clock.instant(now);
        let Some(daemon) = &mut machine.daemon else {
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

    /// The actors of node `id` look at the newest state.
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

    // ---- scheduler ----

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
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let instant = machine.clock.instant(now);
        let Some(daemon) = &mut machine.daemon else {
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
        let now = self.now;
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let (instant, ts) = (machine.clock.instant(now), machine.clock.timestamp(now));
        let Some(daemon) = &mut machine.daemon else {
            return;
        };
        let control = &mut daemon.control;
        let state = std::sync::Arc::clone(&daemon.state);
        let Pass { batch, summary } = reconcile(&state, &mut control.memo, ts);
        let stint = control.stint;
        match batch {
            None => control.pace.handle_finished(pace::Outcome::Done, instant),
            Some(batch) => {
                control.proposing = true;
                self.note(&[20, id, state.applied_index], || {
                    format!("n{id} schedules {summary:?}")
                });
                self.submit(id, Who::Scheduler(stint), Ask::Command(batch));
            }
        }
    }

    /// The pass that was proposed in `stint` is over.
    pub(super) fn pass_over(&mut self, id: u64, stint: u64, reply: &Reply) {
        let now = self.now;
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let instant = machine.clock.instant(now);
        let Some(daemon) = &mut machine.daemon else {
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

    // ---- membership ----

    /// The leader looks at who takes part.
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
        self.later(id, after, Local::Membership);
        self.plan_membership(id);
    }

    fn plan_membership(&mut self, id: u64) {
        let now = self.now;
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
        let rows = daemon.state.nodes.values().map(|node| {
            let member = policy::Member {
                hostname: node.hostname.clone(),
                leaving: leaving(node),
            };
            (node.raft_id, member)
        });
        let progress = status.progress.iter().map(|p| {
            let heard = control.followers.get(&p.raft_id);
            let progress = policy::Progress {
                matched: p.matched,
                active: p.recent_active || heard.is_some_and(|at| now - at < ACTIVE),
            };
            (p.raft_id, progress)
        });
        let view = policy::View {
            leader: id,
            commit: status.commit,
            changing: status.changing_members,
            voters: status.voters.iter().copied().collect(),
            learners: status.learners.iter().copied().collect(),
            rows: rows.collect(),
            progress: progress.collect(),
        };
        let since = std::time::Duration::from_micros(clock.after(0, now));
        let Verdict::Act(action) = control.policy.plan(since, &view) else {
            return;
        };
        self.count(match action {
            Action::Add(_) => "learners added",
            Action::Promote(_) => "learners promoted",
            Action::Demote(_) => "voters demoted",
            Action::Remove(_) => "members removed",
            Action::Transfer(_) | Action::Forget(_) => "other steps of members",
        });
        self.note(&[21, id], || format!("n{id} changes members: {action:?}"));
        let change = match action {
            Action::Add(raft_id) => MemberChange::AddLearner(raft_id),
            Action::Promote(raft_id) => MemberChange::Promote(raft_id),
            Action::Demote(raft_id) => MemberChange::Demote(raft_id),
            Action::Remove(raft_id) => MemberChange::Remove(raft_id),
            Action::Transfer(raft_id) => return self.input(id, Input::Transfer(raft_id)),
            Action::Forget(raft_id) => return self.forget(id, raft_id),
        };
        self.input(id, Input::Change(change));
    }

    /// Deletes the row of a node that is out of the configuration.
    fn forget(&mut self, id: u64, raft_id: u64) {
        let Some(command) = self.node_command(id, |_| {
            Payload::NodeRemove(v1::NodeRemove {
                hostname: format!("n{raft_id}"),
            })
        }) else {
            return;
        };
        self.submit(id, Who::Nobody, Ask::Command(command));
    }

    /// A new machine asks whoever leads to be let in.
    pub(super) fn join(&mut self) {
        let Some(leader) = self.leader() else {
            return;
        };
        if self.members().len() >= 7 {
            return;
        }
        let Some(daemon) = self.daemon(leader) else {
            return;
        };
        let next = daemon.state.cluster.as_ref().map(|meta| meta.next_raft_id);
        let raft_id = next.unwrap_or(0);
        if raft_id == 0 || self.machines.contains_key(&raft_id) {
            return;
        }
        let Some(command) = self.node_command(leader, |_| {
            Payload::NodeJoin(v1::NodeJoin {
                hostname: format!("n{raft_id}"),
                address: format!("n{raft_id}:7947"),
                grpc_address: format!("n{raft_id}:7946"),
                raft_id,
                ..v1::NodeJoin::default()
            })
        }) else {
            return;
        };
        self.note(&[22, raft_id], || format!("n{raft_id} joins"));
        self.place(raft_id, Disk::default());
        self.submit(leader, Who::Nobody, Ask::Command(command));
    }

    /// An operator takes a member out, unless too few would be left.
    pub(super) fn leave(&mut self, id: u64) {
        let newest = self.oracle.newest();
        let leaving = newest.nodes.values().filter(|node| node.draining).count();
        let staying = newest.nodes.len() - leaving;
        let (Some(leader), true) = (self.leader(), staying > 2) else {
            return;
        };
        let Some(command) = self.node_command(leader, |_| {
            Payload::NodeStatusUpdate(v1::NodeStatusUpdate {
                hostname: format!("n{id}"),
                drain_mark: DRAIN_SET,
                ..v1::NodeStatusUpdate::default()
            })
        }) else {
            return;
        };
        self.note(&[23, id], || format!("n{id} is to leave"));
        self.submit(leader, Who::Nobody, Ask::Command(command));
    }

    pub(super) fn transfer(&mut self) {
        let Some(leader) = self.leader() else {
            return;
        };
        let successor = self
            .daemon(leader)
            .and_then(|d| d.core.status().successor());
        if let Some(to) = successor {
            self.note(&[24, leader, to], || {
                format!("n{leader} hands over to n{to}")
            });
            self.input(leader, Input::Transfer(to));
        }
    }

    /// Ends the machines whose rows are gone: nobody speaks to them any more.
    pub(super) fn bury(&mut self) {
        let newest = std::sync::Arc::clone(self.oracle.newest());
        let gone: Vec<u64> = self
            .machines
            .values()
            .filter(|m| !m.removed && self.oracle.was_member(m.id))
            .filter(|m| !newest.nodes.contains_key(&m.host))
            .map(|m| m.id)
            .collect();
        for id in gone {
            self.note(&[25, id], || format!("n{id} is no member any more"));
            self.crash(id, Crash::Kill);
            if let Some(machine) = self.machines.get_mut(&id) {
                machine.removed = true;
            }
        }
    }

    // ---- health ----

    /// Looks at the silence of the others, and at its own.
    pub(super) fn health_tick(&mut self, id: u64) {
        let now = self.now;
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let instant = machine.clock.instant(now);
        let Some(daemon) = &mut machine.daemon else {
            return;
        };
        let leads = daemon.status.leading;
        let control = &mut daemon.control;
        let answering = daemon.status.progress.iter().filter(|p| p.recent_active);
        control
            .followers
            .extend(answering.map(|p| (p.raft_id, now)));
        let mut verdicts = control.judge.handle(instant, judge::Input::Leads(leads));
        verdicts.extend(control.judge.handle(instant, judge::Input::Tick));
        let own = if leads {
            contact::Input::Listed(true)
        } else {
            contact::Input::Tick
        };
        let confirm = control.contact.handle(instant, own);
        self.health_effects(id, verdicts, confirm);
        self.come_back(id);
    }

    fn health_effects(
        &mut self,
        id: u64,
        verdicts: Vec<judge::Effect>,
        confirm: Option<contact::Effect>,
    ) {
        for judge::Effect::Propose {
            host,
            status,
            missed,
        } in verdicts
        {
            self.count(match status {
                NodeStatus::Offline => "found offline",
                _ => "found unhealthy",
            });
            self.note(&[26, id, u64::from(missed)], || {
                format!("n{id} finds {host} {status:?}")
            });
            let command = self.node_command(id, |_| {
                Payload::NodeStatusUpdate(v1::NodeStatusUpdate {
                    hostname: host.clone(),
                    status: status.into(),
                    ..v1::NodeStatusUpdate::default()
                })
            });
            // Only a leader's verdict counts; it is never forwarded.
            let leads = self.daemon(id).is_some_and(|d| d.status.leading);
            match command {
                Some(command) if leads => {
                    self.submit(id, Who::Health(host), Ask::Command(command));
                }
                _ => self.verdict_over(id, host),
            }
        }
        if let Some(contact::Effect::Confirm { attempt }) = confirm
            && let Some(daemon) = self.daemon(id)
        {
            let ticket = daemon.ticket();
            daemon.reads.insert(ticket, Reader::Confirm(attempt));
            self.input(id, Input::Read(ticket));
        }
        self.caught_up_changed(id);
    }

    pub(super) fn verdict_over(&mut self, id: u64, host: String) {
        let now = self.now;
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let instant = machine.clock.instant(now);
        if let Some(daemon) = &mut machine.daemon {
            let proposed = judge::Input::Proposed(host);
            daemon.control.judge.handle(instant, proposed);
        }
    }

    /// An attempt to catch up is over.
    pub(super) fn confirmed(&mut self, id: u64, attempt: u64, current: bool) {
        let now = self.now;
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let instant = machine.clock.instant(now);
        let Some(daemon) = &mut machine.daemon else {
            return;
        };
        let input = contact::Input::Confirmed { attempt, current };
        let confirm = daemon.control.contact.handle(instant, input);
        self.health_effects(id, Vec::new(), confirm);
    }

    /// Tells every member that this node is alive.
    pub(super) fn beat(&mut self, id: u64) {
        let Some(machine) = self.machines.get(&id) else {
            return;
        };
        let after = machine.clock.after(self.now, 2 * SECOND) - self.now;
        let Some(daemon) = &machine.daemon else {
            return;
        };
        let mut hears = BTreeSet::new();
        if daemon.status.leading {
            hears.extend(daemon.control.judge.heard().map(str::to_owned));
            hears.insert(machine.host.clone());
        }
        let beat = Heartbeat {
            from: id,
            leads: daemon.status.leading,
            term: daemon.status.term,
            hears,
        };
        let others: Vec<u64> = daemon.state.nodes.values().map(|n| n.raft_id).collect();
        self.later(id, after, Local::Beat);
        for to in others.into_iter().filter(|to| *to != id) {
            if let Some(after) = self.network.deliveries(id, to, 60).first() {
                let event = Event::Beat(to, beat.clone());
                self.agenda.add(self.now + after, event);
            }
        }
    }

    /// Node `id` hears another.
    pub(super) fn heard(&mut self, id: u64, beat: Heartbeat) {
        let now = self.now;
        let from = format!("n{}", beat.from);
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let (instant, host) = (machine.clock.instant(now), &machine.host);
        let Some(daemon) = &mut machine.daemon else {
            return;
        };
        if !daemon.state.nodes.contains_key(&from) {
            return;
        }
        let control = &mut daemon.control;
        let verdicts = control.judge.handle(instant, judge::Input::Heard(from));
        let term = daemon.status.term.max(control.leader_term);
        let mut confirm = None;
        if beat.leads && beat.term >= term {
            control.leader_term = beat.term;
            let listed = contact::Input::Listed(beat.hears.contains(host));
            confirm = control.contact.handle(instant, listed);
        }
        self.health_effects(id, verdicts, confirm);
    }

    /// Writes that this node is ready, once it may.
    fn come_back(&mut self, id: u64) {
        let now = self.now;
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let (instant, host) = (machine.clock.instant(now), machine.host.clone());
        let Some(daemon) = &mut machine.daemon else {
            return;
        };
        let control = &mut daemon.control;
        if control.returning || now < control.next_return || machine.engine.away {
            return;
        }
        let facts = ready::Facts {
            current: control.contact.is_current(),
            listed: control.contact.is_listed(instant),
            settled: daemon.runtime.settled(),
            started: !control.was_ready,
        };
        let node = daemon.state.nodes.get(&host);
        if facts.current && node.is_some_and(|n| n.status() == NodeStatus::Ready) {
            control.was_ready = true;
        }
        let Some(update) = ready::update(&daemon.state, &host, facts) else {
            return;
        };
        control.returning = true;
        self.count("came back");
        self.note(&[27, id], || format!("n{id} says it is ready"));
        if let Some(command) = self.node_command(id, |_| Payload::NodeStatusUpdate(update)) {
            self.submit(id, Who::Ready, Ask::Command(command));
        }
    }

    pub(super) fn returned(&mut self, id: u64, reply: &Reply) {
        let now = self.now;
        if let Some(daemon) = self.daemon(id) {
            daemon.control.returning = false;
            if !matches!(reply, Reply::Done(_)) {
                daemon.control.next_return = now + 1_000 * MS;
            }
        }
    }

    /// A command of node `id` with the time of its clock.
    fn node_command(&self, id: u64, payload: impl FnOnce(&str) -> Payload) -> Option<v1::Command> {
        let machine = self.machines.get(&id)?;
        let ts = machine.clock.timestamp(self.now);
        Some(command("node", ts, payload(&machine.host)))
    }
}
