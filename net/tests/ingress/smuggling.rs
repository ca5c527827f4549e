//! Request smuggling: every request that reaches a replica is the one that the proxy understood.
//!
//! The replica records raw bytes. A strict parser that shares nothing with the proxy reads them
//! back; anything it does not accept, and any request that is not expected, fails the case.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "smuggling/http2.rs"]
mod http2;
#[path = "smuggling/recorder.rs"]
mod recorder;
#[path = "smuggling/requests.rs"]
mod requests;
#[path = "smuggling/responses.rs"]
mod responses;

use super::*;
use recorder::Recorder;

/// A request that is hidden in another one.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: a.example\r\n\r\n";
/// Follows every case on the same connection; shows where the proxy sees its end.
const END: &str = "GET /end HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";

/// Result of sending a case.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    /// No complete request reaches the replica, and the client is refused or cut off.
    Rejected,
    /// Exactly these requests reach the replica: `METHOD target host body`.
    Forwarded(&'static [&'static str]),
}

/// Bytes of a case: every character is one byte, `{H}` is the host field, `{S}` the hidden request.
fn bytes(template: &str) -> Vec<u8> {
    let text = template.replace("{H}", "Host: a.example\r\n");
    let text = text.replace("{S}", SMUGGLED);
    text.chars()
        .map(|c| u8::try_from(u32::from(c)).unwrap())
        .collect()
}

fn one_worker() -> Settings {
    Settings {
        workers: NonZeroUsize::MIN,
        ..Settings::default()
    }
}

/// Sends `raw` over a connection of its own; returns the bytes of the client and the requests of
/// the replica.
async fn exchange(raw: &[u8]) -> (Vec<u8>, Result<Vec<String>, String>) {
    let recorder = Recorder::start().await;
    let fixture = ProxyFixture::start(one_worker());
    fixture.proxy.swap(RouteTable::new([rule([recorder.addr])]));
    let mut client = fixture.connect().await;
    // The proxy may close before it has read everything.
    let _ = client.write_all(raw).await;
    let mut answered = Vec::new();
    let read = client.read_to_end(&mut answered);
    // A reset after the answer is a close as well.
    let closed = tokio::time::timeout(TIMEOUT, read).await.is_ok();
    drop((client, fixture));
    let received = recorder.finish().await;
    let held = || Err("the connection stays open".to_owned());
    (answered, if closed { received } else { held() })
}

#[tokio::test]
async fn requests_reach_replicas_as_understood() {
    let mut wrong = Vec::new();
    for (name, template, outcome) in requests::CASES {
        let mut raw = bytes(template);
        raw.extend(END.as_bytes());
        let (answered, received) = exchange(&raw).await;
        let status = answered.get(9..12).map(String::from_utf8_lossy);
        let refused = status
            .as_ref()
            .is_none_or(|status| status.starts_with(['4', '5']));
        let fits = match (&received, outcome) {
            (Ok(received), Outcome::Rejected) => received.is_empty() && refused,
            (Ok(received), Outcome::Forwarded(expected)) => received == expected,
            (Err(_), _) => false,
        };
        if !fits {
            wrong.push(format!(
                "{name}: answered {status:?}, expected {outcome:?}, received {received:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn oversized_heads_and_extensions_are_refused() {
    let many = "X: y\r\n".repeat(200);
    let long = "x".repeat(70 * 1024);
    let cases = [
        (format!("GET / HTTP/1.1\r\n{{H}}{many}\r\n"), "431"),
        (format!("GET / HTTP/1.1\r\n{{H}}X: {long}\r\n\r\n"), "431"),
        (format!("GET /{long} HTTP/1.1\r\n{{H}}\r\n"), "431"),
        (
            format!(
                "POST / HTTP/1.1\r\n{{H}}Transfer-Encoding: chunked\r\n\r\n5;{long}\r\nhello\r\n0\r\n\r\n"
            ),
            "400",
        ),
        (
            format!(
                "POST / HTTP/1.1\r\n{{H}}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX: {long}\r\n\r\n"
            ),
            "400",
        ),
    ];
    for (template, status) in cases {
        let shown: String = template.chars().take(60).collect();
        let (answered, received) = exchange(&bytes(&template)).await;
        assert_eq!(received, Ok(vec![]), "{shown:?}");
        let answered = String::from_utf8_lossy(&answered);
        let got = answered.get(9..12).unwrap_or_default();
        assert!(got.is_empty() || got == status, "{shown:?}: {got}");
    }
}
