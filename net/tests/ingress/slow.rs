//! Clients that hold resources: every wait ends, and every buffer is bounded.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::net::SocketAddr;

use tokio::sync::mpsc;

use super::*;

/// Longer than scheduling takes, short enough for a test.
const SHORT: Duration = Duration::from_millis(200);
/// Bound of the bytes between a replica and a client that reads nothing: the socket buffers of two
/// connections, and those of the proxy.
const MAX_IN_TRANSIT: u64 = 32 * 1024 * 1024;

fn hurried() -> Settings {
    Settings {
        workers: NonZeroUsize::MIN,
        request_head_timeout: SHORT,
        idle_timeout: SHORT,
        response_timeout: SHORT,
        ..Settings::default()
    }
}

/// As [`hurried`], for clients that take nothing of one response while another one waits for its
/// replica: only the first has a limit, which leaves the client time to begin both.
fn patient() -> Settings {
    Settings {
        request_head_timeout: TIMEOUT,
        idle_timeout: 10 * SHORT,
        response_timeout: TIMEOUT,
        ..hurried()
    }
}

/// Reads to the end of the connection, however it ends.
async fn rest(client: &mut (impl AsyncReadExt + Unpin)) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = client.read_to_end(&mut bytes);
    let _ = tokio::time::timeout(TIMEOUT, read)
        .await
        .expect("the connection stays open");
    bytes
}

/// A replica that sends an endless response; the channel reports how many bytes it could send
/// before the proxy closed the connection.
async fn endless_replica() -> (SocketAddr, mpsc::UnboundedReceiver<u64>) {
    let (ended, end) = mpsc::unbounded_channel();
    let addr = raw_replica(move |mut stream| {
        let ended = ended.clone();
        async move {
            read_head(&mut stream).await;
            let head = b"HTTP/1.1 200 OK\r\n\r\n";
            stream.write_all(head).await.unwrap();
            let (part, mut sent) = (vec![b'x'; 64 * 1024], 0);
            while let Ok(written) = stream.write(&part).await {
                sent += written as u64;
            }
            ended.send(sent).unwrap();
        }
    })
    .await;
    (addr, end)
}

#[tokio::test]
async fn head_sent_byte_by_byte_is_cut_off() {
    let fixture = ProxyFixture::start(Settings {
        idle_timeout: TIMEOUT,
        ..hurried()
    });
    let client = fixture.connect().await;
    let (mut reading, mut writing) = client.into_split();
    // Every byte comes within the timeout; the whole head would take 50 times as long.
    let trickle = tokio::spawn(async move {
        let head = format!("GET / HTTP/1.1\r\nX: {}", "y".repeat(200));
        for byte in head.bytes() {
            if writing.write_all(&[byte]).await.is_err() {
                return true;
            }
            tokio::time::sleep(SHORT / 4).await;
        }
        false
    });
    let start = tokio::time::Instant::now();
    rest(&mut reading).await;
    assert!(start.elapsed() >= SHORT, "{:?}", start.elapsed());
    assert!(trickle.await.unwrap(), "the connection was never closed");
}

#[tokio::test]
async fn handshake_that_does_not_begin_is_cut_off() {
    let secure = tls::Secure::with(hurried());
    let mut client = tokio::net::TcpStream::connect(secure.addr).await.unwrap();
    assert_eq!(rest(&mut client).await, b"");
}

#[tokio::test]
async fn body_that_stops_ends_its_request() {
    let reading = replica(async |request| text(body_of(request.into_body()).await)).await;
    let fixture = ProxyFixture::start(hurried());
    fixture.proxy.swap(RouteTable::new([rule([reading])]));
    let mut client = fixture.connect().await;
    let half = b"POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 10\r\n\r\nhello";
    client.write_all(half).await.unwrap();
    let answered = rest(&mut client).await;
    assert_eq!(&answered[9..12], b"504");
}

#[tokio::test]
async fn client_that_reads_nothing_is_cut_off() {
    let (endless, mut ended) = endless_replica().await;
    let fixture = ProxyFixture::start(hurried());
    fixture.proxy.swap(RouteTable::new([rule([endless])]));
    let mut client = fixture.connect().await;
    let request = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
    client.write_all(request).await.unwrap();
    let sent = tokio::time::timeout(TIMEOUT, ended.recv()).await;
    let sent = sent.expect("the response goes on").unwrap();
    assert!(sent < MAX_IN_TRANSIT, "{sent}");
}

/// Routes `/endless` to the first replica, and every other path to the second.
fn endless_beside(endless: SocketAddr, other: SocketAddr) -> RouteTable {
    let path = "/endless".to_owned();
    RouteTable::new([
        Rule {
            path,
            ..rule([endless])
        },
        rule([other]),
    ])
}

#[tokio::test]
async fn http2_stream_without_window_is_reset() {
    let (endless, mut ended) = endless_replica().await;
    let (chunks, slow) = slow_replica().await;
    let secure = tls::Secure::with(patient());
    secure.proxy.swap(endless_beside(endless, slow));
    let mut client = secure.http2().await;
    // A response that waits for its replica has no limit.
    let waiting = client.send_request(tls::h2_get("/")).await.unwrap();
    let stalled = client.send_request(tls::h2_get("/endless")).await.unwrap();
    let sent = tokio::time::timeout(TIMEOUT, ended.recv()).await;
    let sent = sent.expect("the response goes on").unwrap();
    assert!(sent < MAX_IN_TRANSIT, "{sent}");
    assert!(stalled.into_body().collect().await.is_err());
    chunks.send(Frame::data("rest".into())).unwrap();
    drop(chunks);
    assert_eq!(body(waiting).await, "rest");
}

#[tokio::test]
async fn http3_stream_without_window_is_reset() {
    let (endless, mut ended) = endless_replica().await;
    let (chunks, slow) = slow_replica().await;
    let quic = http3::Quic::start(patient());
    quic.proxy.swap(endless_beside(endless, slow));
    let mut client = quic.client().await;
    let mut waiting = client.start(http3::h3_get("/")).await;
    waiting.finish().await.unwrap();
    waiting.recv_response().await.unwrap();
    let mut stalled = client.start(http3::h3_get("/endless")).await;
    stalled.finish().await.unwrap();
    stalled.recv_response().await.unwrap();
    let sent = tokio::time::timeout(TIMEOUT, ended.recv()).await;
    let sent = sent.expect("the response goes on").unwrap();
    assert!(sent < MAX_IN_TRANSIT, "{sent}");
    let end = loop {
        match stalled.recv_data().await {
            Ok(Some(_)) => {}
            end => break end.map(|_| ()),
        }
    };
    assert!(end.is_err());
    chunks.send(Frame::data("rest".into())).unwrap();
    drop(chunks);
    assert_eq!(http3::rest(&mut waiting).await, b"rest");
}
