//! `Deploy.Logs`: the lines of every host with replicas, in the order of arrival.
//!
//! Each host is a separate stream that is read only as fast as the client reads; unread lines stay
//! at their source. A host that is unreachable or stops answering ends only its own part.

mod hosts;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use futures::{FutureExt as _, Stream, StreamExt as _, stream, stream::BoxStream};
use jaco_proto::{Error, ErrorCode, v1};
use jaco_raftnode::{State, StateReader as _};

use crate::{
    node::MemberContext,
    runtime::logs::{Query, Tail},
};
use hosts::{LogItem, merge, remote};

/// Opens the requested tails on this node and on other members.
///
/// # Errors
/// `deployment_not_found` or `unknown_service` for names that do not exist; `logs_unavailable` if
/// no other host has matching replicas and the engine of this one does not answer, so that the
/// absence of lines is not taken for a quiet service.
pub(super) async fn tail(
    node: &MemberContext,
    request: v1::LogsRequest,
) -> Result<impl Stream<Item = Result<v1::LogLine, Error>> + Send + use<>, Error> {
    let state = node.raft.state();
    check(&state, &request)?;
    let mut others = hosts_of(&state, &request);
    let here = others.remove(&node.hostname);
    let follow = request.follow;
    let mut sources: Vec<BoxStream<'static, LogItem>> = Vec::new();
    if here || others.is_empty() {
        match own(node, request.clone()).await {
            Ok(lines) => sources.push(lines.map(LogItem::from).boxed()),
            Err(error) if others.is_empty() => return Err(error),
            Err(error) => sources.push(stream::iter([LogItem::Failed(error)]).boxed()),
        }
    }
    for host in others {
        let known = state
            .nodes
            .get(&host)
            .is_some_and(|row| !row.address.is_empty());
        sources.push(if known {
            let lines = remote(node.peers.channel(&host), host, request.clone());
            lines.flatten_stream().boxed()
        } else {
            let reason = "its address is not known".to_owned();
            stream::iter([LogItem::Skipped { host, reason }]).boxed()
        });
    }
    Ok(merge(sources, follow))
}

fn check(state: &State, request: &v1::LogsRequest) -> Result<(), Error> {
    let Some(deployment) = state.deployments.get(&request.deployment) else {
        return Err(Error::new(
            ErrorCode::DeploymentNotFound,
            format!("no deployment {:?}", request.deployment),
        )
        .with("deployment", &request.deployment));
    };
    let known = deployment
        .services
        .iter()
        .any(|service| service.name == request.service);
    if !request.service.is_empty() && !known {
        return Err(Error::new(
            ErrorCode::UnknownService,
            format!(
                "deployment {:?} has no service {:?}",
                request.deployment, request.service
            ),
        )
        .with("deployment", &request.deployment)
        .with("service", &request.service));
    }
    Ok(())
}

/// Returns the hosts with replicas that match a request.
fn hosts_of(state: &State, request: &v1::LogsRequest) -> BTreeSet<String> {
    let matches = |wanted: &str, value: &str| wanted.is_empty() || wanted == value;
    state
        .replicas_desired
        .values()
        .filter(|row| row.deployment == request.deployment)
        .filter(|row| matches(&request.service, &row.service))
        .filter(|row| matches(&request.replica_id, &row.id))
        .map(|row| row.host.clone())
        .collect()
}

/// Opens the tail of this host alone; unknown names match nothing.
///
/// # Errors
/// `logs_unavailable` if the engine does not answer.
pub(super) async fn own(
    node: &MemberContext,
    request: v1::LogsRequest,
) -> Result<impl Stream<Item = Result<v1::LogLine, Error>> + Send + use<>, Error> {
    if let Err(error) = node.engine.ping().await {
        return Err(Error::new(
            ErrorCode::LogsUnavailable,
            format!("the engine of host {:?} does not answer", node.hostname),
        )
        .with("host", &node.hostname)
        .because(error));
    }
    let since = match request.since_seconds {
        0 => 0,
        seconds => node
            .clock
            .timestamp()
            .seconds
            .saturating_sub(seconds.max(0)),
    };
    let host = node.hostname.clone();
    let tail = node.runtime()?.logs(&Query {
        deployment: request.deployment,
        service: request.service,
        replica_id: request.replica_id,
        since,
        follow: request.follow,
    });
    Ok(stream::unfold(Some(tail), move |tail| {
        step(tail, host.clone())
    }))
}

/// Returns the next line; once all sources are drained, the first failure among them ends the
/// stream.
async fn step(
    tail: Option<Tail>,
    host: String,
) -> Option<(Result<v1::LogLine, Error>, Option<Tail>)> {
    let mut tail = tail?;
    if let Some(line) = tail.next().await {
        return Some((Ok(line), Some(tail)));
    }
    let broken = tail.finish().await.err()?;
    let error = Error::new(ErrorCode::LogsStream, broken.to_string())
        .with("host", host)
        .because(broken.source);
    Some((Err(error), None))
}
