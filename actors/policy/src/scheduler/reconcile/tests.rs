use std::sync::Arc;

use jaco_proto::v1::{
    DeploymentStatus, NodeStatus, ReplicaState, RolloutState, restart_counter_update::Action,
    service_spec::PlacementMode,
};
use proptest::prelude::*;

use super::*;
use crate::scheduler::{
    projects::{Template, Templates},
    restarts::STABLE_AFTER,
};

/// Parses documents with lines of the form `service image hash`; a hash that starts with `data`
/// marks the service stateful.
fn read(deployment: &v1::Deployment) -> Templates {
    let text = std::str::from_utf8(&deployment.compose_yaml).map_err(|e| e.to_string())?;
    let mut templates = BTreeMap::new();
    for line in text.lines() {
        let [service, image, hash] = line.split(' ').collect::<Vec<_>>()[..] else {
            return Err(format!("{line:?} is no service"));
        };
        let template = Template {
            image: image.to_owned(),
            spec_hash: hash.as_bytes().to_vec(),
            stateful: hash.starts_with("data"),
            ..Template::default()
        };
        templates.insert(service.to_owned(), template);
    }
    Ok(templates)
}

fn at(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanos: 0 }
}

/// State, cache of the scheduler, and a minimal apply of the commands that passes depend on.
struct Fixture {
    state: State,
    cache: PassCache,
    /// Monotonic time of the passes.
    now: Instant,
}

impl Fixture {
    fn new(hosts: &[&str]) -> Self {
        let cache = PassCache {
            projects: Projects::reading_with(read),
            ..PassCache::default()
        };
        let mut fixture = Self {
            state: State::default(),
            cache,
            now: Instant::now(),
        };
        hosts
            .iter()
            .for_each(|host| fixture.node(host, NodeStatus::Ready));
        fixture
    }

    fn node(&mut self, host: &str, status: NodeStatus) {
        let node = v1::Node {
            hostname: host.into(),
            status: status.into(),
            ..Default::default()
        };
        self.state.nodes.insert(host.into(), Arc::new(node));
    }

    /// Applies a revision with these services (name, replicas) and this document.
    fn deploy(&mut self, name: &str, services: &[(&str, i32)], compose: &str) {
        self.state.applied_index += 1;
        let index = self.state.applied_index;
        let services = services.iter().map(|&(name, replicas)| v1::ServiceSpec {
            name: name.into(),
            replicas,
            placement: PlacementMode::Spread.into(),
            ..Default::default()
        });
        let deployment = v1::Deployment {
            name: name.into(),
            applied_revision: index,
            status: DeploymentStatus::Active.into(),
            compose_yaml: compose.as_bytes().to_vec(),
            services: services.collect(),
            updated_at: Some(at(i64::try_from(index).unwrap() * 100)),
            applied_raft_index: index,
            ..Default::default()
        };
        self.state
            .deployments
            .insert(name.into(), Arc::new(deployment));
    }

    fn plan(&mut self) -> Pass {
        reconcile(&self.state, &mut self.cache, self.now, at(1))
    }

    /// Plans a pass, applies it and returns one line per command.
    fn pass(&mut self) -> Vec<String> {
        let pass = self.plan();
        let children = children(&pass);
        self.state.applied_index += 1;
        children
            .into_iter()
            .map(|child| self.apply(child))
            .collect()
    }

