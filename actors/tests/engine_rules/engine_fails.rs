//! An engine that hangs, restarts, loses its containers, or sends no events.

use jaco_proto::v1::ReplicaState;
use rustix::process::{Pid, Signal, kill_process};

use super::{
    private_engine::PrivateEngine,
    relay::Relay,
    world::{FOREVER, World, docker, is_podman, socket, try_docker_at},
};

const ALONE: &str = "network_mode: none";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn death_without_an_event_is_detected() {
    let relay = Relay::new(&socket());
    let world = World::behind("untold", &relay.path(), &socket()).await;
    world.apply_one(FOREVER, ALONE).await;
    let first = world.running("web").await.container_id;
    relay.deafen(true);
    docker(&["kill", &first]);
    world
        .told("web", "its end", |seen| {
            seen.code == "container_exited" && seen.container_id == first
        })
        .await;
    let second = world
        .observed("web", "another container runs", |seen| {
            seen.state() == ReplicaState::Running && seen.container_id != first
        })
        .await
        .container_id;
    // The stream replays events once it is back, including those in between.
    relay.deafen(false);
    docker(&["kill", &second]);
    world
        .observed("web", "another container runs", |seen| {
            seen.state() == ReplicaState::Running && seen.container_id != second
        })
        .await;
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_recover_after_engine_failures() {
    if is_podman() {
        return; // Podman has no daemon that could fail
    }
    let mut engine = PrivateEngine::start();
    let world = World::behind("engine", &engine.socket(), &engine.socket()).await;
    world.apply_one(FOREVER, ALONE).await;
    let first = world.running("web").await.container_id;
    let pid = world.inspect("web", "{{.State.Pid}}");
    let pid = pid.parse().ok().and_then(Pid::from_raw);

    // A death while the engine hangs is detected when it resumes.
    engine.signal(Signal::STOP);
    kill_process(pid.expect("its process"), Signal::KILL).expect("killed");
    engine.signal(Signal::CONT);
    let second = world
        .observed("web", "another container runs", |seen| {
            seen.state() == ReplicaState::Running && seen.container_id != first
        })
        .await
        .container_id;
    assert_eq!(world.containers("web"), [second]);

    for signal in [Signal::TERM, Signal::KILL] {
        engine.end(signal);
        world
            .observed("web", "the engine is reported as unreachable", |seen| {
                seen.code == "docker_error" && seen.details["reason"].contains("unreachable")
            })
            .await;
        engine.spawn();
        let seen = world.running("web").await;
        assert_eq!(
            world.containers("web"),
            [seen.container_id],
            "after {signal:?}"
        );
    }

    let before = world.containers("web");
    engine.end(Signal::TERM);
    engine.forget_containers();
    engine.spawn();
    let seen = world
        .observed("web", "another container runs", |seen| {
            seen.state() == ReplicaState::Running && seen.container_id != before[0]
        })
        .await;
    assert_eq!(world.containers("web"), [seen.container_id]);

    let written = world.raft.committed().len();
    let ping = ["ps", "-q"];
    assert!(try_docker_at(&engine.socket(), &ping).is_ok());
    assert_eq!(world.raft.committed().len(), written);
    world.close().await;
}
