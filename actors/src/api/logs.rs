//! `Deploy.Logs`: the tail of this host's replicas as a stream.

use futures::{Stream, stream};
use jaco_proto::{Error, ErrorCode, v1};
use jaco_raftnode::Propose;

use crate::{
    node::Running,
    runtime::logs::{Query, Tail},
};

/// Opens the tail that a request asks for.
///
/// # Errors
/// `deployment_not_found` or `unknown_service` for names that do not exist; `logs_unavailable`
/// if the engine does not answer, so that silence is not taken for a quiet service.
pub(super) async fn tail(
    node: &Running,
    request: v1::LogsRequest,
) -> Result<impl Stream<Item = Result<v1::LogLine, Error>> + Send + use<>, Error> {
    let state = node.raft.state();
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
    if let Err(error) = node.engine.ping().await {
        return Err(
            Error::new(ErrorCode::LogsUnavailable, "the engine does not answer")
                .with("host", &node.hostname)
                .with("reason", error),
        );
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

/// The next line; when all sources are drained, the first failure among them ends the stream.
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
        .with("reason", broken.source);
    Some((Err(error), None))
}
