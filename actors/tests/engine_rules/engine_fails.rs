//! An engine that hangs, restarts, loses its containers, or sends no events.

use jaco_proto::v1::ReplicaState;
use rustix::process::{Pid, Signal, kill_process};

use super::{
    fixture::{EngineFixture, FOREVER, docker, is_podman, socket, try_docker_at},
    private_engine::PrivateEngine,
    relay::Relay,
};

const ALONE: &str = "network_mode: none";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn death_without_an_event_is_detected() {
    let relay = Relay::new(&socket());
    let fixture = EngineFixture::behind("untold", &relay.path(), &socket()).await;
    fixture.apply_one(FOREVER, ALONE).await;
    let first = fixture.running("web").await.container_id;
    relay.block_events(true);
    docker(&["kill", &first]);
    fixture
        .reported("web", "its end", |seen| {
            seen.code == "container_exited" && seen.container_id == first
        })
        .await;
    let second = fixture
        .observed("web", "another container runs", |seen| {
            seen.state() == ReplicaState::Running && seen.container_id != first
        })
        .await
        .container_id;
    // The stream replays events once it is back, including those in between.
    relay.block_events(false);
    docker(&["kill", &second]);
    fixture
        .observed("web", "another container runs", |seen| {
            seen.state() == ReplicaState::Running && seen.container_id != second
        })
        .await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_recover_after_engine_failures() {
    if is_podman() {
        return; // Podman has no daemon that could fail
    }
    let mut engine = PrivateEngine::start();
    let fixture = EngineFixture::behind("engine", &engine.socket(), &engine.socket()).await;
    fixture.apply_one(FOREVER, ALONE).await;
    let first = fixture.running("web").await.container_id;
    let pid = fixture.inspect("web", "{{.State.Pid}}");
    let pid = pid.parse().ok().and_then(Pid::from_raw);

    // A death while the engine hangs is detected when it resumes.
    engine.signal(Signal::STOP);
    kill_process(pid.expect("its process"), Signal::KILL).expect("killed");
    engine.signal(Signal::CONT);
    let second = fixture
        .observed("web", "another container runs", |seen| {
            seen.state() == ReplicaState::Running && seen.container_id != first
        })
        .await
        .container_id;
    assert_eq!(fixture.containers("web"), [second]);

    for signal in [Signal::TERM, Signal::KILL] {
        engine.end(signal);
        fixture
            .observed("web", "the engine is reported as unreachable", |seen| {
                seen.code == "docker_error" && seen.details["reason"].contains("unreachable")
            })
            .await;
        engine.spawn();
        let seen = fixture.running("web").await;
        assert_eq!(
            fixture.containers("web"),
            [seen.container_id],
            "after {signal:?}"
        );
    }

    let before = fixture.containers("web");
    engine.end(Signal::TERM);
    engine.forget_containers();
    engine.spawn();
    let seen = fixture
        .observed("web", "another container runs", |seen| {
            seen.state() == ReplicaState::Running && seen.container_id != before[0]
        })
        .await;
    assert_eq!(fixture.containers("web"), [seen.container_id]);

    let written = fixture.raft.committed().len();
    let ping = ["ps", "-q"];
    assert!(try_docker_at(&engine.socket(), &ping).is_ok());
    assert_eq!(fixture.raft.committed().len(), written);
    fixture.close().await;
}