    fn apply(&mut self, command: v1::Command) -> String {
        assert!([IDENTITY, "rollout"].contains(&command.identity.as_str()));
        match command.payload.unwrap() {
            Payload::RolloutPlanUpdate(update) => {
                let plan = update.plan.unwrap();
                let (deployment, service) = (plan.deployment.clone(), plan.service.clone());
                let line = format!(
                    "rollout {deployment}-{service} {} of {}: {:?} {}",
                    plan.current_step,
                    plan.total_steps,
                    plan.state(),
                    plan.failure_reason
                );
                let key = (deployment, service);
                self.state.rollout_plans.insert(key, Arc::new(plan));
                line
            }
            Payload::DeploymentRollback(rollback) => {
                format!("roll back {} to {}", rollback.deployment, rollback.revision)
            }
            Payload::AuditAppend(append) => {
                format!("audit {}", append.event.unwrap().payload["reason"])
            }
            Payload::ReplicaDesiredUpsert(upsert) => {
                let mut row = upsert.replica.unwrap();
                assert_eq!(row.raft_index, 0);
                row.raft_index = self.state.applied_index;
                let line = format!("upsert {} {} {}", row.id, row.host, row.image);
                self.state
                    .replicas_desired
                    .insert(row.id.clone(), Arc::new(row));
                line
            }
            Payload::ReplicaDesiredRemove(remove) => {
                self.state.replicas_desired.remove(&remove.id).unwrap();
                self.state.replicas_observed.remove(&remove.id);
                self.state.restart_counters.remove(&remove.id);
                format!("remove {}", remove.id)
            }
            Payload::DeploymentStatusUpdate(update) => {
                let old = self.state.deployments.get_mut(&update.deployment).unwrap();
                let deployment = Arc::make_mut(old);
                deployment.status = update.status;
                deployment.status_details = update.details.clone();
                let reason = update.details.get("reason").cloned().unwrap_or_default();
                format!(
                    "status {} {:?} {reason}",
                    update.deployment,
                    update.status()
                )
            }
            Payload::RestartCounterUpdate(update) => {
                let id = update.replica_id.clone();
                match update.action() {
                    Action::Reset => {
                        self.state.restart_counters.remove(&id);
                    }
                    Action::Increment => {
                        let counter = v1::RestartCounter {
                            replica_id: id.clone(),
                            consecutive_failures: 1,
                            last_attempt_at: command.ts,
                        };
                        self.state
                            .restart_counters
                            .insert(id.clone(), Arc::new(counter));
                    }
                    Action::Unspecified => panic!("unspecified"),
                }
                format!("counter {id} {:?}", update.action())
            }
            Payload::SubnetFree(free) => {
                let key = (free.deployment, free.network, free.host);
                self.state.subnets.remove(&key).unwrap();
                format!("free {} {} {}", key.0, key.1, key.2)
            }
            other => panic!("{other:?} is not the scheduler's"),
        }
    }

    fn observe(&mut self, id: &str, state: ReplicaState, code: &str, seconds: i64) {
        self.state.applied_index += 1;
        let row = &self.state.replicas_desired[id];
        let seen = v1::ReplicaObserved {
            id: id.into(),
            state: state.into(),
            code: code.into(),
            host: row.host.clone(),
            desired_raft_index: row.raft_index,
            last_health_at: Some(at(seconds)),
            observed_raft_index: self.state.applied_index,
            ..Default::default()
        };
        self.state
            .replicas_observed
            .insert(id.into(), Arc::new(seen));
    }

    fn details(&self, deployment: &str, key: &str) -> Option<&str> {
        let details = &self.state.deployments[deployment].status_details;
        details.get(key).map(String::as_str)
    }

    fn row(&self, id: &str) -> &v1::ReplicaDesired {
        &self.state.replicas_desired[id]
    }
}

fn children(pass: &Pass) -> Vec<v1::Command> {
    match pass.batch.clone().and_then(|batch| batch.payload) {
        None => Vec::new(),
        Some(Payload::Batch(batch)) => {
            assert!(
                !batch.children.is_empty(),
                "an empty batch is a needless write"
            );
            batch.children
        }
        Some(other) => panic!("{other:?} is no batch"),
    }
}

