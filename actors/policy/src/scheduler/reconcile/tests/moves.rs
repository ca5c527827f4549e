//! Replicas that leave a serving host: one at a time, through the state machine.

use jaco_proto::mark;
use jaco_state::fsm;

use super::*;
use crate::scheduler::{drain_check, moves, rollout::MONITOR};

impl Fixture {
    fn commit(&mut self, payload: Payload) {
        let index = self.state.applied_index + 1;
        let command = command(IDENTITY, at(1), payload);
        let applied = fsm::apply_in_place(&mut self.state, index, &command);
        assert_eq!(applied.unwrap().result, Ok(()));
    }

    /// Plans a pass, commits it, and returns the replicas it issues with host and previous host.
    fn commit_pass(&mut self) -> Vec<String> {
        let pass = self.plan();
        let Some(batch) = pass.batch.clone() else {
            return Vec::new();
        };
        self.commit(batch.payload.unwrap());
        let issued = children(&pass).into_iter().filter_map(|child| {
            let Some(Payload::ReplicaDesiredUpsert(upsert)) = child.payload else {
                return None;
            };
            let row = upsert.replica?;
            Some(format!("{} {} {}", row.id, row.host, row.previous_host))
        });
        issued.collect()
    }

    /// Commits a report of `host`, of the row in force or, as the previous host, of the one before.
    fn report(&mut self, id: &str, host: &str, state: ReplicaState, code: &str) {
        let row = self.row(id);
        let made_from = row.raft_index - u64::from(row.host != host);
        let replica = v1::ReplicaObserved {
            id: id.into(),
            host: host.into(),
            state: state.into(),
            code: code.into(),
            desired_raft_index: made_from,
            ..Default::default()
        };
        self.commit(Payload::ReplicaObservedUpdate(v1::ReplicaObservedUpdate {
            replica: Some(replica),
        }));
    }

    fn report_running(&mut self, id: &str, host: &str) {
        self.report(id, host, ReplicaState::Running, "");
    }

    fn status(&mut self, host: &str, status: NodeStatus, mark: i32) {
        self.commit(Payload::NodeStatusUpdate(v1::NodeStatusUpdate {
            hostname: host.into(),
            status: status.into(),
            drain_mark: mark,
            ..Default::default()
        }));
    }

    fn drain(&mut self, host: &str) {
        self.status(host, NodeStatus::Unspecified, mark::SET);
    }

    fn remaining(&self, host: &str) -> Vec<&str> {
        drain_check::remaining(&self.state, host)
    }
}

/// Replicas of `web`, which run on `n1`, which drains; `n2` could take them.
fn draining(replicas: i32) -> Fixture {
    let mut fixture = Fixture::new(&["n1"]);
    fixture.deploy("app", &[("web", replicas)], "web nginx h");
    fixture.commit_pass();
    for at in 0..replicas {
        fixture.report_running(&format!("app-web-{at}"), "n1");
    }
    fixture.node("n2", NodeStatus::Ready);
    fixture.drain("n1");
    fixture
}

#[test]
fn replicas_leave_a_serving_host_one_by_one() {
    let mut fixture = Fixture::new(&["n1"]);
    fixture.deploy("app", &[("api", 1), ("web", 3)], "api go h\nweb nginx h");
    fixture.commit_pass();
    for id in ["app-api-0", "app-web-0", "app-web-1", "app-web-2"] {
        fixture.report_running(id, "n1");
    }
    fixture.node("n2", NodeStatus::Ready);
    fixture.drain("n1");
    assert_eq!(
        fixture.commit_pass(),
        ["app-api-0 n2 n1", "app-web-0 n2 n1"],
        "services do not wait for each other"
    );
    for state in [
        ReplicaState::Pulling,
        ReplicaState::Pending,
        ReplicaState::Degraded,
    ] {
        fixture.report("app-web-0", "n2", state, "");
        fixture.report_running("app-web-0", "n1");
        assert_eq!(fixture.plan(), Pass::default(), "{state:?}");
    }
    fixture.report_running("app-web-0", "n2");
    assert_eq!(fixture.commit_pass(), ["app-web-1 n2 n1"]);
    assert_eq!(
        fixture.remaining("n1"),
        ["app-api-0", "app-web-1", "app-web-2"]
    );
    // A host that serves nothing is not waited for.
    fixture.status("n1", NodeStatus::Offline, mark::KEEP);
    assert_eq!(fixture.commit_pass(), ["app-web-2 n2 "]);
}

