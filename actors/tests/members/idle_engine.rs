//! A container engine that runs nothing.

use std::path::Path;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
};

/// A container engine that responds, but has no containers and runs none.
pub(crate) fn idle_engine(socket: &Path) {
    let listener = UnixListener::bind(socket).expect("the path is free and short");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream));
        }
    });
}

async fn answer(mut stream: UnixStream) {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if !matches!(stream.read_buf(&mut request).await, Ok(1..)) {
            return;
        }
    }
    let request = String::from_utf8_lossy(&request).into_owned();
    let path = request.split(' ').nth(1).unwrap_or_default();
    let (status, body) = match path {
        path if path.contains("/events") => return std::future::pending().await,
        path if path.contains("/_ping") => ("200 OK", "OK"),
        path if path.contains("/version") => ("200 OK", r#"{"ApiVersion":"1.44"}"#),
        path if path.contains("/containers/json") => ("200 OK", "[]"),
        _ => ("404 Not Found", r#"{"message":"this engine has nothing"}"#),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    );
    // A node that has stopped does not read responses.
    let _ = stream.write_all((head + body).as_bytes()).await;
}
