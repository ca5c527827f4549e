//! HTTPS client of the protocol engine: one connection per request, with limits.

use std::{future::Future, io, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, StatusCode, Uri,
    header::{HOST, PROXY_AUTHORIZATION},
    uri::InvalidUri,
};
use http_body_util::{BodyExt as _, Empty, LengthLimitError, Limited};
use hyper::{client::conn::http1, upgrade};
use hyper_util::rt::TokioIo;
use instant_acme::{BodyWrapper, BytesResponse, HttpClient};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use super::{
    error::Refusals,
    proxy::{HttpProxy, ProxySettings},
};

/// Longest time of one request, connecting included.
const REQUEST: Duration = Duration::from_secs(30);
/// Longest body of a response in bytes; a chain has a few KiB.
const MAX_BODY: usize = 1 << 20;

/// Failure to get any response.
#[derive(Debug, thiserror::Error)]
pub(super) enum TransportError {
    /// The address is not one of an HTTPS resource.
    #[error("{0} is not an https address")]
    Address(Uri),
    /// The connection failed.
    #[error("connecting to {0}: {1}")]
    Connect(String, #[source] io::Error),
    /// The proxy opened no tunnel.
    #[error("the proxy answered {0}")]
    Proxy(StatusCode),
    /// The exchange failed.
    #[error("exchange with {0}: {1}")]
    Exchange(String, #[source] hyper::Error),
    /// The body ended early or is too long.
    #[error("response of {0}: {1}")]
    Body(String, #[source] Box<dyn std::error::Error + Send + Sync>),
    /// There was no response in time.
    #[error("no response within {} s", REQUEST.as_secs())]
    Timeout,
}

/// Client of one directory; clones share what they record.
#[derive(Clone)]
pub(super) struct HttpsClient {
    tls: Arc<ClientConfig>,
    proxies: Arc<ProxySettings>,
    refusals: Refusals,
}

/// A connection to a directory, below TLS.
trait Transport: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Transport for T {}

impl HttpsClient {
    pub(super) fn new(
        tls: Arc<ClientConfig>,
        proxies: Arc<ProxySettings>,
        refusals: Refusals,
    ) -> Self {
        Self {
            tls,
            proxies,
            refusals,
        }
    }

    /// Connects to a host, through the proxy that leads to it if there is one. Connections that have to
    /// be driven are added to `drivers`.
    async fn connect(
        &self,
        host: &str,
        port: u16,
        drivers: &mut JoinSet<Result<(), hyper::Error>>,
    ) -> Result<Box<dyn Transport>, TransportError> {
        let Some(proxy) = self.proxies.of(host, port) else {
            let socket = TcpStream::connect((host, port)).await;
            let socket =
                socket.map_err(|error| TransportError::Connect(format!("{host}:{port}"), error))?;
            return Ok(Box::new(socket));
        };
        open_tunnel(proxy, host, port, drivers).await
    }

    async fn send(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Result<BytesResponse, TransportError> {
        let address = || TransportError::Address(request.uri().clone());
        if request.uri().scheme_str() != Some("https") {
            return Err(address());
        }
        let authority = request.uri().authority().ok_or_else(address)?.clone();
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(host.clone()).map_err(|_| address())?;
        let host_header = HeaderValue::from_str(authority.as_str()).map_err(|_| address())?;
        let target: Result<Uri, InvalidUri> = match request.uri().path_and_query() {
            Some(target) => target.as_str().parse(),
            None => Ok(Uri::from_static("/")),
        };
        let target = target.map_err(|_| address())?;

        let peer = authority.to_string();
        let connect = |error| TransportError::Connect(peer.clone(), error);
        let port = authority.port_u16().unwrap_or(443);
        // They end with this request, or with its cancellation.
        let mut drivers = JoinSet::new();
        let socket = self.connect(&host, port, &mut drivers).await?;
        let connector = TlsConnector::from(self.tls.clone());
        let stream = connector.connect(name, socket).await.map_err(connect)?;
        let exchange = |error| TransportError::Exchange(peer.clone(), error);
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(exchange)?;
        drivers.spawn(connection);

        let mut request = request;
        *request.uri_mut() = target;
        request.headers_mut().insert(HOST, host_header);
        let response = sender.send_request(request).await.map_err(exchange)?;
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, MAX_BODY).collect().await;
        let body = body.map_err(|error| {
            let too_long = error.is::<LengthLimitError>();
            tracing::debug!(
                subsystem = "stagefirst",
                too_long,
                "body of a directory not read"
            );
            TransportError::Body(peer.clone(), error)
        })?;
        Ok(BytesResponse {
            parts,
            body: Box::new(body.to_bytes()),
        })
    }
}

/// Opens a tunnel to a host through a proxy.
async fn open_tunnel(
    proxy: &HttpProxy,
    host: &str,
    port: u16,
    drivers: &mut JoinSet<Result<(), hyper::Error>>,
) -> Result<Box<dyn Transport>, TransportError> {
    let peer = format!("proxy {}:{}", proxy.host, proxy.port);
    let exchange = |error| TransportError::Exchange(peer.clone(), error);
    let socket = TcpStream::connect((proxy.host.as_str(), proxy.port)).await;
    let socket = socket.map_err(|error| TransportError::Connect(peer.clone(), error))?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(socket))
        .await
        .map_err(exchange)?;
    drivers.spawn(connection.with_upgrades());
    let target = HttpProxy::target(host, port).unwrap_or_default();
    let host_header = HeaderValue::from_str(&target.to_string());
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.method_mut() = Method::CONNECT;
    let headers = request.headers_mut();
    headers.extend(host_header.ok().map(|value| (HOST, value)));
    let authorization = proxy.authorization.clone();
    headers.extend(authorization.map(|value| (PROXY_AUTHORIZATION, value)));
    *request.uri_mut() = target;
    let response = sender.send_request(request).await.map_err(exchange)?;
    if !response.status().is_success() {
        return Err(TransportError::Proxy(response.status()));
    }
    let tunnel = upgrade::on(response).await.map_err(exchange)?;
    Ok(Box::new(TokioIo::new(tunnel)))
}

impl HttpClient for HttpsClient {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, instant_acme::Error>> + Send>> {
        let client = self.clone();
        Box::pin(async move {
            let sent = timeout(REQUEST, client.send(request)).await;
            match sent.unwrap_or(Err(TransportError::Timeout)) {
                Ok(response) => {
                    client.refusals.record(&response.parts);
                    Ok(response)
                }
                Err(error) => {
                    client.refusals.clear();
                    Err(instant_acme::Error::Other(Box::new(error)))
                }
            }
        })
    }
}
