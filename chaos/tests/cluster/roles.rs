//! A node of each role is killed, partitioned or paused, and its replicas are moved.

use std::time::{Duration, Instant};

use jaco_chaos::{Lab, Rng, Workload, size, test_permits, time_limits};

use crate::setup::{all_ready, cluster, containers_as_placed, running, stateless};

/// Limit of the time in which the replicas of a lost node run elsewhere.
const MOVED_WITHIN: Duration = Duration::from_secs(15);
/// Three voters and a learner.
const NODES: u8 = 4;
/// Number of replicas per node in the full form.
const REPLICAS_FULL: u32 = 6;
/// Number of replicas per node in the short form: on a small machine, four engines that create 24
/// containers at once may not answer for minutes, which is no fault of the cluster.
const REPLICAS_SHORT: u32 = 2;

/// Number of replicas per node.
fn each() -> u32 {
    if size("JACO_ROUNDS", 0) > 0 {
        REPLICAS_FULL
    } else {
        REPLICAS_SHORT
    }
}

#[derive(Clone, Copy, Debug)]
enum Role {
    Leader,
    Follower,
    Learner,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Killed,
    CutOff,
    Paused,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_of_lost_node_move_and_stay_moved() {
    let _permits = test_permits::exclusive().await;
    let mut rng = Rng::announced();
    let mut lab = cluster(NODES, rng.number()).await;
    lab.wait_voters(3).await.unwrap();
    let rounds = size("JACO_ROUNDS", 0);
    let passed_over =
        |variable: &str, name: String| std::env::var(variable).is_ok_and(|only| only != name);
    let mut slow = Vec::new();
    for (role, fault) in pairs(rounds > 0) {
        let skipped = passed_over("JACO_FAULT", format!("{fault:?}"))
            || passed_over("JACO_ROLE", format!("{role:?}"));
        if skipped {
            continue;
        }
        let mut times = Vec::new();
        for _ in 0..rounds.max(1) {
            times.push(round(&mut lab, role, fault).await);
        }
        let what = format!("{role:?} {fault:?}: until its replicas run elsewhere");
        slow.extend(time_limits::times(&what, times, MOVED_WITHIN).err());
    }
    lab.wait_same_state().await.unwrap();
    assert!(slow.is_empty(), "{slow:?}");
}

/// Every role with every fault, or each of them once.
fn pairs(all: bool) -> Vec<(Role, Fault)> {
    let roles = [Role::Leader, Role::Follower, Role::Learner];
    let faults = [Fault::Killed, Fault::CutOff, Fault::Paused];
    if all {
        let with = |fault| roles.map(|role| (role, fault));
        return faults.map(with).concat();
    }
    roles.into_iter().zip(faults).collect()
}

/// Injects one fault; returns how long the victim's replicas took to run elsewhere.
async fn round(lab: &mut Lab, role: Role, fault: Fault) -> Duration {
    let workload = stateless(each() * u32::from(NODES));
    let observer = apply(lab, &workload).await;
    let victim = victim(lab, role).await;
    let host = lab.node(victim).host().to_owned();
    let observer = if observer == victim {
        lab.others(&[victim])[0]
    } else {
        observer
    };

    let start = Instant::now();
    match fault {
        Fault::Killed => lab.node_mut(victim).kill().unwrap(),
        Fault::CutOff => lab.isolate(&[victim]).unwrap(),
        Fault::Paused => lab.node_mut(victim).pause().unwrap(),
    }
    running(lab, observer, &workload, |on| on != host).await;
    let took = start.elapsed();

    match fault {
        Fault::Killed => lab.node_mut(victim).start().await.unwrap(),
        Fault::CutOff => lab.heal_all().unwrap(),
        Fault::Paused => lab.node_mut(victim).resume().unwrap(),
    }
    all_ready(lab).await;
    // Replicas do not move back, and the old containers are gone.
    let after = running(lab, observer, &workload, |on| on != host).await;
    assert!(after.iter().all(|replica| replica.host != host));
    containers_as_placed(lab, victim, &workload).await;
    lab.node(observer)
        .api()
        .delete(&workload.name)
        .await
        .unwrap();
    took
}

/// Applies through the leader, and returns it once every node has its share of replicas.
async fn apply(lab: &Lab, workload: &Workload) -> u8 {
    let through = lab.leader().await.unwrap();
    lab.node(through).api().apply(workload).await.unwrap();
    let replicas = running(lab, through, workload, |_| true).await;
    for node in lab.nodes() {
        let share = replicas
            .iter()
            .filter(|replica| replica.host == node.host())
            .count();
        assert_eq!(share, each() as usize, "{}", node.host());
    }
    through
}

async fn victim(lab: &Lab, role: Role) -> u8 {
    let leader = lab.leader().await.unwrap();
    let voters = lab.wait_voters(3).await.unwrap();
    let votes = |index: u8| voters.iter().any(|host| host == lab.node(index).host());
    let mut others = lab.others(&[leader]).into_iter();
    match role {
        Role::Leader => leader,
        Role::Follower => others.find(|index| votes(*index)).unwrap(),
        Role::Learner => others.find(|index| !votes(*index)).unwrap(),
    }
}
