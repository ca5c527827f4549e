//! A changed service loses no request, and a revision that does not run is rolled back.
//!
//! There is no full form: `cargo test -p jaco-chaos --test cluster rollout`.

use std::time::Instant;

use jaco_chaos::{Lab, Rng, engine::IMAGE, rng, test_permits, until};
use jaco_proto::v1::{self, ReplicaState, RolloutState};

use crate::{
    load::{Load, serves, web},
    setup::{LIMIT, cluster},
};

const REPLICAS: u32 = 3;

/// The web server with another environment, and so with other containers.
fn changed(deployment: &str, text: &str) -> v1::ApplyRequest {
    let mut request = web(deployment, "", REPLICAS);
    request
        .compose_yaml
        .extend_from_slice(format!("    environment: {{TEXT: {text}}}\n").as_bytes());
    request
}

/// The web server whose containers end two seconds after their start, before they listen: one that has
/// served would end with the requests in it.
fn dying(deployment: &str) -> v1::ApplyRequest {
    let mut request = web(deployment, "", REPLICAS);
    let compose = String::from_utf8(request.compose_yaml).unwrap();
    let server = "[/bin/busybox, httpd, -f, -p, '8080', -h, /]";
    assert!(compose.contains(server));
    let dying = "[/bin/busybox, sh, -c, 'sleep 2; exit 1']";
    request.compose_yaml = compose.replace(server, dying).into_bytes();
    request
}

/// The web server of an image that no registry has.
fn missing(deployment: &str) -> v1::ApplyRequest {
    let mut request = web(deployment, "", REPLICAS);
    let compose = String::from_utf8(request.compose_yaml).unwrap();
    let image = format!("image: {IMAGE}\n    pull_policy: never\n");
    assert!(compose.contains(&image));
    let other = compose.replace(&image, "image: 127.0.0.1:9/missing:1\n");
    request.compose_yaml = other.into_bytes();
    request
}

/// Waits until a revision has been rolled back; returns why.
async fn rolled_back(lab: &Lab, name: &str, from: u64, to: u64) -> String {
    let why = until("the revision is rolled back", LIMIT, || async {
        let status = lab.node(1).api().deployments().await;
        let status = status.map_err(|e| e.to_string())?;
        let deployment = status.deployments.iter().find(|d| d.name == name);
        match deployment {
            Some(d) if d.failed_revision == from && d.applied_revision == to => {
                Ok(d.failure_reason.clone())
            }
            other => Err(format!("{other:?} {:?}", status.rollouts)),
        }
    });
    why.await.unwrap()
}

/// Applies through a node and returns the revision.
async fn apply(lab: &Lab, request: v1::ApplyRequest) -> u64 {
    let applied = lab.node(1).api().deploy().apply(request).await.unwrap();
    applied.into_inner().applied_revision
}

/// Waits until the rollout of this revision has ended; returns its plan, with what the daemon that is
/// asked shows of the deployment and of its replicas.
async fn ended(lab: &Lab, ask: u8, name: &str, revision: u64) -> v1::DeployStatusResponse {
    until("the rollout has ended", LIMIT, || async {
        let api = lab.node(ask).api();
        let status = api.deployments().await.map_err(|e| e.to_string())?;
        let plan = status.rollouts.iter().find(|plan| plan.deployment == name);
        let ended = plan.is_some_and(|plan| {
            plan.target_revision == revision && plan.state() != RolloutState::InProgress
        });
        if ended {
            return Ok(status);
        }
        Err(format!("{:?}", status.rollouts))
    })
    .await
    .unwrap()
}

/// Pauses, resumes or aborts rollouts through another node than the one that is asked for the state.
async fn control(lab: &Lab, name: &str, action: v1::RolloutAction) -> u64 {
    let request = v1::ControlRolloutRequest {
        deployment: name.to_owned(),
        action: action.into(),
    };
    let answer = lab.node(2).api().deploy().control_rollout(request).await;
    answer.unwrap().into_inner().revision
}

/// A cluster whose nodes all lead to the service.
async fn serving(seed: u64, name: &str) -> Lab {
    let lab = cluster(3, seed).await;
    lab.wait_voters(3).await.unwrap();
    apply(&lab, changed(name, "one")).await;
    for node in lab.nodes() {
        serves(&lab, node.index()).await;
    }
    lab
}

/// Rows of a deployment, each with the index of its entry, all of which run.
async fn running(lab: &Lab, name: &str) -> Vec<(String, u64)> {
    until("all replicas run", LIMIT, || async {
        let replicas = lab.node(1).api().replicas(name).await;
        let replicas = replicas.map_err(|e| e.to_string())?;
        let all = replicas.len() == REPLICAS as usize;
        if all && replicas.iter().all(|r| r.state() == ReplicaState::Running) {
            return Ok(replicas.into_iter().map(|r| (r.id, r.revision)).collect());
        }
        Err(format!("{replicas:?}"))
    })
    .await
    .unwrap()
}

