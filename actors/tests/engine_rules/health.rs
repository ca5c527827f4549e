//! Health checks, as the engine reports them and as the document declares them.

use jaco_proto::v1::ReplicaState;

use super::fixture::{EngineFixture, FOREVER, docker, import_as, is_podman, try_docker};

fn check(test: &str) -> String {
    format!(
        "healthcheck: {{test: {test}, interval: 500ms, timeout: 60s, retries: 1, start_period: 0s}}"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_declared_check_counts() {
    if is_podman() {
        return; // its checks are run by systemd timers; see docs/podman.md
    }
    let fixture = EngineFixture::new("checks").await;
    let image = format!("jaco-test/{}:1", fixture.deployment);
    import_as(
        &image,
        &["HEALTHCHECK --interval=500ms --retries=1 CMD [\"/bin/busybox\", \"false\"]"],
    );
    let own = |rest: &str| format!("image: {image}\n{rest}");
    let cases = [
        ("shell", check("busybox true")),
        ("exec", check("[CMD, /bin/busybox, \"true\"]")),
        ("none", check("[NONE]")),
        ("disabled", own("healthcheck: {disable: true}")),
        ("baked", own("")),
        ("overridden", own(&check("[CMD, /bin/busybox, \"true\"]"))),
    ];
    let services: String = cases
        .iter()
        .map(|(name, extra)| fixture.service(name, FOREVER, extra))
        .collect();
    let rows: Vec<(&str, &[&str])> = cases
        .iter()
        .map(|(name, _)| (*name, [].as_slice()))
        .collect();
    fixture
        .apply(&format!("services:\n{services}"), &rows)
        .await;
    for (service, expected) in [
        ("shell", Some("healthy")),
        ("exec", Some("healthy")),
        ("none", None),
        ("disabled", Some("unhealthy")),
        ("baked", Some("unhealthy")),
        ("overridden", Some("healthy")),
    ] {
        let seen = fixture.running(service).await;
        let health = "{{if .State.Health}}{{.State.Health.Status}}{{end}}";
        if let Some(expected) = expected {
            fixture
                .until(&format!("{service} is {expected}"), || {
                    fixture.inspect(service, health) == expected
                })
                .await;
        } else {
            assert_eq!(fixture.inspect(service, health), "", "{service}");
        }
        assert_eq!(
            fixture.containers(service),
            [seen.container_id],
            "{service} was replaced"
        );
    }
    fixture.close().await;
    let _ = try_docker(&["rmi", "-f", &image]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_check_drives_all_states() {
    if is_podman() {
        return; // its checks are run by systemd timers; see docs/podman.md
    }
    let fixture = EngineFixture::new("health").await;
    let folder = tempfile::tempdir().expect("a folder");
    let well = folder.path().join("well");
    let extra = format!(
        "volumes: [\"{}:/sick\"]\n{}",
        folder.path().display(),
        check("busybox test -e /sick/well").replace("start_period: 0s", "start_period: 60s")
    );
    fixture.apply_one(FOREVER, &extra).await;
    let first = fixture
        .observed("web", "its container is being checked", |seen| {
            seen.state() == ReplicaState::Pending && !seen.container_id.is_empty()
        })
        .await
        .container_id;
    std::fs::write(&well, "").expect("written");
    assert_eq!(fixture.running("web").await.container_id, first);
    std::fs::remove_file(&well).expect("removed");
    let sick = fixture
        .observed("web", "it is degraded", |seen| {
            seen.state() == ReplicaState::Degraded
        })
        .await;
    assert_eq!(sick.container_id, first);
    std::fs::write(&well, "").expect("written");
    let healed = fixture.running("web").await;
    assert_ne!(healed.container_id, first, "replaced when degraded");
    assert_eq!(fixture.containers("web"), [healed.container_id]);
    let states: Vec<ReplicaState> = fixture
        .reports("web")
        .iter()
        .map(|seen| seen.state())
        .collect();
    use ReplicaState::{Degraded, Pending, Running};
    let mut reports = states.clone();
    reports.dedup();
    assert!(
        reports == [Pending, Running, Degraded, Running]
            || reports == [Pending, Running, Degraded, Pending, Running],
        "{states:?}"
    );

    // Without changes, nothing is written.
    let written = fixture.raft.committed().len();
    let checked = || {
        docker(&[
            "inspect",
            "-f",
            "{{len .State.Health.Log}}",
            &fixture.container("web"),
        ])
    };
    fixture
        .until("it was checked often", || checked() == "5")
        .await;
    assert_eq!(fixture.raft.committed().len(), written);
    fixture.close().await;
}
