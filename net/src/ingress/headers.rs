//! Header fields of forwarded messages.

use http::{
    HeaderMap, HeaderName, HeaderValue, Version,
    header::{CONNECTION, CONTENT_LENGTH, COOKIE, HOST, TE, TRANSFER_ENCODING, UPGRADE},
};

use super::client_address::FORWARDED_FOR;

const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Whether a field is always removed, because it concerns one hop only.
fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "transfer-encoding"
            | "te"
            | "upgrade"
            | "keep-alive"
            | "proxy-connection"
            | "proxy-authenticate"
            | "proxy-authorization"
    )
}

/// Removes the hop-by-hop fields (RFC 9110, section 7.6.1).
///
/// `Trailer` stays: bodies keep their trailers. `Content-Length` beside a transfer coding is
/// removed, because the coding overrides it and the next hop must not see both.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    // Most messages have none; one pass over the names is faster than a lookup of each field.
    if !headers.keys().any(is_hop_by_hop) {
        return;
    }
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        // Removing these would change where the message goes or where it ends.
        .filter(|name| ![HOST, CONTENT_LENGTH, TRANSFER_ENCODING].contains(name))
        .collect();
    for name in named {
        headers.remove(name);
    }
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
    while let Some(name) = headers.keys().find(|name| is_hop_by_hop(name)) {
        let name = name.clone();
        headers.remove(name);
    }
}

/// Whether `chunked` is the only transfer coding, if there is any.
///
/// Others are part of the content for a next hop that gets no `Transfer-Encoding`, and what several
/// fields or unusual lists mean differs between implementations.
pub(super) fn is_only_chunked(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => true,
        (Some(coding), None) => coding.as_bytes().eq_ignore_ascii_case(b"chunked"),
        (Some(_), Some(_)) => false,
    }
}

/// Whether the end of a message is given twice, by its length and by its coding.
pub(super) fn is_framed_twice(headers: &HeaderMap) -> bool {
    headers.contains_key(TRANSFER_ENCODING) && headers.contains_key(CONTENT_LENGTH)
}

/// Whether the client accepts trailers, the only `TE` member that a proxy forwards.
pub(super) fn accepts_trailers(headers: &HeaderMap) -> bool {
    headers
        .get_all(TE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|member| member.trim().eq_ignore_ascii_case("trailers"))
}

/// The protocol that a message asks to switch to, if any.
///
/// A switch to cleartext HTTP/2 is ignored, as RFC 9110, section 7.8 allows: the requests that
/// follow would reach the replica without being routed.
pub(super) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let asked = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|name| name.trim().eq_ignore_ascii_case("upgrade"));
    let protocol = headers.get(UPGRADE).filter(|_| asked)?;
    let http2 = |name: &str| name.trim().eq_ignore_ascii_case("h2c");
    let routed = protocol
        .to_str()
        .is_ok_and(|names| !names.split(',').any(http2));
    routed.then(|| protocol.clone())
}

/// Sets the fields of a protocol switch on a message.
pub(super) fn set_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocol);
}

/// Joins the fields into which HTTP/2 splits cookies (RFC 9113, section 8.2.3).
pub(super) fn join_cookies(headers: &mut HeaderMap) {
    let crumbs: Vec<&[u8]> = headers
        .get_all(COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if crumbs.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..]))
    {
        headers.insert(COOKIE, joined);
    }
}

/// Tells the replica that trailers are accepted; `Connection` exists only in HTTP/1.1.
pub(super) fn set_accepts_trailers(headers: &mut HeaderMap, version: Version) {
    headers.insert(TE, HeaderValue::from_static("trailers"));
    if version != Version::HTTP_2 {
        headers.append(CONNECTION, HeaderValue::from_static("te"));
    }
}

/// Sets the `X-Forwarded-*` fields; replaces the client's own. `path` is the address of the client,
/// followed by those of trusted proxies.
pub(super) fn set_forwarded(
    headers: &mut HeaderMap,
    path: HeaderValue,
    proto: &'static str,
    host: Option<HeaderValue>,
) {
    headers.insert(FORWARDED_FOR, path);
    headers.insert(FORWARDED_PROTO, HeaderValue::from_static(proto));
    match host {
        Some(host) => drop(headers.insert(FORWARDED_HOST, host)),
        None => drop(headers.remove(FORWARDED_HOST)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        lines
            .iter()
            .map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap()))
            .collect()
    }

    fn left(lines: &[(&str, &str)]) -> Vec<String> {
        let mut map = headers(lines);
        remove_hop_by_hop(&mut map);
        let mut names: Vec<_> = map.keys().map(ToString::to_string).collect();
        names.sort();
        names
    }

    #[test]
    fn hop_by_hop_fields_are_removed() {
        let given = [
            ("connection", "close, X-Private"),
            ("connection", "x-other"),
            ("x-private", "1"),
            ("x-other", "1"),
            ("keep-alive", "5"),
            ("te", "trailers"),
            ("upgrade", "websocket"),
            ("proxy-authorization", "secret"),
            ("trailer", "x-sum"),
            ("accept", "*/*"),
        ];
        assert_eq!(left(&given), ["accept", "trailer"]);
    }

    #[test]
    fn connection_field_cannot_remove_host_or_length() {
        let given = [
            ("connection", "host, content-length"),
            ("host", "a"),
            ("content-length", "1"),
        ];
        assert_eq!(left(&given), ["content-length", "host"]);
    }

    #[test]
    fn split_cookies_become_one_field() {
        let mut map = headers(&[("cookie", "a=1"), ("cookie", "b=2; c=3")]);
        join_cookies(&mut map);
        let cookies: Vec<_> = map.get_all(COOKIE).iter().collect();
        assert_eq!(cookies, ["a=1; b=2; c=3"]);
    }

    #[test]
    fn length_beside_a_transfer_coding_is_dropped() {
        assert_eq!(
            left(&[("transfer-encoding", "chunked"), ("content-length", "3")]),
            [""; 0]
        );
        assert_eq!(left(&[("content-length", "3")]), ["content-length"]);
    }

    #[test]
    fn only_one_chunked_coding_is_accepted() {
        let coded = |values: &[&str]| {
            let lines: Vec<_> = values.iter().map(|v| ("transfer-encoding", *v)).collect();
            is_only_chunked(&headers(&lines))
        };
        assert!(coded(&[]) && coded(&["chunked"]) && coded(&["Chunked"]));
        for values in [
            &["gzip"][..],
            &["gzip, chunked"],
            &["chunked, chunked"],
            &["chunked", "chunked"],
            &["identity", "chunked"],
            &[""],
        ] {
            assert!(!coded(values), "{values:?}");
        }
    }

    #[test]
    fn an_upgrade_must_be_named_by_the_connection() {
        let asks = |lines: &[(&str, &str)]| upgrade(&headers(lines)).is_some();
        assert!(asks(&[
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "websocket")
        ]));
        assert!(!asks(&[
            ("connection", "keep-alive"),
            ("upgrade", "websocket")
        ]));
        assert!(!asks(&[("connection", "upgrade")]));
        assert!(!asks(&[("connection", "upgrade"), ("upgrade", "H2C")]));
        assert!(!asks(&[
            ("connection", "upgrade"),
            ("upgrade", "websocket, h2c")
        ]));
    }
}
