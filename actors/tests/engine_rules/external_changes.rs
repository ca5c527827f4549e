//! External changes to a container, and exits of containers.

use jaco_proto::v1::ReplicaState;
use jaco_raftnode::StateReader;

use super::fixture::{EngineFixture, FOREVER, docker, is_podman, try_docker};

async fn replaced(fixture: &EngineFixture, service: &str, old: &str) -> String {
    let seen = fixture.observed(service, "another container runs", |seen| {
        seen.state() == ReplicaState::Running && seen.container_id != old
    });
    let id = seen.await.container_id;
    assert_eq!(fixture.containers(service), [id.as_str()]);
    id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exits_are_reported_with_their_reason() {
    let fixture = EngineFixture::new("ends").await;
    let eater = "busybox sleep 6; exec busybox tail /dev/zero";
    let cases = [
        ("clean", "busybox sleep 6; exit 0", "", None, "code 0"),
        (
            "failing",
            "busybox sleep 6; exit 42",
            "",
            Some("42"),
            "code 42",
        ),
        (
            "eating",
            eater,
            "mem_limit: 16m",
            Some("137"),
            "out of memory",
        ),
    ];
    let services: String = cases
        .iter()
        .map(|(name, script, extra, ..)| fixture.service(name, script, extra))
        .collect();
    let rows: Vec<(&str, &[&str])> = cases.iter().map(|case| (case.0, [].as_slice())).collect();
    fixture
        .apply(&format!("services:\n{services}"), &rows)
        .await;
    for (service, _, _, code, words) in cases {
        let seen = fixture
            .reported(service, "its end", |seen| seen.code == "container_exited")
            .await;
        assert_eq!(seen.state(), ReplicaState::Failed, "{service}");
        let reports = seen.details.get("exit_code").map(String::as_str);
        assert_eq!(reports, code, "{service}");
        // Podman 4.3 does not report that memory ran out.
        let words = if is_podman() && service == "eating" {
            "137"
        } else {
            words
        };
        assert!(seen.message.contains(words), "{service}: {}", seen.message);
    }
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn external_changes_leave_exactly_one_container() {
    let fixture = EngineFixture::new("others").await;
    fixture.apply_one(FOREVER, "").await;
    let first = fixture.running("web").await.container_id;

    // A busy machine may fail to freeze the container at once.
    let pause = || try_docker(&["pause", &first]).is_ok();
    fixture.until("it can be paused", pause).await;
    fixture
        .observed("web", "it is paused", |seen| {
            seen.state() == ReplicaState::Pending
        })
        .await;
    docker(&["unpause", &first]);
    assert_eq!(fixture.running("web").await.container_id, first);

    // A container is identified by its labels, not by its name.
    docker(&["rename", &first, &format!("{}-x", fixture.deployment)]);
    let written = fixture.raft.committed().len();
    docker(&["kill", &first]);
    let second = replaced(&fixture, "web", &first).await;
    assert!(fixture.raft.committed().len() > written);

    docker(&["rm", "-f", &second]);
    let third = replaced(&fixture, "web", &second).await;
    let reports = fixture.reports("web").into_iter();
    assert!(
        reports
            .filter(|seen| seen.container_id == second)
            .any(|seen| seen.state() == ReplicaState::Failed)
    );

    docker(&["stop", "-t", "1", &third]);
    let fourth = replaced(&fixture, "web", &third).await;

    // A copy with all the labels is removed by the next sweep; the known container stays.
    let labels = docker(&["inspect", "-f", "{{json .Config.Labels}}", &fourth]);
    let labels: std::collections::BTreeMap<String, String> =
        serde_json::from_str(&labels).expect("labels");
    let labels = labels
        .iter()
        .map(|(key, value)| format!("--label={key}={value}"));
    let labels: Vec<String> = labels.collect();
    let mut copy = vec!["run", "-d", "--network", "none", "--stop-signal", "KILL"];
    copy.extend(labels.iter().map(String::as_str));
    copy.extend(["jaco-test/rules:2", "/bin/busybox", "sleep", "600"]);
    let copy = docker(&copy);
    fixture
        .until("the copy is gone", || {
            try_docker(&["inspect", &copy]).is_err()
        })
        .await;
    assert_eq!(fixture.containers("web"), [fourth]);
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exhausted_container_started_externally_changes_nothing() {
    let fixture = EngineFixture::new("again").await;
    fixture.apply_one("exit 3", "").await;
    let spent = fixture
        .observed("web", "the budget is spent", |seen| {
            seen.code == "restart_exhausted"
        })
        .await;
    let container = spent.container_id;
    // It exits again, which changes no state, and is left in place.
    docker(&["start", &container]);
    let written = fixture.raft.committed().len();
    fixture
        .until("it ended again", || {
            docker(&["inspect", "-f", "{{.State.Running}}", &container]) == "false"
        })
        .await;
    assert_eq!(fixture.raft.committed().len(), written);
    assert_eq!(fixture.containers("web"), [container]);
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn incomplete_and_outdated_containers_are_replaced() {
    let fixture = EngineFixture::new("leftover").await;
    let image = "jaco-test/rules:2";
    let label = |key: &str, value: &str| format!("jaco.{key}={value}");
    let replica = label("replica_id", &fixture.id("web"));
    let cluster = label("cluster_id", &fixture.cluster_id);
    let make = |verb: &[&str], index: &str| {
        let index = label("raft_index", index);
        let labels = ["--label", &cluster, "--label", &replica, "--label", &index];
        let ends_at_once = ["--network", "none", "--stop-signal", "KILL"];
        let runs = [image, "/bin/busybox", "sleep", "600"];
        docker(&[verb, labels.as_slice(), &ends_at_once, &runs].concat())
    };
    // The row will have index 2: a container that was only created may be incomplete, and a running
    // one with another index or none is outdated.
    let old = [
        make(&["create"], "2"),
        make(&["run", "-d"], "1"),
        make(&["run", "-d"], "nonsense"),
    ];
    fixture.apply_one(FOREVER, "stop_grace_period: 1s").await;
    let seen = fixture.running("web").await;
    assert_eq!(
        fixture.raft.state().replicas_desired[&fixture.id("web")].raft_index,
        2
    );
    assert_eq!(fixture.containers("web"), [seen.container_id.as_str()]);
    assert!(!old.contains(&seen.container_id));

    // A container without our labels that has the name is not touched.
    let taken = fixture.container("later");
    docker(&["create", "--name", &taken, image, "/bin/busybox", "true"]);
    let services = [
        fixture.service("web", FOREVER, ""),
        fixture.service("later", FOREVER, ""),
    ];
    fixture
        .apply(
            &format!("services:\n{}", services.concat()),
            &[("later", &[])],
        )
        .await;
    let seen = fixture
        .observed("later", "the name is taken", |seen| {
            seen.code == "docker_error"
        })
        .await;
    assert!(seen.details["reason"].contains("in use"), "{seen:?}");
    assert!(try_docker(&["inspect", &taken]).is_ok());
    docker(&["rm", "-f", &taken]);
    fixture.running("later").await;
    fixture.close().await;
}
