//! Node health: heartbeats, the leader's verdicts on silent members, and the return of a node.

use std::{collections::BTreeSet, iter};

use jaco_policy::{
    health::{core as detector, fencing, ready},
    network::readiness::assess,
};
use jaco_proto::v1::{self, NodeStatus, command::Payload};

use super::{
    calls::{Change, Reply, Requester},
    cluster::{Cluster, Event, Heartbeat, Local},
    mutation::Mutation,
    node::{Input, Reader},
    time::{MS, SECOND, Time},
};

impl Cluster {
    /// Ticks the failure detector and the node's own fencing.
    pub(super) fn health_tick(&mut self, id: u64) {
        let now = self.now;
        let acts_while_stalled = self.has(Mutation::ActWhileStalled);
        let Some((instant, daemon)) = self.running(id) else {
            return;
        };
        let (leads, stalled) = (daemon.status.leading, daemon.stalled);
        let control = &mut daemon.control;
        let answering = daemon.status.progress.iter().filter(|p| p.recent_active);
        control
            .followers
            .extend(answering.map(|p| (p.raft_id, now)));
        control.detector.handle_leads(instant, leads);
        control.detector.handle_tick(instant);
        if leads {
            control.fencing.handle_leads(instant);
        } else {
            control.fencing.handle_tick(instant);
        }
        if stalled {
            if !acts_while_stalled {
                control.fencing.handle_stalled(instant);
            }
            self.record_stalled(id);
        }
        // A leader that was deposed in a pause has no contact, though it does not know yet.
        if leads && self.leader() == Some(id) {
            self.record_contact(id, now);
        }
        self.drive_health(id);
        self.propose_ready(id);
    }

