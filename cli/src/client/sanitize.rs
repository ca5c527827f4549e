//! Removal of malformed status details from responses.

use std::task::{Context, Poll};

use futures::{FutureExt as _, future::BoxFuture};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use jaco_proto::error::drop_unreadable_details;
use tonic::body::Body;
use tower::Service;

/// A service that removes status details on which tonic would panic from the responses of the inner
/// one.
#[derive(Clone)]
pub(crate) struct Sanitized<S>(pub(crate) S);

impl<S> Service<Request<Body>> for Sanitized<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let answer = self.0.call(request);
        answer.map(|answer| answer.map(sanitize)).boxed()
    }
}

fn sanitize(mut response: Response<Body>) -> Response<Body> {
    drop_unreadable_details(response.headers_mut());
    response.map(|body| {
        Body::new(body.map_frame(|mut frame| {
            if let Some(trailers) = frame.trailers_mut() {
                drop_unreadable_details(trailers);
            }
            frame
        }))
    })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{HeaderMap, HeaderValue};
    use jaco_proto::v1::{ClusterStatusRequest, cluster_client::ClusterClient};
    use tonic::Code;
    use tower::service_fn;

    use super::*;

    fn refusal() -> HeaderMap {
        let pairs = [
            ("grpc-status", "3"),
            ("grpc-message", "validation_failed: no"),
            ("grpc-status-details-bin", "not base64"),
        ];
        let pairs =
            pairs.map(|(key, value)| (key.parse().unwrap(), HeaderValue::from_static(value)));
        pairs.into_iter().collect()
    }

    async fn code_of(answer: fn() -> Response<Body>) -> (Code, String) {
        let server =
            service_fn(move |_: Request<Body>| async move { Ok::<_, Infallible>(answer()) });
        let mut client = ClusterClient::new(Sanitized(server));
        let status = client.status(ClusterStatusRequest {}).await.unwrap_err();
        (status.code(), status.message().to_owned())
    }

    #[tokio::test]
    async fn malformed_details_do_not_panic_the_client() {
        let expected = (Code::InvalidArgument, "validation_failed: no".to_owned());
        let in_headers = || {
            let mut response = Response::new(Body::empty());
            *response.headers_mut() = refusal();
            response
        };
        assert_eq!(code_of(in_headers).await, expected);
        let in_trailers = || {
            let body =
                http_body_util::Empty::new().with_trailers(std::future::ready(Some(Ok(refusal()))));
            Response::new(Body::new(body))
        };
        assert_eq!(code_of(in_trailers).await, expected);
    }
}
