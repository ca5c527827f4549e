//! A directory with renewal information (RFC 9773): pebble, behind a server that adds it.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::{
    Request, Response, StatusCode,
    header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER},
};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, client, server, service::service_fn};
use hyper_util::rt::TokioIo;
use jaco_net::acme::Directory;
use rustls::{ClientConfig, RootCertStore, ServerConfig, crypto::ring};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::lab::{DIRECTORY_PORT, Pebble};

const PORT: u16 = 14010;
const RENEWAL_INFO: &str = "/renewal-info";
/// Seconds after which to ask again.
pub(crate) const ASK_AGAIN: u64 = 21_600;

/// Treatment of the name of a replaced certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewals {
    /// Confirms it, as the RFC asks.
    Confirmed,
    /// Leaves it out of its answer.
    Ignored,
    /// Refuses it with this type of problem.
    Refused(&'static str, u16),
}

/// The running server; it ends with this value.
pub(crate) struct Front {
    shared: Arc<Shared>,
    directory: Directory,
    server: JoinHandle<()>,
}

struct Shared {
    pebble: std::net::Ipv4Addr,
    host: String,
    connector: TlsConnector,
    renewals: Renewals,
    /// Names of replaced certificates in the orders that were asked for.
    orders: Mutex<Vec<Option<String>>>,
}

impl Drop for Front {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Front {
    pub(crate) async fn start(pebble: &Pebble, renewals: Renewals) -> Self {
        let (address, root) = (pebble.address, pebble.root.as_bytes());
        let chain: Vec<_> = CertificateDer::pem_slice_iter(root)
            .collect::<Result<_, _>>()
            .unwrap();
        let key = std::fs::read(pebble.dir.path().join("server.key")).unwrap();
        let provider = Arc::new(ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(chain[0].clone()).unwrap();
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, PrivateKeyDer::from_pem_slice(&key).unwrap())
            .unwrap();
        let shared = Arc::new(Shared {
            pebble: address,
            host: format!("{address}:{PORT}"),
            connector: TlsConnector::from(Arc::new(client)),
            renewals,
            orders: Mutex::default(),
        });
        let listener = TcpListener::bind((address, PORT)).await.unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let serving = Arc::clone(&shared);
        let server = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (acceptor, serving) = (acceptor.clone(), Arc::clone(&serving));
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(socket).await else {
                        return;
                    };
                    let service = service_fn(|request| {
                        let serving = Arc::clone(&serving);
                        async move { Ok::<_, Infallible>(serving.answer(request).await) }
                    });
                    // The client may hang up.
                    let _ = server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        let url = format!("https://{address}:{PORT}/dir");
        let directory = Directory::new(&url, Some(&pebble.root)).unwrap();
        Self {
            shared,
            directory,
            server,
        }
    }

    pub(crate) fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Names of replaced certificates in the orders since the last call.
    pub(crate) fn orders(&self) -> Vec<Option<String>> {
        std::mem::take(&mut self.shared.orders.lock().unwrap())
    }
}

impl Shared {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path().to_owned();
        if path.starts_with(RENEWAL_INFO) {
            let window = json!({"start": "2030-01-01T00:00:00Z", "end": "2030-01-02T00:00:00Z"});
            let mut response = Response::new(body(&json!({"suggestedWindow": window})));
            response.headers_mut().insert(RETRY_AFTER, ASK_AGAIN.into());
            return response;
        }
        let (parts, sent) = request.into_parts();
        let sent = sent.collect().await.unwrap().to_bytes();
        let mut replaces = None;
        if path == "/order-plz" {
            replaces = payload(&sent)["replaces"].as_str().map(str::to_owned);
            self.orders.lock().unwrap().push(replaces.clone());
        }
        if let (Some(_), Renewals::Refused(kind, status)) = (&replaces, self.renewals) {
            let kind = format!("urn:ietf:params:acme:error:{kind}");
            let mut response = Response::new(body(&json!({"type": kind, "detail": "no"})));
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            let problem = "application/problem+json".parse().unwrap();
            response.headers_mut().insert(CONTENT_TYPE, problem);
            return response;
        }
        let (mut head, received) = self
            .forward(Request::from_parts(parts, Full::new(sent)))
            .await;
        let confirmed = replaces.filter(|_| self.renewals == Renewals::Confirmed);
        let changed = match serde_json::from_slice::<Value>(&received) {
            Ok(mut value) if path == "/dir" => {
                value["renewalInfo"] = format!("https://{}{RENEWAL_INFO}", self.host).into();
                body(&value)
            }
            Ok(mut value) if confirmed.is_some() && head.status.is_success() => {
                value["replaces"] = confirmed.into();
                body(&value)
            }
            Ok(_) | Err(_) => Full::new(received),
        };
        head.headers.remove(CONTENT_LENGTH);
        Response::from_parts(head, changed)
    }

    /// Passes a request on to pebble, which builds its addresses from the host that was asked.
    async fn forward(&self, request: Request<Full<Bytes>>) -> (http::response::Parts, Bytes) {
        let socket = TcpStream::connect((self.pebble, DIRECTORY_PORT))
            .await
            .unwrap();
        let name = ServerName::try_from(self.pebble.to_string()).unwrap();
        let stream = self.connector.connect(name, socket).await.unwrap();
        let (mut sender, connection) = client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        let driver = tokio::spawn(connection);
        let response = sender.send_request(request).await.unwrap();
        let (head, received) = response.into_parts();
        let received = received.collect().await.unwrap().to_bytes();
        driver.abort();
        (head, received)
    }
}

fn body(value: &Value) -> Full<Bytes> {
    Full::new(value.to_string().into())
}

/// Payload of a signed request.
fn payload(sent: &[u8]) -> Value {
    let signed: Value = serde_json::from_slice(sent).unwrap();
    let encoded = signed["payload"].as_str().unwrap();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(encoded).unwrap()).unwrap()
}
