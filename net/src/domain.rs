//! Addresses of a domain, and what answers there.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use bytes::Bytes;
use futures::future::join_all;
use http::{HeaderValue, Request, Uri, header};
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpStream, lookup_host},
    task::JoinSet,
    time::timeout,
};

/// Longest time of resolving a domain.
const RESOLVE: Duration = Duration::from_secs(10);
/// Longest time of asking one address.
const REQUEST: Duration = Duration::from_secs(5);
/// Bytes of a body that are read; the rest is not.
const BODY: usize = 256;

/// Response of one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// The first bytes of the body of a response, whatever its status.
    Body(Vec<u8>),
    /// There was no response, for this reason.
    None(String),
}

/// Resolves the addresses of a domain with the system's resolver, at most `limit`, in order.
///
/// # Errors
/// The reason for operators: the resolver failed, or was too slow.
///
/// # Cancel safety
/// The resolver goes on in the background; nothing else does.
pub async fn resolve(domain: &str, limit: usize) -> Result<BTreeSet<IpAddr>, String> {
    let found = timeout(RESOLVE, lookup_host((domain, 0))).await;
    let found = found.map_err(|_| format!("not resolved within {} s", RESOLVE.as_secs()))?;
    let found = found.map_err(|error| error.to_string())?;
    let addresses: BTreeSet<IpAddr> = found.map(|found| found.ip().to_canonical()).collect();
    Ok(addresses.into_iter().take(limit).collect())
}

/// Asks each address on `port` for `path` of the host `domain` over plain HTTP, all at once.
/// Redirects are not followed.
///
/// # Cancel safety
/// Dropping the future closes the connections.
pub async fn ask(
    addresses: BTreeSet<IpAddr>,
    port: u16,
    domain: &str,
    path: &str,
) -> BTreeMap<IpAddr, Response> {
    let asked = addresses.into_iter().map(|address| async move {
        let request = get(SocketAddr::new(address, port), domain, path);
        let response = match timeout(REQUEST, request).await {
            Ok(Ok(body)) => Response::Body(body),
            Ok(Err(reason)) => Response::None(reason),
            Err(_) => Response::None("timed out".to_owned()),
        };
        (address, response)
    });
    join_all(asked).await.into_iter().collect()
}

async fn get(at: SocketAddr, domain: &str, path: &str) -> Result<Vec<u8>, String> {
    let target: Uri = path.parse().map_err(|_| "invalid path".to_owned())?;
    let host = HeaderValue::from_str(domain).map_err(|_| "invalid domain".to_owned())?;
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.uri_mut() = target;
    request.headers_mut().insert(header::HOST, host);
    let close = HeaderValue::from_static("close");
    request.headers_mut().insert(header::CONNECTION, close);

    let socket = TcpStream::connect(at).await;
    let socket = socket.map_err(|error| error.to_string())?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(socket))
        .await
        .map_err(|error| error.to_string())?;
    // Ends with this request, or with its cancellation.
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let response = sender.send_request(request).await;
    let mut body = response.map_err(|error| error.to_string())?.into_body();
    let mut start = Vec::new();
    while start.len() < BODY
        && let Some(frame) = body.frame().await
    {
        let frame = frame.map_err(|error| error.to_string())?;
        if let Ok(data) = frame.into_data() {
            let missing = BODY - start.len();
            start.extend_from_slice(&data[..data.len().min(missing)]);
        }
    }
    Ok(start)
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    /// Answers one request with these bytes, and returns the request.
    async fn answer(listener: TcpListener, bytes: Vec<u8>) -> String {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(stream.read_u8().await.unwrap());
        }
        let _ = stream.write_all(&bytes).await; // the client may have read enough
        String::from_utf8(request).unwrap()
    }

    async fn asked(bytes: &[u8]) -> (String, Response) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let addresses = BTreeSet::from([at.ip()]);
        let (request, mut responses) = tokio::join!(
            answer(listener, bytes.to_vec()),
            ask(addresses, at.port(), "a.example", "/probe/x"),
        );
        (request, responses.remove(&at.ip()).unwrap())
    }

    #[tokio::test]
    async fn address_is_asked_for_the_domain() {
        let (request, response) =
            asked(b"HTTP/1.1 404 Not Found\r\ncontent-length: 3\r\n\r\nabc").await;
        assert!(
            request.starts_with("GET /probe/x HTTP/1.1\r\n"),
            "{request}"
        );
        assert!(request.contains("host: a.example\r\n"), "{request}");
        assert_eq!(response, Response::Body(b"abc".to_vec()));
    }

    #[tokio::test]
    async fn only_the_start_of_a_body_is_read() {
        let head = b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n";
        let (_, response) = asked(&[&head[..], &[b'x'; 4096]].concat()).await;
        assert_eq!(response, Response::Body(vec![b'x'; BODY]));
    }

    #[tokio::test]
    async fn redirect_is_not_followed() {
        let head = b"HTTP/1.1 302 Found\r\nlocation: http://other/\r\ncontent-length: 0\r\n\r\n";
        let (_, response) = asked(head).await;
        assert_eq!(response, Response::Body(Vec::new()));
    }

    #[tokio::test]
    async fn address_without_http_has_a_reason() {
        let (_, response) = asked(b"SSH-2.0-x\r\n").await;
        assert!(matches!(response, Response::None(_)), "{response:?}");
        let closed = {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            listener.local_addr().unwrap()
        };
        let addresses = BTreeSet::from([closed.ip()]);
        let responses = ask(addresses, closed.port(), "a.example", "/").await;
        let Response::None(reason) = &responses[&closed.ip()] else {
            panic!("{responses:?}");
        };
        assert!(reason.contains("refused"), "{reason}");
    }

    #[tokio::test(start_paused = true)]
    async fn silent_address_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let responses = ask(BTreeSet::from([at.ip()]), at.port(), "a.example", "/").await;
        assert_eq!(responses[&at.ip()], Response::None("timed out".to_owned()));
    }

    #[tokio::test]
    async fn address_resolves_to_itself() {
        let found = resolve("192.0.2.7", 16).await.unwrap();
        assert_eq!(found, BTreeSet::from(["192.0.2.7".parse().unwrap()]));
        assert!(resolve("", 16).await.is_err());
    }
}
