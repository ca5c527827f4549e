//! Requests that members forward to each other within one process.

use std::time::Duration;

use jaco_proto::{
    error::DecodedError,
    v1::{
        self, cluster_client::ClusterClient, command::Payload, deploy_client::DeployClient,
        tokens_client::TokensClient, watch_client::WatchClient,
    },
};
use tokio::time::Instant;

use crate::{
    api::admission::{self, Transport},
    peer::{Heartbeat, HeartbeatHandler as _, Sender},
    testing::cluster::{Cluster, Fault, MemberApi, with},
};

const BEARER: (&str, &str) = ("authorization", "Bearer secret");

/// Issues a token through `member_api` and returns its identity.
async fn issue(
    member_api: MemberApi,
    metadata: &[(&'static str, &str)],
) -> Result<String, DecodedError> {
    let request = v1::TokenIssueRequest {
        identity: "new".to_owned(),
        allows_privileged: false,
    };
    let answer = TokensClient::new(member_api)
        .issue(with(request, metadata))
        .await;
    Ok(answer?.into_inner().identity)
}

fn code(result: Result<String, DecodedError>) -> String {
    result.unwrap_err().code
}

fn issued(cluster: &Cluster) -> usize {
    let commands = cluster.group.committed();
    let issues = |command: &&v1::Command| matches!(command.payload, Some(Payload::TokenIssue(_)));
    commands.iter().filter(issues).count()
}

#[tokio::test(start_paused = true)]
async fn follower_forwards_a_write_and_reads_it() {
    let cluster = Cluster::start(3).await;
    for (id, transport, metadata, identity) in [
        (2, Transport::Api, &[BEARER][..], "ci"),
        (3, Transport::Local, &[][..], "local"),
        (1, Transport::Api, &[BEARER][..], "ci"),
    ] {
        let calls = cluster.network.calls().len();
        issue(cluster.member_api(id, transport), metadata)
            .await
            .unwrap();
        assert!(cluster.state(id).tokens.contains_key("new"));
        let commands = cluster.group.committed();
        assert_eq!(commands.last().unwrap().identity, identity);
        // The leader calls no other member.
        let made = cluster.network.calls().len() - calls;
        assert_eq!(made, usize::from(id != 1));
    }
    let carried = &cluster.network.calls()[0];
    assert_eq!((carried.from.as_str(), carried.to.as_str()), ("n2", "n1"));
    assert_eq!(carried.method, "/jaco.v1.Tokens/Issue");
    let hash = hex::encode(admission::hash(b"secret"));
    assert_eq!(carried.headers["jaco-forwarded"], "1");
    assert_eq!(carried.headers["jaco-forwarded-identity"], "ci");
    assert_eq!(carried.headers["jaco-forwarded-token"], hash.as_str());
    assert_eq!(carried.headers["grpc-timeout"], "60000m");
    assert!(carried.headers.contains_key("x-request-id"));
    assert!(!carried.headers.contains_key("authorization"));
    let local = &cluster.network.calls()[1];
    assert_eq!(local.headers["jaco-forwarded-identity"], "local");
    assert!(!local.headers.contains_key("jaco-forwarded-token"));
}

#[tokio::test(start_paused = true)]
async fn answer_waits_for_local_apply_up_to_limit() {
    let cluster = Cluster::start(2).await;
    cluster.group.lag(2, true);
    let begun = Instant::now();
    let write = issue(cluster.member_api(2, Transport::Local), &[]);
    let catch_up = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(issued(&cluster), 1);
        cluster.group.lag(2, false);
    };
    let (answer, ()) = tokio::join!(write, catch_up);
    answer.unwrap();
    assert!(cluster.state(2).tokens.contains_key("new"));
    assert_eq!(begun.elapsed().as_secs(), 1);

    cluster.group.lag(2, true);
    let begun = Instant::now();
    issue(cluster.member_api(2, Transport::Local), &[])
        .await
        .unwrap();
    assert_eq!(begun.elapsed(), super::LOCAL_APPLY_TIMEOUT);
    let begun = Instant::now();
    let soon = [("grpc-timeout", "2S")];
    issue(cluster.member_api(2, Transport::Local), &soon)
        .await
        .unwrap();
    assert_eq!(begun.elapsed(), Duration::from_millis(1900));
}

#[tokio::test(start_paused = true)]
async fn every_answer_carries_its_applied_index() {
    let cluster = Cluster::start(2).await;
    for id in [1, 2] {
        let mut tokens = TokensClient::new(cluster.member_api(id, Transport::Local));
        let written = tokens
            .issue(v1::TokenIssueRequest {
                identity: "new".to_owned(),
                allows_privileged: false,
            })
            .await
            .unwrap();
        let read = tokens.list(v1::TokenListRequest {}).await.unwrap();
        let index = cluster.state(id).applied_index.to_string();
        for metadata in [written.metadata(), read.metadata()] {
            assert_eq!(metadata.get("jaco-applied-index").unwrap(), index.as_str());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn unsent_request_is_retried() {
    let cluster = Cluster::start(2).await;
    cluster.network.faults(&[Fault::NotSent; 3]);
    issue(cluster.member_api(2, Transport::Local), &[])
        .await
        .unwrap();
    assert_eq!((cluster.network.calls().len(), issued(&cluster)), (4, 1));
}

#[tokio::test(start_paused = true)]
async fn token_revoked_during_retries_is_refused() {
    let cluster = Cluster::start(2).await;
    cluster.group.elect(Some(2));
    cluster.network.faults(&[Fault::NotSent; 100]);
    let call = issue(cluster.member_api(1, Transport::Api), &[BEARER]);
    let revoke = async {
        let identity = "ci".to_owned();
        TokensClient::new(cluster.member_api(2, Transport::Local))
            .revoke(v1::TokenRevokeRequest { identity })
            .await
            .unwrap();
        cluster.group.elect(Some(1));
    };
    let (answer, ()) = tokio::join!(call, revoke);
    assert_eq!(code(answer), "token_revoked");
    assert!(!cluster.network.calls().is_empty(), "the call had started");
    assert_eq!(issued(&cluster), 0);
}

#[tokio::test(start_paused = true)]
async fn possibly_served_request_is_not_retried() {
    for fault in [Fault::Lose, Fault::Break] {
        let cluster = Cluster::start(2).await;
        cluster.network.faults(&[fault]);
        let error = issue(cluster.member_api(2, Transport::Local), &[])
            .await
            .unwrap_err();
        assert_eq!(error.code, "raft_apply_failed");
        assert_eq!(error.details["outcome"], "unknown");
        assert_eq!((cluster.network.calls().len(), issued(&cluster)), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn unknown_outcome_of_the_leader_is_returned() {
    let cluster = Cluster::start(2).await;
    for id in [1, 2] {
        cluster.group.lose_next_answers(1);
        let error = issue(cluster.member_api(id, Transport::Local), &[])
            .await
            .unwrap_err();
        assert_eq!(error.details["outcome"], "unknown");
    }
    assert_eq!(issued(&cluster), 2);
}

#[tokio::test(start_paused = true)]
async fn write_waits_for_an_election() {
    let cluster = Cluster::start(3).await;
    // The node that receives the request may become the leader.
    for (id, next) in [(2, 3), (3, 3), (1, 2)] {
        cluster.group.elect(None);
        let begun = Instant::now();
        let write = issue(cluster.member_api(id, Transport::Local), &[]);
        let election = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            cluster.group.elect(Some(next));
        };
        let (answer, ()) = tokio::join!(write, election);
        answer.unwrap();
        assert_eq!(begun.elapsed().as_secs(), 2, "the election is seen at once");
    }
}

#[tokio::test(start_paused = true)]
async fn no_leader_is_reported_before_client_timeout() {
    let cluster = Cluster::start(2).await;
    cluster.group.elect(None);
    for (timeout, waited) in [(None, 9_000), (Some("2S"), 1_900), (Some("60S"), 9_000)] {
        let begun = Instant::now();
        let metadata: Vec<_> = timeout.iter().map(|&t| ("grpc-timeout", t)).collect();
        let error = issue(cluster.member_api(2, Transport::Local), &metadata)
            .await
            .unwrap_err();
        assert_eq!(error.code, "no_leader");
        assert!(!error.details.contains_key("leader_hint"));
        assert_eq!(begun.elapsed(), Duration::from_millis(waited));
    }
}

#[tokio::test(start_paused = true)]
async fn minority_reports_quorum_lost_at_once() {
    let cluster = Cluster::start(5).await;
    cluster.group.isolate(2, &[2, 3]);
    let begun = Instant::now();
    let lost = |error: DecodedError| {
        assert_eq!(error.code, "quorum_lost");
        assert_eq!(error.details["reachable"], "2");
        assert_eq!(error.details["needed"], "3");
    };
    lost(
        issue(cluster.member_api(2, Transport::Local), &[])
            .await
            .unwrap_err(),
    );
    let mut here = TokensClient::new(cluster.member_api(2, Transport::Local));
    let confirmed = with(v1::TokenListRequest {}, &[("jaco-read", "linearizable")]);
    lost(here.list(confirmed).await.unwrap_err().into());
    here.list(v1::TokenListRequest {}).await.unwrap();
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn anonymous_status_needs_no_linearizable_read() {
    let cluster = Cluster::start(3).await;
    cluster.group.elect(None);
    cluster.group.isolate(2, &[2]);
    let read = || {
        with(
            v1::ClusterStatusRequest {},
            &[("jaco-read", "linearizable")],
        )
    };
    let mut known = ClusterClient::new(cluster.member_api(2, Transport::Local));
    let error = known.status(read()).await.unwrap_err();
    assert_eq!(error.message(), "quorum_lost");
    let mut anonymous = ClusterClient::new(cluster.member_api(2, Transport::Api));
    let status = anonymous.status(read()).await.unwrap().into_inner();
    let nothing = v1::ClusterStatusResponse {
        initialized: true,
        ..Default::default()
    };
    assert_eq!(status, nothing);
}

#[tokio::test(start_paused = true)]
async fn losing_the_quorum_ends_the_wait() {
    let cluster = Cluster::start(3).await;
    for hangs in [false, true] {
        if hangs {
            cluster.group.elect(Some(1));
            cluster.network.faults(&[Fault::Hang]);
        } else {
            cluster.group.elect(None);
        }
        let begun = Instant::now();
        let write = issue(cluster.member_api(2, Transport::Local), &[]);
        let insight = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            cluster.group.isolate(2, &[2]);
        };
        let (answer, ()) = tokio::join!(write, insight);
        let error = answer.unwrap_err();
        // The forwarded request may have been served.
        let (code, waited) = if hangs {
            ("raft_apply_failed", 1_500)
        } else {
            ("quorum_lost", 1_000)
        };
        assert_eq!(error.code, code);
        assert_eq!(begun.elapsed(), Duration::from_millis(waited));
    }
}

#[tokio::test(start_paused = true)]
async fn unreachable_leader_is_named_in_the_error() {
    let cluster = Cluster::start(2).await;
    cluster.network.faults(&[Fault::NotSent; 1000]);
    let begun = Instant::now();
    let error = issue(cluster.member_api(2, Transport::Local), &[])
        .await
        .unwrap_err();
    assert_eq!(error.code, "no_leader");
    assert_eq!(error.details["leader_hint"], "n1:7946");
    assert_eq!(begun.elapsed(), super::LEADER_SEARCH_TIMEOUT);
    assert!(cluster.network.calls().len() < 40, "attempts have pauses");
}

#[tokio::test(start_paused = true)]
async fn request_is_forwarded_only_once() {
    let cluster = Cluster::start(3).await;
    cluster.group.elect(Some(3));
    cluster.group.set_known_leader(2, Some(1));
    let write = issue(cluster.member_api(2, Transport::Local), &[]);
    let insight = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        cluster.group.set_known_leader(2, Some(3));
    };
    let (answer, ()) = tokio::join!(write, insight);
    answer.unwrap();
    let calls = cluster.network.calls();
    assert!(calls.iter().all(|call| call.from == "n2"), "{calls:?}");
    assert!(calls.len() > 2 && calls.last().unwrap().to == "n3");
    assert_eq!(issued(&cluster), 1);

    let marked = [
        ("jaco-forwarded", "1"),
        ("jaco-forwarded-identity", "local"),
    ];
    let error = issue(cluster.peer_api(1, 2), &marked).await.unwrap_err();
    assert_eq!(error.code, "no_leader");
    assert_eq!(error.details["leader_hint"], "n3:7946");
}

#[tokio::test(start_paused = true)]
async fn call_to_a_replaced_leader_ends() {
    let cluster = Cluster::start(3).await;
    cluster.network.faults(&[Fault::Hang]);
    let begun = Instant::now();
    let write = issue(cluster.member_api(2, Transport::Local), &[]);
    let election = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        cluster.group.elect(Some(3));
    };
    let (answer, ()) = tokio::join!(write, election);
    let error = answer.unwrap_err();
    assert_eq!(error.details["outcome"], "unknown");
    assert_eq!(begun.elapsed(), Duration::from_millis(1_500));
    issue(cluster.member_api(2, Transport::Local), &[])
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn silent_leader_is_waited_for_until_deadline() {
    let cluster = Cluster::start(2).await;
    for (timeout, waited) in [(None, 60_000), (Some("3S"), 2_900)] {
        cluster.network.faults(&[Fault::Hang]);
        let begun = Instant::now();
        let metadata: Vec<_> = timeout.iter().map(|&t| ("grpc-timeout", t)).collect();
        let error = issue(cluster.member_api(2, Transport::Local), &metadata)
            .await
            .unwrap_err();
        assert_eq!(error.details["outcome"], "unknown");
        assert_eq!(begun.elapsed(), Duration::from_millis(waited));
    }
}

#[tokio::test(start_paused = true)]
async fn leader_refuses_a_revoked_token() {
    let cluster = Cluster::start(2).await;
    cluster.group.lag(2, true);
    let revoke = v1::TokenRevokeRequest {
        identity: "ci".to_owned(),
    };
    let mut tokens = TokensClient::new(cluster.member_api(1, Transport::Local));
    tokens.revoke(revoke).await.unwrap();
    let answer = issue(cluster.member_api(2, Transport::Api), &[BEARER]).await;
    assert_eq!(code(answer), "token_revoked");
    // The state of the follower still holds the token as valid.
    assert_eq!(cluster.network.calls().len(), 1);
    assert_eq!(issued(&cluster), 0);
}

#[tokio::test(start_paused = true)]
async fn forwarding_metadata_of_clients_is_ignored() {
    let cluster = Cluster::start(2).await;
    let pretence = [
        ("jaco-forwarded", "1"),
        ("jaco-forwarded-identity", "local"),
    ];
    for id in [1, 2] {
        let answer = issue(cluster.member_api(id, Transport::Api), &pretence).await;
        assert_eq!(code(answer), "token_invalid");
    }
    let both = [pretence[0], pretence[1], BEARER];
    issue(cluster.member_api(2, Transport::Api), &both)
        .await
        .unwrap();
    let carried = &cluster.network.calls()[0].headers;
    assert_eq!(carried["jaco-forwarded-identity"], "ci");
}

#[tokio::test(start_paused = true)]
async fn join_is_forwarded_without_an_identity() {
    let cluster = Cluster::start(2).await;
    let mut member_api = ClusterClient::new(cluster.member_api(2, Transport::Api));
    let _ = member_api.node_join(v1::NodeJoinRequest::default()).await;
    let carried = cluster.network.calls()[0].clone();
    assert_eq!(carried.method, "/jaco.v1.Cluster/NodeJoin");
    assert!(!carried.headers.contains_key("jaco-forwarded-identity"));
}

#[tokio::test(start_paused = true)]
async fn leader_validates_against_its_own_state() {
    let cluster = Cluster::start(2).await;
    cluster.group.lag(2, true);
    let apply = |domain: &str, name: &str, dry_run| v1::ApplyRequest {
        jaco_yaml: format!(
            "deployment: {name}\nroutes: [{{domain: {domain}, service: web, port: 80, tls: off}}]"
        )
        .into(),
        compose_yaml: "services: {web: {image: nginx}}".into(),
        dry_run,
        files: Vec::new(),
        secret_values: Default::default(),
    };
    let mut there = DeployClient::new(cluster.member_api(1, Transport::Local));
    there.apply(apply("a.io", "one", false)).await.unwrap();
    assert!(!cluster.state(2).deployments.contains_key("one"));
    let mut here = DeployClient::new(cluster.member_api(2, Transport::Local));
    let error = here.apply(apply("a.io", "two", true)).await.unwrap_err();
    assert_eq!(error.message(), "route_conflict");
}

#[tokio::test(start_paused = true)]
async fn reads_are_local_and_linearizable_ones_wait() {
    let cluster = Cluster::start(2).await;
    cluster.group.lag(2, true);
    issue(cluster.member_api(1, Transport::Local), &[])
        .await
        .unwrap();
    let mut here = TokensClient::new(cluster.member_api(2, Transport::Local));
    let list = here.list(v1::TokenListRequest {}).await.unwrap();
    assert_eq!(list.into_inner().tokens.len(), 1);
    let confirmed = with(v1::TokenListRequest {}, &[("jaco-read", "linearizable")]);
    let catch_up = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        cluster.group.lag(2, false);
    };
    let (list, ()) = tokio::join!(here.list(confirmed), catch_up);
    assert_eq!(list.unwrap().into_inner().tokens.len(), 2);
    assert!(cluster.network.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn streams_survive_leader_change_and_end_on_revocation() {
    let cluster = Cluster::start(3).await;
    let mut streams = Vec::new();
    for id in [1, 2, 3] {
        let mut watch = WatchClient::new(cluster.member_api(id, Transport::Api));
        let request = v1::SubscribeRequest {
            entity_types: vec!["audit".to_owned()],
            ..Default::default()
        };
        let events = watch.subscribe(with(request, &[BEARER])).await.unwrap();
        streams.push(events.into_inner());
    }
    cluster.group.elect(None);
    cluster.group.elect(Some(2));
    issue(cluster.member_api(3, Transport::Local), &[])
        .await
        .unwrap();
    for events in &mut streams {
        assert!(events.message().await.unwrap().is_some());
    }
    let revoke = v1::TokenRevokeRequest {
        identity: "ci".to_owned(),
    };
    let mut tokens = TokensClient::new(cluster.member_api(3, Transport::Local));
    tokens.revoke(revoke).await.unwrap();
    for events in &mut streams {
        let end = loop {
            match events.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the stream must end with an error"),
                Err(status) => break status,
            }
        };
        assert_eq!(end.message(), "token_revoked");
    }
}

#[tokio::test(start_paused = true)]
async fn every_member_reports_leader_and_voters() {
    let cluster = Cluster::start(3).await;
    for id in [1, 2, 3] {
        let mut member_api = ClusterClient::new(cluster.member_api(id, Transport::Local));
        let status = member_api
            .status(v1::ClusterStatusRequest {})
            .await
            .unwrap();
        let status = status.into_inner();
        assert_eq!(status.leader_hostname, "n1");
        assert_eq!(status.leader, "n1:7947");
        let voters = status.suffrages.iter().map(|suffrage| {
            assert_eq!(suffrage.kind(), v1::node_suffrage::Kind::Voter);
            suffrage.hostname.as_str()
        });
        assert_eq!(voters.collect::<Vec<_>>(), ["n1", "n2", "n3"]);
    }
}

/// Makes member 1 a deposed leader whose raft hangs, so that it does not know its successor.
fn depose_hung_leader(cluster: &Cluster) {
    cluster.group.elect(Some(2));
    cluster.group.set_known_leader(1, Some(1));
    cluster.group.stall(1);
}

#[tokio::test(start_paused = true)]
async fn hung_leader_forwards_to_its_successor() {
    let cluster = Cluster::start(3).await;
    depose_hung_leader(&cluster);
    let node = cluster.node(1).try_running().unwrap();
    let print = jaco_net::pki::Fingerprint::from_bytes([2; 32]);
    let claim = Heartbeat {
        term: node.raft.status().term,
        leads: true,
        ..Heartbeat::default()
    };
    node.failure_detector
        .on_heartbeat(&Sender::new("n2", 2, [print]), claim);
    let begun = Instant::now();
    let issued = issue(cluster.member_api(1, Transport::Local), &[]).await;
    assert_eq!(issued.unwrap(), "new");
    assert!(begun.elapsed() < Duration::from_secs(1));
    assert_eq!(cluster.network.calls()[0].to, "n2");
}

#[tokio::test(start_paused = true)]
async fn hung_leader_without_successor_refuses_retriably() {
    let cluster = Cluster::start(3).await;
    depose_hung_leader(&cluster);
    let issued = issue(cluster.member_api(1, Transport::Local), &[]).await;
    assert_eq!(code(issued), "raft_unavailable");
    assert!(cluster.network.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn node_out_of_touch_names_no_leader() {
    let cluster = Cluster::start(3).await;
    cluster.group.isolate(2, &[2]);
    // A learner never gives its leader up.
    cluster.group.set_known_leader(2, Some(1));
    cluster.group.stall(3);
    for (id, lost, stalled) in [(1, false, false), (2, true, false), (3, false, true)] {
        let mut member_api = ClusterClient::new(cluster.member_api(id, Transport::Local));
        let status = member_api.status(v1::ClusterStatusRequest {}).await;
        let status = status.unwrap().into_inner();
        let in_touch = !lost && !stalled;
        let named = (&*status.leader, &*status.leader_hostname);
        assert_eq!(
            named,
            if in_touch {
                ("n1:7947", "n1")
            } else {
                ("", "")
            }
        );
        let since = (status.quorum_lost_since, status.stalled_since);
        assert_eq!((since.0.is_some(), since.1.is_some()), (lost, stalled));
        let seconds = since.0.or(since.1).map(|since| since.seconds);
        assert!(seconds.is_none_or(|at| (1_699_999_900..=1_700_000_000).contains(&at)));
    }
}
