//! The corpus of HTTP/2, which is translated to HTTP/1.1.
//!
//! The client writes frames itself, because no library sends what RFC 9113 forbids.

use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::{super::tls::Secure, *};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// A body and the trailers after it.
type Rest = (&'static str, &'static [(&'static str, &'static str)]);

const NO_BODY: Option<Rest> = None;
const HELLO: Option<Rest> = Some(("hello", &[]));
const GET: &[(&str, &str)] = &[
    (":method", "GET"),
    (":scheme", "https"),
    (":path", "/"),
    (":authority", "a.example"),
];
const POST: &[(&str, &str)] = &[
    (":method", "POST"),
    (":scheme", "https"),
    (":path", "/"),
    (":authority", "a.example"),
];
const GOT: Outcome = Outcome::Forwarded(&["GET / a.example"]);
const POSTED: Outcome = Outcome::Forwarded(&["POST / a.example hello"]);

/// Name, fields in place of those of the same name in the base, body, outcome.
type Case = (
    &'static str,
    &'static [(&'static str, &'static str)],
    &'static [(&'static str, &'static str)],
    Option<Rest>,
    Outcome,
);

#[rustfmt::skip] // one case per line
const CASES: &[Case] = &[
    ("plain", GET, &[], NO_BODY, GOT),
    ("body", POST, &[], HELLO, POSTED),
    ("body with length", POST, &[("content-length", "5")], HELLO, POSTED),
    ("length too small", POST, &[("content-length", "0")], HELLO, Outcome::Rejected),
    ("length too large", POST, &[("content-length", "50")], HELLO, Outcome::Rejected),
    ("length without body", POST, &[("content-length", "5")], NO_BODY, Outcome::Rejected),
    ("length with sign", POST, &[("content-length", "+5")], HELLO, Outcome::Rejected),
    ("different lengths", POST, &[("content-length", "5"), ("content-length", "6")], HELLO, Outcome::Rejected),
    ("length list", POST, &[("content-length", "5, 5")], HELLO, Outcome::Rejected),
    ("transfer coding", POST, &[("transfer-encoding", "chunked")], HELLO, Outcome::Rejected),
    ("connection", GET, &[("connection", "close")], NO_BODY, Outcome::Rejected),
    ("upgrade", GET, &[("upgrade", "websocket")], NO_BODY, Outcome::Rejected),
    ("keep-alive", GET, &[("keep-alive", "5")], NO_BODY, Outcome::Rejected),
    ("proxy-connection", GET, &[("proxy-connection", "close")], NO_BODY, Outcome::Rejected),
    ("te with a coding", GET, &[("te", "gzip")], NO_BODY, Outcome::Rejected),
    ("te with trailers", GET, &[("te", "trailers")], NO_BODY, GOT),
    ("CR LF in a value", GET, &[("x", "y\r\ntransfer-encoding: chunked")], NO_BODY, Outcome::Rejected),
    ("LF in a value", GET, &[("x", "y\nz: 1")], NO_BODY, Outcome::Rejected),
    ("NUL in a value", GET, &[("x", "y\0")], NO_BODY, Outcome::Rejected),
    ("CR LF in a name", GET, &[("x: y\r\nz", "1")], NO_BODY, Outcome::Rejected),
    ("colon in a name", GET, &[("host: b.example", "x")], NO_BODY, Outcome::Rejected),
    ("capital in a name", GET, &[("Content-Length", "5")], NO_BODY, Outcome::Rejected),
    ("space in a name", GET, &[("transfer-encoding ", "chunked")], NO_BODY, Outcome::Rejected),
    ("CR LF in the method", GET, &[(":method", "GET / HTTP/1.1\r\nhost: b.example\r\nx:")], NO_BODY, Outcome::Rejected),
    ("space in the method", GET, &[(":method", "GET /smuggled HTTP/1.1")], NO_BODY, Outcome::Rejected),
    ("CR LF in the path", GET, &[(":path", "/ HTTP/1.1\r\nhost: b.example\r\n\r\n")], NO_BODY, Outcome::Rejected),
    ("space in the path", GET, &[(":path", "/x HTTP/1.1")], NO_BODY, Outcome::Rejected),
    ("absolute path", GET, &[(":path", "http://b.example/")], NO_BODY, Outcome::Rejected),
    ("path without slash", GET, &[(":path", "x")], NO_BODY, Outcome::Rejected),
    ("empty path", GET, &[(":path", "")], NO_BODY, Outcome::Rejected),
    ("asterisk of a GET", GET, &[(":path", "*")], NO_BODY, Outcome::Rejected),
    ("CR LF in the authority", GET, &[(":authority", "a.example\r\nx: y")], NO_BODY, Outcome::Rejected),
    ("user in the authority", GET, &[(":authority", "b.example@a.example")], NO_BODY, Outcome::Rejected),
    ("space in the authority", GET, &[(":authority", "a.example b")], NO_BODY, Outcome::Rejected),
    ("CR LF in the scheme", GET, &[(":scheme", "http://b.example/ HTTP/1.1\r\n\r\n")], NO_BODY, Outcome::Rejected),
    ("unknown pseudo-field", GET, &[(":x", "y")], NO_BODY, Outcome::Rejected),
    ("pseudo-field after fields", GET, &[("x", "y"), (":path", "/b")], NO_BODY, Outcome::Rejected),
    ("same host", GET, &[("host", "a.example")], NO_BODY, GOT),
    ("other host", GET, &[("host", "b.example")], NO_BODY, Outcome::Rejected),
    ("two hosts", GET, &[("host", "a.example"), ("host", "b.example")], NO_BODY, Outcome::Rejected),
    ("trailers", POST, &[("trailer", "x")], Some(("hello", &[("x", "y")])), POSTED),
    ("length in trailers", POST, &[("trailer", "content-length")], Some(("hello", &[("content-length", "43")])), POSTED),
    ("coding in trailers", POST, &[("trailer", "transfer-encoding")], Some(("hello", &[("transfer-encoding", "chunked")])), Outcome::Rejected),
    ("pseudo-field in trailers", POST, &[], Some(("hello", &[(":path", "/b")])), POSTED),
    ("plain CONNECT", &[(":method", "CONNECT"), (":authority", "a.example")], &[], NO_BODY, Outcome::Rejected),
    ("hidden request in a body", POST, &[], Some(("0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a.example\r\n\r\n", &[])),
        Outcome::Forwarded(&["POST / a.example 0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a.example"])),
];

