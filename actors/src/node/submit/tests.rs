//! Commands that members submit to each other within one process.

use std::time::Duration;

use jaco_proto::{
    error::DecodedError,
    mark,
    v1::{self, NodeStatus, command::Payload, internal_client::InternalClient},
};
use jaco_raftnode::{
    ForwardingProposer as _, LeaderProposer as _, ProposeError, StateReader as _, command,
};
use prost::Message as _;
use prost_types::Timestamp;
use tokio::time::Instant;

use super::*;
use crate::{
    identity::Transport,
    network::cidr::Cidr,
    network::ipam::{self, Allocator, SubnetKey},
    node::subnets::LeaderAllocator,
    testing::cluster::{Cluster, Fault},
};

fn about(host: &str, version: &str) -> v1::Command {
    let payload = Payload::NodeUpdateSelf(v1::NodeUpdateSelf {
        hostname: host.to_owned(),
        version: version.to_owned(),
        ..Default::default()
    });
    command("node-update-self", Timestamp::default(), payload)
}

fn submitter(cluster: &Cluster, id: u64) -> Submitter {
    cluster.node(id).try_running().unwrap().submitter()
}

#[tokio::test(start_paused = true)]
async fn followers_propose_through_the_leader() {
    let cluster = Cluster::start(3).await;
    for (id, calls) in [(1, 0), (2, 1), (3, 2)] {
        let host = format!("n{id}");
        let submitter = submitter(&cluster, id);
        let committed = submitter.submit(about(&host, "2.0.0")).await.unwrap();
        assert_eq!(cluster.network.calls().len(), calls);
        let state = submitter.state();
        assert_eq!(state.applied_index, committed.index);
        assert_eq!(state.nodes[&host].version, "2.0.0");
    }
}

#[tokio::test(start_paused = true)]
async fn answer_waits_for_the_local_apply() {
    let cluster = Cluster::start(2).await;
    cluster.group.lag(2, true);
    let begun = Instant::now();
    let submitter = submitter(&cluster, 2);
    let catch_up = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        cluster.group.lag(2, false);
    };
    let (answer, ()) = tokio::join!(submitter.submit(about("n2", "2.0.0")), catch_up);
    answer.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 1);
}

#[tokio::test(start_paused = true)]
async fn failures_map_to_distinct_errors() {
    let cluster = Cluster::start(3).await;
    let submitter = submitter(&cluster, 2);
    let propose = || submitter.submit(about("n2", "2.0.0"));
    cluster.network.faults(&[Fault::NotSent]);
    assert_eq!(propose().await, Err(ProposeError::NoLeader));
    for fault in [Fault::Lose, Fault::Hang, Fault::Break] {
        cluster.network.faults(&[fault]);
        let answer = propose().await;
        assert!(matches!(answer, Err(ProposeError::Unknown(_))), "{fault:?}");
    }
    cluster.group.lose_next_answers(1);
    assert!(matches!(propose().await, Err(ProposeError::Unknown(_))));
    cluster.group.elect(Some(3));
    cluster.group.set_known_leader(2, Some(1));
    assert_eq!(propose().await, Err(ProposeError::NoLeader));
    cluster.group.elect(None);
    assert_eq!(propose().await, Err(ProposeError::NoLeader));
    cluster.group.elect(Some(1));
    // The command is about another member.
    let answer = submitter.submit(about("n3", "2.0.0")).await;
    let Err(ProposeError::Rejected(error)) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(error.code, ErrorCode::PrivilegeDenied);
    assert_eq!(error.details["command"], "node_update_self");
    // `Lose`, `Break` and the answer lost by the leader were committed, the others were not.
    assert_eq!(cluster.group.committed().len(), 3);
}

async fn submit_raw(
    mut client: InternalClient<crate::testing::cluster::MemberApi>,
    command_bytes: Vec<u8>,
) -> Result<u64, String> {
    let answer = client.submit(v1::SubmitRequest { command_bytes }).await;
    answer
        .map(|answer| answer.into_inner().raft_index)
        .map_err(|status| DecodedError::from_status(&status).code)
}

