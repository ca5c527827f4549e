//! A replica that records the requests it gets, read by a strict parser.

use std::{collections::HashSet, net::SocketAddr};

use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::*;

/// The first byte of the connection that ends the recording.
const LAST: u8 = 0;

/// A recording replica; it answers every request with an empty success.
pub(super) struct Recorder {
    pub(super) addr: SocketAddr,
    connections: tokio::task::JoinHandle<Vec<Result<Vec<String>, String>>>,
}

impl Recorder {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let connections = tokio::spawn(async move {
            let mut open = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let mut first = [1];
                stream.peek(&mut first).await.ok();
                if first == [LAST] {
                    return open.join_all().await;
                }
                open.spawn(record(stream));
            }
        });
        Self { addr, connections }
    }

    /// All requests received on all connections, once the proxy has closed them.
    ///
    /// # Errors
    /// The reason why a connection carried something that is no request.
    pub(super) async fn finish(self) -> Result<Vec<String>, String> {
        // Connections are accepted in their order, so none is left behind this one.
        let mut last = TcpStream::connect(self.addr).await.unwrap();
        last.write_all(&[LAST]).await.unwrap();
        let ended = tokio::time::timeout(TIMEOUT, self.connections).await;
        let connections = ended.expect("a connection stays open").unwrap();
        let requests: Result<Vec<_>, _> = connections.into_iter().collect();
        Ok(requests?.concat())
    }
}

/// Answers the requests of one connection; returns the complete ones.
async fn record(mut stream: TcpStream) -> Result<Vec<String>, String> {
    let (mut received, mut requests) = (Vec::new(), Vec::new());
    loop {
        while let Some((request, length)) = parse(&received)? {
            received.drain(..length);
            requests.push(request);
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            let _ = stream.write_all(answer).await; // the proxy may have given up
        }
        match stream.read_buf(&mut received).await {
            Ok(0) | Err(_) => return Ok(requests),
            Ok(_) => {}
        }
    }
}

/// A request and its length, `None` while it is incomplete.
///
/// # Errors
/// Anything that RFC 9112 does not let a sender send.
fn parse(bytes: &[u8]) -> Result<Option<(String, usize)>, String> {
    let Some(head) = find(bytes, b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = latin(&bytes[..head]);
    let mut lines = text.split("\r\n");
    let line = lines.next().unwrap_or_default();
    let [method, target, "HTTP/1.1"] = line.split(' ').collect::<Vec<_>>()[..] else {
        return Err(format!("request line {line:?}"));
    };
    let visible = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
    if !is_token(method) || !visible(target) {
        return Err(format!("request line {line:?}"));
    }
    let fields = fields(lines)?;
    let all = |name: &str| {
        let named = fields.iter().filter(|(field, _)| field == name);
        named.map(|(_, value)| value.as_str()).collect::<Vec<_>>()
    };
    let [host] = all("host")[..] else {
        return Err(format!("hosts {:?}", all("host")));
    };
    let body = head + 4;
    let framed = match (&all("content-length")[..], &all("transfer-encoding")[..]) {
        ([], []) => Some((Vec::new(), body)),
        ([length], []) => sized(bytes, body, length)?,
        ([], ["chunked"]) => chunked(bytes, body)?,
        (lengths, codings) => return Err(format!("lengths {lengths:?}, codings {codings:?}")),
    };
    Ok(framed.map(|(body, end)| {
        let request = format!("{method} {target} {host} {}", latin(&body));
        (request.trim_end().to_owned(), end)
    }))
}

/// A body and where it ends.
type Framed = Option<(Vec<u8>, usize)>;

fn sized(bytes: &[u8], from: usize, length: &str) -> Result<Framed, String> {
    let digits = !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit());
    let length: usize = length
        .parse()
        .ok()
        .filter(|_| digits)
        .ok_or_else(|| format!("length {length:?}"))?;
    let body = bytes.get(from..from + length);
    Ok(body.map(|body| (body.to_vec(), from + length)))
}

