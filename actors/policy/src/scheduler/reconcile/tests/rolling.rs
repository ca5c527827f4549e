//! Rolling updates through the state machine: their order among services, and the way back.

use std::time::Duration;

use jaco_proto::manifest::compose::{Condition, Dependency};
use jaco_state::fsm;

use super::*;
use crate::scheduler::rollout::{MONITOR, STEP_TIMEOUT};

/// As [`read`]; `web` depends on `db`, and that on `job`.
fn read_chain(deployment: &v1::Deployment) -> Templates {
    let mut templates = read(deployment)?;
    for (service, on, condition) in [
        ("web", "db", Condition::ServiceStarted),
        ("db", "job", Condition::ServiceCompletedSuccessfully),
    ] {
        let dependency = Dependency {
            condition,
            required: true,
        };
        if let Some(template) = templates.get_mut(service) {
            template.depends_on.insert(on.to_owned(), dependency);
        }
    }
    Ok(templates)
}

/// A state that changes through the state machine alone.
struct Cluster {
    fixture: Fixture,
}

impl Cluster {
    fn new() -> Self {
        let mut fixture = Fixture::new(&["n1", "n2"]);
        fixture.cache.projects = Projects::reading_with(read_chain);
        Self { fixture }
    }

    fn commit(&mut self, payload: Payload) {
        let state = &mut self.fixture.state;
        let index = state.applied_index + 1;
        let command = command(IDENTITY, at(1), payload);
        let applied = fsm::apply_in_place(state, index, &command);
        assert_eq!(applied.unwrap().result, Ok(()));
    }

    fn apply(&mut self, revision: u64, services: &[(&str, i32)], compose: &str) {
        let services = services.iter().map(|&(name, replicas)| v1::ServiceSpec {
            name: name.into(),
            replicas,
            placement: PlacementMode::Spread.into(),
            ..Default::default()
        });
        self.commit(Payload::DeploymentApply(v1::DeploymentApply {
            deployment: "app".into(),
            revision,
            services: services.collect(),
            compose_yaml: compose.as_bytes().to_vec(),
            ..Default::default()
        }));
    }

    /// Commits a pass and returns what it issues, with the rollouts that it ends.
    fn pass(&mut self) -> Vec<String> {
        let pass = self.fixture.plan();
        if let Some(batch) = pass.batch.clone() {
            self.commit(batch.payload.unwrap());
        }
        let line = |child: v1::Command| match child.payload? {
            Payload::ReplicaDesiredUpsert(upsert) => {
                let row = upsert.replica?;
                Some(format!("{} {}", row.id, row.image))
            }
            Payload::RolloutPlanUpdate(update) => {
                let plan = update.plan?;
                let (service, state) = (&plan.service, plan.state());
                let ends = state != RolloutState::InProgress;
                let reason = &plan.failure_reason;
                ends.then(|| {
                    format!("{service} {state:?} {reason}")
                        .trim_end()
                        .to_owned()
                })
            }
            Payload::DeploymentRollback(_) => Some("rollback".to_owned()),
            _ => None,
        };
        children(&pass).into_iter().filter_map(line).collect()
    }

    fn report(&mut self, id: &str, state: ReplicaState, code: &str) {
        let row = self.fixture.row(id);
        let details =
            (state == ReplicaState::Stopped).then(|| ("exit_code".to_owned(), "0".to_owned()));
        let replica = v1::ReplicaObserved {
            id: id.into(),
            host: row.host.clone(),
            state: state.into(),
            code: code.into(),
            desired_raft_index: row.raft_index,
            details: details.into_iter().collect(),
            ..Default::default()
        };
        self.commit(Payload::ReplicaObservedUpdate(v1::ReplicaObservedUpdate {
            replica: Some(replica),
        }));
    }

    fn runs(&mut self, id: &str) {
        self.report(id, ReplicaState::Running, "");
    }

    fn finishes(&mut self, id: &str) {
        self.report(id, ReplicaState::Stopped, "container_exited");
    }

    fn wait(&mut self, time: Duration) {
        self.fixture.now += time;
    }

    fn revision(&self) -> u64 {
        self.fixture.state.deployments["app"].applied_revision
    }
}

/// Two replicas of `web` that run with the first image.
fn running() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.apply(1, &[("web", 2)], "web one h");
    assert_eq!(cluster.pass(), ["app-web-0 one", "app-web-1 one"]);
    cluster.runs("app-web-0");
    cluster.runs("app-web-1");
    assert_eq!(cluster.pass(), [""; 0]);
    cluster
}

