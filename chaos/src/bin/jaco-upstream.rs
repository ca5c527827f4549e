//! `jaco-upstream`: the server in the containers of load tests. Each answer names its container.
//!
//! HTTP on port 8080: `/slow` waits before it answers, `/stream` sends its body slowly, an upgraded
//! connection and TCP port 9000 echo. After SIGTERM it answers the requests that have arrived, and
//! echoes on open connections of port 9000 for five seconds at most.

use std::{convert::Infallible, io, net::Ipv4Addr, process::ExitCode, time::Duration};

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http_body_util::{BodyExt as _, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Frame, Incoming},
    header::{CONNECTION, UPGRADE},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use jaco_chaos::upstream::{
    ECHO_PORT, HTTP_PORT, PIECE_PAUSE, PIECES, REPLICA_HEADER, SLOW, SLOW_PATH, STREAM_PATH,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    signal::unix::{SignalKind, signal},
    sync::watch,
    task::JoinSet,
};

/// Time for the requests that have arrived before the signal.
const DRAIN: Duration = Duration::from_secs(5);

type Body = UnsyncBoxBody<Bytes, Infallible>;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime.and_then(|runtime| runtime.block_on(serve())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

async fn serve() -> io::Result<()> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
    let name: &'static str = name.trim().to_owned().leak(); // one per process
    let http = TcpListener::bind((Ipv4Addr::UNSPECIFIED, HTTP_PORT)).await?;
    let echo = TcpListener::bind((Ipv4Addr::UNSPECIFIED, ECHO_PORT)).await?;
    let mut stop = signal(SignalKind::terminate())?;
    let stopping = watch::Sender::new(false);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = stop.recv() => break,
            // An error is one of a connection that has ended already.
            accepted = http.accept() => if let Ok((stream, _)) = accepted {
                connections.spawn(connection(stream, name, stopping.subscribe()));
            },
            accepted = echo.accept() => if let Ok((mut stream, _)) = accepted {
                connections.spawn(async move {
                    let named = stream.write_all(format!("{name}\n").as_bytes()).await;
                    if named.is_ok() {
                        let _ = echo_all(stream).await; // the peer may be gone
                    }
                });
            },
            Some(_) = connections.join_next() => {}
        }
    }
    stopping.send_replace(true);
    let all_end = async { while connections.join_next().await.is_some() {} };
    // The rest is cut off.
    let _ = tokio::time::timeout(DRAIN, all_end).await;
    Ok(())
}

async fn connection(stream: TcpStream, name: &'static str, mut stopping: watch::Receiver<bool>) {
    let _ = stream.set_nodelay(true); // only the latency depends on it
    let answer = service_fn(move |request| answer(name, request));
    let served = http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
    let mut served = std::pin::pin!(served.with_upgrades());
    // Both arms end with the connection; an error is the peer's.
    tokio::select! {
        _ = &mut served => {}
        () = async { drop(stopping.wait_for(|stopping| *stopping).await) } => {
            served.as_mut().graceful_shutdown();
            let _ = served.await;
        }
    }
}

async fn answer(name: &str, mut request: Request<Incoming>) -> hyper::Result<Response<Body>> {
    let response = Response::builder().header(REPLICA_HEADER, name);
    let whole = |text: String| http_body_util::Full::from(text).boxed_unsync();
    let built = if request.headers().contains_key(UPGRADE) {
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            if let Ok(stream) = upgrade.await {
                let _ = echo_all(TokioIo::new(stream)).await; // the peer may be gone
            }
        });
        response
            .status(StatusCode::SWITCHING_PROTOCOLS)
            .header(CONNECTION, "upgrade")
            .header(UPGRADE, "websocket")
            .body(whole(String::new()))
    } else if request.method() == Method::POST {
        let body = request.into_body().collect().await?.to_bytes();
        response.body(whole(body.len().to_string()))
    } else if request.uri().path() == STREAM_PATH {
        let pieces = stream::iter(0..PIECES).then(|_| async move {
            tokio::time::sleep(PIECE_PAUSE).await;
            Ok(Frame::data(Bytes::from_static(b"piece\n")))
        });
        response.body(StreamBody::new(pieces).boxed_unsync())
    } else {
        if request.uri().path() == SLOW_PATH {
            tokio::time::sleep(SLOW).await;
        }
        response.body(whole("ok\n".to_owned()))
    };
    // Only an invalid name of the container is an error.
    Ok(built.unwrap_or_else(|_| Response::new(whole(String::new()))))
}

async fn echo_all(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    let mut buffer = [0; 1024];
    loop {
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..read]).await?;
        stream.flush().await?;
    }
}
