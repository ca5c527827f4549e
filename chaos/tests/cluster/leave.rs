//! Removed members: they are rejected at once and for good, and may join again as new machines.
//!
//! There is no full form: `cargo test -p jaco-chaos --test cluster leave`.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use jaco_chaos::{Lab, Registers, Rng, lab::network, test_permits, until, wait::WAIT_TIMEOUT};
use jaco_net::{
    pki::files::NodeFiles,
    quic::{ConnectError, Settings},
};
use jaco_proto::{error::DecodedError, v1};

use crate::{
    hostile::attacker::{endpoint, files_of, peer_address},
    setup::{cluster, containers, running, stateless, three_voters},
};

const LIMIT: Duration = Duration::from_secs(60);

async fn remove(lab: &Lab, host: u8, through: u8, force: bool) -> Result<(), DecodedError> {
    let request = v1::NodeRemoveRequest {
        hostname: lab.node(host).host().to_owned(),
        force,
    };
    let mut cluster = lab.node(through).api().cluster();
    cluster.node_remove(request).await?;
    Ok(())
}

async fn issue(lab: &Lab, index: u8, identity: &str) -> Result<(), DecodedError> {
    let request = v1::TokenIssueRequest {
        identity: identity.to_owned(),
        allows_privileged: false,
    };
    lab.node(index).api().tokens().issue(request).await?;
    Ok(())
}

/// Result of dialling node `target` with these files.
async fn dial_with(lab: &Lab, files: &NodeFiles, target: u8) -> Result<(), ConnectError> {
    let hub = lab.network().namespace().to_owned();
    let from = (hub.as_str(), IpAddr::V4(network::HUB));
    let endpoint = endpoint(lab, from, files, target, Settings::default());
    let host = lab.node(target).host().to_owned();
    endpoint
        .dial(&host, peer_address(lab, target))
        .await
        .map(drop)
}