#[test]
fn stopped_move_does_not_block_the_others() {
    for (state, code) in [
        (ReplicaState::Failed, "restart_exhausted"),
        (ReplicaState::Failed, "docker_error"),
        (ReplicaState::Pending, "docker_error"),
        (ReplicaState::Failed, "subnet_pool_exhausted"),
        (ReplicaState::Pending, "image_pull_failed"),
        (ReplicaState::Pending, "isolation_unavailable"),
    ] {
        let mut fixture = draining(2);
        assert_eq!(fixture.commit_pass(), ["app-web-0 n2 n1"]);
        fixture.report("app-web-0", "n2", state, code);
        fixture.report_running("app-web-0", "n1");
        assert_eq!(fixture.commit_pass(), ["app-web-1 n2 n1"], "{code}");
        fixture.report_running("app-web-1", "n2");
        assert_eq!(fixture.plan(), Pass::default());
        // Its old host is the only one that serves it.
        assert_eq!(fixture.remaining("n1"), ["app-web-0"], "{code}");
        assert_eq!(fixture.row("app-web-0").previous_host, "n1");
    }
}

#[test]
fn move_to_silent_host_does_not_block() {
    let mut fixture = draining(3);
    assert_eq!(fixture.commit_pass(), ["app-web-0 n2 n1"]);
    fixture.node("n3", NodeStatus::Ready);
    fixture.status("n2", NodeStatus::Unhealthy, mark::KEEP);
    assert_eq!(fixture.commit_pass(), ["app-web-1 n3 n1"]);
    assert_eq!(fixture.plan(), Pass::default());
    // A move that goes on elsewhere is not a second one.
    fixture.status("n2", NodeStatus::Offline, mark::KEEP);
    assert_eq!(fixture.commit_pass(), ["app-web-0 n3 n1"]);
    fixture.report_running("app-web-0", "n3");
    assert_eq!(fixture.plan(), Pass::default());
    fixture.report_running("app-web-1", "n3");
    assert_eq!(fixture.commit_pass(), ["app-web-2 n3 n1"]);
}

#[test]
fn host_that_serves_is_kept_over_several_moves() {
    let mut fixture = draining(2);
    fixture.commit_pass();
    fixture.node("n3", NodeStatus::Ready);
    // The replica never ran on its second host, which leaves as well.
    fixture.drain("n2");
    assert_eq!(fixture.commit_pass(), ["app-web-0 n3 n1"]);
    assert_eq!(fixture.remaining("n2"), [""; 0]);
    fixture.report_running("app-web-0", "n3");
    assert_eq!(fixture.commit_pass(), ["app-web-1 n3 n1"]);
    // It returns to the host that serves it, and leaves that once more.
    fixture.status("n1", NodeStatus::Unspecified, mark::CLEAR);
    fixture.drain("n3");
    assert_eq!(fixture.commit_pass(), ["app-web-1 n1 "]);
    assert_eq!(fixture.commit_pass(), ["app-web-0 n1 n3"]);
    fixture.status("n2", NodeStatus::Unspecified, mark::CLEAR);
    fixture.drain("n1");
    assert_eq!(fixture.commit_pass(), ["app-web-0 n2 n3"]);
    fixture.report_running("app-web-0", "n2");
    assert_eq!(fixture.commit_pass(), ["app-web-1 n2 n1"]);
}

#[test]
fn former_moves_do_not_block() {
    let mut fixture = draining(1);
    fixture.commit_pass();
    fixture.report_running("app-web-0", "n2");
    fixture.status("n1", NodeStatus::Unspecified, mark::CLEAR);
    fixture.deploy("app", &[("web", 2)], "web nginx h");
    assert_eq!(fixture.commit_pass(), ["app-web-1 n1 "]);
    fixture.report_running("app-web-1", "n1");
    // The first one is restarted where it moved to, while its former host is left.
    let state = ReplicaState::Failed;
    fixture.report("app-web-0", "n2", state, "container_exited");
    fixture.drain("n1");
    assert_eq!(fixture.commit_pass(), ["app-web-1 n2 n1"]);
    fixture.report_running("app-web-1", "n2");
    fixture.report("app-web-0", "n2", state, "restart_exhausted");
    assert_eq!(fixture.remaining("n1"), [""; 0]);
}

#[test]
fn waiting_replica_is_changed_when_it_moves() {
    let mut fixture = draining(2);
    fixture.commit_pass();
    fixture.deploy("app", &[("web", 2)], "web nginx changed");
    assert_eq!(
        fixture.commit_pass(),
        ["app-web-0 n2 n1"],
        "an apply does not wait for the moves"
    );
    assert_eq!(fixture.plan(), Pass::default());
    fixture.report_running("app-web-0", "n2");
    assert_eq!(fixture.commit_pass(), ["app-web-1 n2 n1"]);
}