#[tokio::test(start_paused = true)]
async fn only_members_submit_and_only_to_the_leader() {
    let cluster = Cluster::start(2).await;
    let bytes = about("n2", "2.0.0").encode_to_vec();
    let code = |code: &str| Err(code.to_owned());
    for transport in [Transport::Local, Transport::Api, Transport::Process] {
        let client = InternalClient::new(cluster.member_api(1, transport));
        assert_eq!(submit_raw(client, bytes.clone()).await, code("peer_only"));
    }
    let from = |id, sender| InternalClient::new(cluster.peer_api(id, sender));
    assert_eq!(
        submit_raw(from(1, 3), bytes.clone()).await,
        code("peer_only"),
        "the sender is no longer a member"
    );
    assert_eq!(
        submit_raw(from(2, 1), bytes.clone()).await,
        code("no_leader")
    );
    assert_eq!(
        submit_raw(from(1, 2), vec![0xff; 9]).await,
        code("validation_failed")
    );
    assert_eq!(
        submit_raw(from(1, 2), Vec::new()).await,
        code("validation_failed")
    );
    assert!(cluster.group.committed().is_empty());
    assert!(submit_raw(from(1, 2), bytes).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn leader_clears_its_own_mark_under_lock() {
    let cluster = Cluster::start(1).await;
    let node = cluster.node(1).try_running().unwrap();
    let submitter = submitter(&cluster, 1);
    let status = |status: NodeStatus, drain_mark: i32| {
        let payload = Payload::NodeStatusUpdate(v1::NodeStatusUpdate {
            hostname: "n1".to_owned(),
            status: status.into(),
            drain_mark,
            ..Default::default()
        });
        command("node-health", Timestamp::default(), payload)
    };
    let give_up = async || {
        for update in [
            status(NodeStatus::Unspecified, mark::SET),
            status(NodeStatus::DrainTimeout, mark::KEEP),
        ] {
            node.raft.propose(update).await.unwrap();
        }
    };
    let clear = || submitter.submit(status(NodeStatus::Ready, mark::CLEAR));
    give_up().await;
    clear().await.unwrap();
    assert!(!cluster.state(1).nodes["n1"].draining);

    give_up().await;
    let guard = node.drain_mark_lock.lock(&node.raft).await.unwrap();
    let mut clears = tokio::spawn(clear());
    let early = tokio::time::timeout(Duration::from_secs(60), &mut clears).await;
    assert!(early.is_err(), "an operator is changing the mark");
    let again = status(NodeStatus::Ready, mark::SET);
    guard.commit(&node.raft, again).await.unwrap();
    let Err(ProposeError::Rejected(error)) = clears.await.unwrap() else {
        panic!("the drain that was asked for again is cancelled");
    };
    assert_eq!(error.code, ErrorCode::PrivilegeDenied);
    assert!(cluster.state(1).nodes["n1"].draining);
}

fn key(host: &str) -> SubnetKey {
    SubnetKey {
        deployment: "app".to_owned(),
        network: "_default".to_owned(),
        host: host.to_owned(),
    }
}

/// Allocator that commits the same block for every request, or the next one if that is refused.
struct Chooses(RaftHandle);

impl Allocator for Chooses {
    fn ensure(
        &self,
        key: SubnetKey,
        refused: Vec<Cidr>,
    ) -> futures::future::BoxFuture<'static, Result<Cidr, ipam::Error>> {
        let raft = self.0.clone();
        Box::pin(async move {
            if key.deployment != "app" {
                return Err(ipam::Error::UnknownDeployment(key.deployment));
            }
            let (first, second) = ("10.244.7.0/24", "10.244.8.0/24");
            let cidr = if refused == [first.parse().unwrap()] {
                second
            } else {
                first
            };
            let payload = Payload::SubnetAllocate(v1::SubnetAllocate {
                deployment: key.deployment,
                network: key.network,
                cidr: cidr.to_owned(),
                host: key.host,
            });
            let command = command("ipam", Timestamp::default(), payload);
            raft.propose(command).await.map_err(ipam::Error::Propose)?;
            Ok(cidr.parse().unwrap())
        })
    }
}

#[tokio::test(start_paused = true)]
async fn block_is_returned_once_applied_locally() {
    let cluster = Cluster::start(2).await;
    let leader = cluster.node(1).try_running().unwrap();
    let chooses: ipam::SharedAllocator = Arc::new(Chooses(cluster.group.handle(1)));
    let _ = leader.allocator.set(chooses);
    let here = LeaderAllocator(cluster.node(2).try_running().unwrap().leader.clone());
    cluster.group.lag(2, true);
    // The first request is not sent, so the block comes from a retry.
    cluster.network.faults(&[Fault::NotSent]);
    let begun = Instant::now();
    let catch_up = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        cluster.group.lag(2, false);
    };
    let (answer, ()) = tokio::join!(here.ensure(key("n2"), Vec::new()), catch_up);
    let cidr = answer.unwrap();
    assert_eq!(cidr.to_string(), "10.244.7.0/24");
    assert_eq!(
        jaco_policy::network::ipam::existing(&cluster.state(2), &key("n2")),
        Some(cidr)
    );
    assert_eq!(begun.elapsed().as_secs(), 2);
    let other = here.ensure(key("n2"), vec![cidr]).await.unwrap();
    assert_eq!(other.to_string(), "10.244.8.0/24");

    let unknown = SubnetKey {
        deployment: "gone".to_owned(),
        ..key("n2")
    };
    let answer = here.ensure(unknown, Vec::new()).await;
    assert_eq!(answer, Err(ipam::Error::UnknownDeployment("gone".into())));
}

#[tokio::test(start_paused = true)]
async fn blocks_for_another_host_are_refused() {
    let cluster = Cluster::start(3).await;
    let request = v1::EnsureSubnetRequest {
        deployment: "app".to_owned(),
        network: "_default".to_owned(),
        host: "n3".to_owned(),
        ..Default::default()
    };
    let mut client = InternalClient::new(cluster.peer_api(1, 2));
    let error = client.ensure_subnet(request).await.unwrap_err();
    assert_eq!(error.message(), "privilege_denied");
}

#[tokio::test(start_paused = true)]
async fn invalid_refused_blocks_fail_validation() {
    let cluster = Cluster::start(2).await;
    let mut client = InternalClient::new(cluster.peer_api(1, 2));
    let many = vec!["10.9.0.0/24".to_owned(); 65];
    for refused in [many, vec!["10.9.0.1/24".to_owned()]] {
        let request = v1::EnsureSubnetRequest {
            deployment: "app".to_owned(),
            network: "_default".to_owned(),
            host: "n2".to_owned(),
            refused,
        };
        let error = client.ensure_subnet(request).await.unwrap_err();
        assert_eq!(error.message(), "validation_failed");
    }
}

#[tokio::test(start_paused = true)]
async fn without_leader_no_block_is_allocated() {
    let cluster = Cluster::start(2).await;
    cluster.group.elect(None);
    let here = LeaderAllocator(cluster.node(2).try_running().unwrap().leader.clone());
    let begun = Instant::now();
    let answer = here.ensure(key("n2"), Vec::new()).await;
    assert_eq!(answer, Err(ipam::Error::NotLeader));
    assert!(begun.elapsed() <= Duration::from_secs(10));
    assert!(cluster.network.calls().is_empty());
}
