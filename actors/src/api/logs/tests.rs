//! Lines of several hosts, some of which are unreachable.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream};
use http::{Request, Response};
use jaco_proto::v1::{
    deploy_client::DeployClient,
    internal_server::{Internal, InternalServer},
};
use jaco_raftnode::LeaderProposer as _;
use jaco_state::command;
use prost_types::Timestamp;
use tonic::{Status, body::Body};
use tower::ServiceExt as _;

use super::*;
use crate::{
    api::{admission::Transport, stream::ResponseStream},
    peer::{CallError, Link, Peers},
    testing::cluster::{Cluster, Fault},
};

fn line(host: &str, text: &str) -> v1::LogLine {
    v1::LogLine {
        host: host.to_owned(),
        line: text.to_owned(),
        stream: "stdout".to_owned(),
        ..Default::default()
    }
}

fn failure(host: &str) -> Error {
    Error::new(ErrorCode::LogsStream, "it broke").with("host", host)
}

fn source(pieces: Vec<LogItem>) -> BoxStream<'static, LogItem> {
    stream::iter(pieces).boxed()
}

/// Result for a client: `host:line`, `!host` for a warning, and the host of the error at the end.
async fn seen(
    merged: impl Stream<Item = Result<v1::LogLine, Error>>,
) -> (Vec<String>, Option<String>) {
    let mut merged = std::pin::pin!(merged);
    let mut lines = Vec::new();
    while let Some(item) = merged.next().await {
        match item {
            Ok(line) if line.stream == "warning" => lines.push(format!("!{}", line.host)),
            Ok(line) => lines.push(format!("{}:{}", line.host, line.line)),
            Err(error) => {
                assert!(merged.next().await.is_none(), "an error is the end");
                return (lines, error.details.get("host").cloned());
            }
        }
    }
    (lines, None)
}

fn sources() -> Vec<BoxStream<'static, LogItem>> {
    let piece = |host: &str, text: &str| LogItem::Line(line(host, text));
    let skipped = LogItem::Skipped {
        host: "c".to_owned(),
        reason: "no way".to_owned(),
    };
    vec![
        source(vec![skipped]),
        source(vec![piece("b", "1"), LogItem::Failed(failure("b"))]),
        source(vec![LogItem::Failed(failure("d"))]),
        source(vec![piece("a", "1"), piece("a", "2"), piece("a", "3")]),
    ]
}

#[tokio::test]
async fn failing_host_ends_only_its_part() {
    let (mut lines, error) = seen(merge(sources(), false)).await;
    assert_eq!(lines.pop().as_deref(), Some("!c"), "warnings come last");
    let of = |host: &str| -> Vec<&String> {
        let own = lines.iter().filter(|line| line.starts_with(host));
        own.collect()
    };
    assert_eq!(of("a"), ["a:1", "a:2", "a:3"]);
    assert_eq!(of("b"), ["b:1"]);
    assert!(matches!(error.as_deref(), Some("b" | "d")));
}

#[tokio::test]
async fn follow_warns_of_failures_while_others_continue() {
    let mut sources = sources();
    sources.push(stream::pending().boxed());
    let mut merged = std::pin::pin!(merge(sources, true));
    let mut warned = BTreeSet::new();
    let mut lines = 0;
    while let Some(Some(item)) = merged.next().now_or_never() {
        let line = item.unwrap();
        if line.stream == "warning" {
            warned.insert(line.host);
        } else {
            lines += 1;
        }
    }
    assert_eq!(lines, 4);
    assert!(warned.iter().eq(["b", "c", "d"]));
}

#[tokio::test]
async fn sources_are_not_read_ahead() {
    let read = Arc::new(AtomicUsize::new(0));
    let counted = |host: &'static str| {
        let read = read.clone();
        stream::iter(0..1000)
            .map(move |n| {
                read.fetch_add(1, Ordering::Relaxed);
                LogItem::Line(line(host, &n.to_string()))
            })
            .boxed()
    };
    let merged = merge(vec![counted("a"), counted("b")], true);
    let taken: Vec<_> = merged.take(10).collect().await;
    assert_eq!(taken.len(), 10);
    assert!(read.load(Ordering::Relaxed) <= 12);
}

/// A member with two lines, after which its stream ends or fails.
struct Member {
    breaks: bool,
}

#[tonic::async_trait]
impl Internal for Member {
    async fn submit(
        &self,
        _: tonic::Request<v1::SubmitRequest>,
    ) -> Result<tonic::Response<v1::SubmitResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn sign_node_cert(
        &self,
        _: tonic::Request<v1::SignNodeCertRequest>,
    ) -> Result<tonic::Response<v1::SignNodeCertResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    type LogsStream = ResponseStream<v1::LogLine>;

    async fn logs(
        &self,
        request: tonic::Request<v1::LogsRequest>,
    ) -> Result<tonic::Response<Self::LogsStream>, Status> {
        let service = request.into_inner().service;
        let mut lines = vec![Ok(line("n2", &service)), Ok(line("n2", "2"))];
        if self.breaks {
            lines.push(Err(Status::unknown("the connection was lost")));
        }
        Ok(tonic::Response::new(Box::pin(stream::iter(lines))))
    }

