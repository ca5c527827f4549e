//! HTTPS client of the protocol engine: one connection per request, with limits.

use std::{future::Future, io, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Request, Uri, header::HOST, uri::InvalidUri};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use instant_acme::{BodyWrapper, BytesResponse, HttpClient};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::{net::TcpStream, task::JoinSet, time::timeout};
use tokio_rustls::TlsConnector;

use super::error::Refusals;

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
    refusals: Refusals,
}

impl HttpsClient {
    pub(super) fn new(tls: Arc<ClientConfig>, refusals: Refusals) -> Self {
        Self { tls, refusals }
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
        let socket = TcpStream::connect((host.as_str(), port))
            .await
            .map_err(connect)?;
        let connector = TlsConnector::from(self.tls.clone());
        let stream = connector.connect(name, socket).await.map_err(connect)?;
        let exchange = |error| TransportError::Exchange(peer.clone(), error);
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(exchange)?;
        // Ends with this request, or with its cancellation.
        let mut driver = JoinSet::new();
        driver.spawn(connection);

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