async fn lost(load: Load) -> usize {
    let outcomes = load.stop().await;
    assert!(outcomes.len() > 50, "{} requests", outcomes.len());
    let lost = outcomes.iter().filter(|(_, good)| !good);
    let times: Vec<_> = lost.map(|(at, _)| at.elapsed()).collect();
    println!("lost before the end by {times:?}");
    times.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_and_failed_revisions_lose_no_request() {
    let _permits = test_permits::exclusive().await;
    let mut rng = Rng::announced();
    let name = format!("rollout-{:08x}", rng::unique() >> 32);
    let lab = serving(rng.number(), &name).await;
    let before = running(&lab, &name).await;

    let loads: Vec<Load> = lab
        .nodes()
        .iter()
        .map(|node| Load::start(&lab, node.index()))
        .collect();
    let start = Instant::now();
    let second = apply(&lab, changed(&name, "two")).await;
    let status = ended(&lab, 1, &name, second).await;
    let plan = &status.rollouts[0];
    assert_eq!(plan.state(), RolloutState::Completed, "{plan:?}");
    assert_eq!((plan.current_step, plan.total_steps), (3, 3));
    let after = running(&lab, &name).await;
    let replaced = before.iter().zip(&after).filter(|(old, new)| old.1 < new.1);
    assert_eq!(replaced.count(), REPLICAS as usize, "{before:?} {after:?}");

    println!("replaced {:?}", start.elapsed());
    // One replica is replaced, and dies.
    let third = apply(&lab, dying(&name)).await;
    rolled_back(&lab, &name, third, second).await;
    let status = ended(&lab, 1, &name, second).await;
    assert_eq!(status.rollouts[0].state(), RolloutState::Completed);
    let restored = running(&lab, &name).await;
    let kept = after.iter().filter(|row| restored.contains(row));
    assert_eq!(kept.count(), 2, "{after:?} {restored:?}");

    println!("rolled back {:?}", start.elapsed());
    // One whose image is not there takes no replica away.
    let fourth = apply(&lab, missing(&name)).await;
    let why = rolled_back(&lab, &name, fourth, second).await;
    assert!(why.contains("127.0.0.1:9/missing:1"), "{why}");
    let status = ended(&lab, 1, &name, second).await;
    assert_eq!(status.rollouts[0].state(), RolloutState::Completed);
    running(&lab, &name).await;

    println!("ended {:?}", start.elapsed());
    for (node, load) in lab.nodes().iter().zip(loads) {
        let lost = lost(load).await;
        println!("{} lost {lost} requests", node.host());
        assert_eq!(lost, 0, "{}", node.host());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rollout_goes_on_under_the_next_leader() {
    let _permits = test_permits::exclusive().await;
    let mut rng = Rng::announced();
    let name = format!("rollout-{:08x}", rng::unique() >> 32);
    let mut lab = serving(rng.number(), &name).await;
    let second = apply(&lab, changed(&name, "two")).await;
    until("the first replica is replaced", LIMIT, || async {
        let status = lab.node(1).api().deployments().await;
        let status = status.map_err(|e| e.to_string())?;
        let steps = |plan: &v1::RolloutPlan| plan.target_revision == second;
        match status.rollouts.iter().any(steps) {
            true => Ok(()),
            false => Err(format!("{:?}", status.rollouts)),
        }
    })
    .await
    .unwrap();
    let leader = lab.leader().await.unwrap();
    lab.node_mut(leader).kill().unwrap();
    let other = lab.others(&[leader])[0];
    // The replica of the lost node moves, and the others are replaced.
    let status = ended(&lab, other, &name, second).await;
    let plan = &status.rollouts[0];
    assert_eq!(plan.state(), RolloutState::Completed, "{plan:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_rollout_waits_and_aborted_one_is_undone() {
    let _permits = test_permits::exclusive().await;
    let mut rng = Rng::announced();
    let name = format!("rollout-{:08x}", rng::unique() >> 32);
    let lab = serving(rng.number(), &name).await;
    let before = running(&lab, &name).await;
    let second = apply(&lab, changed(&name, "two")).await;
    assert_eq!(control(&lab, &name, v1::RolloutAction::Pause).await, second);
    // The one that is being replaced, if any, gets its new container.
    let held = running(&lab, &name).await;
    let kept = before.iter().filter(|row| held.contains(row)).count();
    assert!(kept >= REPLICAS as usize - 1, "{before:?} {held:?}");
    control(&lab, &name, v1::RolloutAction::Resume).await;
    let status = ended(&lab, 1, &name, second).await;
    assert_eq!(status.rollouts[0].state(), RolloutState::Completed);
    let after = running(&lab, &name).await;

    let third = apply(&lab, changed(&name, "three")).await;
    until("the first replica is replaced", LIMIT, || async {
        let rows = lab.node(1).api().replicas(&name).await;
        let rows = rows.map_err(|e| e.to_string())?;
        let changed = |row: &v1::ReplicaDetail| !after.contains(&(row.id.clone(), row.revision));
        rows.iter()
            .any(changed)
            .then_some(())
            .ok_or(format!("{rows:?}"))
    })
    .await
    .unwrap();
    control(&lab, &name, v1::RolloutAction::Pause).await;
    assert_eq!(control(&lab, &name, v1::RolloutAction::Abort).await, second);
    let why = rolled_back(&lab, &name, third, second).await;
    assert!(why.starts_with("aborted by "), "{why}");
    // The way back is not held.
    let status = ended(&lab, 1, &name, second).await;
    assert_eq!(status.rollouts[0].state(), RolloutState::Completed);
    let restored = running(&lab, &name).await;
    let kept = after.iter().filter(|row| restored.contains(row)).count();
    assert_eq!(kept, REPLICAS as usize - 1, "{after:?} {restored:?}");
}
