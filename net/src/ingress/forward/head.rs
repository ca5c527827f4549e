//! The head of a request: validation, and the head sent to the replica.

use http::{
    HeaderValue, Method, Request, StatusCode, Uri, Version,
    header::HOST,
    request::Parts,
    uri::{self, Authority},
};
use hyper::body::Incoming;

use super::{super::headers, with_path};

/// The parts of the head that routing needs.
pub(super) struct Head {
    /// Host without port; empty if an HTTP/1.0 client sends none.
    pub(super) host: String,
}

impl Head {
    /// Reads and checks the head; the error is the status to refuse the request with.
    pub(super) fn read(request: &Request<Incoming>) -> Result<Self, StatusCode> {
        if request.method() == Method::CONNECT {
            return Err(StatusCode::BAD_REQUEST);
        }
        let mut hosts = request.headers().get_all(HOST).iter();
        let field = match (hosts.next(), hosts.next()) {
            (Some(host), None) => Some(host.to_str().map_err(|_| StatusCode::BAD_REQUEST)?),
            (None, _) if request.version() >= Version::HTTP_11 => {
                return Err(StatusCode::BAD_REQUEST);
            }
            (None, _) => None,
            (Some(_), Some(_)) => return Err(StatusCode::BAD_REQUEST),
        };
        // A target with an authority overrides the field (RFC 9112, section 3.2.2).
        let host = match (request.uri().host(), field) {
            (Some(host), _) => host.to_owned(),
            (None, Some("") | None) => String::new(),
            (None, Some(host)) => {
                let authority: Authority = host.parse().map_err(|_| StatusCode::BAD_REQUEST)?;
                authority.host().to_owned()
            }
        };
        Ok(Self { host })
    }

    /// The head sent to the replica.
    pub(super) fn outgoing(
        &self,
        mut parts: Parts,
        path: Option<String>,
        upgrade: Option<HeaderValue>,
        peer: &HeaderValue,
    ) -> Result<Parts, StatusCode> {
        if let Some(authority) = parts.uri.authority() {
            let host = HeaderValue::try_from(authority.as_str());
            parts
                .headers
                .insert(HOST, host.map_err(|_| StatusCode::BAD_REQUEST)?);
        }
        let target = match path {
            Some(path) => with_path(&parts, &path).ok_or(StatusCode::BAD_REQUEST)?,
            None => match parts.uri.path_and_query() {
                Some(target) => target.clone(),
                None => uri::PathAndQuery::from_static("/"),
            },
        };
        parts.uri = Uri::from(target);
        parts.version = Version::HTTP_11;
        parts.extensions.clear();
        let host = parts.headers.get(HOST).cloned();
        let trailers = headers::accepts_trailers(&parts.headers);
        headers::remove_hop_by_hop(&mut parts.headers);
        headers::set_forwarded(&mut parts.headers, peer, "http", host);
        if let Some(protocol) = upgrade {
            headers::set_upgrade(&mut parts.headers, protocol);
        }
        if trailers {
            headers::set_accepts_trailers(&mut parts.headers);
        }
        Ok(parts)
    }
}
