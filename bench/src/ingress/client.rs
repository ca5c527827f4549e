//! Client connections of every protocol that the ingress serves.

mod http1;
mod http2;
mod http3;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use rustls::{
    ClientConfig, DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::{TlsConnector, client::TlsStream};

use self::{http1::Http1, http2::Http2, http3::Http3};

/// Name of the server in every request and handshake.
pub const HOST: &str = "localhost";

/// Time within which a response must be complete.
const RESPONSE: Duration = Duration::from_secs(30);

/// A way to send requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1 without TLS.
    Plain,
    /// HTTP/1.1 over TLS.
    Tls,
    /// HTTP/2 over TLS.
    Http2,
    /// HTTP/3.
    Http3,
}

/// A resource and the length of its body.
#[derive(Clone, Copy, Debug)]
pub struct Resource {
    /// Path.
    pub path: &'static str,
    /// Bytes that a complete response carries.
    pub length: usize,
}

/// The settings and the socket that the connections of one thread share.
#[derive(Clone)]
pub struct Connector {
    addr: SocketAddr,
    source: Ipv4Addr,
    protocol: Protocol,
    tls: TlsConnector,
    quic: Option<quinn::Endpoint>,
}

/// One connection, or a share of one that carries several requests at a time.
#[derive(Clone)]
pub struct Shared(Streams);

#[derive(Clone)]
enum Streams {
    Http2(Http2),
    Http3(Http3),
}

/// A connection for one request at a time.
pub enum Connection {
    /// HTTP/1.1 without TLS.
    Plain(Http1<TcpStream>),
    /// HTTP/1.1 over TLS.
    Tls(Box<Http1<TlsStream<TcpStream>>>),
    /// A stream at a time of a later protocol.
    Shared(Shared),
}

impl Connector {
    /// Connects to `addr` from an address of the loopback network; called in the runtime that runs
    /// the connections.
    ///
    /// # Errors
    /// If there is no socket for HTTP/3.
    pub fn new(addr: SocketAddr, protocol: Protocol, source: Ipv4Addr) -> Result<Self> {
        let alpn: &[&[u8]] = match protocol {
            Protocol::Plain => &[],
            Protocol::Tls => &[b"http/1.1"],
            Protocol::Http2 => &[b"h2"],
            Protocol::Http3 => &[b"h3"],
        };
        let mut config = tls_config()?;
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        config.resumption = rustls::client::Resumption::disabled();
        let quic = match protocol {
            Protocol::Http3 => Some(http3::endpoint(config.clone(), source)?),
            Protocol::Plain | Protocol::Tls | Protocol::Http2 => None,
        };
        Ok(Self {
            addr,
            source,
            protocol,
            tls: Arc::new(config).into(),
            quic,
        })
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// Any of connection and handshake.
    pub async fn open(&self) -> Result<Connection> {
        let open = async {
            anyhow::Ok(match self.protocol {
                Protocol::Plain => Connection::Plain(Http1::new(self.tcp().await?)),
                Protocol::Tls => {
                    Connection::Tls(Box::new(Http1::new(self.tls(self.tcp().await?).await?)))
                }
                Protocol::Http2 | Protocol::Http3 => Connection::Shared(self.open_shared().await?),
            })
        };
        let opened = tokio::time::timeout(RESPONSE, open).await;
        opened.context("no connection in time")?
    }

    async fn open_shared(&self) -> Result<Shared> {
        Ok(Shared(match &self.quic {
            Some(endpoint) => Streams::Http3(Http3::connect(endpoint, self.addr).await?),
            None => {
                let stream = self.tls(self.tcp().await?).await?;
                ensure!(
                    stream.get_ref().1.alpn_protocol() == Some(b"h2"),
                    "HTTP/2 was not agreed"
                );
                Streams::Http2(Http2::connect(stream).await?)
            }
        }))
    }

    async fn tcp(&self) -> Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        if self.source != Ipv4Addr::LOCALHOST {
            socket.bind((IpAddr::V4(self.source), 0).into())?;
        }
        let stream = socket
            .connect(self.addr)
            .await
            .context("failed to connect")?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn tls(&self, tcp: TcpStream) -> Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(HOST)?;
        self.tls.connect(name, tcp).await.context("TLS failed")
    }
}

impl Connection {
    /// A second handle of a connection that carries several requests at a time.
    #[must_use]
    pub fn share(&self) -> Option<Self> {
        match self {
            Self::Plain(_) | Self::Tls(_) => None,
            Self::Shared(shared) => Some(Self::Shared(shared.clone())),
        }
    }

    /// Releases the memory of the client that only a request needs.
    pub fn rest(&mut self) {
        match self {
            Self::Plain(connection) => connection.rest(),
            Self::Tls(connection) => connection.rest(),
            Self::Shared(_) => {}
        }
    }

    /// Requests `resource` and reads the response; with `last` the connection ends with it.
    ///
    /// # Errors
    /// If the response is late, has another status than 200, or another length.
    pub async fn get(&mut self, resource: Resource, last: bool) -> Result<()> {
        let answer = async {
            match self {
                Self::Plain(connection) => connection.get(resource, last).await,
                Self::Tls(connection) => connection.get(resource, last).await,
                Self::Shared(Shared(Streams::Http2(connection))) => connection.get(resource).await,
                Self::Shared(Shared(Streams::Http3(connection))) => {
                    connection.get(resource, last).await
                }
            }
        };
        let answered = tokio::time::timeout(RESPONSE, answer).await;
        answered.context("no complete response in time")?
    }
}

/// TLS 1.3 of a client that accepts any certificate: what is measured is the server.
///
/// # Errors
/// None with the provider in use.
pub fn tls_config() -> Result<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone());
    let builder = builder.with_protocol_versions(&[&rustls::version::TLS13])?;
    let verifier = Arc::new(AnyCertificate(provider));
    let config = builder
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    Ok(config.with_no_client_auth())
}

#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
