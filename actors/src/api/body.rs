//! The bodies of requests: how large they may be, and how long they may take.
//!
//! No method takes a stream of messages, so a request is whole before it is served. Memory and
//! time are its sender's to waste only as far as it has proved who it is.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use jaco_proto::{Error, ErrorCode};
use tonic::body::Body;

/// Bytes in front of each message.
pub(super) const FRAME_HEADER: usize = 5;
/// Largest request; clients send at most 4 MiB, and a little more than that is accepted.
pub(super) const REQUEST_BYTES: usize = 5 << 20;
/// Largest apply. Far above what a manifest may have, so that one that is too large is refused
/// as such, with its place, and not as a frame that cannot be read. Only operators get here.
pub(super) const APPLY_BYTES: usize = 16 << 20;
/// Largest request to join, whose credential is inside: two names and a signing request.
const JOIN_BYTES: usize = 64 << 10;
/// Largest request of a method that anybody may call; it has no fields.
const STATUS_BYTES: usize = 1 << 10;
/// Time that a request has to arrive.
const ARRIVAL: Duration = Duration::from_secs(10);

/// Largest message of a request to `name`.
fn request_bytes(name: &str) -> usize {
    match name {
        "/jaco.v1.Cluster/Status" => STATUS_BYTES,
        "/jaco.v1.Cluster/Init" | "/jaco.v1.Cluster/Join" | "/jaco.v1.Cluster/NodeJoin" => {
            JOIN_BYTES
        }
        name if name.starts_with("/jaco.v1.Deploy/") => APPLY_BYTES,
        _ => REQUEST_BYTES,
    }
}

/// The whole body of a request to `name`.
///
/// # Errors
/// `validation_failed` if it is too large, does not arrive in time or breaks off.
pub(super) async fn collect(name: &str, body: Body) -> Result<Bytes, Error> {
    // The one method that the contract gives a stream of messages is not served.
    if name == "/jaco.v1.Cluster/Restore" {
        return Ok(Bytes::new());
    }
    let limit = request_bytes(name) + FRAME_HEADER;
    match tokio::time::timeout(ARRIVAL, read(body, limit)).await {
        Ok(read) => read,
        Err(_) => Err(refused("the request did not arrive in time")
            .with("reason", format!("not whole within {ARRIVAL:?}"))),
    }
}

async fn read(mut body: Body, limit: usize) -> Result<Bytes, Error> {
    // Copied, since a frame may keep the buffer it was read into, however small it is.
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            refused("the request broke off").with("reason", error.message().to_owned())
        })?;
        let Ok(data) = frame.into_data() else {
            continue; // trailers
        };
        if data.len() > limit - whole.len() {
            return Err(refused("the request is too large").with("limit", limit - FRAME_HEADER));
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
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
    use tonic::Status;

    use super::*;
    use crate::api::methods::{Class, method};

    fn body(frames: impl futures::Stream<Item = usize> + Send + 'static) -> Body {
        let frame = |bytes| Ok::<_, Status>(Frame::data(Bytes::from(vec![0; bytes])));
        Body::new(StreamBody::new(frames.map(frame)))
    }

    #[test]
    fn who_need_prove_nothing_may_send_little() {
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
            assert_eq!(request_bytes(&name), limit, "{name}");
            if matches!(method(&name).class, Class::Public | Class::InBody) {
                assert!(limit <= 64 << 10, "{name}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_larger_than_its_method_allows_is_refused() {
        let status = "/jaco.v1.Cluster/Status";
        for frames in [vec![STATUS_BYTES + FRAME_HEADER], vec![1; 1029], vec![]] {
            let bytes: usize = frames.iter().sum();
            let collected = collect(status, body(stream::iter(frames))).await.unwrap();
            assert_eq!(collected.len(), bytes);
        }
        // Ends as soon as that is seen: what follows would never end.
        for frames in [vec![STATUS_BYTES + FRAME_HEADER + 1], vec![1; 1030]] {
            let endless = stream::iter(frames).chain(stream::pending());
            let error = collect(status, body(endless)).await.unwrap_err();
            assert_eq!(error.code, ErrorCode::ValidationFailed);
            assert_eq!(error.details["limit"], "1024");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_has_its_time() {
        let begun = Instant::now();
        let endless = stream::iter([1]).chain(stream::pending());
        let error = collect("/jaco.v1.Cluster/Status", body(endless))
            .await
            .unwrap_err();
        assert_eq!(error.code, ErrorCode::ValidationFailed);
        assert_eq!(error.details["field"], "request");
        assert_eq!(begun.elapsed(), ARRIVAL);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_nobody_reads_is_not_waited_for() {
        let endless = stream::pending();
        let collected = collect("/jaco.v1.Cluster/Restore", body(endless)).await;
        assert_eq!(collected, Ok(Bytes::new()));
    }
}