#[tokio::test]
async fn http2_requests_reach_replicas_as_understood() {
    let mut wrong = Vec::new();
    for (name, base, fields, rest, outcome) in CASES {
        let (answered, received) = exchange(base, fields, *rest).await;
        let fits = match (&received, outcome) {
            (Ok(received), Outcome::Rejected) => received.is_empty() && answered != "200",
            (Ok(received), Outcome::Forwarded(expected)) => received == expected,
            (Err(_), _) => false,
        };
        if !fits {
            wrong.push(format!(
                "{name}: {answered}, expected {outcome:?}, received {received:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Sends one request; returns how its stream ended and the requests of the replica.
async fn exchange(
    base: &[(&str, &str)],
    fields: &[(&str, &str)],
    rest: Option<Rest>,
) -> (String, Result<Vec<String>, String>) {
    let recorder = Recorder::start().await;
    let secure = Secure::with(one_worker());
    secure.proxy.swap(RouteTable::new([rule([recorder.addr])]));
    let config: ClientConfig = secure.config(&["h2"], rustls::ALL_VERSIONS);
    let mut client = secure.connect(HOST, config).await.unwrap();

    let replaced = |(name, _): &&(&str, &str)| !fields.iter().any(|(field, _)| field == name);
    let head: Vec<_> = base.iter().filter(replaced).chain(fields).collect();
    // A replaced pseudo-field keeps its place before the fields, others their order.
    let (mut pseudo, mut plain) = (Vec::new(), Vec::new());
    for field in head {
        if field.0.starts_with(':') && plain.is_empty() {
            pseudo.push(*field);
        } else {
            plain.push(*field);
        }
    }
    pseudo.extend(plain);
    let mut raw = PREFACE.to_vec();
    raw.extend(frame(SETTINGS, 0, 0, &[]));
    let end = |last: bool| if last { END_STREAM } else { 0 };
    let flags = END_HEADERS | end(rest.is_none());
    raw.extend(frame(HEADERS, flags, 1, &encoded(&pseudo)));
    if let Some((body, trailers)) = rest {
        raw.extend(frame(DATA, end(trailers.is_empty()), 1, body.as_bytes()));
        if !trailers.is_empty() {
            let trailers = encoded(trailers);
            raw.extend(frame(HEADERS, END_HEADERS | END_STREAM, 1, &trailers));
        }
    }
    let _ = client.write_all(&raw).await; // the proxy may close before
    let _ = client.flush().await;
    let ended = tokio::time::timeout(TIMEOUT, stream_end(&mut client)).await;
    drop((client, secure));
    (ended.expect("no answer"), recorder.finish().await)
}

/// A block of literal fields without indexing (RFC 7541, section 6.2.2).
fn encoded(fields: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| {
        let length = u8::try_from(text.len())
            .ok()
            .filter(|length| *length < 127)
            .unwrap();
        [&[length], text.as_bytes()].concat()
    };
    let field = |(name, value): &(&str, &str)| [vec![0], text(name), text(value)].concat();
    fields.iter().flat_map(field).collect()
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The status of the response, or how the stream ended without one.
async fn stream_end(client: &mut TlsStream<TcpStream>) -> String {
    loop {
        let mut head = [0; 9];
        if client.read_exact(&mut head).await.is_err() {
            return "closed".to_owned();
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        if client.read_exact(&mut payload).await.is_err() {
            return "closed".to_owned();
        }
        match head[3] {
            SETTINGS if head[4] & ACK == 0 => {
                let _ = client.write_all(&frame(SETTINGS, ACK, 0, &[])).await;
            }
            PING if head[4] & ACK == 0 => {
                let _ = client.write_all(&frame(PING, ACK, 0, &payload)).await;
            }
            RST_STREAM => return "reset".to_owned(),
            GOAWAY => return "goaway".to_owned(),
            // The status is the first field, mostly an entry of the static table.
            HEADERS => {
                return match payload.first() {
                    Some(0x88) => "200".to_owned(),
                    Some(0x8c) => "400".to_owned(),
                    other => format!("status {other:?}"),
                };
            }
            _ => {}
        }
    }
}
