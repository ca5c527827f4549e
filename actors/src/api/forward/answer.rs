//! Answer of the leader to a forwarded request.

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full, Limited};
use jaco_proto::Error;
use tonic::{Status, body::Body};

use super::APPLIED_INDEX;
use crate::{
    api::body::FRAME_HEADER,
    node::leader::decode_error,
    peer::{CallError, Peers},
};

/// Size limit of an answer, far above the largest one, the preview of an apply.
const MAX_BYTES: usize = 16 << 20;

/// Answer of the leader.
pub(super) enum Answer {
    /// One message and its status, completely received.
    Buffered {
        head: http::response::Parts,
        body: Bytes,
        trailers: Option<HeaderMap>,
    },
    /// A stream of messages.
    Streaming(Response<Body>),
}

impl Answer {
    fn head(&self) -> &HeaderMap {
        match self {
            Self::Buffered { head, .. } => &head.headers,
            Self::Streaming(response) => response.headers(),
        }
    }

    /// Returns the error that it carries; [`None`] also for an error that this version does not
    /// know.
    pub(super) fn error(&self) -> Option<Error> {
        match self {
            Self::Buffered {
                trailers: Some(trailers),
                ..
            } => error(trailers),
            Self::Buffered { .. } | Self::Streaming(_) => error(self.head()),
        }
    }

    /// Returns the applied index of the leader.
    pub(super) fn applied(&self) -> Option<u64> {
        self.head().get(APPLIED_INDEX)?.to_str().ok()?.parse().ok()
    }

    pub(super) fn into_response(self) -> Response<Body> {
        match self {
            Self::Streaming(response) => response,
            Self::Buffered {
                head,
                body,
                trailers,
            } => {
                let body = match trailers {
                    None => Body::empty(),
                    Some(trailers) => {
                        let trailers = std::future::ready(Some(Ok(trailers)));
                        Body::new(Full::new(body).with_trailers(trailers))
                    }
                };
                Response::from_parts(head, body)
            }
        }
    }
}

/// Decodes the typed error in headers or trailers.
pub(super) fn error(headers: &HeaderMap) -> Option<Error> {
    let status = Status::from_header_map(headers)?;
    decode_error(&status)
}

/// Calls `host` and reads its whole answer.
///
/// # Errors
/// [`CallError::Unanswered`] also for an answer that is incomplete or has no status.
pub(super) async fn exchange(
    peers: &Peers,
    host: &str,
    request: Request<Body>,
) -> Result<Answer, CallError> {
    let broken = |reason: String| CallError::Unanswered {
        host: host.to_owned(),
        reason,
    };
    let (head, body) = peers.call(host, request).await?.into_parts();
    let collected = Limited::new(body, MAX_BYTES + FRAME_HEADER).collect().await;
    let collected = collected.map_err(|error| broken(error.to_string()))?;
    let trailers = collected.trailers().cloned();
    let status = trailers.as_ref().unwrap_or(&head.headers);
    if !status.contains_key("grpc-status") {
        return Err(broken("the answer has no status".to_owned()));
    }
    Ok(Answer::Buffered {
        head,
        body: collected.to_bytes(),
        trailers,
    })
}
