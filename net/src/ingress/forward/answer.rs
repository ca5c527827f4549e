//! Responses: the proxy's own, and those of replicas.

use bytes::Bytes;
use http::{
    HeaderValue, Response, StatusCode, Uri, Version,
    header::{CONNECTION, CONTENT_TYPE, LOCATION, SERVER},
    response::Parts,
};
use hyper::body::Incoming;

use super::super::{
    body::{Origin, ResponseBody},
    headers,
    timeouts::ServingGuard,
};

/// A response of the proxy itself, without a body.
pub(super) fn empty(status: StatusCode, serving: ServingGuard) -> Response<ResponseBody> {
    own(status, Bytes::new(), serving)
}

/// Refuses a request whose head is invalid. Its body may have another end than the one hyper sees, so
/// a connection of HTTP/1.1 carries no other request.
pub(super) fn refused(
    status: StatusCode,
    version: Version,
    serving: ServingGuard,
) -> Response<ResponseBody> {
    let mut response = empty(status, serving);
    if version <= Version::HTTP_11 {
        response
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// A response of the proxy itself with a body.
pub(super) fn own(
    status: StatusCode,
    text: Bytes,
    serving: ServingGuard,
) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::text(text, Some(serving)));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(SERVER, HeaderValue::from_static("jaco"));
    response
}

/// The answer to a challenge of a certificate authority or to a probe, if there is one.
pub(super) fn challenge(text: Option<Bytes>, serving: ServingGuard) -> Response<ResponseBody> {
    let Some(text) = text else {
        return empty(StatusCode::NOT_FOUND, serving);
    };
    let mut response = own(StatusCode::OK, text, serving);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

/// Redirects the client to the same path over HTTPS, keeping the method.
pub(super) fn redirect(host: &str, target: &Uri, serving: ServingGuard) -> Response<ResponseBody> {
    let path = target.path_and_query().map_or("/", |path| path.as_str());
    match HeaderValue::try_from(format!("https://{host}{path}")) {
        Ok(location) => {
            let mut response = empty(StatusCode::PERMANENT_REDIRECT, serving);
            response.headers_mut().insert(LOCATION, location);
            response
        }
        Err(_) => empty(StatusCode::BAD_REQUEST, serving),
    }
}

/// A replica's response, forwarded to a client that speaks `version`.
pub(super) fn relayed(
    response: Response<Incoming>,
    version: Version,
    origin: Origin,
    serving: ServingGuard,
) -> Response<ResponseBody> {
    let (parts, body) = response.into_parts();
    let body = ResponseBody::new(body, origin, serving);
    Response::from_parts(outgoing(parts, version), body)
}

/// A replica's 101 response; its connection does not return to the pool.
pub(super) fn switched(
    response: Response<Incoming>,
    serving: ServingGuard,
) -> Response<ResponseBody> {
    let (parts, _) = response.into_parts();
    let body = ResponseBody::text(Bytes::new(), Some(serving));
    Response::from_parts(outgoing(parts, Version::HTTP_11), body)
}

/// A replica's 101 response as the beginning of a tunnel over HTTP/2.
pub(super) fn tunnel(response: Response<Incoming>) -> Response<ResponseBody> {
    let (mut parts, _) = response.into_parts();
    parts.status = StatusCode::OK;
    let body = ResponseBody::text(Bytes::new(), None);
    Response::from_parts(outgoing(parts, Version::HTTP_2), body)
}

fn outgoing(mut parts: Parts, version: Version) -> Parts {
    headers::remove_hop_by_hop(&mut parts.headers);
    parts.version = if version == Version::HTTP_2 {
        version
    } else {
        Version::HTTP_11
    };
    parts.extensions.clear();
    parts
}
