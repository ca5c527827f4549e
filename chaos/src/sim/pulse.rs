//! Node health: heartbeats, the leader's verdicts on silent members, and the return of a node.

use std::collections::BTreeSet;

use jaco_actors::health::{contact, core as judge, ready};
use jaco_proto::v1::{self, NodeStatus, command::Payload};

use super::{
    calls::{Ask, Reply, Who},
    mutation::Mutation,
    node::{Input, Reader},
    time::{MS, SECOND},
    world::{Event, Heartbeat, Local, World},
};

impl World {
    /// Ticks the failure detector and the node's own fencing.
    pub(super) fn health_tick(&mut self, id: u64) {
        let now = self.now;
        let Some((instant, daemon)) = self.running(id) else {
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

    pub(super) fn health_effects(
        &mut self,
        id: u64,
        verdicts: Vec<judge::Effect>,
        confirm: Option<contact::Effect>,
    ) {
        for judge::Effect::Propose {
            host,
            status,
            missed,
            ..
        } in verdicts
        {
            self.count(match status {
                NodeStatus::Offline => "found offline",
                _ => "found unhealthy",
            });
            if status == NodeStatus::Offline && self.plan.nuisance.is_some() && !self.calm {
                let found = format!("n{id} marks {host} offline");
                self.oracle.violate("nuisances move nothing", found);
            }
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
            // A verdict counts only from the leader; it is never forwarded.
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
        if let Some((instant, daemon)) = self.running(id) {
            let proposed = judge::Input::Proposed(host);
            daemon.control.judge.handle(instant, proposed);
        }
    }

    /// Handles the end of an attempt to catch up.
    pub(super) fn confirmed(&mut self, id: u64, attempt: u64, current: bool) {
        let Some((instant, daemon)) = self.running(id) else {
            return;
        };
        let input = contact::Input::Confirmed { attempt, current };
        let confirm = daemon.control.contact.handle(instant, input);
        self.health_effects(id, Vec::new(), confirm);
    }

    /// Sends a heartbeat to every other member.
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

    /// Handles a heartbeat of another node.
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

    /// Proposes that this node is ready, once it may be.
    fn come_back(&mut self, id: u64) {
        let now = self.now;
        let hasty = self.has(Mutation::ReadyTooSoon);
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
        let mut facts = ready::Facts {
            current: control.contact.is_current(),
            listed: control.contact.is_listed(instant),
            settled: daemon.runtime.settled(),
            started: !control.was_ready,
        };
        if hasty {
            (facts.current, facts.settled) = (true, true);
        }
        let node = daemon.state.nodes.get(&host);
        if facts.current && node.is_some_and(|n| n.status() == NodeStatus::Ready) {
            control.was_ready = true;
        }
        let Some(update) = ready::update(&daemon.state, &host, facts) else {
            return;
        };
        control.returning = true;
        self.count("came back");
        self.note(&[27, id], || format!("n{id} reports itself ready"));
        self.says_ready(id);
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
}
