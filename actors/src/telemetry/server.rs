//! Plain HTTP server for Prometheus scrapers.

use std::{convert::Infallible, io, net::SocketAddr, time::Duration};

use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{ALLOW, CONTENT_TYPE},
};
use http_body_util::Full;
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    task::JoinSet,
};

use super::{Metrics, text};

/// Connections served at once; further ones wait in the kernel's accept queue.
const CONNECTIONS: usize = 16;
/// Timeout for the head of a request, also between two requests of a connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Delay before accepting again after an error such as exhausted file descriptors or memory.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// Binds `addr`, even while connections of an earlier listener are still open on it.
pub(super) fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(128)
}

/// Serves connections; dropping the future closes all of them.
pub(super) async fn serve(listener: TcpListener, metrics: Metrics) -> Infallible {
    let mut connections = JoinSet::new();
    loop {
        while connections.len() >= CONNECTIONS {
            connections.join_next().await;
        }
        tokio::select! {
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(stream, metrics.clone()));
                }
                // Out of file descriptors, for example: the delay lets other connections close.
                Err(_) => tokio::time::sleep(EXHAUSTED_PAUSE).await,
            },
        }
    }
}

async fn connection(stream: TcpStream, metrics: Metrics) {
    let service = service_fn(move |request| {
        let response = answer(&request, &metrics);
        async move { Ok::<_, Infallible>(response) }
    });
    // A connection error concerns only its client.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

fn answer(request: &Request<Incoming>, metrics: &Metrics) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    if request.uri().path() != "/metrics" {
        *response.status_mut() = StatusCode::NOT_FOUND;
    } else if !matches!(*request.method(), Method::GET | Method::HEAD) {
        *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        let allowed = HeaderValue::from_static("GET, HEAD");
        response.headers_mut().insert(ALLOW, allowed);
    } else {
        let kind = HeaderValue::from_static(text::CONTENT_TYPE);
        response.headers_mut().insert(CONTENT_TYPE, kind);
        *response.body_mut() = Full::from(metrics.render());
    }
    response
}