#[test]
fn first_pass_creates_replicas_second_does_nothing() {
    let mut fixture = Fixture::new(&["n1"]);
    fixture.deploy("app", &[("web", 2), ("db", 1)], "web nginx h1\ndb pg h2");
    assert_eq!(
        fixture.pass(),
        [
            "upsert app-db-0 n1 pg",
            "upsert app-web-0 n1 nginx",
            "upsert app-web-1 n1 nginx"
        ]
    );
    assert_eq!(fixture.row("app-web-1").index, 1);
    assert_eq!(fixture.row("app-web-1").spec_hash, b"h1");
    assert_eq!(fixture.row("app-web-1").previous_host, "");
    assert_eq!(fixture.plan(), Pass::default());
}

#[test]
fn last_user_of_a_shared_block_frees_it() {
    let mut fixture = Fixture::new(&["n1"]);
    for name in ["app", "shop"] {
        fixture.deploy(name, &[("web", 1)], "web nginx h");
        let row = fixture.state.deployments.get_mut(name).unwrap();
        Arc::make_mut(row).services[0].networks = vec!["shared/proxy".into()];
    }
    fixture.pass();
    for network in ["proxy", "other"] {
        let key = ["shared", network, "n1"].map(str::to_owned);
        let row = v1::Subnet {
            deployment: "shared".into(),
            network: network.into(),
            host: "n1".into(),
            ..Default::default()
        };
        fixture.state.subnets.insert(key.into(), Arc::new(row));
    }
    assert_eq!(fixture.pass(), ["free shared other n1"]);
    for (name, freed) in [("app", None), ("shop", Some("free shared proxy n1"))] {
        fixture.state.deployments.remove(name);
        let removed = format!("remove {name}-web-0");
        let expected: Vec<&str> = [removed.as_str()].into_iter().chain(freed).collect();
        assert_eq!(fixture.pass(), expected);
    }
}

#[test]
fn scaling_adds_and_removes_highest_indexes() {
    let mut fixture = Fixture::new(&["n1"]);
    fixture.deploy("app", &[("web", 1)], "web nginx h");
    fixture.pass();
    fixture.deploy("app", &[("web", 3)], "web nginx h");
    assert_eq!(
        fixture.pass(),
        ["upsert app-web-1 n1 nginx", "upsert app-web-2 n1 nginx"]
    );
    fixture.deploy("app", &[("web", 1)], "web nginx h");
    assert_eq!(fixture.pass(), ["remove app-web-1", "remove app-web-2"]);
    fixture.deploy("app", &[("web", 0)], "web nginx h");
    assert_eq!(fixture.pass(), ["remove app-web-0"]);
}

#[test]
fn removed_services_come_first_surplus_replicas_last() {
    let mut fixture = Fixture::new(&["n1"]);
    fixture.deploy("app", &[("b", 2), ("z", 1)], "b img h\nz img h");
    fixture.pass();
    fixture.deploy("app", &[("a", 1), ("b", 1)], "a img h\nb img h2");
    assert_eq!(
        fixture.pass(),
        [
            "rollout app-b 0 of 2: InProgress ",
            "remove app-z-0",
            "upsert app-a-0 n1 img",
            "upsert app-b-0 n1 img",
            "remove app-b-1"
        ]
    );
}

#[test]
fn only_image_or_hash_changes_reissue_replicas() {
    let mut fixture = Fixture::new(&["n1"]);
    fixture.deploy("app", &[("web", 1)], "web nginx:1 h1");
    fixture.pass();
    fixture.deploy("app", &[("web", 1)], "web nginx:1 h1");
    assert_eq!(fixture.pass(), [""; 0]);
    fixture.deploy("app", &[("web", 1)], "web nginx:2 h1");
    let begins = "rollout app-web 0 of 1: InProgress ";
    assert_eq!(fixture.pass(), [begins, "upsert app-web-0 n1 nginx:2"]);
    fixture.deploy("app", &[("web", 1)], "web nginx:2 h2");
    assert_eq!(fixture.pass(), [begins, "upsert app-web-0 n1 nginx:2"]);
}