fn chunked(bytes: &[u8], mut from: usize) -> Result<Framed, String> {
    let mut body = Vec::new();
    loop {
        let Some(line) = find(&bytes[from..], b"\r\n") else {
            return Ok(None);
        };
        let size = latin(&bytes[from..from + line]);
        let hex = !size.is_empty() && size.bytes().all(|b| b.is_ascii_hexdigit());
        let length = usize::from_str_radix(&size, 16)
            .ok()
            .filter(|_| hex)
            .ok_or_else(|| format!("chunk size {size:?}"))?;
        from += line + 2;
        if length == 0 {
            break;
        }
        let Some(chunk) = bytes.get(from..from + length + 2) else {
            return Ok(None);
        };
        if !chunk.ends_with(b"\r\n") {
            return Err("a chunk is longer than its size".to_owned());
        }
        body.extend(&chunk[..length]);
        from += length + 2;
    }
    if bytes[from..].starts_with(b"\r\n") {
        return Ok(Some((body, from + 2)));
    }
    let Some(end) = find(&bytes[from..], b"\r\n\r\n") else {
        return Ok(None);
    };
    let trailers = latin(&bytes[from..from + end]);
    let forbidden = HashSet::from(["content-length", "transfer-encoding", "host", "trailer"]);
    for (name, _) in fields(trailers.split("\r\n"))? {
        if forbidden.contains(name.as_str()) {
            return Err(format!("trailer {name}"));
        }
    }
    Ok(Some((body, from + end + 4)))
}

/// Names in lower case, with their values.
fn fields<'a>(lines: impl Iterator<Item = &'a str>) -> Result<Vec<(String, String)>, String> {
    let field = |line: &'a str| {
        let (name, value) = line.split_once(':').filter(|(name, _)| is_token(name))?;
        let allowed = |c: char| c == '\t' || (' '..'\u{7f}').contains(&c) || c >= '\u{80}';
        let value = value.trim_matches([' ', '\t']);
        let valid = value.chars().all(allowed);
        valid.then(|| (name.to_ascii_lowercase(), value.to_owned()))
    };
    lines
        .map(|line| field(line).ok_or_else(|| format!("field {line:?}")))
        .collect()
}

fn is_token(text: &str) -> bool {
    let special = |b: u8| b"!#$%&'*+-.^_`|~".contains(&b);
    !text.is_empty()
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || special(b))
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
}

fn latin(bytes: &[u8]) -> String {
    bytes.iter().copied().map(char::from).collect()
}

#[test]
fn strict_parser_accepts_only_clean_requests() {
    let parsed = |raw: &str| parse(&bytes(raw)).map(|parsed| parsed.map(|(request, _)| request));
    let chunks = "POST / HTTP/1.1\r\n{H}Transfer-Encoding: chunked\r\n\r\n";
    for (raw, request) in [
        ("GET /a HTTP/1.1\r\n{H}\r\n", "GET /a a.example"),
        (
            "POST / HTTP/1.1\r\n{H}Content-Length: 2\r\n\r\nhi",
            "POST / a.example hi",
        ),
        (
            &format!("{chunks}2\r\nhi\r\n0\r\nX: y\r\n\r\n"),
            "POST / a.example hi",
        ),
    ] {
        assert_eq!(parsed(raw), Ok(Some(request.to_owned())));
    }
    for incomplete in [
        "GET / HTTP/1.1\r\n{H}",
        &format!("{chunks}2\r\nhi\r\n0\r\n"),
    ] {
        assert_eq!(parsed(incomplete), Ok(None));
    }
    for invalid in [
        "GET  / HTTP/1.1\r\n{H}\r\n",
        "GET / HTTP/1.0\r\n{H}\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\n{H}{H}\r\n",
        "GET / HTTP/1.1\r\n{H}X : y\r\n\r\n",
        "GET / HTTP/1.1\r\n{H}X: a\nb\r\n\r\n",
        "GET / HTTP/1.1\r\n{H} X: y\r\n\r\n",
        "GET / HTTP/1.1\r\n{H}Content-Length: +1\r\n\r\n",
        "GET / HTTP/1.1\r\n{H}Content-Length: 1\r\nContent-Length: 1\r\n\r\na",
        "GET / HTTP/1.1\r\n{H}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET / HTTP/1.1\r\n{H}Transfer-Encoding: gzip, chunked\r\n\r\n",
        &format!("{chunks}2;a\r\nhi\r\n0\r\n\r\n"),
        &format!("{chunks}2\r\nhi!\r\n0\r\n\r\n"),
        &format!("{chunks}0\r\nHost: b\r\n\r\n"),
    ] {
        assert!(parsed(invalid).is_err(), "{invalid:?}");
    }
}
