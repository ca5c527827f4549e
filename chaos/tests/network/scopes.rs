//! Isolation under change: applies, deletions, joins, leaves, and actors that end.

use std::time::Instant;

use anyhow::Context as _;
use jaco_chaos::{Api, Lab, Rng, lab::Node, size, until};
use jaco_proto::{
    error::DecodedError,
    v1::{self, ApplyRequest, AuditEventType, FailureMode},
};

use crate::{
    fixture::{self, DEPLOYMENTS, LIMIT, Running},
    repair::audited,
    resolver::{Names, check_names},
};

/// A change of the cluster.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Replaces every container of a deployment.
    Replace,
    /// Changes the number of replicas.
    Scale,
    /// Deletes a deployment, or applies it again.
    Toggle,
    /// A member leaves, and a new machine of its name joins.
    Rejoin,
    /// An actor of the network vertical ends.
    KillActor,
    /// A daemon is killed and started.
    Restart,
}

const STEPS: [Step; 6] = [
    Step::Replace,
    Step::Scale,
    Step::Toggle,
    Step::Rejoin,
    Step::KillActor,
    Step::Restart,
];
/// Number of steps after which forwarded names are resolved, too.
const FORWARDED_EVERY: u64 = 25;
/// The node that leaves and joins.
const LEAVER: u8 = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_reach_their_own_network_only() {
    let mut rng = Rng::announced();
    let mut running = Running::start(3).await;
    assert_eq!(fixture::hosts(&running.found).len(), 3);
    resolve_names(&mut running, Names::Forwarded).await;
    for number in 1..=size("JACO_STEPS", 6_u64) {
        // Every kind of step occurs in a short run as well.
        let step = match usize::try_from(number - 1) {
            Ok(index) if index < STEPS.len() => STEPS[index],
            _ => *rng.choose(&STEPS).unwrap(),
        };
        let start = Instant::now();
        perform(&mut running, &mut rng, step, number).await;
        running.connect().await;
        let connected = start.elapsed();
        let names = match number % FORWARDED_EVERY {
            0 => Names::Forwarded,
            _ => Names::Own,
        };
        resolve_names(&mut running, names).await;
        let named = start.elapsed();
        running.assert_isolated().await;
        println!(
            "step {number}: {step:?}, {} containers connected after {connected:?}, \
             names right after {named:?}, isolated after {:?}",
            running.found.len(),
            start.elapsed()
        );
    }
    let (_, attempts) = running.traffic.violations();
    println!("{attempts} attempts, none reached another network");
    forgeries_are_recorded(&running).await;
}