#[test]
fn unparsable_document_changes_only_the_status() {
    let mut fixture = Fixture::new(&["n1"]);
    fixture.deploy("app", &[("web", 1)], "web nginx h");
    fixture.pass();
    fixture.deploy("app", &[("api", 1)], "what is this thing");
    assert_eq!(
        fixture.pass(),
        ["status app Pending compose parse failed: \"what is this thing\" is no service"]
    );
    assert_eq!(fixture.plan(), Pass::default(), "a status is written once");
    fixture.deploy("app", &[("web", 1)], "web nginx h");
    assert_eq!(
        fixture.pass(),
        [""; 0],
        "an apply makes it active by itself"
    );
}

#[test]
fn blocked_service_does_not_affect_others() {
    let mut fixture = Fixture::new(&["n1"]);
    fixture.deploy("app", &[("api", 1), ("web", 1)], "web nginx h");
    let status = "status app Pending service \"api\" not found in compose project";
    assert_eq!(fixture.pass(), ["upsert app-web-0 n1 nginx", status]);
    assert_eq!(fixture.details("app", "code"), None);
}

#[test]
fn deployment_is_active_once_obstacle_is_resolved() {
    let mut fixture = Fixture::new(&[]);
    fixture.deploy("app", &[("web", 1)], "web nginx h");
    assert_eq!(
        fixture.pass(),
        ["status app Pending service \"web\": no eligible hosts"]
    );
    assert_eq!(
        fixture.details("app", "code"),
        Some("cannot_satisfy_host_placement")
    );
    assert_eq!(fixture.plan(), Pass::default());
    fixture.node("n1", NodeStatus::Ready);
    assert_eq!(
        fixture.pass(),
        ["upsert app-web-0 n1 nginx", "status app Active "]
    );
    assert_eq!(fixture.details("app", "reason"), None);
}

#[test]
fn replicas_are_unchanged_without_eligible_hosts() {
    let mut fixture = Fixture::new(&["n1"]);
    fixture.deploy("app", &[("web", 2)], "web nginx h");
    fixture.pass();
    fixture.node("n1", NodeStatus::Offline);
    fixture.deploy("app", &[("web", 1)], "web nginx h2");
    assert_eq!(
        fixture.pass(),
        [
            "rollout app-web 0 of 2: InProgress ",
            "status app Pending service \"web\": no eligible hosts"
        ]
    );
    assert_eq!(fixture.state.replicas_desired.len(), 2);
}

#[test]
fn id_of_another_service_is_a_conflict() {
    let mut fixture = Fixture::new(&["n1"]);
    fixture.deploy("a", &[("b-c", 1)], "b-c one h");
    fixture.deploy("a-b", &[("c", 1)], "c two h");
    let conflict = "status a-b Pending replica_id_conflict: a-b-c-0";
    assert_eq!(fixture.pass(), ["upsert a-b-c-0 n1 one", conflict]);
    assert_eq!(fixture.details("a-b", "code"), Some("replica_id_conflict"));
    assert_eq!(fixture.plan(), Pass::default());
    fixture.deploy("a", &[("b-c", 0)], "b-c one h");
    assert_eq!(fixture.pass(), ["remove a-b-c-0"]);
    assert_eq!(
        fixture.pass(),
        ["upsert a-b-c-0 n1 two", "status a-b Active "]
    );
}

#[test]
fn moved_replica_records_previous_host_while_member() {
    let mut fixture = Fixture::new(&["n1"]);
    fixture.deploy("app", &[("web", 1)], "web nginx h");
    fixture.pass();
    fixture.node("n1", NodeStatus::IsolationUnavailable);
    fixture.node("n2", NodeStatus::Ready);
    assert_eq!(fixture.pass(), ["upsert app-web-0 n2 nginx"]);
    assert_eq!(fixture.row("app-web-0").previous_host, "n1");

    // A change during the move keeps the old container serving; one after the move does not.
    fixture.deploy("app", &[("web", 1)], "web nginx h2");
    fixture.pass();
    assert_eq!(fixture.row("app-web-0").previous_host, "n1");
    fixture.observe("app-web-0", ReplicaState::Running, "", 1);
    fixture.deploy("app", &[("web", 1)], "web nginx h3");
    fixture.pass();
    assert_eq!(fixture.row("app-web-0").previous_host, "");

    fixture.state.nodes.remove("n2");
    fixture.node("n3", NodeStatus::Ready);
    assert_eq!(fixture.pass(), ["upsert app-web-0 n3 nginx"]);
    assert_eq!(fixture.row("app-web-0").previous_host, "");
}

