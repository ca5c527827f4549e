//! Volumes: names, content and removal.

use super::fixture::{EngineFixture, FOREVER, docker, is_podman};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_anonymous_volumes_are_removed_with_the_container() {
    let fixture = EngineFixture::new("volumes").await;
    let deployment = fixture.deployment.clone();
    let [verbatim, outside] = ["verbatim", "outside"].map(|name| format!("{name}-{deployment}"));
    docker(&["volume", "create", &outside]);
    let mounts = format!(
        "volumes: [\"/anonymous\", \"data:/data\", \"undeclared:/undeclared\", \"named:/named:ro\", \
         \"{outside}:/outside\"]"
    );
    let service = fixture.service("web", FOREVER, &mounts);
    let compose = format!(
        "services:\n{service}volumes:\n  data: {{}}\n  named: {{name: {verbatim}}}\n  \
         {outside}: {{external: true}}\n"
    );
    fixture.apply(&compose, &[("web", &[])]).await;
    fixture.running("web").await;
    let name_at = |target: &str| {
        let template = format!(
            "{{{{range .Mounts}}}}{{{{if eq .Destination \"{target}\"}}}}{{{{.Name}}}}{{{{end}}}}{{{{end}}}}"
        );
        fixture.inspect("web", &template)
    };
    let anonymous = name_at("/anonymous");
    assert!(
        !anonymous.is_empty() && !anonymous.contains(&deployment),
        "{anonymous}"
    );
    let kept = [
        ("/data", format!("jaco_{deployment}_data")),
        ("/undeclared", format!("jaco_{deployment}_undeclared")),
        ("/named", verbatim.clone()),
        ("/outside", outside.clone()),
    ];
    for (target, name) in &kept {
        assert_eq!(name_at(target), *name);
    }
    let write = |path: &str| fixture.exec("web", &format!("echo was-here >{path} && echo yes"));
    assert_eq!(write("/data/file"), "yes");
    assert!(write("/named/file").contains("Read-only file system"));

    // A restart gets a new anonymous volume and the same named ones.
    let before = fixture.containers("web");
    docker(&["kill", &before[0]]);
    fixture
        .observed("web", "another container runs", |seen| {
            seen.state() == jaco_proto::v1::ReplicaState::Running && seen.container_id != before[0]
        })
        .await;
    assert_eq!(fixture.exec("web", "busybox cat /data/file"), "was-here");
    let next = name_at("/anonymous");
    assert_ne!(next, anonymous);

    fixture.remove("web").await;
    fixture
        .until("the container is gone", || {
            fixture.containers("web").is_empty()
        })
        .await;
    // The engine removes volumes after it has forgotten their container.
    let exists = |name: &String| {
        docker(&["volume", "ls", "-q"])
            .lines()
            .any(|line| line == name)
    };
    fixture
        .until("its anonymous volumes are gone", || {
            !exists(&anonymous) && !exists(&next)
        })
        .await;
    let left = docker(&["volume", "ls", "-q"]);
    let left: Vec<&str> = left.lines().collect();
    for (_, name) in &kept {
        assert!(left.contains(&name.as_str()), "{name} is gone");
    }
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_bind_paths_are_created_unless_forbidden() {
    let fixture = EngineFixture::new("binds").await;
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    std::fs::create_dir(at("there")).expect("a folder");
    let made = fixture.service(
        "made",
        FOREVER,
        &format!(
            "volumes: [\"{}:/made\", \"{}:/there:ro\", {{type: tmpfs, target: /memory}}]",
            at("missing"),
            at("there")
        ),
    );
    let refused = fixture.service(
        "refused",
        FOREVER,
        &format!(
            "volumes: [{{type: bind, source: \"{}\", target: /x, bind: {{create_host_path: false}}}}]",
            at("forbidden")
        ),
    );
    fixture
        .apply(
            &format!("services:\n{made}{refused}"),
            &[("made", &[]), ("refused", &[])],
        )
        .await;
    fixture.running("made").await;
    assert!(std::path::Path::new(&at("missing")).is_dir());
    let write = |path: &str| fixture.exec("made", &format!("echo x >{path}/file && echo yes"));
    assert_eq!(write("/made"), "yes");
    assert_eq!(write("/memory"), "yes");
    assert!(write("/there").contains("Read-only file system"));
    assert!(std::path::Path::new(&at("missing/file")).is_file());

    if is_podman() {
        return fixture.close().await; // Podman creates the path anyway
    }
    let seen = fixture
        .observed("refused", "the engine refuses", |seen| {
            seen.code == "docker_error"
        })
        .await;
    assert_eq!(seen.state(), jaco_proto::v1::ReplicaState::Failed);
    assert!(seen.details["reason"].contains("forbidden"), "{seen:?}");
    assert!(!std::path::Path::new(&at("forbidden")).exists());
    assert!(fixture.containers("refused").is_empty(), "left half-made");
    fixture.close().await;
}
