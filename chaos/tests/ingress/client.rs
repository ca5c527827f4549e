//! Clients outside of the cluster.

use std::{io, net::Ipv4Addr, sync::Arc};

use jaco_chaos::lab::netns;
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// A handshake for `name` that verifies the chain under `roots`.
pub(crate) async fn handshake(
    socket: TcpStream,
    name: &str,
    roots: Arc<RootCertStore>,
) -> io::Result<TlsStream<TcpStream>> {
    let config = ClientConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(name, socket).await
}

/// A connection for requests of one domain, which stays open.
pub(crate) struct Connection(TlsStream<TcpStream>);

impl Connection {
    /// Connects to a node from the namespace `from`, trusting one root.
    pub(crate) async fn open(
        from: &str,
        node: Ipv4Addr,
        domain: &str,
        root: &CertificateDer<'static>,
    ) -> Result<Self, String> {
        let socket = netns::connect(from, (node, 443).into()).await;
        let socket = socket.map_err(|error| format!("{error:#}"))?;
        let mut roots = RootCertStore::empty();
        roots.add(root.clone()).map_err(|error| error.to_string())?;
        let stream = handshake(socket, domain, Arc::new(roots)).await;
        stream.map(Self).map_err(|error| error.to_string())
    }

    /// The certificate that the node presented.
    pub(crate) fn leaf(&self) -> CertificateDer<'static> {
        let (_, session) = self.0.get_ref();
        session.peer_certificates().unwrap()[0].clone().into_owned()
    }

    /// Head of the response to a request without a body.
    pub(crate) async fn get(&mut self, domain: &str) -> io::Result<String> {
        request(&mut self.0, domain, "/").await
    }
}

/// Head of the response to a plain request.
pub(crate) async fn get_plain(
    from: &str,
    node: Ipv4Addr,
    domain: &str,
    path: &str,
) -> io::Result<String> {
    let socket = netns::connect(from, (node, 80).into()).await;
    let mut socket = socket.map_err(io::Error::other)?;
    request(&mut socket, domain, path).await
}

/// Sends a request and reads the head of its response, which has no body.
async fn request(
    stream: &mut (impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin),
    domain: &str,
    path: &str,
) -> io::Result<String> {
    let text = format!("GET {path} HTTP/1.1\r\nHost: {domain}\r\n\r\n");
    stream.write_all(text.as_bytes()).await?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    String::from_utf8(head).map_err(io::Error::other)
}
