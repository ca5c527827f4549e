//! Growth and shrinking of a cluster while clients write.

use std::time::{Duration, Instant};

use jaco_chaos::{Lab, Registers, size, test_permits};

const LIMIT: Duration = Duration::from_secs(60);

/// Number of voters in a cluster of `members`.
fn voters(members: usize) -> usize {
    match members {
        0..=2 => members.min(1),
        3..=4 => 3,
        5..=6 => 5,
        _ => 7,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn voter_count_follows_the_member_count() {
    let _permits = test_permits::exclusive().await;
    let mut lab = Lab::builder().nodes(3).start().await.unwrap();
    lab.init().await.unwrap();
    let apis = vec![lab.node(1).api().clone()];
    let clients = Registers::start(apis, 2, 1);
    let most = size("JACO_NODES", 5);
    for members in 2..=most {
        if members > 3 {
            lab.add(1).await.unwrap();
        }
        lab.join(members, 1).await.unwrap();
        lab.wait_members(members.into()).await.unwrap();
        let voters = lab.wait_voters(voters(members.into())).await.unwrap();
        println!("{members} members, voters {voters:?}");
        clients.next_accepted(Instant::now(), LIMIT).await.unwrap();
    }
    lab.wait_same_state().await.unwrap();
    for members in (1..most).rev() {
        // Remove in reverse order of joining, whether that node leads or not; the first one stays.
        lab.remove(members + 1, 1).await.unwrap();
        lab.wait_members(members.into()).await.unwrap();
        let voters = lab.wait_voters(voters(members.into())).await.unwrap();
        println!("{members} members, voters {voters:?}");
        clients.next_accepted(Instant::now(), LIMIT).await.unwrap();
    }
    let outcome = clients.stop().await.unwrap();
    println!("errors: {:?}", outcome.errors);
    outcome
        .check(&lab.node(1).api().linearizable())
        .await
        .unwrap();
}