#[test]
fn rows_without_deployment_or_member_are_removed() {
    let mut fixture = Fixture::new(&["n1"]);
    fixture.deploy("app", &[("web", 1)], "web nginx h");
    fixture.pass();
    // Older versions wrote blocks without a host.
    for (deployment, host) in [("app", "n1"), ("app", ""), ("app", "left"), ("gone", "n1")] {
        let network = "_default".to_owned();
        let key = (deployment.to_owned(), network, host.to_owned());
        let row = v1::Subnet {
            deployment: deployment.into(),
            network: "_default".into(),
            host: host.into(),
            ..Default::default()
        };
        fixture.state.subnets.insert(key, Arc::new(row));
    }
    let row = v1::ReplicaDesired {
        deployment: "gone".into(),
        ..Default::default()
    };
    fixture
        .state
        .replicas_desired
        .insert("gone-web-0".into(), Arc::new(row));
    let freed = [
        "free app _default ",
        "free app _default left",
        "free gone _default n1",
    ];
    assert_eq!(
        fixture.pass(),
        [&["remove gone-web-0"], &freed[..]].concat()
    );
    assert_eq!(fixture.plan(), Pass::default());
}

#[test]
fn failures_are_counted_at_their_report_time() {
    let mut fixture = Fixture::new(&["n1"]);
    fixture.deploy("app", &[("web", 1)], "web nginx h");
    fixture.pass();
    fixture.observe("app-web-0", ReplicaState::Failed, "container_exited", 77);
    assert_eq!(fixture.pass(), ["counter app-web-0 Increment"]);
    let counter = &fixture.state.restart_counters["app-web-0"];
    assert_eq!(counter.last_attempt_at, Some(at(77)));
    assert_eq!(fixture.plan(), Pass::default());
    fixture.observe("app-web-0", ReplicaState::Running, "", 78);
    assert_eq!(fixture.plan(), Pass::default());
    fixture.now += STABLE_AFTER;
    assert_eq!(fixture.pass(), ["counter app-web-0 Reset"]);
}

#[test]
fn reissued_replica_has_a_full_budget() {
    let mut fixture = Fixture::new(&["n1"]);
    fixture.deploy("app", &[("web", 1)], "web nginx h");
    fixture.pass();
    fixture.observe("app-web-0", ReplicaState::Failed, "container_exited", 77);
    fixture.pass();
    // It failed once more but was not counted yet; the new row makes the failure irrelevant.
    fixture.observe("app-web-0", ReplicaState::Failed, "container_exited", 78);
    fixture.deploy("app", &[("web", 1)], "web nginx h2");
    assert_eq!(
        fixture.pass(),
        [
            "rollout app-web 0 of 1: InProgress ",
            "upsert app-web-0 n1 nginx",
            "counter app-web-0 Reset"
        ]
    );
    assert_eq!(fixture.plan(), Pass::default());
}

