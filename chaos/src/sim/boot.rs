//! Start of a daemon from its disk, and its end.

use std::{rc::Rc, sync::Arc};

use jaco_proto::v1::{self, NodeStatus, command::Payload};
use jaco_raftnode::core::{Config, RaftCore};
use jaco_state::{State, batch, command};

use super::{
    calls::Requester,
    cluster::{Cluster, Local},
    disk::{Crash, View},
    mesh::public_key,
    mutation::Mutation,
    node::Daemon,
    runtime::SWEEP,
    time::{MS, SECOND},
};

impl Cluster {
    pub(super) fn start(&mut self, id: u64) {
        self.runs += 1;
        let (run, seed) = (self.runs, self.chance.number());
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        if machine.daemon.is_some() || machine.removed {
            return;
        }
        if let Err(what) = machine.disk.borrow_mut().recover() {
            return self.oracle.violate("state on disk", what);
        }
        let loaded = machine.disk.borrow().current().load();
        let state = match loaded {
            Ok(state) => Arc::new(state),
            Err(error) => {
                let what = format!("{id} cannot load its state: {error}");
                return self.oracle.violate("state on disk", what);
            }
        };
        let (applied, last, commit) = {
            let mut disk = machine.disk.borrow_mut();
            disk.state = Some(Arc::clone(&state));
            let content = disk.current();
            let commit = content.hard_state.commit;
            (content.applied, content.last().0, commit)
        };
        if applied > last || applied > commit {
            let what = format!("{id} has applied {applied}, logged {last} and committed {commit}");
            return self.oracle.violate("applied is durable", what);
        }
        let (heartbeat_ticks, election_ticks) = self.ticks;
        let config = Config {
            seed,
            heartbeat_ticks,
            election_ticks,
            ..Config::new(id, applied, run)
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let core = RaftCore::new(&config, View(Rc::clone(&machine.disk)), &logger);
        let mut core = match core {
            Ok(core) => core,
            Err(error) => {
                let what = format!("raft of {id} does not start: {error}");
                return self.oracle.violate("state on disk", what);
            }
        };
        if let Err(error) = core.handle_start() {
            let what = format!("raft of {id} does not start: {error}");
            return self.oracle.violate("state on disk", what);
        }
        machine.run = run;
        let instant = machine.clock.instant(self.now);
        let mut daemon = Daemon::new(instant, core, &state, &machine.host);
        let admitted = machine.kernel.admitted();
        daemon.mesh.core.handle_inherited(instant, admitted);
        machine.daemon = Some(daemon);
        self.reachability.hinder(id, self.now);
        self.note(&[1, id, applied, last], || {
            format!("n{id} starts at {applied}")
        });
        if applied > 0 {
            self.oracle.check_state(id, &state);
        }
        self.update_orphans(id);
        let phase = self.chance.within(0..100 * MS);
        self.schedule_local(id, phase, Local::Tick);
        self.schedule_local(id, phase, Local::Heartbeat);
        self.schedule_local(id, SWEEP, Local::Sweep);
        self.schedule_local(id, 3 * SECOND + phase, Local::Membership);
        self.schedule_local(id, 0, Local::Notification);
        self.schedule_local(id, 0, Local::Survey);
        self.schedule_local(id, 0, Local::FirewallDue);
        self.schedule_local(id, 0, Local::MeshDue);
        self.isolation_leader(id);
        self.drive(id);
    }

    /// Ends the daemon of `id`.
    pub(super) fn crash(&mut self, id: u64, crash: Crash) {
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let Some(daemon) = machine.daemon.take() else {
            return;
        };
        let ended = std::mem::take(&mut machine.run);
        machine.paused_until = 0;
        let checked = self.plan.mutation != Some(Mutation::AcceptTornWrite);
        let left = machine
            .disk
            .borrow_mut()
            .crash(crash, &mut self.disk_chance, checked);
        if crash == Crash::PowerCut {
            machine.engine.power_cut();
            machine.kernel.reboot();
            machine.cut_run = ended;
        }
        // The kernel's device outlives the daemon; one in user space does not.
        if crash == Crash::PowerCut || id % 2 == 1 {
            machine.kernel.delete_device();
        }
        machine.kernel.unseen = (false, false);
        self.judge(id);
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let applied = machine.disk.borrow().current().applied;
        self.count(match crash {
            Crash::Kill => "killed daemons",
            Crash::PowerCut => "power cuts",
        });
        self.note(&[2, id, applied], || {
            format!("n{id} ends by {crash:?}, at {applied} on disk")
        });
        if let Err(error) = left {
            let what = format!("{id} cannot recover: {error}");
            self.oracle.violate("state on disk", what);
        }
        for requester in daemon.unanswered() {
            if let Requester::Client(op) = requester {
                self.clients.lose(op, self.now, &mut self.agenda);
            }
        }
    }
}

/// The bootstrap state, from which every founding member starts.
pub(super) fn bootstrap_state(members: u64) -> State {
    let ts = prost_types::Timestamp::default();
    let mut children = vec![Payload::ClusterInit(v1::ClusterInit {
        cluster_id: "00000000-0000-4000-8000-000000000001".to_owned(),
        self_hostname: "n1".to_owned(),
        self_address: "n1:7947".to_owned(),
        self_grpc_address: "n1:7946".to_owned(),
        self_raft_id: 1,
        ..v1::ClusterInit::default()
    })];
    for id in 2..=members {
        children.push(Payload::NodeJoin(v1::NodeJoin {
            hostname: format!("n{id}"),
            address: format!("n{id}:7947"),
            grpc_address: format!("n{id}:7946"),
            raft_id: id,
            ..v1::NodeJoin::default()
        }));
        children.push(Payload::NodeStatusUpdate(v1::NodeStatusUpdate {
            hostname: format!("n{id}"),
            status: NodeStatus::Ready.into(),
            ..v1::NodeStatusUpdate::default()
        }));
    }
    for id in 1..=members {
        children.push(Payload::NodeUpdateSelf(v1::NodeUpdateSelf {
            hostname: format!("n{id}"),
            wireguard_pubkey: public_key(id).to_vec(),
            traits: Some(traits(id)),
            ..v1::NodeUpdateSelf::default()
        }));
    }
    let children = children.into_iter().map(|p| command("founder", ts, p));
    let founding = batch("founder", ts, children.collect());
    match jaco_state::fsm::apply(&State::default(), 1, &founding) {
        Ok(applied) => applied.state,
        Err(_) => State::default(),
    }
}

/// Traits of a founder; members that join have none.
fn traits(id: u64) -> v1::NodeTraits {
    let zone = if id.is_multiple_of(2) { "even" } else { "odd" };
    let platforms = match id % 3 {
        0 => vec!["linux/arm64".to_owned()],
        _ => vec!["linux/amd64".to_owned()],
    };
    v1::NodeTraits {
        platforms,
        labels: [("zone".to_owned(), zone.to_owned())].into(),
    }
}