#[test]
fn replica_waits_on_unlisted_host() {
    let mut fixture = Fixture::new(&["n1"]);
    fixture.deploy("app", &[("web", 2)], "web nginx h");
    fixture.commit_pass();
    fixture.report_running("app-web-0", "n1");
    fixture.report_running("app-web-1", "n1");
    fixture.node("n2", NodeStatus::Ready);
    fixture.node("n3", NodeStatus::Ready);
    fixture.deploy("app", &[("web", 2)], "web nginx changed");
    let listed = fixture.state.deployments.get_mut("app").unwrap();
    for service in &mut Arc::make_mut(listed).services {
        service.set_placement(PlacementMode::Hosts);
        service.hosts = vec!["n2".into(), "n3".into()];
    }
    assert_eq!(fixture.commit_pass(), ["app-web-0 n2 n1"]);
    assert_eq!(fixture.plan(), Pass::default(), "the first one moves");
    fixture.report_running("app-web-0", "n2");
    assert_eq!(fixture.commit_pass(), ["app-web-1 n3 n1"]);
    fixture.report_running("app-web-1", "n3");
    assert_eq!(fixture.commit_pass(), [""; 0]);
    fixture.now += MONITOR;
    assert_eq!(fixture.commit_pass(), [""; 0]);
    assert_eq!(fixture.plan(), Pass::default());
}

#[test]
fn unstarted_replicas_do_not_wait() {
    let mut fixture = Fixture::new(&["n1"]);
    fixture.deploy("app", &[("web", 3)], "web nginx h");
    fixture.commit_pass();
    fixture.report_running("app-web-0", "n1");
    fixture.node("n2", NodeStatus::Ready);
    fixture.drain("n1");
    assert_eq!(
        fixture.commit_pass(),
        ["app-web-0 n2 n1", "app-web-1 n2 n1", "app-web-2 n2 n1"]
    );
}

#[test]
fn spent_container_is_not_kept_for_a_move() {
    let mut fixture = draining(3);
    fixture.report("app-web-2", "n1", ReplicaState::Failed, "restart_exhausted");
    // It serves no request, so it does not wait, and no other replica waits for it.
    assert_eq!(fixture.commit_pass(), ["app-web-0 n2 n1", "app-web-2 n2 "]);
    assert_eq!(fixture.remaining("n1"), ["app-web-0", "app-web-1"]);
}

#[test]
fn apply_restarts_move_behind_serving_host_once() {
    let mut fixture = draining(1);
    fixture.commit_pass();
    fixture.report("app-web-0", "n2", ReplicaState::Failed, "restart_exhausted");
    assert_eq!(fixture.plan(), Pass::default());
    assert_eq!(fixture.state.replicas_observed["app-web-0"].host, "n1");
    fixture.deploy("app", &[("web", 1)], "web nginx h");
    // A later report of the old host is no later failure of the new one.
    fixture.report_running("app-web-0", "n1");
    assert_eq!(fixture.commit_pass(), ["app-web-0 n2 n1"]);
    fixture.report_running("app-web-0", "n1");
    assert_eq!(fixture.plan(), Pass::default());
    fixture.report("app-web-0", "n2", ReplicaState::Failed, "restart_exhausted");
    assert_eq!(fixture.plan(), Pass::default(), "exhausted again");
    // So does a removal that is requested again.
    let row = fixture.row("app-web-0").raft_index;
    fixture.status("n1", NodeStatus::DrainTimeout, mark::KEEP);
    fixture.status("n1", NodeStatus::Ready, mark::SET);
    assert!(fixture.row("app-web-0").raft_index > row);
    fixture.report_running("app-web-0", "n2");
    assert_eq!(fixture.remaining("n1"), [""; 0]);
}

#[test]
fn drain_never_ends_with_the_only_copy() {
    let mut fixture = draining(1);
    fixture.commit_pass();
    fixture.status("n1", NodeStatus::Unhealthy, mark::KEEP);
    fixture.report("app-web-0", "n2", ReplicaState::Failed, "restart_exhausted");
    assert_eq!(fixture.state.replicas_observed["app-web-0"].host, "n2");
    assert_eq!(fixture.remaining("n1"), ["app-web-0"]);
    // The host is back, and has not reported its container again yet.
    fixture.status("n1", NodeStatus::Ready, mark::KEEP);
    assert_eq!(fixture.remaining("n1"), ["app-web-0"]);
}

/// An event: its kind, a host, and a replica.
type Step = (u8, usize, usize);

const HOSTS: [&str; 4] = ["n1", "n2", "n3", "n4"];
const REPLICAS: [&str; 4] = ["app-api-0", "app-api-1", "app-web-0", "app-web-1"];

/// Hosts whose containers serve, as far as peers can reach them.
struct Model {
    fixture: Fixture,
    serving: BTreeMap<&'static str, String>,
}

impl Model {
    fn new() -> Self {
        let mut fixture = Fixture::new(&HOSTS);
        fixture.deploy("app", &[("api", 2), ("web", 2)], "api go h\nweb nginx h");
        fixture.commit_pass();
        let mut model = Self {
            fixture,
            serving: BTreeMap::new(),
        };
        REPLICAS.into_iter().for_each(|id| model.run(id));
        model
    }

