//! HTTP/2.

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::{HOST, Resource};

/// A connection; clones share it, and it ends with the last of them.
#[derive(Clone)]
pub(super) struct Http2(SendRequest<Empty<Bytes>>);

impl Http2 {
    pub(super) async fn connect(stream: TlsStream<TcpStream>) -> Result<Self> {
        let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (requests, connection) = handshake.await.context("HTTP/2")?;
        tokio::spawn(connection);
        Ok(Self(requests))
    }

    pub(super) async fn get(&mut self, resource: Resource) -> Result<()> {
        let uri = format!("https://{HOST}{}", resource.path);
        let request = Request::get(uri).body(Empty::new())?;
        self.0.ready().await?;
        let response = self.0.send_request(request).await?;
        ensure!(
            response.status() == StatusCode::OK,
            "status: {}",
            response.status()
        );
        let (mut body, mut length) = (response.into_body(), 0);
        while let Some(frame) = body.frame().await {
            length += frame?.data_ref().map_or(0, Bytes::len);
        }
        ensure!(length == resource.length, "a response has {length} bytes");
        Ok(())
    }
}
