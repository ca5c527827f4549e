//! Volumes: names, content and removal.

use super::world::{FOREVER, World, docker, is_podman};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_anonymous_volumes_are_removed_with_the_container() {
    let world = World::new("volumes").await;
    let deployment = world.deployment.clone();
    let [verbatim, outside] = ["verbatim", "outside"].map(|name| format!("{name}-{deployment}"));
    docker(&["volume", "create", &outside]);
    let mounts = format!(
        "volumes: [\"/anonymous\", \"data:/data\", \"undeclared:/undeclared\", \"named:/named:ro\", \
         \"{outside}:/outside\"]"
    );
    let service = world.service("web", FOREVER, &mounts);
    let compose = format!(
        "services:\n{service}volumes:\n  data: {{}}\n  named: {{name: {verbatim}}}\n  \
         {outside}: {{external: true}}\n"
    );
    world.apply(&compose, &[("web", &[])]).await;
    world.running("web").await;
    let name_at = |target: &str| {
        let template = format!(
            "{{{{range .Mounts}}}}{{{{if eq .Destination \"{target}\"}}}}{{{{.Name}}}}{{{{end}}}}{{{{end}}}}"
        );
        world.inspect("web", &template)
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
    let write = |path: &str| world.exec("web", &format!("echo was-here >{path} && echo yes"));
    assert_eq!(write("/data/file"), "yes");
    assert!(write("/named/file").contains("Read-only file system"));

    // A restart gets a new anonymous volume and the same named ones.
    let before = world.containers("web");
    docker(&["kill", &before[0]]);
    world
        .observed("web", "another container runs", |seen| {
            seen.state() == jaco_proto::v1::ReplicaState::Running && seen.container_id != before[0]
        })
        .await;
    assert_eq!(world.exec("web", "busybox cat /data/file"), "was-here");
    let next = name_at("/anonymous");
    assert_ne!(next, anonymous);

    world.remove("web").await;
    world
        .until("the container is gone", || {
            world.containers("web").is_empty()
        })
        .await;
    // The engine removes volumes after it has forgotten their container.
    let exists = |name: &String| {
        docker(&["volume", "ls", "-q"])
            .lines()
            .any(|line| line == name)
    };
    world
        .until("its anonymous volumes are gone", || {
            !exists(&anonymous) && !exists(&next)
        })
        .await;
    let left = docker(&["volume", "ls", "-q"]);
    let left: Vec<&str> = left.lines().collect();
    for (_, name) in &kept {
        assert!(left.contains(&name.as_str()), "{name} is gone");
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_bind_paths_are_created_unless_forbidden() {
    let world = World::new("binds").await;
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    std::fs::create_dir(at("there")).expect("a folder");
    let made = world.service(
        "made",
        FOREVER,
        &format!(
            "volumes: [\"{}:/made\", \"{}:/there:ro\", {{type: tmpfs, target: /memory}}]",
            at("missing"),
            at("there")
        ),
    );
    let refused = world.service(
        "refused",
        FOREVER,
        &format!(
            "volumes: [{{type: bind, source: \"{}\", target: /x, bind: {{create_host_path: false}}}}]",
            at("forbidden")
        ),
    );
    world
        .apply(
            &format!("services:\n{made}{refused}"),
            &[("made", &[]), ("refused", &[])],
        )
        .await;
    world.running("made").await;
    assert!(std::path::Path::new(&at("missing")).is_dir());
    let write = |path: &str| world.exec("made", &format!("echo x >{path}/file && echo yes"));
    assert_eq!(write("/made"), "yes");
    assert_eq!(write("/memory"), "yes");
    assert!(write("/there").contains("Read-only file system"));
    assert!(std::path::Path::new(&at("missing/file")).is_file());

    if is_podman() {
        return world.close().await; // Podman creates the path anyway
    }
    let seen = world
        .observed("refused", "the engine refuses", |seen| {
            seen.code == "docker_error"
        })
        .await;
    assert_eq!(seen.state(), jaco_proto::v1::ReplicaState::Failed);
    assert!(seen.details["reason"].contains("forbidden"), "{seen:?}");
    assert!(!std::path::Path::new(&at("forbidden")).exists());
    assert!(world.containers("refused").is_empty(), "left half-made");
    world.close().await;
}
