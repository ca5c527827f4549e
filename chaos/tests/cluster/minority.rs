//! The minority side of a network partition.

use std::time::{Duration, Instant};

use jaco_chaos::{Api, Rng, test_permits, time_limits, until, wait::WAIT_TIMEOUT};
use jaco_proto::{error::DecodedError, v1};
use tonic::Request;

use crate::setup::{all_ready, cluster, containers, containers_as_placed, running, stateless};

/// Deadline of the client's requests.
const DEADLINE: Duration = Duration::from_secs(10);
/// Limit of the time in which a node that lost its majority refuses requests.
const REFUSED_WITHIN: Duration = Duration::from_secs(2);

async fn write(api: &Api, identity: &str) -> Result<(), DecodedError> {
    let mut request = Request::new(v1::TokenIssueRequest {
        identity: identity.to_owned(),
        allows_privileged: false,
    });
    request.set_timeout(DEADLINE);
    api.tokens().issue(request).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn minority_reads_refuses_writes_and_keeps_its_containers() {
    let _permits = test_permits::exclusive().await;
    let mut rng = Rng::announced();
    let mut lab = cluster(3, rng.number()).await;
    lab.wait_voters(3).await.unwrap();
    let workload = stateless(6);
    let minority = lab.leader().await.unwrap();
    let majority = lab.others(&[minority])[0];
    let host = lab.node(minority).host().to_owned();
    let api = lab.node(minority).api().clone();
    api.apply(&workload).await.unwrap();
    running(&lab, minority, &workload, |_| true).await;
    let before = containers(&lab).await;

    let start = Instant::now();
    lab.isolate(&[minority]).unwrap();
    let refused = until("a refused write", WAIT_TIMEOUT, || async {
        match write(&api, "minority").await {
            Err(error) if error.code == "quorum_lost" => Ok(start.elapsed()),
            Err(error) => Err(error.to_string()),
            Ok(()) => Err("it was accepted".to_owned()),
        }
    });
    let refused = refused.await.unwrap();
    time_limits::time("quorum_lost after the cut", refused, REFUSED_WITHIN).unwrap();
    let asked = Instant::now();
    assert_eq!(
        write(&api, "minority").await.unwrap_err().code,
        "quorum_lost"
    );
    time_limits::time("quorum_lost from then on", asked.elapsed(), REFUSED_WITHIN).unwrap();
    assert_eq!(api.replicas(&workload.name).await.unwrap().len(), 6);
    let consistent = api
        .linearizable()
        .replicas(&workload.name)
        .await
        .unwrap_err();
    assert_eq!(consistent.code, "quorum_lost");

    // The majority continues without it.
    until("an accepted write", WAIT_TIMEOUT, || {
        write(lab.node(majority).api(), "majority")
    })
    .await
    .unwrap();
    running(&lab, majority, &workload, |on| on != host).await;
    println!("replicas run elsewhere {:?} after the cut", start.elapsed());
    // Its containers still run: no newer state has reached it.
    assert_eq!(containers(&lab).await[&host], before[&host]);

    lab.heal_all().unwrap();
    all_ready(&lab).await;
    lab.wait_same_state().await.unwrap();
    containers_as_placed(&lab, minority, &workload).await;
    let tokens = api
        .tokens()
        .list(v1::TokenListRequest {})
        .await
        .unwrap()
        .into_inner()
        .tokens;
    let known = |identity: &str| tokens.iter().any(|token| token.identity == identity);
    assert!(known("majority") && !known("minority"), "{tokens:?}");
}