#[test]
fn new_apply_restarts_exhausted_replicas_once() {
    let mut fixture = Fixture::new(&["n1"]);
    fixture.deploy("app", &[("web", 2)], "web nginx h");
    fixture.pass();
    fixture.observe("app-web-1", ReplicaState::Failed, "container_exited", 120);
    assert_eq!(fixture.pass(), ["counter app-web-1 Increment"]);
    fixture.observe("app-web-1", ReplicaState::Failed, "restart_exhausted", 130);
    assert_eq!(fixture.plan(), Pass::default());

    fixture.deploy("app", &[("web", 2)], "web nginx h");
    let first = fixture.plan();
    assert_eq!(fixture.plan(), first, "a lost proposal is repeated");
    assert_eq!(
        fixture.pass(),
        ["upsert app-web-1 n1 nginx", "counter app-web-1 Reset"]
    );
    assert_eq!(
        fixture.plan(),
        Pass::default(),
        "the old report says nothing about the new row"
    );

    // It is exhausted again on a node whose clock lags behind the apply.
    fixture.observe("app-web-1", ReplicaState::Failed, "restart_exhausted", 140);
    assert_eq!(fixture.plan(), Pass::default());
}

#[test]
fn re_arming_follows_log_instead_of_clocks() {
    // The clock of the replica's node is far behind that of the leader, or far ahead.
    for reported_at in [1, 1_000_000] {
        let mut fixture = Fixture::new(&["n1"]);
        fixture.deploy("app", &[("web", 1)], "web nginx h");
        fixture.pass();
        let code = "restart_exhausted";
        fixture.observe("app-web-0", ReplicaState::Failed, code, reported_at);
        assert_eq!(fixture.plan(), Pass::default(), "exhausted after the apply");
        fixture.deploy("app", &[("web", 1)], "web nginx h");
        // Every leader decides the same: nothing is kept outside the state.
        fixture.cache = PassCache {
            projects: Projects::reading_with(read),
            ..PassCache::default()
        };
        assert_eq!(fixture.pass(), ["upsert app-web-0 n1 nginx"]);
        assert_eq!(fixture.plan(), Pass::default());
        fixture.observe("app-web-0", ReplicaState::Failed, code, reported_at);
        assert_eq!(fixture.plan(), Pass::default(), "exhausted again");
    }
}

#[test]
fn documents_are_parsed_once_per_content() {
    static READS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    fn counting(deployment: &v1::Deployment) -> Templates {
        READS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        read(deployment)
    }
    let reads = || READS.load(std::sync::atomic::Ordering::Relaxed);
    let mut fixture = Fixture::new(&[]);
    fixture.cache.projects = Projects::reading_with(counting);
    fixture.deploy("app", &[("web", 1)], "web nginx h");
    fixture.pass(); // writes the status, hence a new row of the same content
    fixture.pass();
    assert_eq!(reads(), 1);

    // Deleted and applied again under the same revision, with different content.
    let mut other = fixture.state.deployments["app"].as_ref().clone();
    other.compose_yaml = b"web apache h".to_vec();
    fixture
        .state
        .deployments
        .insert("app".into(), Arc::new(other));
    fixture.node("n1", NodeStatus::Ready);
    assert_eq!(fixture.pass()[0], "upsert app-web-0 n1 apache");
    assert_eq!(reads(), 2);
}

proptest! {
    #[test]
    fn repeated_passes_converge(
        script in proptest::collection::vec((0..4_usize, 0..5_i32, 0..3_u8, 0..16_u8), 1..12),
    ) {
        let mut fixture = Fixture::new(&["n1", "n2", "n3"]);
        for (name, replicas, hash, nodes) in script {
            let name = ["a", "a-b", "c", "d"][name];
            // `a` + `b-c` and `a-b` + `c` want the same ids.
            let service = if name == "a" { "b-c" } else { "c" };
            fixture.deploy(name, &[(service, replicas), ("x", 1)],
                &format!("{service} img h{hash}\nx img h"));
            for (bit, host) in ["n1", "n2", "n3", "n4"].into_iter().enumerate() {
                let up = nodes & (1 << bit) != 0;
                fixture.node(host, if up { NodeStatus::Ready } else { NodeStatus::Unhealthy });
            }
            fixture.pass();
            // Freed ids may allow the conflicting service to be placed, and only that one.
            fixture.pass();
            prop_assert_eq!(fixture.plan(), Pass::default());
        }
    }
}

mod dead_nodes;
mod finished;
mod large;
mod moves;
mod rolling;