    /// Carries out the actions of the health cores. They are all taken first, because one of them
    /// may lead to the next event.
    pub(super) fn drive_health(&mut self, id: u64) {
        let now = self.now;
        let Some(daemon) = self.daemon(id) else {
            return;
        };
        let control = &mut daemon.control;
        let verdicts: Vec<_> = iter::from_fn(|| control.detector.poll_action()).collect();
        let confirms: Vec<_> = iter::from_fn(|| control.fencing.poll_action()).collect();
        for detector::Action::Propose {
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
            if status == NodeStatus::Offline
                && self.plan.benign_fault.is_some()
                && !self.faults_over
            {
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
                    self.submit(id, Requester::Health(host), Change::Command(command));
                }
                _ => self.verdict_proposed(id, &host),
            }
        }
        for fencing::Action::Confirm { attempt } in confirms {
            let Some(daemon) = self.daemon(id) else {
                return;
            };
            if daemon.stalled {
                self.confirmed(id, attempt, false);
                continue;
            }
            let ticket = daemon.ticket();
            daemon.control.confirming = (attempt, now);
            daemon.reads.insert(ticket, Reader::Confirm(attempt));
            self.input(id, Input::Read(ticket));
        }
        self.caught_up_changed(id);
    }

    pub(super) fn verdict_proposed(&mut self, id: u64, host: &str) {
        if let Some((instant, daemon)) = self.running(id) {
            daemon.control.detector.handle_proposed(instant, host);
        }
    }

    /// Handles the end of an attempt to catch up.
    pub(super) fn confirmed(&mut self, id: u64, attempt: u64, current: bool) {
        let now = self.now;
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let (instant, run) = (machine.clock.instant(now), machine.run);
        let Some(daemon) = &mut machine.daemon else {
            return;
        };
        let control = &mut daemon.control;
        let before = control.fencing.is_current();
        control.fencing.handle_confirmed(instant, attempt, current);
        let counted = control.fencing.is_current() && !before;
        let (newest, begun) = control.confirming;
        if counted && newest == attempt {
            let contacts = &mut self.orphans.contacts;
            contacts.record_confirmed(id, run, begun, now);
        }
        self.drive_health(id);
    }

    /// Records for the judge that node `id` has had a sign of contact, sent by the leader at
    /// `sent`.
    fn record_contact(&mut self, id: u64, sent: Time) {
        let run = self.machines.get(&id).map_or(0, |machine| machine.run);
        self.orphans.contacts.heard(id, run, sent);
    }

    /// Records for the judge that node `id` has found that it does not apply the log.
    fn record_stalled(&mut self, id: u64) {
        let run = self.machines.get(&id).map_or(0, |machine| machine.run);
        self.orphans.contacts.record_stalled(id, run);
    }

    /// Sends a heartbeat to every other member.
    pub(super) fn send_heartbeat(&mut self, id: u64) {
        let Some(machine) = self.machines.get(&id) else {
            return;
        };
        let after = machine.clock.after(self.now, 2 * SECOND) - self.now;
        let Some(daemon) = &machine.daemon else {
            return;
        };
        let mut receives_from = BTreeSet::new();
        if daemon.status.leading {
            receives_from.extend(daemon.control.detector.live().map(str::to_owned));
            receives_from.insert(machine.host.clone());
        }
        let heartbeat = Heartbeat {
            from: id,
            sent: self.now,
            leads: daemon.status.leading,
            term: daemon.status.term,
            receives_from,
        };
        let others: Vec<u64> = daemon.state.nodes.values().map(|n| n.raft_id).collect();
        self.schedule_local(id, after, Local::Heartbeat);
        for to in others.into_iter().filter(|to| *to != id) {
            if let Some(after) = self.network.deliveries(id, to, 60).first() {
                let event = Event::Heartbeat(to, heartbeat.clone());
                self.agenda.add(self.now + after, event);
            }
        }
    }

    /// Handles a heartbeat of another node.
    pub(super) fn handle_heartbeat(&mut self, id: u64, heartbeat: Heartbeat) {
        let now = self.now;
        let from = format!("n{}", heartbeat.from);
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
        control.detector.handle_heartbeat(instant, &from);
        let term = daemon.status.term.max(control.leader_term);
        if heartbeat.leads && heartbeat.term >= term {
            control.leader_term = heartbeat.term;
            let seen_by_leader = heartbeat.receives_from.contains(host);
            control
                .fencing
                .handle_seen_by_leader(instant, seen_by_leader);
            if seen_by_leader {
                self.record_contact(id, heartbeat.sent);
            }
        }
        self.drive_health(id);
    }

    /// Proposes that this node is ready, once it may be.
    fn propose_ready(&mut self, id: u64) {
        let now = self.now;
        let skip_checks = self.has(Mutation::ReadyTooSoon);
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let (instant, host) = (machine.clock.instant(now), machine.host.clone());
        let Some(daemon) = &mut machine.daemon else {
            return;
        };
        let control = &mut daemon.control;
        if control.proposing_ready || now < control.next_ready_attempt || machine.engine.away {
            return;
        }
        let contact = control.fencing.contact(instant);
        let mut facts = ready::ReadyConditions {
            current: contact.is_some(),
            seen_by_leader: control.fencing.is_seen_by_leader(instant),
            orphans_cleared: daemon.runtime.orphans_cleared(contact),
            never_ready: !control.was_ready,
        };
        if skip_checks {
            (facts.current, facts.orphans_cleared) = (true, true);
        }
        let node = daemon.state.nodes.get(&host);
        if facts.current && node.is_some_and(|n| n.status() == NodeStatus::Ready) {
            control.was_ready = true;
        }
        let isolation = &daemon.isolation.status.isolation;
        let (mesh, members) = (daemon.mesh.core.status(), daemon.state.nodes.len());
        let network = assess(isolation, mesh, members);
        let Some(update) = ready::update(&daemon.state, &host, facts, &network) else {
            return;
        };
        control.proposing_ready = true;
        self.count("came back");
        self.note(&[27, id], || format!("n{id} reports itself ready"));
        self.check_ready(id);
        if let Some(command) = self.node_command(id, |_| Payload::NodeStatusUpdate(update)) {
            self.submit(id, Requester::Ready, Change::Command(command));
        }
    }

    pub(super) fn ready_proposed(&mut self, id: u64, reply: &Reply) {
        let now = self.now;
        if let Some(daemon) = self.daemon(id) {
            daemon.control.proposing_ready = false;
            if !matches!(reply, Reply::Done(_)) {
                daemon.control.next_ready_attempt = now + 1_000 * MS;
            }
        }
    }
}
