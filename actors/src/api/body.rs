//! Limits on the size and the arrival time of request bodies.
//!
//! No method takes a stream of messages, so a request is received completely before it is served.
//! The less a caller has to prove, the less memory its request may take.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use jaco_proto::{Error, ErrorCode, error::DecodedError};
use tonic::{Status, body::Body};

use super::methods::RequestBody;

/// Length of the gRPC header in front of each message.
pub(super) const FRAME_HEADER: usize = 5;
/// Time limit for a request to arrive.
const ARRIVAL: Duration = Duration::from_secs(10);

/// Receives the whole body of a request.
///
/// # Errors
/// `validation_failed` if it is too large, too late or incomplete.
pub(super) async fn collect(request: RequestBody, body: Body) -> Result<Bytes, Error> {
    let limit = match request {
        RequestBody::Message { max_bytes } => max_bytes + FRAME_HEADER,
        RequestBody::Unread => return Ok(Bytes::new()),
    };
    match tokio::time::timeout(ARRIVAL, read(body, limit)).await {
        Ok(read) => read,
        Err(_) => Err(refused("the request did not arrive in time")
            .because(format!("not whole within {ARRIVAL:?}"))),
    }
}

async fn read(mut body: Body, limit: usize) -> Result<Bytes, Error> {
    // Copied, since even a small frame may keep its whole receive buffer alive.
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(broken)?;
        let Ok(data) = frame.into_data() else {
            continue; // trailers
        };
        if data.len() > limit - whole.len() {
            let limit = limit - FRAME_HEADER;
            let message = format!("the request is too large: more than {limit} bytes");
            return Err(refused(&message).with("limit", limit));
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
}

/// Maps the error of a body. Of a request that this node has no memory for, the member that
/// forwarded it gets the reason, and tries again.
fn broken(error: Status) -> Error {
    let DecodedError {
        code,
        message,
        details,
        ..
    } = DecodedError::from(error);
    match code.parse() {
        Ok(code @ ErrorCode::StateUnavailable) => Error {
            code,
            message,
            details,
        },
        _ => refused("the request broke off").because(message),
    }
}

fn refused(message: &str) -> Error {
    Error::new(ErrorCode::ValidationFailed, message).with("field", "request")
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt as _, stream};
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use tokio::time::Instant;

    use super::*;
    use crate::api::methods::{
        APPLY_BYTES, Class, JOIN_BYTES, REQUEST_BYTES, STATUS_BYTES, method,
    };

    const STATUS: &str = "/jaco.v1.Cluster/Status";

    fn body(frames: impl futures::Stream<Item = usize> + Send + 'static) -> Body {
        let frame = |bytes| Ok::<_, Status>(Frame::data(Bytes::from(vec![0; bytes])));
        Body::new(StreamBody::new(frames.map(frame)))
    }

    #[test]
    fn unauthenticated_methods_have_small_limits() {
        for (name, limit) in [
            ("Cluster/Status", STATUS_BYTES),
            ("Cluster/NodeJoin", JOIN_BYTES),
            ("Cluster/Init", JOIN_BYTES),
            ("Cluster/Join", JOIN_BYTES),
            ("Cluster/NodeRemove", REQUEST_BYTES),
            ("Internal/Submit", REQUEST_BYTES),
            ("Deploy/Apply", APPLY_BYTES),
            ("Anything/Else", REQUEST_BYTES),
        ] {
            let name = format!("/jaco.v1.{name}");
            let expected = RequestBody::Message { max_bytes: limit };
            assert_eq!(method(&name).request, expected, "{name}");
            if matches!(method(&name).class, Class::Public | Class::InBody) {
                assert!(limit <= 64 << 10, "{name}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn oversized_body_is_refused() {
        let status = method(STATUS).request;
        for frames in [vec![STATUS_BYTES + FRAME_HEADER], vec![1; 1029], vec![]] {
            let bytes: usize = frames.iter().sum();
            let collected = collect(status, body(stream::iter(frames))).await.unwrap();
            assert_eq!(collected.len(), bytes);
        }
        // Fails as soon as the limit is exceeded: the rest of the stream never ends.
        for frames in [vec![STATUS_BYTES + FRAME_HEADER + 1], vec![1; 1030]] {
            let endless = stream::iter(frames).chain(stream::pending());
            let error = collect(status, body(endless)).await.unwrap_err();
            assert_eq!(error.code, ErrorCode::ValidationFailed);
            assert_eq!(error.details["limit"], "1024");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn unfinished_body_times_out() {
        let begun = Instant::now();
        let endless = stream::iter([1]).chain(stream::pending());
        let error = collect(method(STATUS).request, body(endless))
            .await
            .unwrap_err();
        assert_eq!(error.code, ErrorCode::ValidationFailed);
        assert_eq!(error.details["field"], "request");
        assert_eq!(begun.elapsed(), ARRIVAL);
    }

    #[tokio::test(start_paused = true)]
    async fn exhausted_budget_is_passed_on() {
        let busy = Error::new(ErrorCode::StateUnavailable, "too many bytes");
        for (error, code) in [
            (busy.into(), ErrorCode::StateUnavailable),
            (Status::cancelled("reset"), ErrorCode::ValidationFailed),
        ] {
            let body: [Result<Frame<Bytes>, Status>; 1] = [Err(error)];
            let body = Body::new(StreamBody::new(stream::iter(body)));
            let refused = collect(method(STATUS).request, body).await.unwrap_err();
            assert_eq!(refused.code, code);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn body_of_unserved_stream_is_not_read() {
        let endless = stream::pending();
        let restore = method("/jaco.v1.Cluster/Restore").request;
        let collected = collect(restore, body(endless)).await;
        assert_eq!(collected, Ok(Bytes::new()));
    }
}