/// Waits until a node reports that it was removed, which it learns from its peers' rejections.
async fn wait_removed(lab: &Lab, index: u8) -> Duration {
    let start = Instant::now();
    until("it reports its removal", WAIT_TIMEOUT, || async {
        match issue(lab, index, "late").await {
            Err(error)
                if error.code == "cluster_uninitialized"
                    && error
                        .details
                        .get("reason")
                        .is_some_and(|why| why == "removed") =>
            {
                Ok(start.elapsed())
            }
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap()
}

fn writers(lab: &Lab, nodes: &[u8], seed: u64) -> Registers {
    let apis = nodes.iter().map(|index| lab.node(*index).api().clone());
    Registers::start(apis.collect(), 2, seed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_node_is_rejected_and_rejoins_as_new() {
    let _permits = test_permits::exclusive().await;
    let mut rng = Rng::announced();
    let mut lab = cluster(4, rng.number()).await;
    lab.wait_voters(3).await.unwrap();
    let workload = stateless(8);
    lab.node(1).api().apply(&workload).await.unwrap();
    running(&lab, 1, &workload, |_| true).await;
    let leader = lab.leader().await.unwrap();
    let leaves = lab.others(&[leader])[0];
    let stay = lab.others(&[leaves]);
    let host = lab.node(leaves).host().to_owned();
    let files = files_of(&lab, leaves);
    assert!(!containers(&lab).await[&host].is_empty());
    let clients = writers(&lab, &stay, rng.number());

    remove(&lab, leaves, leader, false).await.unwrap();
    // Nodes that have applied the removal reject the certificate; those that have not are no
    // majority.
    let mut refusing = 0;
    for target in &stay {
        let answer = dial_with(&lab, &files, *target).await;
        refusing += usize::from(answer.as_ref().is_err_and(ConnectError::is_not_member));
        println!("n{target} answers {answer:?}");
    }
    assert!(refusing >= 2, "{refusing} of {stay:?}");
    let error = issue(&lab, leaves, "late").await.unwrap_err();
    println!("a write through it: {error}");
    let took = wait_removed(&lab, leaves).await;
    println!("it knows after {took:?}");
    for target in &stay {
        let answer = dial_with(&lab, &files, *target).await.unwrap_err();
        assert!(answer.is_not_member(), "n{target}: {answer}");
    }

    running(&lab, stay[0], &workload, |on| on != host).await;
    stopped(&lab, &host).await;
    let status = lab.node(leaves).api().status().await.unwrap();
    assert!(status.removed && status.initialized, "{status:?}");
    let output = lab.node(leaves).jaco(&["cluster", "status"]).await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("Status: removed\n"), "{text}");

    // The removal survives a restart.
    lab.node_mut(leaves).kill().unwrap();
    lab.node_mut(leaves).start().await.unwrap();
    let status = lab.node(leaves).api().status().await.unwrap();
    assert!(status.removed, "{status:?}");
    let error = issue(&lab, leaves, "later").await.unwrap_err();
    assert_eq!(error.details["reason"], "removed", "{error}");
    let again = v1::ClusterJoinRequest {
        peer_addr: lab.node(stay[0]).api_address().to_string(),
        join_token: crate::hostile::attacker::join_token(&lab, stay[0]).await,
    };
    let mut own = lab.node(leaves).api().cluster();
    let error = DecodedError::from(own.join(again).await.unwrap_err());
    assert_eq!(error.details["reason"], "removed", "{error}");
    stopped(&lab, &host).await;

    lab.node_mut(leaves).stop().await.unwrap();
    lab.node_mut(leaves).wipe().unwrap();
    lab.node_mut(leaves).start().await.unwrap();
    lab.join(leaves, stay[0]).await.unwrap();
    lab.wait_members(4).await.unwrap();
    clients.next_accepted(Instant::now(), LIMIT).await.unwrap();
    let outcome = clients.stop().await.unwrap();
    println!("errors: {:?}", outcome.errors);
    lab.wait_same_state().await.unwrap();
    let mut tokens = lab.node(leaves).api().linearizable().tokens();
    let tokens = tokens.list(v1::TokenListRequest {}).await.unwrap();
    let issued = tokens.into_inner().tokens;
    assert!(
        !issued
            .iter()
            .any(|token| token.identity.starts_with("late"))
    );
    for node in lab.nodes() {
        outcome.check(&node.api().linearizable()).await.unwrap();
    }
    // The certificate from before the removal is still rejected.
    for target in &stay {
        let answer = dial_with(&lab, &files, *target).await.unwrap_err();
        assert!(answer.is_not_member(), "n{target}: {answer}");
    }
}

async fn stopped(lab: &Lab, host: &str) {
    until("its containers are stopped", LIMIT, || async {
        let seen = containers(lab).await;
        match seen[host].iter().find(|container| container.running) {
            None => Ok(()),
            Some(container) => Err(container.replica.clone()),
        }
    })
    .await
    .unwrap();
}

/// Waits, after the removal of one of three nodes, until two members with one voter are left and
/// accept writes.
async fn wait_two_members_left(lab: &Lab, clients: &Registers, gone: u8) {
    let stay = lab.others(&[gone]);
    until("two members, one vote", LIMIT, || async {
        let leader = lab.leader().await.map_err(|error| error.to_string())?;
        let status = lab.node(leader).api().status().await;
        let status = status.map_err(|error| error.to_string())?;
        let voters = lab.voters().await?;
        if status.nodes.len() == 2 && voters.len() == 1 && stay.contains(&leader) {
            Ok(())
        } else {
            Err(format!("{} nodes, voters {voters:?}", status.nodes.len()))
        }
    })
    .await
    .unwrap();
    clients.next_accepted(Instant::now(), LIMIT).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_is_removed_through_itself_or_another() {
    let _permits = test_permits::exclusive().await;
    let mut rng = Rng::announced();
    for by_itself in [true, false] {
        let mut lab = three_voters(rng.number()).await;
        let leader = lab.leader().await.unwrap();
        let stay = lab.others(&[leader]);
        let clients = writers(&lab, &stay, rng.number());
        let through = if by_itself { leader } else { stay[0] };
        let start = Instant::now();
        let removed = remove(&lab, leader, through, false).await;
        println!(
            "through n{through}: {removed:?} after {:?}",
            start.elapsed()
        );
        removed.unwrap();
        let took = clients.next_accepted(start, LIMIT).await.unwrap();
        println!("next write after {took:?}");
        println!("it knows after {:?}", wait_removed(&lab, leader).await);
        lab.node_mut(leader).kill().unwrap();
        wait_two_members_left(&lab, &clients, leader).await;
        // A wiped node may join again, which makes three voters.
        lab.node_mut(leader).wipe().unwrap();
        lab.node_mut(leader).start().await.unwrap();
        lab.join(leader, stay[1]).await.unwrap();
        lab.wait_voters(3).await.unwrap();
        let outcome = clients.stop().await.unwrap();
        println!("errors: {:?}", outcome.errors);
        lab.wait_same_state().await.unwrap();
        for node in lab.nodes() {
            outcome.check(&node.api().linearizable()).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_node_is_rejected_after_its_removal() {
    let _permits = test_permits::exclusive().await;
    let mut rng = Rng::announced();
    let mut lab = three_voters(rng.number()).await;
    let leader = lab.leader().await.unwrap();
    let [dead, other] = lab.others(&[leader])[..] else {
        panic!("three nodes");
    };
    let files = files_of(&lab, dead);
    let clients = writers(&lab, &[leader, other], rng.number());
    clients.next_accepted(Instant::now(), LIMIT).await.unwrap();
    lab.node_mut(dead).kill().unwrap();
    let start = Instant::now();
    remove(&lab, dead, other, true).await.unwrap();
    println!("removed after {:?}", start.elapsed());
    wait_two_members_left(&lab, &clients, dead).await;
    // A follower may apply the removal later than the leader.
    lab.wait_members(2).await.unwrap();
    for target in [leader, other] {
        let answer = dial_with(&lab, &files, target).await.unwrap_err();
        assert!(answer.is_not_member(), "n{target}: {answer}");
    }

    // The node was down during its removal, and learns of it by being rejected.
    lab.node_mut(dead).start().await.unwrap();
    println!("it knows after {:?}", wait_removed(&lab, dead).await);
    clients.next_accepted(Instant::now(), LIMIT).await.unwrap();
    let outcome = clients.stop().await.unwrap();
    println!("errors: {:?}", outcome.errors);
    lab.wait_same_state().await.unwrap();
    for index in [leader, other] {
        let api = lab.node(index).api().linearizable();
        outcome.check(&api).await.unwrap();
    }
}