/// Waits until the packets with forged sources that the containers send all the time are shown to an
/// operator, by each node that has containers, and recorded.
async fn forgeries_are_recorded(running: &Running) {
    let lab = &running.lab;
    let forging = fixture::hosts(&running.found);
    assert!(!forging.is_empty());
    until("forgeries are recorded", LIMIT, || async {
        let request = v1::NetworkStatusRequest {};
        let status = lab.node(1).api().cluster().network_status(request).await;
        let nodes = status.unwrap().into_inner().nodes;
        let counts = |index: &u8| {
            let host = lab.node(*index).host();
            let of_host = nodes.iter().filter(|node| node.hostname == host);
            let mut drops = of_host.flat_map(|node| &node.drops);
            drops.any(|dropped| dropped.reason == "forged_source" && dropped.packets > 0)
        };
        let events = audited(lab).await.unwrap();
        let mut events = events.iter();
        let recorded = events.any(|event| event.r#type() == AuditEventType::ForgedSource);
        match forging.iter().all(counts) && recorded {
            true => Ok(()),
            false => Err(format!("{nodes:?}, recorded: {recorded}")),
        }
    })
    .await
    .unwrap();
}

/// Waits until each container resolves the names of its own network, and no others. Containers that
/// are being replaced end meanwhile, so each attempt asks those that run.
async fn resolve_names(running: &mut Running, names: Names) {
    let start = Instant::now();
    while let Err(error) = check_names(&running.found, names).await {
        assert!(start.elapsed() < LIMIT, "names: {error:#}");
        running.connect().await;
    }
}

async fn perform(running: &mut Running, rng: &mut Rng, step: Step, number: u64) {
    let (lab, wanted) = (&mut running.lab, &mut running.wanted);
    let deployment = *rng.choose(&DEPLOYMENTS).unwrap();
    let through = u8::try_from(rng.within(1..3)).unwrap();
    let api = lab.node(through).api().clone();
    match step {
        Step::Replace => {
            let counts = *wanted.entry(deployment).or_insert([3; 2]);
            let request = fixture::request(deployment, counts, number);
            apply(&api, request).await.unwrap();
        }
        Step::Scale => {
            let counts = [1, 2].map(|_| u32::try_from(rng.within(1..5)).unwrap());
            wanted.insert(deployment, counts);
            let request = fixture::request(deployment, counts, number);
            apply(&api, request).await.unwrap();
        }
        Step::Toggle => {
            if wanted.remove(deployment).is_some() {
                delete(&api, deployment).await.unwrap();
            } else {
                wanted.insert(deployment, [3; 2]);
                let request = fixture::request(deployment, [3; 2], number);
                apply(&api, request).await.unwrap();
            }
        }
        Step::Rejoin => {
            remove(lab).await.unwrap();
            lab.node_mut(LEAVER).wipe().unwrap();
            lab.node_mut(LEAVER).start().await.unwrap();
            lab.join(LEAVER, 1).await.unwrap();
            fixture::all_ready(lab).await;
        }
        Step::KillActor => {
            let index = u8::try_from(rng.within(1..4)).unwrap();
            kill_actor(lab.node(index), rng).await.unwrap();
        }
        Step::Restart => {
            let index = u8::try_from(rng.within(1..4)).unwrap();
            lab.node_mut(index).kill().unwrap();
            lab.node_mut(index).start().await.unwrap();
            fixture::all_ready(lab).await;
        }
    }
}

/// Applies, and again if the outcome is unknown: the leader that was asked may have been killed.
async fn apply(api: &Api, request: ApplyRequest) -> Result<(), DecodedError> {
    loop {
        match api
            .deploy()
            .apply(request.clone())
            .await
            .map_err(DecodedError::from)
        {
            Err(error) if is_unknown(&error) => println!("applying again: {}", error.message),
            ended => return ended.map(drop),
        }
    }
}

/// Deletes, and again if the outcome is unknown; then it may be gone.
async fn delete(api: &Api, deployment: &str) -> Result<(), DecodedError> {
    let mut repeated = false;
    loop {
        match api.delete(deployment).await {
            Err(error) if is_unknown(&error) => println!("deleting again: {}", error.message),
            Err(error) if repeated && error.code == "deployment_not_found" => return Ok(()),
            ended => return ended,
        }
        repeated = true;
    }
}

/// Removes the member that leaves, and again if the outcome is unknown; then it may be gone.
async fn remove(lab: &mut Lab) -> anyhow::Result<()> {
    loop {
        let Err(error) = lab.remove(LEAVER, 1).await else {
            return Ok(());
        };
        let status = error.downcast_ref::<tonic::Status>();
        let status = status.map(|status| DecodedError::from(status.clone()));
        if !status.as_ref().is_some_and(is_unknown) {
            return Err(error);
        }
        println!("removing again: {error:#}");
        let host = lab.node(LEAVER).host().to_owned();
        let members = lab.node(1).api().status().await?.nodes;
        if members.iter().all(|member| member.hostname != host) {
            return lab.node_mut(LEAVER).kill();
        }
    }
}

fn is_unknown(error: &DecodedError) -> bool {
    let outcome = error.details.get("outcome");
    outcome.is_some_and(|outcome| outcome == "unknown")
}

/// Ends an actor of the network vertical. Networks of the last step may still be removed, with their
/// actors: a chosen one may have ended by itself, then another is chosen.
async fn kill_actor(node: &Node, rng: &mut Rng) -> anyhow::Result<()> {
    loop {
        let actors = node.api().actors().await?.into_iter();
        let network: Vec<String> = actors
            .map(|actor| actor.path)
            .filter(|path| path.contains("/network/"))
            .collect();
        let path = rng.choose(&network).context("an actor")?;
        println!("{} of {}", path, node.host());
        let Err(error) = node.api().kill_actor(path, FailureMode::Panic).await else {
            return Ok(());
        };
        let actors = node.api().actors().await?;
        if actors.iter().any(|actor| actor.path == *path) {
            return Err(error.into());
        }
    }
}
