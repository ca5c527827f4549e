//! Random histories of one host's networks, with and without actor crashes.

use jaco_raftnode::StateReader;
use jaco_supervision::KillMode;
use proptest::{prelude::*, test_runner::TestCaseError};
use tokio::time::Instant;

use super::{tests::Lab, *};

const DEPLOYMENT: &str = "app";
const NETWORKS: [&str; 2] = ["front", "back"];
const KILLED_ACTORS: [&str; 4] = [
    "node/network/bridge:app:front",
    "node/network/bridge:app:back",
    "node/network/bridges",
    "node/network/ipam",
];
/// Time for everything to settle: an exhausted bridge restarts after 30 s, and a network whose
/// block was freed while it was created is removed after a minute and some retries, which also
/// blocks its addresses in the engine.
const RECOVERY_TIME: Duration = Duration::from_secs(150);

#[derive(Clone, Debug)]
enum Step {
    Ask(usize),
    Deploy,
    Delete,
    Attach(usize),
    DetachAll,
    /// Sets the engine's latency in milliseconds.
    Slow(u64),
    /// Makes one engine call fail.
    Fail,
    /// Removes a network bypassing the node.
    Destroy(usize),
    /// Deletes a network's bridge bypassing the node.
    Unbridge(usize),
    Pass(u64),
    Kill(usize, KillMode),
}

fn step(deadly: bool) -> impl Strategy<Value = Step> {
    let network = 0..NETWORKS.len();
    let time = prop_oneof![0..20_u64, 900..1100_u64, 0..40_000_u64];
    let slow = prop_oneof![Just(0), Just(3), Just(400), Just(2_000)];
    let mode = prop_oneof![Just(KillMode::Kill), Just(KillMode::Panic)];
    prop_oneof![
        6 => network.clone().prop_map(Step::Ask),
        3 => Just(Step::Deploy),
        2 => Just(Step::Delete),
        1 => network.clone().prop_map(Step::Attach),
        2 => (network, any::<bool>()).prop_map(|(n, whole)| {
            if whole { Step::Destroy(n) } else { Step::Unbridge(n) }
        }),
        2 => Just(Step::DetachAll),
        2 => slow.prop_map(Step::Slow),
        1 => Just(Step::Fail),
        6 => time.prop_map(Step::Pass),
        if deadly { 4 } else { 0 } => (0..KILLED_ACTORS.len(), mode)
            .prop_map(|(n, mode)| Step::Kill(n, mode)),
    ]
}

/// Runs a history. Every request must be answered unless its actor exhausted its restarts.
async fn play(lab: &Lab, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let deaths = steps.iter().filter(|step| matches!(step, Step::Kill(..)));
    let nobody_gives_up = deaths.count() <= 3;
    let mut asked = tokio::task::JoinSet::new();
    let mut revision = 1;
    let mut deaths = 0;
    for step in steps {
        match step {
            Step::Ask(n) => {
                let directory = lab.directory.clone();
                asked.spawn(async move { directory.ensure(DEPLOYMENT, NETWORKS[n]).await });
            }
            Step::Deploy => {
                revision += 1;
                lab.deploy(DEPLOYMENT, revision);
            }
            Step::Delete => {
                if lab.raft.state().deployments.contains_key(DEPLOYMENT) {
                    lab.delete(DEPLOYMENT);
                }
            }
            Step::Attach(n) => {
                let name = NetworkId::new(DEPLOYMENT, NETWORKS[n]).engine_name();
                if lab.engine.names().contains(&name) {
                    lab.engine.attach(&name, "container");
                }
            }
            Step::DetachAll => lab.engine.detach_all(),
            Step::Slow(ms) => lab.engine.slow_down(Duration::from_millis(ms)),
            Step::Fail => lab.engine.fail_after(0),
            Step::Destroy(n) => {
                let id = NetworkId::new(DEPLOYMENT, NETWORKS[n]);
                lab.engine.destroy(&id.engine_name());
            }
            Step::Unbridge(n) => {
                let id = NetworkId::new(DEPLOYMENT, NETWORKS[n]);
                lab.engine.delete_bridge(&id.bridge_name());
            }
            Step::Pass(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
            Step::Kill(n, mode) => {
                // More crashes of the static children would exhaust the supervisor, which is not
                // tested here.
                let fixed = !KILLED_ACTORS[n].contains("bridge:");
                if !fixed || deaths < 3 {
                    deaths += usize::from(fixed);
                    // Killing fails while the actor is not running.
                    let _ = lab.tree.kill(KILLED_ACTORS[n], mode);
                }
            }
        }
    }
    lab.engine.slow_down(Duration::ZERO);
    for answer in asked.join_all().await {
        let lost = matches!(answer, Err(Error::Unavailable | Error::Exhausted(_)));
        prop_assert!(!(lost && nobody_gives_up), "{answer:?}");
    }
    Ok(())
}

fn simulate<T>(test: impl AsyncFnOnce(Lab) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async { test(Lab::start().await).await })
}

/// Asserts that an existing deployment eventually gets its networks.
async fn settles(lab: &Lab) -> Result<(), TestCaseError> {
    // Containers of a deleted deployment are removed by the runtime.
    lab.engine.detach_all();
    lab.deploy(DEPLOYMENT, 1_000);
    let healed = Instant::now() + RECOVERY_TIME;
    loop {
        let asked = NETWORKS.map(|network| lab.directory.ensure(DEPLOYMENT, network));
        let answers = futures::future::join_all(asked).await;
        if answers.iter().all(Result::is_ok) {
            break;
        }
        prop_assert!(Instant::now() < healed, "{answers:?}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    lab.delete(DEPLOYMENT);
    lab.engine.detach_all();
    tokio::time::sleep(RECOVERY_TIME).await;
    prop_assert_eq!(lab.engine.names(), Vec::<String>::new());
    prop_assert_eq!(lab.bridges(), Vec::<String>::new());
    Ok(())
}

proptest! {
    #[test]
    fn without_crashes_every_request_is_answered(
        steps in proptest::collection::vec(step(false), 1..30)
    ) {
        simulate(async |lab| {
            play(&lab, steps).await?;
            settles(&lab).await
        })?;
    }

    #[test]
    fn networks_recover_after_any_crashes(steps in proptest::collection::vec(step(true), 1..30)) {
        simulate(async |lab| {
            play(&lab, steps).await?;
            settles(&lab).await
        })?;
    }
}
