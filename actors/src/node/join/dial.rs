//! The `NodeJoin` call, which a node makes before it has a certificate of the cluster.

use std::{
    io,
    sync::Mutex,
    time::{Duration, SystemTime},
};

use hyper_util::rt::TokioIo;
use jaco_net::{
    pki::Fingerprint,
    tls::{self, dial::DialError},
};
use jaco_proto::{
    Error, ErrorCode, chain,
    config::HostPort,
    error::DecodedError,
    timestamp,
    v1::{self, cluster_client::ClusterClient},
};
use tonic::{Status, transport::Endpoint};
use tower::service_fn;

/// Time limit of the connection, TLS included.
const CONNECT_BUDGET: Duration = Duration::from_secs(10);
/// Time limit of the answer.
const ANSWER_BUDGET: Duration = Duration::from_secs(30);

/// Parses the `host:port` of a member's API.
pub(super) fn address(text: &str) -> Option<HostPort> {
    let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | '@');
    HostPort::endpoint(text).filter(|address| !address.host.contains(odd))
}

/// Asks the member at `peer` to admit this node, once its certificate chain has proved the
/// authority `ca`.
///
/// # Errors
/// `ca_digest_mismatch`, `clock_skew` or `peer_unreachable`; otherwise the member's own error.
pub(super) async fn node_join(
    peer: &HostPort,
    ca: Fingerprint,
    request: v1::NodeJoinRequest,
) -> Result<v1::NodeJoinResponse, Error> {
    let stream = tls::dial(&peer.host, peer.port, ca, CONNECT_BUDGET)
        .await
        .map_err(|error| match error {
            DialError::Authority { expected, got } => mismatch(peer, expected, got),
            DialError::NotValidYet { not_before } => clock_behind(SystemTime::now(), not_before),
            error @ (DialError::Unreachable(_) | DialError::Timeout(_) | DialError::Tls(_)) => {
                unreachable(peer, chain(&error))
            }
        })?;
    // Only this stream was verified: the channel must not open another.
    let stream = Mutex::new(Some(TokioIo::new(stream)));
    let connector = service_fn(move |_| {
        let stream = stream.lock().ok().and_then(|mut stream| stream.take());
        async move { stream.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)) }
    });
    let channel = Endpoint::from_static("http://jaco")
        .connect_with_connector(connector)
        .await
        .map_err(|error| unreachable(peer, chain(&error)))?;
    let mut client = ClusterClient::new(channel);
    let answer = tokio::time::timeout(ANSWER_BUDGET, client.node_join(request)).await;
    match answer {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(refused(peer, &status)),
        Err(_) => Err(unreachable(
            peer,
            format!("no answer within {ANSWER_BUDGET:?}"),
        )),
    }
}

pub(super) fn mismatch(peer: &HostPort, expected: Fingerprint, got: Fingerprint) -> Error {
    Error::new(
        ErrorCode::CaDigestMismatch,
        format!(
            "the peer {peer} belongs to another cluster ({got}) than the join token ({expected})"
        ),
    )
    .with("peer", peer)
    .with("expected", expected)
    .with("got", got)
}

/// Error of a node whose clock, at `now`, has not reached the validity of a member's certificate.
pub(super) fn clock_behind(now: SystemTime, not_before: SystemTime) -> Error {
    let (now, not_before) = (timestamp(now), timestamp(not_before));
    let message = format!(
        "the clock of this node reads {now}, but the cluster's certificates begin at {not_before}"
    );
    Error::new(ErrorCode::ClockSkew, message)
        .with("joiner_clock", now)
        .with("valid_from", not_before)
}

fn unreachable(peer: &HostPort, reason: String) -> Error {
    let message = format!("the peer {peer} cannot be reached");
    Error::new(ErrorCode::PeerUnreachable, message)
        .with("peer", peer)
        .because(reason)
}

/// Maps the member's status to an error, with its own code and message.
fn refused(peer: &HostPort, status: &Status) -> Error {
    // A status that was received has no source.
    if let Some(error) = std::error::Error::source(status) {
        return unreachable(peer, chain(error));
    }
    let DecodedError {
        code,
        message,
        details,
        ..
    } = DecodedError::from_status(status);
    match code.parse::<ErrorCode>() {
        Ok(code) => Error {
            code,
            message,
            details,
        },
        Err(_) => Error::new(
            ErrorCode::Internal,
            format!("the peer {peer} refused the join"),
        )
        .with("peer", peer)
        .because(format!("{code}: {message}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_host_and_port() {
        for text in ["10.0.0.1:7000", "node-1.lan:1", "[fd00::1]:7000"] {
            assert_eq!(address(text).unwrap().to_string(), text);
        }
        for text in [
            "",
            ":7000",
            "host",
            "host:0",
            "host:x",
            "fd00::1:7000",
            "http://h:1",
            "a b:1",
        ] {
            assert_eq!(address(text), None, "{text:?}");
        }
    }
}
