//! Response to a call.

use http::{HeaderMap, Response, StatusCode};
use http_body_util::BodyExt as _;
use jaco_proto::{ErrorCode, error::DecodedError};
use tonic::{Code, Status, body::Body};

/// Maximum number of frames that are read of an endless stream.
const FRAMES: usize = 1000;
/// Number of yields to other tasks after which a stream counts as waiting.
const MAX_YIELDS: usize = 100;
/// Clients commonly reject headers above this size.
const HEADER_BYTES: usize = 8 << 10;

/// A complete response, or the part of it that arrived before the stream waits.
pub(super) struct Answer {
    http: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
    ended: bool,
}

impl Answer {
    pub(super) async fn read(response: Response<Body>) -> Self {
        let (head, mut body) = response.into_parts();
        let mut answer = Self {
            http: head.status,
            headers: head.headers,
            body: Vec::new(),
            trailers: None,
            ended: false,
        };
        for _ in 0..FRAMES {
            let frame = tokio::select! {
                biased;
                frame = body.frame() => frame,
                () = yield_repeatedly() => return answer,
            };
            match frame {
                None => {
                    answer.ended = true;
                    return answer;
                }
                Some(frame) => match frame.expect("a body of our own").into_data() {
                    Ok(data) => answer.body.extend_from_slice(&data),
                    Err(frame) => {
                        let again = answer
                            .trailers
                            .replace(frame.into_trailers().expect("trailers"));
                        assert!(again.is_none(), "trailers twice");
                    }
                },
            }
        }
        answer
    }

    pub(super) fn check(&self, method: &str) {
        if self.http != StatusCode::OK {
            // Requests that are not gRPC are rejected by HTTP status.
            assert!(self.http.is_client_error(), "{method}: {}", self.http);
            return;
        }
        self.check_frames(method);
        let at_once = self.headers.contains_key("grpc-status");
        let status = match (&self.trailers, at_once) {
            (None, true) => &self.headers,
            (Some(trailers), false) => trailers,
            (None, false) => return assert!(!self.ended, "{method}: no status"),
            (Some(_), true) => panic!("{method}: two statuses"),
        };
        for key in ["grpc-status", "grpc-message", "grpc-status-details-bin"] {
            assert!(
                status.get_all(key).iter().count() <= 1,
                "{method}: {key} twice"
            );
        }
        let bytes: usize = status
            .iter()
            .map(|(key, value)| key.as_str().len() + value.len())
            .sum();
        assert!(bytes <= HEADER_BYTES, "{method}: {bytes} bytes of trailers");
        let status = Status::from_header_map(status).expect("a status");
        if status.code() != Code::Ok {
            check_refusal(method, &status);
        }
    }

    /// Checks that the body is a sequence of complete, uncompressed frames.
    fn check_frames(&self, method: &str) {
        let mut rest = self.body.as_slice();
        while let Some((head, after)) = rest.split_at_checked(5) {
            let length = u32::from_be_bytes(head[1..].try_into().unwrap()) as usize;
            assert_eq!(head[0], 0, "{method}: compressed");
            rest = after.get(length..).expect("a whole frame");
        }
        assert!(rest.is_empty(), "{method}: {} bytes too many", rest.len());
    }
}

fn check_refusal(method: &str, status: &Status) {
    let error = DecodedError::from_status(status);
    assert!(!status.details().is_empty(), "{method}: untyped {status:?}");
    let code = error.known();
    assert!(code.is_some(), "{method}: {error:?}");
    assert_ne!(code, Some(ErrorCode::Internal), "{method}: {error:?}");
    assert_eq!(
        code.map(ErrorCode::grpc),
        Some(status.code()),
        "{method}: {error:?}"
    );
    assert_eq!(status.message(), error.code, "{method}");
}

async fn yield_repeatedly() {
    for _ in 0..MAX_YIELDS {
        tokio::task::yield_now().await;
    }
}