#[test]
fn replicas_follow_each_other() {
    let mut cluster = running();
    cluster.fixture.cache.projects = Projects::reading_with(read);
    cluster.apply(2, &[("web", 2)], "web two h");
    assert_eq!(cluster.pass(), ["app-web-0 two"]);
    // The report about the former container does not count.
    assert_eq!(cluster.pass(), [""; 0]);
    cluster.runs("app-web-0");
    assert_eq!(cluster.pass(), [""; 0]);
    cluster.wait(MONITOR);
    assert_eq!(cluster.pass(), ["app-web-1 two"]);
    cluster.runs("app-web-1");
    assert_eq!(cluster.pass(), [""; 0]);
    cluster.wait(MONITOR);
    assert_eq!(cluster.pass(), ["web Completed"]);
    assert_eq!(cluster.fixture.plan(), Pass::default());
}

#[test]
fn failed_revision_is_rolled_back_once() {
    let mut cluster = running();
    cluster.fixture.cache.projects = Projects::reading_with(read);
    cluster.apply(2, &[("web", 2)], "web bad h");
    assert_eq!(cluster.pass(), ["app-web-0 bad"]);
    cluster.report("app-web-0", ReplicaState::Failed, "restart_exhausted");
    assert_eq!(
        cluster.pass(),
        ["web Aborted app-web-0: restart_exhausted", "rollback"]
    );
    assert_eq!(cluster.revision(), 1);
    // The replica that was changed gets the former image, and that one alone.
    assert_eq!(cluster.pass(), ["app-web-0 one"]);
    // If that fails too, the bad revision is not tried once more.
    cluster.wait(STEP_TIMEOUT);
    assert_eq!(cluster.pass(), ["web Aborted step_timeout"]);
    assert_eq!(cluster.revision(), 1);
    assert_eq!(cluster.fixture.plan(), Pass::default());
    cluster.apply(3, &[("web", 2)], "web good h");
    assert_eq!(cluster.pass(), ["app-web-0 good"]);
}

#[test]
fn image_that_is_not_pulled_is_a_failure() {
    let mut cluster = running();
    cluster.fixture.cache.projects = Projects::reading_with(read);
    cluster.apply(2, &[("web", 2)], "web bad h");
    assert_eq!(cluster.pass(), ["app-web-0 bad"]);
    // Its former container serves on.
    let pull = |cluster: &mut Cluster, attempt: u32| {
        let details = [
            ("attempt", attempt.to_string()),
            ("reason", "no".to_owned()),
        ];
        let details = details.map(|(key, value)| (key.to_owned(), value));
        let row = cluster.fixture.row("app-web-0");
        let replica = v1::ReplicaObserved {
            id: row.id.clone(),
            host: row.host.clone(),
            state: ReplicaState::Pending.into(),
            code: "image_pull_failed".into(),
            desired_raft_index: row.raft_index,
            details: details.into(),
            keeps_serving: true,
            ..Default::default()
        };
        cluster.commit(Payload::ReplicaObservedUpdate(v1::ReplicaObservedUpdate {
            replica: Some(replica),
        }));
        cluster.pass()
    };
    assert_eq!(pull(&mut cluster, 1), [""; 0]);
    assert_eq!(pull(&mut cluster, 2), [""; 0]);
    let ends = pull(&mut cluster, 3);
    assert_eq!(ends, ["web Aborted app-web-0: no", "rollback"]);
    assert_eq!(cluster.pass(), ["app-web-0 one"]);
}

#[test]
fn first_revision_is_aborted_without_another() {
    let mut cluster = running();
    cluster.fixture.cache.projects = Projects::reading_with(read);
    let shop = cluster.fixture.state.deployments.get_mut("app").unwrap();
    Arc::make_mut(shop).compose_yaml = b"web bad h".to_vec();
    assert_eq!(cluster.pass(), ["app-web-0 bad"]);
    cluster.wait(STEP_TIMEOUT);
    assert_eq!(cluster.pass(), ["web Aborted step_timeout"]);
    assert_eq!(cluster.fixture.plan(), Pass::default());
}

#[test]
fn services_follow_their_dependencies() {
    let services = [("db", 1), ("job", 1), ("web", 1)];
    let mut cluster = Cluster::new();
    cluster.apply(1, &services, "db one h\njob one h\nweb one h");
    assert_eq!(cluster.pass().len(), 3);
    cluster.finishes("app-job-0");
    cluster.runs("app-db-0");
    cluster.runs("app-web-0");
    // `web` needs `job` through `db`, which does not change.
    cluster.apply(2, &services, "db one h\njob two h\nweb two h");
    assert_eq!(cluster.pass(), ["app-job-0 two"]);
    assert_eq!(cluster.pass(), [""; 0]);
    cluster.finishes("app-job-0");
    assert_eq!(cluster.pass(), ["app-web-0 two"]);
}
