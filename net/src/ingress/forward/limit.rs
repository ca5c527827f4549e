//! Limits of clients, and the answer to requests beyond them.

use std::{net::IpAddr, time::Duration};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Request, Response, StatusCode, Version,
    header::{ACCEPT, CONNECTION, CONTENT_TYPE, EXPECT, RETRY_AFTER},
};
use http_body_util::BodyExt;
use hyper::body::Body;
use tokio::time::timeout;

use super::super::{
    body::{ClientBody, ResponseBody},
    proxy::Shared,
    timeouts::ServingGuard,
};
use super::answer;
use crate::limit::{LimitedRoute, Permit, Reason, Refusal};

/// Body bytes of a refused HTTP/1.1 request that are skipped to keep the connection.
const MAX_SKIPPED: u64 = 64 * 1024;
/// Time for which they are waited for.
const SKIP_TIMEOUT: Duration = Duration::from_secs(5);

/// Admits a request of `client` if `limit` allows it; without a limit always, and uncounted.
pub(super) fn admit(
    shared: &Shared,
    limit: Option<&LimitedRoute>,
    client: IpAddr,
) -> Result<Option<Permit>, Refusal> {
    let Some(limit) = limit else { return Ok(None) };
    let now = (shared.settings.clock)();
    let admitted = shared.limiter.admit(limit, client.into(), now);
    admitted.map(Some)
}

/// Answers a refused request with 429, with a body of the kind that the client asks for.
pub(super) fn refuse(
    refusal: Refusal,
    request: Request<ClientBody>,
    serving: ServingGuard,
) -> Response<ResponseBody> {
    let (code, line) = match refusal.reason {
        Reason::Rate => ("rate_limited", "too many requests\n"),
        Reason::Connections => ("too_many_connections", "too many requests at once\n"),
    };
    let (kind, text) = if wants_json(request.headers()) {
        let text = format!("{{\"error\":{{\"code\":\"{code}\"}}}}\n");
        ("application/json", Bytes::from(text))
    } else {
        (
            "text/plain; charset=utf-8",
            Bytes::from_static(line.as_bytes()),
        )
    };
    let mut response = answer::own(StatusCode::TOO_MANY_REQUESTS, text, serving);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(RETRY_AFTER, HeaderValue::from(refusal.retry_after.max(1)));
    if !skip_body(request) {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Skips the body of a refused request, of which nothing is kept; returns whether the connection
/// stays open for other requests.
///
/// In HTTP/1.1 the next request begins after the body (RFC 9112, section 9.3), so a body too long to
/// be skipped ends the connection. It is read a while nevertheless: closing on arriving bytes would
/// reset the connection before the client has read the response.
fn skip_body(request: Request<ClientBody>) -> bool {
    if request.version() > Version::HTTP_11 || request.body().is_end_stream() {
        return true;
    }
    // Reading would ask for the body, and whether the client sends it anyway is unknown.
    if request.headers().contains_key(EXPECT) {
        return false;
    }
    let mut body = request.into_body();
    let short = body.size_hint().lower() <= MAX_SKIPPED;
    tokio::spawn(async move {
        let skip = async {
            let mut skipped = 0;
            while let Some(Ok(frame)) = body.frame().await
                && skipped <= MAX_SKIPPED
            {
                skipped += frame.data_ref().map_or(0, |data| data.len() as u64);
            }
        };
        // A dropped body ends its connection.
        let _ = timeout(SKIP_TIMEOUT, skip).await;
    });
    short
}

/// Whether the client prefers JSON: it names it, and no HTML.
fn wants_json(headers: &HeaderMap) -> bool {
    let fields = headers.get_all(ACCEPT).iter();
    let fields = fields.filter_map(|field| field.to_str().ok());
    let kinds = fields.flat_map(|field| field.split(',')).map(|range| {
        let kind = range.split_once(';').map_or(range, |(kind, _)| kind);
        kind.trim().to_ascii_lowercase()
    });
    let mut json = false;
    for kind in kinds {
        if kind == "text/html" {
            return false;
        }
        json |= kind == "application/json" || kind.ends_with("+json");
    }
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_for_clients_that_ask_for_it() {
        for (accept, json) in [
            (&["application/json"][..], true),
            (&["text/plain", "Application/JSON; q=0.9"], true),
            (&["application/problem+json, */*"], true),
            (&["text/html, application/json"], false),
            (&["*/*"], false),
            (&["application/jsonx"], false),
            (&[], false),
        ] {
            let field = |value: &&str| (ACCEPT, value.parse().unwrap());
            let headers = accept.iter().map(field).collect();
            assert_eq!(wants_json(&headers), json, "{accept:?}");
        }
    }
}
