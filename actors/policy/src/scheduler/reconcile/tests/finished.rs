//! Replicas whose containers have ended for good.

use jaco_proto::replica_code::{CONTAINER_EXITED, EXIT_CODE};

use super::*;

impl Fixture {
    fn finish(&mut self, id: &str, exit_code: i64) {
        self.observe(id, ReplicaState::Stopped, CONTAINER_EXITED, 10);
        let seen = self.state.replicas_observed.get_mut(id).unwrap();
        let details = &mut Arc::make_mut(seen).details;
        details.insert(EXIT_CODE.to_owned(), exit_code.to_string());
    }
}

const BEGINS: &str = "rollout app-job 0 of 1: InProgress ";

/// A job that has finished on n1 or n2.
fn finished(exit_code: i64) -> Fixture {
    let mut fixture = Fixture::new(&["n1", "n2"]);
    fixture.deploy("app", &[("job", 1)], "job img h");
    fixture.pass();
    fixture.finish("app-job-0", exit_code);
    fixture
}

#[test]
fn finished_replica_stays_on_lost_hosts() {
    for exit_code in [0, 3] {
        let mut fixture = finished(exit_code);
        let host = fixture.row("app-job-0").host.clone();
        assert_eq!(fixture.plan(), Pass::default());
        for status in [NodeStatus::Offline, NodeStatus::IsolationUnavailable] {
            fixture.node(&host, status);
            assert_eq!(fixture.plan(), Pass::default(), "{status:?}");
        }
        fixture.state.nodes.remove(&host);
        assert_eq!(fixture.plan(), Pass::default(), "its host is removed");
    }
}

#[test]
fn changed_job_runs_again_on_available_host() {
    let mut fixture = finished(0);
    let host = fixture.row("app-job-0").host.clone();
    let other = if host == "n1" { "n2" } else { "n1" };
    fixture.node(&host, NodeStatus::Offline);
    fixture.deploy("app", &[("job", 1)], "job img h2");
    let issued = format!("upsert app-job-0 {other} img");
    assert_eq!(fixture.pass(), [BEGINS, &issued]);
}

#[test]
fn only_failed_job_runs_again_with_next_apply() {
    for (exit_code, again) in [(0, 0), (3, 1)] {
        let mut fixture = finished(exit_code);
        fixture.deploy("app", &[("job", 1)], "job img h");
        assert_eq!(fixture.pass().len(), again, "{exit_code}");
        assert_eq!(fixture.plan(), Pass::default());
    }
}
