//! The head of a request: validation, and the head sent to the replica.

use http::{
    HeaderValue, Method, Request, StatusCode, Uri, Version,
    header::HOST,
    request::Parts,
    uri::{self, Authority, PathAndQuery},
};

use super::super::{affinity, body::ClientBody, connection::Connection, headers};

/// The parts of the head that routing needs.
pub(super) struct Head {
    /// Host without port; empty if an HTTP/1.0 client sends none.
    pub(super) host: String,
}

impl Head {
    /// Reads and checks the head; the error is the status to refuse the request with.
    pub(super) fn read(request: &Request<ClientBody>) -> Result<Self, StatusCode> {
        let bad = StatusCode::BAD_REQUEST;
        if !headers::is_only_chunked(request.headers()) {
            return Err(StatusCode::NOT_IMPLEMENTED);
        }
        if !has_valid_target(request) {
            return Err(bad);
        }
        let authority = request.uri().authority();
        let mut hosts = request.headers().get_all(HOST).iter();
        let field = match (hosts.next(), hosts.next()) {
            (Some(host), None) => Some(host.to_str().map_err(|_| bad)?),
            // HTTP/2 and HTTP/3 have a pseudo-header instead.
            (None, _) if request.version() >= Version::HTTP_2 && authority.is_some() => None,
            (None, _) if request.version() >= Version::HTTP_11 => return Err(bad),
            (None, _) => None,
            (Some(_), Some(_)) => return Err(bad),
        };
        // A target with an authority overrides the field (RFC 9112, section 3.2.2), except in
        // HTTP/2 and HTTP/3, where both must agree (RFC 9113, section 8.3.1; RFC 9114, section
        // 4.3.1).
        let host = match (authority, field) {
            (Some(authority), Some(field))
                if request.version() >= Version::HTTP_2
                    && !authority.as_str().eq_ignore_ascii_case(field) =>
            {
                return Err(bad);
            }
            (Some(authority), _) => host_of(authority).ok_or(bad)?.to_owned(),
            (None, Some("") | None) => String::new(),
            (None, Some(host)) => {
                let authority: Authority = host.parse().map_err(|_| bad)?;
                host_of(&authority).ok_or(bad)?.to_owned()
            }
        };
        Ok(Self { host })
    }
}

/// Whether the target has a form that RFC 9112, section 3.2 allows for the method.
fn has_valid_target(request: &Request<ClientBody>) -> bool {
    let target = request.uri();
    match (target.scheme_str(), target.authority()) {
        // A tunnel, which is checked where it is opened.
        _ if request.method() == Method::CONNECT => true,
        _ if target.path() == "*" => request.method() == Method::OPTIONS,
        (Some("http" | "https"), Some(_)) | (None, None) => target.path().starts_with('/'),
        (_, _) => false,
    }
}

/// The host of an authority that has no user and, if any, a valid port.
fn host_of(authority: &Authority) -> Option<&str> {
    let host = authority.host();
    let port = authority.as_str().strip_prefix(host)?;
    let valid = match port.strip_prefix(':') {
        Some("") => true,
        Some(port) => port.starts_with(|c: char| c.is_ascii_digit()) && port.parse::<u16>().is_ok(),
        None => port.is_empty(),
    };
    valid.then_some(host)
}

/// Changes to a head on its way to the replica.
pub(super) struct Outgoing<'a> {
    pub(super) connection: &'a Connection,
    /// The path to request instead of the client's.
    pub(super) path: Option<String>,
    /// The protocol to switch to.
    pub(super) upgrade: Option<HeaderValue>,
    /// Whether the replica speaks HTTP/2.
    pub(super) http2: bool,
    /// Address of the client, followed by those of trusted proxies; absent if the peer is the
    /// client.
    pub(super) forwarded_for: Option<HeaderValue>,
    /// Name of the cookie of the route's sticky sessions.
    pub(super) cookie: Option<&'a str>,
    /// Names of such cookies of the whole domain.
    pub(super) cookies: &'a [Box<str>],
}

impl Outgoing<'_> {
    /// The head sent to the replica; the error is the status to refuse the request with.
    pub(super) fn apply(self, mut parts: Parts) -> Result<Parts, StatusCode> {
        let bad = StatusCode::BAD_REQUEST;
        if let Some(authority) = parts.uri.authority() {
            let host = HeaderValue::try_from(authority.as_str()).map_err(|_| bad)?;
            parts.headers.insert(HOST, host);
        }
        let target = match (self.path, parts.uri.path_and_query()) {
            (Some(path), _) => with_path(&parts.uri, &path).ok_or(bad)?,
            (None, Some(target)) => target.clone(),
            (None, None) => PathAndQuery::from_static("/"),
        };
        let host = parts.headers.get(HOST).cloned();
        let trailers = headers::accepts_trailers(&parts.headers);
        let headers = &mut parts.headers;
        headers::remove_hop_by_hop(headers);
        headers::join_cookies(headers);
        if !self.cookies.is_empty() {
            affinity::hide_from_replica(headers, self.cookie, self.cookies);
        }
        let scheme = self.connection.scheme.name();
        let path = self.forwarded_for;
        let path = path.unwrap_or_else(|| self.connection.peer.clone());
        headers::set_forwarded(headers, path, scheme, host.clone());
        parts.extensions.clear();
        if self.http2 {
            // The authority takes the place of the field.
            headers.remove(HOST);
            let authority = host
                .as_ref()
                .map_or(&b"localhost"[..], HeaderValue::as_bytes);
            let mut uri = uri::Parts::default();
            uri.scheme = Some(uri::Scheme::HTTP);
            uri.authority = Some(Authority::try_from(authority).map_err(|_| bad)?);
            uri.path_and_query = Some(target);
            parts.uri = Uri::from_parts(uri).map_err(|_| bad)?;
            parts.version = Version::HTTP_2;
        } else {
            parts.uri = Uri::from(target);
            parts.version = Version::HTTP_11;
            if let Some(protocol) = self.upgrade {
                headers::set_upgrade(headers, protocol);
            }
        }
        if trailers {
            headers::set_accepts_trailers(headers, parts.version);
        }
        Ok(parts)
    }
}

/// Replaces the path of a request target, keeping its query.
fn with_path(target: &Uri, path: &str) -> Option<PathAndQuery> {
    match target.query() {
        Some(query) => format!("{path}?{query}").try_into().ok(),
        None => path.try_into().ok(),
    }
}