    async fn ensure_subnet(
        &self,
        _: tonic::Request<v1::EnsureSubnetRequest>,
    ) -> Result<tonic::Response<v1::EnsureSubnetResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn store_secrets_key(
        &self,
        _: tonic::Request<v1::SecretsKey>,
    ) -> Result<tonic::Response<v1::StoreSecretsKeyResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn fetch_secrets_key(
        &self,
        _: tonic::Request<v1::SecretsKeyId>,
    ) -> Result<tonic::Response<v1::SecretsKey>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn report_network(
        &self,
        _: tonic::Request<v1::ReportNetworkRequest>,
    ) -> Result<tonic::Response<v1::ReportNetworkResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn await_routing(
        &self,
        _: tonic::Request<v1::AwaitRoutingRequest>,
    ) -> Result<tonic::Response<v1::AwaitRoutingResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn state_digest(
        &self,
        _: tonic::Request<v1::StateDigestRequest>,
    ) -> Result<tonic::Response<v1::StateDigestResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}

struct To(bool);

impl Link for To {
    fn call(
        &self,
        _: &str,
        request: Request<Body>,
    ) -> BoxFuture<'static, Result<Response<Body>, CallError>> {
        let member = InternalServer::new(Member { breaks: self.0 });
        async move {
            let answer = member.oneshot(request).await;
            Ok(answer.unwrap_or_else(|never| match never {}))
        }
        .boxed()
    }
}

#[tokio::test]
async fn lines_of_a_member_are_passed_through() {
    for breaks in [false, true] {
        let peers = Peers::new(Arc::new(To(breaks)));
        let request = v1::LogsRequest {
            service: "web".to_owned(),
            ..Default::default()
        };
        let lines = remote(peers.channel("n2"), "n2".to_owned(), request).await;
        let (lines, error) = seen(merge(vec![lines.boxed()], false)).await;
        assert_eq!(lines, ["n2:web", "n2:2"]);
        assert_eq!(error.as_deref(), breaks.then_some("n2"));
    }
}

/// A cluster with a replica on each of `hosts`; no host has an engine.
async fn running_on(hosts: &[&str]) -> Cluster {
    let cluster = Cluster::start(3).await;
    for host in hosts {
        let replica = v1::ReplicaDesired {
            id: format!("app-web-{host}"),
            deployment: "app".to_owned(),
            service: "web".to_owned(),
            host: (*host).to_owned(),
            ..Default::default()
        };
        let payload = v1::command::Payload::ReplicaDesiredUpsert(v1::ReplicaDesiredUpsert {
            replica: Some(replica),
        });
        let command = command("scheduler", Timestamp::default(), payload);
        cluster.group.handle(1).propose(command).await.unwrap();
    }
    cluster
}

async fn logs(cluster: &Cluster, id: u64) -> Result<(Vec<String>, String), String> {
    let mut member_api = DeployClient::new(cluster.member_api(id, Transport::Local));
    let request = v1::LogsRequest {
        deployment: "app".to_owned(),
        ..Default::default()
    };
    let answer = member_api.logs(request).await;
    let mut lines = answer.map_err(|s| s.message().to_owned())?.into_inner();
    let mut warnings = Vec::new();
    loop {
        match lines.message().await {
            Ok(Some(line)) => {
                assert_eq!(line.stream, "warning");
                warnings.push(line.host);
            }
            Ok(None) => return Ok((warnings, String::new())),
            Err(status) => return Ok((warnings, status.message().to_owned())),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn only_hosts_with_replicas_are_queried() {
    let unavailable = || "logs_unavailable".to_owned();
    let cluster = running_on(&["n1", "n3"]).await;
    assert_eq!(logs(&cluster, 1).await, Ok((vec![], unavailable())));
    let asked = |cluster: &Cluster| -> Vec<String> {
        let calls = cluster.network.calls();
        calls.iter().map(|call| call.to.clone()).collect()
    };
    assert_eq!(asked(&cluster), ["n3"]);
    assert_eq!(logs(&cluster, 2).await, Ok((vec![], unavailable())));
    assert_eq!(asked(&cluster), ["n3", "n1", "n3"]);

    // An unreachable host gives a warning, not an error.
    let cluster = running_on(&["n2", "n3"]).await;
    cluster.network.faults(&[Fault::NotSent, Fault::NotSent]);
    let both = vec!["n2".to_owned(), "n3".to_owned()];
    assert_eq!(logs(&cluster, 1).await, Ok((both, String::new())));
}

#[tokio::test(start_paused = true)]
async fn sole_host_without_engine_fails_the_call() {
    for hosts in [&["n1"][..], &[]] {
        let cluster = running_on(hosts).await;
        assert_eq!(
            logs(&cluster, 1).await,
            Err("logs_unavailable".to_owned()),
            "{hosts:?}"
        );
        assert!(cluster.network.calls().is_empty());
    }
}
