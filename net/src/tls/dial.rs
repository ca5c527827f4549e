//! A TLS connection to a member of which only the CA's fingerprint is known.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use rustls::{
    CertificateError,
    client::danger::{ServerCertVerified, ServerCertVerifier},
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{Error, Trust, client, delegate_signatures, not_valid_before};
use crate::pki::Fingerprint;

/// Why the connection could not be established.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The address is invalid or unreachable, or the handshake failed.
    #[error("cannot be reached")]
    Unreachable(#[source] io::Error),
    /// The peer did not answer in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The presented chain does not contain the expected CA.
    #[error("the server's authority is {got}, not {expected}")]
    Authority {
        /// The pinned fingerprint.
        expected: Fingerprint,
        /// Fingerprint of the last certificate in the presented chain.
        got: Fingerprint,
    },
    /// The peer's certificate is not valid yet by the clock of this machine.
    #[error("the server's certificate is not valid yet")]
    NotValidYet {
        /// The beginning of its validity.
        not_before: SystemTime,
    },
    /// The TLS configuration is invalid.
    #[error(transparent)]
    Tls(#[from] Error),
}

/// Connects to `host` and `port` and completes the handshake within `budget`.
///
/// The chain must contain the certificate with fingerprint `authority`, and the leaf must verify
/// under it and match `host`. Nothing but the handshake was sent when this returns.
///
/// # Errors
/// [`DialError`]; the connection is closed then.
pub async fn dial(
    host: &str,
    port: u16,
    authority: Fingerprint,
    budget: Duration,
) -> Result<TlsStream<TcpStream>, DialError> {
    let seen = Arc::new(Mutex::new(None));
    let verifier = Arc::new(RecordingVerifier {
        inner: Trust::Fingerprint(authority).verifier()?,
        seen: seen.clone(),
    });
    let tls = TlsConnector::from(client(verifier)?);
    let connect = async {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        tls.connect(name, stream).await
    };
    let connected = tokio::time::timeout(budget, connect).await;
    let error = match connected.map_err(|_| DialError::Timeout(budget))? {
        Ok(stream) => return Ok(stream),
        Err(error) => error,
    };
    let cause = error.get_ref();
    let cause = cause.and_then(|error| error.downcast_ref::<rustls::Error>());
    if let Some(not_before) = cause.and_then(not_valid_before) {
        return Err(DialError::NotValidYet { not_before });
    }
    let unknown_issuer = cause.is_some_and(|error| {
        matches!(
            error,
            rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)
        )
    });
    let seen = *seen.lock().unwrap_or_else(PoisonError::into_inner);
    Err(match seen {
        Some(got) if unknown_issuer => DialError::Authority {
            expected: authority,
            got,
        },
        Some(_) | None => DialError::Unreachable(error),
    })
}

/// Delegates verification to `inner`, and records the fingerprint of the last certificate in the
/// chain.
#[derive(Debug)]
struct RecordingVerifier {
    inner: Arc<dyn ServerCertVerifier>,
    seen: Arc<Mutex<Option<Fingerprint>>>,
}

impl ServerCertVerifier for RecordingVerifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let last = Fingerprint::of(rest.last().unwrap_or(leaf));
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(last);
        self.inner.verify_server_cert(leaf, rest, name, ocsp, now)
    }

    delegate_signatures!(inner);
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::{
        pki::{ClusterCa, files::NodeFiles},
        tls::{CertSlot, Identity, api_server},
    };

    const BUDGET: Duration = Duration::from_secs(20);

    async fn serve(files: &NodeFiles) -> u16 {
        let slot = CertSlot::new(&Identity::node(files).unwrap());
        let acceptor = TlsAcceptor::from(api_server(slot).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = acceptor.accept(stream).await;
            }
        });
        port
    }

    #[tokio::test]
    async fn only_the_pinned_ca_is_accepted() {
        let now = SystemTime::now();
        let ca = ClusterCa::generate(now).unwrap();
        let other = ClusterCa::generate(now).unwrap();
        let local = [[127, 0, 0, 1].into()];
        let files = NodeFiles::bootstrap(&ca, "one", &local, now).unwrap();
        let port = serve(&files).await;
        let dial = |authority| dial("127.0.0.1", port, authority, BUDGET);

        dial(ca.fingerprint()).await.unwrap();
        match dial(other.fingerprint()).await {
            Err(DialError::Authority { expected, got }) => {
                assert_eq!((expected, got), (other.fingerprint(), ca.fingerprint()));
            }
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn certificate_of_the_future_is_named() {
        let now = SystemTime::now();
        let ca = ClusterCa::generate(now + Duration::from_secs(3600)).unwrap();
        let local = [[127, 0, 0, 1].into()];
        let files = NodeFiles::bootstrap(&ca, "one", &local, now).unwrap();
        let port = serve(&files).await;
        let refused = dial("127.0.0.1", port, ca.fingerprint(), BUDGET).await;
        match refused {
            Err(DialError::NotValidYet { not_before }) => assert!(not_before > now),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn wrong_hostname_is_not_reported_as_wrong_ca() {
        let now = SystemTime::now();
        let ca = ClusterCa::generate(now).unwrap();
        let files = NodeFiles::bootstrap(&ca, "one", &[], now).unwrap();
        let port = serve(&files).await;
        let refused = dial("127.0.0.1", port, ca.fingerprint(), BUDGET).await;
        assert!(matches!(refused, Err(DialError::Unreachable(_))));
    }
}
