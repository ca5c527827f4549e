//! Calls whose bodies arrive after their headers.

use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use futures::stream;
use http::{Request, Response};
use http_body_util::StreamBody;
use hyper::body::Frame;
use jaco_proto::{
    error::DecodedError,
    v1::{self, command::Payload, tokens_client::TokensClient},
};
use prost::Message;
use tokio::{sync::oneshot, time::Instant};
use tonic::{Status, body::Body};
use tower::ServiceExt as _;

use crate::{api::admission::Transport, testing::cluster::Cluster};

const ISSUE: &str = "/jaco.v1.Tokens/Issue";
const LIST: &str = "/jaco.v1.Tokens/List";

/// A call with a token, whose message is sent on a signal through the returned sender.
fn call(path: &str, message: &impl Message) -> (Request<Body>, oneshot::Sender<()>) {
    let mut framed = BytesMut::new();
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.encoded_len()).unwrap());
    message.encode(&mut framed).unwrap();
    let (send, sent) = oneshot::channel();
    let body = stream::once(async move {
        match sent.await {
            Ok(()) => Ok::<_, Status>(Frame::data(Bytes::from(framed))),
            Err(_) => std::future::pending().await,
        }
    });
    let request = Request::post(path)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("authorization", "Bearer secret")
        .body(Body::new(StreamBody::new(body)));
    (request.unwrap(), send)
}

fn error(response: &Response<Body>) -> Option<DecodedError> {
    let status = Status::from_header_map(response.headers())?;
    Some(DecodedError::from_status(&status))
}

fn new_token() -> v1::TokenIssueRequest {
    v1::TokenIssueRequest {
        identity: "new".to_owned(),
        allows_privileged: true,
    }
}

#[tokio::test(start_paused = true)]
async fn token_revoked_before_the_body_is_refused() {
    for revoked in [false, true] {
        for path in [ISSUE, LIST] {
            let cluster = Cluster::start(1).await;
            let (request, send) = match path {
                ISSUE => call(path, &new_token()),
                _ => call(path, &v1::TokenListRequest {}),
            };
            let member_api = cluster.member_api(1, Transport::Api);
            let rest = async {
                if revoked {
                    let identity = "ci".to_owned();
                    TokensClient::new(cluster.member_api(1, Transport::Local))
                        .revoke(v1::TokenRevokeRequest { identity })
                        .await
                        .unwrap();
                }
                send.send(()).unwrap();
            };
            // The call is polled first: its headers are admitted before the rest happens.
            let (response, ()) = tokio::join!(member_api.oneshot(request), rest);
            let error = error(&response.unwrap()).map(|error| error.code);
            let expected = revoked.then_some("token_revoked");
            assert_eq!(error.as_deref(), expected, "{path}");
            let issued = cluster.group.committed().iter().any(|command| {
                matches!(&command.payload, Some(Payload::TokenIssue(issue)) if issue.identity == "new")
            });
            assert_eq!(issued, path == ISSUE && !revoked, "{path}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn missing_body_times_out() {
    let cluster = Cluster::start(2).await;
    for (id, path) in [(1, ISSUE), (2, ISSUE), (1, LIST)] {
        let begun = Instant::now();
        let (request, _) = call(path, &new_token());
        let response = cluster
            .member_api(id, Transport::Api)
            .oneshot(request)
            .await;
        let error = error(&response.unwrap()).unwrap();
        assert_eq!(error.code, "validation_failed", "{path}");
        assert_eq!(error.details["field"], "request");
        assert_eq!(begun.elapsed(), Duration::from_secs(10));
    }
    assert!(cluster.network.calls().is_empty());
}