    /// The host of the row runs the replica.
    fn run(&mut self, id: &'static str) {
        let host = self.fixture.row(id).host.clone();
        self.fixture.report_running(id, &host);
        self.serving.insert(id, host);
    }

    fn serves(&self, host: &str) -> bool {
        Hosts::of(&self.fixture.state).serves(host)
    }

    fn is_ready(&self, host: &str) -> bool {
        let node = self.fixture.state.nodes.get(host);
        node.is_some_and(|node| node.status() == NodeStatus::Ready)
    }

    fn step(&mut self, (kind, host, id): Step) {
        let (host, id) = (HOSTS[host], REPLICAS[id]);
        let row = self.fixture.row(id).clone();
        let set = |model: &mut Self, status, mark| model.fixture.status(host, status, mark);
        match kind {
            0 => set(self, NodeStatus::Ready, mark::CLEAR),
            1 => set(self, NodeStatus::Unhealthy, mark::KEEP),
            2 => set(self, NodeStatus::IsolationUnavailable, mark::KEEP),
            3 => {
                set(self, NodeStatus::Offline, mark::KEEP);
                self.serving.retain(|_, on| on != host);
            }
            4 => set(self, NodeStatus::Unspecified, mark::SET),
            5..8 if self.is_ready(&row.host) => self.run(id),
            8..12 if self.is_ready(&row.host) => {
                let codes = ["restart_exhausted", "docker_error", "container_exited", ""];
                let code = codes[usize::from(kind) - 8];
                let state = match code {
                    "" => ReplicaState::Pending,
                    _ => ReplicaState::Failed,
                };
                self.fixture.report(id, &row.host, state, code);
                self.serving.retain(|of, on| *of != id || *on != row.host);
            }
            12 if self.serving.get(id) == Some(&row.previous_host) => {
                self.fixture.report_running(id, &row.previous_host);
            }
            13 => {
                let services = [("api", 2), ("web", 2)];
                self.fixture
                    .deploy("app", &services, "api go h\nweb nginx h");
            }
            _ => {}
        }
    }

    /// Commits a pass; it gives up no container that serves, and moves one of a service at most.
    fn pass(&mut self) {
        let before = self.fixture.state.clone();
        self.fixture.commit_pass();
        for service in ["api", "web"] {
            let rows = || {
                let rows = before.replicas_desired.values();
                rows.filter(|row| row.service == service)
            };
            let in_move = |row: &&Arc<v1::ReplicaDesired>| {
                let waits = self.serves(&row.previous_host);
                waits
                    && self.is_ready(&row.host)
                    && !before.nodes[&row.host].draining
                    && !moves::has_arrived(&before, row)
                    && !moves::is_stopped(&before, row)
            };
            let left = |row: &&Arc<v1::ReplicaDesired>| {
                let new = self.fixture.row(&row.id);
                let serving = self.serving.get(row.id.as_str());
                // Without a report, no client is led to the container.
                let is_routed = before.replicas_observed.contains_key(&row.id);
                let serves = is_routed && self.serves(&row.host);
                new.host != row.host && serving == Some(&row.host) && serves
            };
            let left = rows().filter(left).count();
            assert!(left <= 1, "{left} of {service} left");
            assert!(left == 0 || rows().filter(in_move).count() == 0);
        }
        for (id, host) in &self.serving {
            let row = self.fixture.row(id);
            let kept = row.host == *host || row.previous_host == *host;
            assert!(kept || !self.serves(host), "{id} on {host}: {row:?}");
        }
        for host in HOSTS {
            let mut needing = self.serving.iter().filter(|(_, on)| *on == host);
            let free = self.fixture.remaining(host).is_empty();
            assert!(!free || !self.serves(host) || needing.next().is_none());
        }
    }
}

proptest! {
    #[test]
    fn moves_lose_nothing_and_end(
        steps in proptest::collection::vec((0..20_u8, 0..4_usize, 0..4_usize), 1..60),
    ) {
        let mut model = Model::new();
        for step in steps {
            model.step(step);
            model.pass();
        }
        for host in HOSTS {
            model.fixture.status(host, NodeStatus::Ready, mark::CLEAR);
        }
        model.fixture.drain("n1");
        for _ in 0..REPLICAS.len() {
            model.pass();
            for id in REPLICAS {
                if !moves::has_arrived(&model.fixture.state, model.fixture.row(id)) {
                    model.run(id);
                }
            }
        }
        prop_assert_eq!(model.fixture.remaining("n1"), [""; 0]);
        prop_assert_eq!(model.fixture.plan(), Pass::default());
    }
}
