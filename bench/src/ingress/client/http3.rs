//! HTTP/3.

use std::{
    future::poll_fn,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use bytes::{Buf as _, Bytes};
use h3::client::SendRequest;
use http::{Request, StatusCode};
use quinn::{Endpoint, VarInt, crypto::rustls::QuicClientConfig};

use super::{HOST, Resource};

/// A connection; clones share it.
#[derive(Clone)]
pub(super) struct Http3 {
    quic: quinn::Connection,
    requests: SendRequest<h3_quinn::OpenStreams, Bytes>,
}

/// A socket that all connections of a thread share.
pub(super) fn endpoint(tls: rustls::ClientConfig, source: Ipv4Addr) -> Result<Endpoint> {
    let tls = QuicClientConfig::try_from(tls)?;
    let mut config = quinn::ClientConfig::new(Arc::new(tls));
    let mut transport = quinn::TransportConfig::default();
    // Idle connections stay as long as the server keeps them.
    transport.max_idle_timeout(Some(Duration::from_secs(600).try_into()?));
    config.transport_config(Arc::new(transport));
    let mut endpoint = Endpoint::client((IpAddr::V4(source), 0).into())?;
    endpoint.set_default_client_config(config);
    Ok(endpoint)
}

impl Http3 {
    pub(super) async fn connect(endpoint: &Endpoint, addr: SocketAddr) -> Result<Self> {
        let quic = endpoint.connect(addr, HOST)?.await.context("QUIC")?;
        let transport = h3_quinn::Connection::new(quic.clone());
        let (mut driver, requests) = h3::client::new(transport).await.context("HTTP/3")?;
        tokio::spawn(async move { poll_fn(|cx| driver.poll_close(cx)).await });
        Ok(Self { quic, requests })
    }

    pub(super) async fn get(&mut self, resource: Resource, last: bool) -> Result<()> {
        let uri = format!("https://{HOST}{}", resource.path);
        let mut stream = self
            .requests
            .send_request(Request::get(uri).body(())?)
            .await?;
        stream.finish().await?;
        let status = stream.recv_response().await?.status();
        ensure!(status == StatusCode::OK, "status: {status}");
        let mut length = 0;
        while let Some(data) = stream.recv_data().await? {
            length += data.remaining();
        }
        ensure!(length == resource.length, "a response has {length} bytes");
        if last {
            // H3_NO_ERROR (RFC 9114, section 8.1).
            self.quic.close(VarInt::from_u32(0x100), b"");
        }
        Ok(())
    }
}
