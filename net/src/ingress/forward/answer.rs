//! Responses: the proxy's own, and those of replicas.

use http::{
    HeaderValue, Response, StatusCode, Uri, Version,
    header::{LOCATION, SERVER},
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
    let mut response = Response::new(ResponseBody::empty(serving));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(SERVER, HeaderValue::from_static("jaco"));
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

/// A replica's response, forwarded to the client.
pub(super) fn relayed(
    response: Response<Incoming>,
    origin: Origin,
    serving: ServingGuard,
) -> Response<ResponseBody> {
    let (parts, body) = response.into_parts();
    Response::from_parts(outgoing(parts), ResponseBody::new(body, origin, serving))
}

/// A replica's 101 response; its connection does not return to the pool.
pub(super) fn switched(
    response: Response<Incoming>,
    serving: ServingGuard,
) -> Response<ResponseBody> {
    let (parts, _) = response.into_parts();
    Response::from_parts(outgoing(parts), ResponseBody::empty(serving))
}

fn outgoing(mut parts: Parts) -> Parts {
    headers::remove_hop_by_hop(&mut parts.headers);
    // The version of the client's connection, which may differ from the replica's.
    parts.version = Version::HTTP_11;
    parts.extensions.clear();
    parts
}
