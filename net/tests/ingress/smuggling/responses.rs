//! Responses of replicas: a client gets a consistent message or a broken connection.

use std::net::SocketAddr;

use super::*;

/// How a client must see a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// A complete message: status and body.
    Whole(&'static str, &'static str),
    /// A message that ends before it is complete.
    Broken,
}

use Seen::{Broken, Whole};

const BAD: Seen = Whole("502", "");
const HELLO: Seen = Whole("200", "hello");

/// Name, bytes that the replica sends before it closes, and how the client sees them.
#[rustfmt::skip] // one case per line
const CASES: &[(&str, &str, Seen)] = &[
    ("length", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", HELLO),
    ("chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", HELLO),
    ("end of connection", "HTTP/1.1 200 OK\r\n\r\nhello", HELLO),
    ("HTTP/1.0", "HTTP/1.0 200 OK\r\n\r\nhello", HELLO),
    ("no reason", "HTTP/1.1 200\r\nContent-Length: 5\r\n\r\nhello", HELLO),
    ("bare LF ends lines", "HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", HELLO),
    ("equal lengths", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", HELLO),
    ("different lengths", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", BAD),
    ("negative length", "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello", BAD),
    ("length with sign", "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello", BAD),
    ("body too short", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", Broken),
    ("body too long", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello!!", HELLO),
    ("both framings", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", HELLO),
    ("connection names the coding", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: transfer-encoding\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", HELLO),
    ("gzip and chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", BAD),
    ("identity", "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 5\r\n\r\nhello", BAD),
    ("chunked twice", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", BAD),
    ("coding in HTTP/1.0", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", BAD),
    ("chunks cut off", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", Broken),
    ("chunk cut off", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhello", Broken),
    ("bad chunk size", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nx\r\n\r\n", Broken),
    ("chunk longer than size", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello!\r\n0\r\n\r\n", Broken),
    ("no content", "HTTP/1.1 204 No Content\r\n\r\n", Whole("204", "")),
    ("no content, with bytes", "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello", Whole("204", "")),
    ("not modified", "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", Whole("304", "")),
    ("informational", "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", HELLO),
    ("only informational", "HTTP/1.1 100 Continue\r\n\r\n", BAD),
    ("unasked switch", "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nhello", BAD),
    ("no bytes", "", BAD),
    ("half a head", "HTTP/1.1 200 OK\r\nContent-Len", BAD),
    ("HTTP/0.9", "hello", BAD),
    ("HTTP/2.0", "HTTP/2.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", BAD),
    ("bad status", "HTTP/1.1 2x0 OK\r\nContent-Length: 5\r\n\r\nhello", BAD),
    ("folded field", "HTTP/1.1 200 OK\r\nX: y\r\n Content-Length: 9\r\nContent-Length: 5\r\n\r\nhello", BAD),
    ("space before colon", "HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\nhello", BAD),
    ("bare CR in a value", "HTTP/1.1 200 OK\r\nX: y\rContent-Length: 9\r\nContent-Length: 5\r\n\r\nhello", BAD),
    ("NUL in a value", "HTTP/1.1 200 OK\r\nX: \0\r\nContent-Length: 5\r\n\r\nhello", BAD),
];

/// A replica that reads a head, sends `raw` and closes.
async fn sending(raw: Vec<u8>) -> SocketAddr {
    raw_replica(move |mut stream| {
        let raw = raw.clone();
        async move {
            read_head(&mut stream).await;
            let _ = stream.write_all(&raw).await; // the proxy may have given up
            let _ = stream.shutdown().await;
            let _ = stream.read(&mut [0]).await; // no reset before the proxy has read all
        }
    })
    .await
}

/// Asks once and reads to the end of the connection.
async fn asked(fixture: &ProxyFixture) -> Vec<u8> {
    let mut client = fixture.connect().await;
    let request = b"GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";
    client.write_all(request).await.unwrap();
    let mut answered = Vec::new();
    let read = client.read_to_end(&mut answered);
    let _ = tokio::time::timeout(TIMEOUT, read)
        .await
        .expect("the connection stays open");
    answered
}

/// Status and body, `None` for the body if it is incomplete.
///
/// # Errors
/// The reason why the bytes are no response of one meaning.
fn parse(bytes: &[u8]) -> Result<(String, Option<String>), String> {
    let text: String = bytes.iter().copied().map(char::from).collect();
    let (head, rest) = text.split_once("\r\n\r\n").ok_or("no head")?;
    let mut lines = head.split("\r\n");
    let line = lines.next().unwrap_or_default();
    let status = line
        .strip_prefix("HTTP/1.1 ")
        .and_then(|line| line.get(..3))
        .ok_or_else(|| format!("status line {line:?}"))?;
    let (mut length, mut chunks) = (None, false);
    for line in lines {
        let (name, value) = line.split_once(": ").ok_or_else(|| format!("{line:?}"))?;
        match (name, value) {
            ("content-length", _) if length.is_some() || chunks => return Err("framings".into()),
            ("content-length", _) => length = Some(value.parse::<usize>().map_err(|_| value)?),
            ("transfer-encoding", "chunked") if length.is_none() && !chunks => chunks = true,
            ("transfer-encoding", _) => return Err(format!("framings: {value}")),
            (_, _) => {}
        }
    }
    let body = match (status, length) {
        ("204" | "304", _) if rest.is_empty() => Some(String::new()),
        (_, Some(length)) if rest.len() > length => return Err("bytes after the body".into()),
        (_, Some(length)) => Some(rest.to_owned()).filter(|rest| rest.len() == length),
        (_, None) if chunks => chunked(rest)?,
        (_, None) => return Err("the body has no end".into()),
    };
    Ok((status.to_owned(), body))
}

fn chunked(mut rest: &str) -> Result<Option<String>, String> {
    let mut body = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).map_err(|_| format!("size {size:?}"))?;
        if size == 0 {
            return match after {
                "\r\n" => Ok(Some(body)),
                "" => Ok(None),
                other => Err(format!("after the body {other:?}")),
            };
        }
        let Some(chunk) = after.get(..size + 2) else {
            return Ok(None);
        };
        body.push_str(chunk.strip_suffix("\r\n").ok_or("chunk too long")?);
        rest = &after[size + 2..];
    }
    Ok(None)
}

#[tokio::test]
async fn responses_reach_clients_whole_or_broken() {
    let mut wrong = Vec::new();
    for (name, template, seen) in CASES {
        let replica = sending(bytes(template)).await;
        let fixture = ProxyFixture::start(one_worker());
        fixture.proxy.swap(RouteTable::new([rule([replica])]));
        let answered = asked(&fixture).await;
        let parsed = parse(&answered);
        let fits = match (&parsed, seen) {
            (Ok((status, Some(body))), Whole(expected, content)) => {
                status == expected && body == content
            }
            (Ok((_, None)), Broken) => true,
            (Ok(_) | Err(_), Whole(..) | Broken) => false,
        };
        if !fits {
            let answered = String::from_utf8_lossy(&answered);
            wrong.push(format!(
                "{name}: expected {seen:?}, {parsed:?}: {answered:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn large_response_heads_become_502() {
    let long = "x".repeat(100 * 1024);
    let many = "X: y\r\n".repeat(500);
    for fields in [format!("X: {long}\r\n"), many] {
        let head = format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: 5\r\n\r\nhello");
        let replica = sending(head.into_bytes()).await;
        let fixture = ProxyFixture::start(one_worker());
        fixture.proxy.swap(RouteTable::new([rule([replica])]));
        let parsed = parse(&asked(&fixture).await);
        assert_eq!(parsed, Ok(("502".to_owned(), Some(String::new()))));
    }
}

#[tokio::test]
async fn endless_informational_responses_time_out() {
    let flooding = raw_replica(async |mut stream| {
        read_head(&mut stream).await;
        let hint = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n".repeat(50);
        while stream.write_all(&hint).await.is_ok() {}
    })
    .await;
    let fixture = ProxyFixture::start(Settings {
        response_timeout: Duration::from_millis(200),
        ..one_worker()
    });
    fixture.proxy.swap(RouteTable::new([rule([flooding])]));
    let parsed = parse(&asked(&fixture).await);
    assert_eq!(parsed, Ok(("504".to_owned(), Some(String::new()))));
}

#[tokio::test]
async fn surplus_response_answers_no_other_request() {
    let poisoning = raw_replica(async |mut stream| {
        while !read_head(&mut stream).await.is_empty() {
            let answers = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\none\
                            HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\npoisoned";
            let _ = stream.write_all(answers).await; // the proxy may have closed the connection
        }
    })
    .await;
    let fixture = ProxyFixture::start(one_worker());
    fixture.proxy.swap(RouteTable::new([rule([poisoning])]));
    let mut client = fixture.client().await;
    for _ in 0..20 {
        let response = client.send(get("/")).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(body(response).await, "one");
    }
}
