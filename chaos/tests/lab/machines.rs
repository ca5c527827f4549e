//! Actions on a single machine.

use std::time::Duration;

use jaco_chaos::{
    Lab, Service, Workload,
    lab::{netns, registry},
    test_permits, until,
    wait::WAIT_TIMEOUT,
};

#[tokio::test]
async fn nodes_reach_each_other() {
    let _permits = test_permits::heavy().await;
    let lab = Lab::builder().nodes(3).start().await.unwrap();
    for from in lab.nodes() {
        for to in lab.nodes() {
            netns::connect(from.namespace(), to.api_address())
                .await
                .unwrap();
        }
        netns::connect(lab.network().namespace(), from.api_address())
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn api_answers_on_socket_and_tls() {
    let _permits = test_permits::heavy().await;
    let mut lab = Lab::builder().nodes(1).start().await.unwrap();
    lab.init().await.unwrap();
    assert_eq!(lab.leader().await.unwrap(), 1);
    assert_eq!(lab.wait_voters(1).await.unwrap(), ["n1"]);
    let remote = lab.remote_api(1).unwrap();
    remote.deployments().await.unwrap();
    remote.linearizable().deployments().await.unwrap();
    let stranger = lab
        .node(1)
        .remote_api(lab.network().namespace(), "nobody")
        .unwrap();
    let refused = stranger.deployments().await.unwrap_err().to_string();
    assert!(refused.contains("token_invalid"), "{refused}");
    let said = lab.node(1).jaco(&["cluster", "status"]).await.unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(
        said.contains("n1") && said.contains("172.31.99.1"),
        "{said}"
    );
}

#[tokio::test]
async fn daemon_is_paused_killed_stopped_and_started() {
    let _permits = test_permits::heavy().await;
    let mut lab = Lab::builder().nodes(1).start().await.unwrap();
    lab.init().await.unwrap();
    let api = lab.node(1).api().clone();

    lab.node_mut(1).pause().unwrap();
    let answer = tokio::time::timeout(Duration::from_millis(200), api.status());
    assert!(answer.await.is_err());
    lab.node_mut(1).resume().unwrap();
    api.status().await.unwrap();

    let pid = lab.node(1).pid().unwrap();
    lab.node_mut(1).kill().unwrap();
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    assert!(lab.node_mut(1).kill().is_err());
    lab.node_mut(1).start().await.unwrap();
    assert_eq!(lab.leader().await.unwrap(), 1);

    // A paused process can be killed as well.
    lab.node_mut(1).pause().unwrap();
    lab.node_mut(1).kill().unwrap();
    lab.node_mut(1).start().await.unwrap();
    assert!(lab.node_mut(1).stop().await.unwrap().success());
    lab.node_mut(1).start().await.unwrap();
    assert_eq!(lab.leader().await.unwrap(), 1);

    lab.node_mut(1).stop().await.unwrap();
    lab.node_mut(1).wipe().unwrap();
    lab.node_mut(1).start().await.unwrap();
    assert!(!api.status().await.unwrap().initialized);
}

#[tokio::test]
async fn disk_is_filled_and_clock_is_skewed() {
    let _permits = test_permits::heavy().await;
    let lab = Lab::builder().nodes(1).disk(256 << 20).clocks(true);
    let mut lab = lab.start().await.unwrap();
    lab.init().await.unwrap();

    let issue = async |identity: &str| {
        let request = jaco_proto::v1::TokenIssueRequest {
            identity: identity.to_owned(),
            allows_privileged: false,
        };
        let issued = lab.node(1).api().tokens().issue(request).await;
        issued.map(|issued| issued.into_inner().issued_at.unwrap().seconds)
    };
    let right = issue("right").await.unwrap();
    lab.node(1).skew_clock(100_000).unwrap();
    let ahead = until("a clock that is ahead", WAIT_TIMEOUT, || async {
        let ahead = issue("ahead").await.map_err(|error| error.to_string())?;
        if ahead > right + 90_000 {
            Ok(ahead)
        } else {
            Err(ahead.to_string())
        }
    });
    ahead.await.unwrap();
    lab.node(1).skew_clock(-100_000).unwrap();
    let behind = until("a clock that is behind", WAIT_TIMEOUT, || async {
        let behind = issue("behind").await.map_err(|error| error.to_string())?;
        if behind < right {
            Ok(behind)
        } else {
            Err(behind.to_string())
        }
    });
    behind.await.unwrap();

    lab.node(1).fill_disk().unwrap();
    std::fs::write(lab.node(1).path("data/more"), [0; 8192]).unwrap_err();
    lab.node(1).free_disk().unwrap();
    std::fs::write(lab.node(1).path("data/more"), [0; 8192]).unwrap();
}

#[tokio::test]
async fn crash_ends_everything_on_a_machine() {
    let _permits = test_permits::exclusive().await;
    let mut lab = Lab::builder().nodes(2).engines(true).start().await.unwrap();
    let image = lab.push("about:1", "the lab").await.unwrap();
    assert!(image.starts_with(&registry::address().to_string()));
    for node in lab.nodes() {
        node.engine().await.unwrap().pull(&image).await.unwrap();
    }

    lab.init().await.unwrap();
    let workload = Workload::new("lab", [Service::new("web").pulled(&image)]);
    lab.node(1).api().apply(&workload).await.unwrap();
    lab.node(1).api().converged(&workload).await.unwrap();
    let cluster = lab.cluster_id().to_owned();
    let containers = async |lab: &Lab| {
        let engine = lab.node(1).engine().await.unwrap();
        engine.containers(&cluster).await.unwrap()
    };
    let before = containers(&lab).await;
    assert!(before.len() == 1 && before[0].running);

    lab.crash(1).unwrap();
    assert!(netns::list(lab.node(1).namespace()).is_empty());
    lab.boot(1).await.unwrap();
    lab.leader().await.unwrap();
    until("the container runs again", WAIT_TIMEOUT, || async {
        let seen = containers(&lab).await;
        let again =
            seen.len() == 1 && seen[0].running && seen[0].started_at != before[0].started_at;
        if again {
            Ok(())
        } else {
            Err(format!("{seen:?}"))
        }
    })
    .await
    .unwrap();
    lab.node(1).api().converged(&workload).await.unwrap();
}
