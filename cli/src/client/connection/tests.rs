use std::{net::SocketAddr, time::SystemTime};

use futures::StreamExt;
use jaco_net::{
    pki::{BootstrapCert, Fingerprint},
    tls::{CertSlot, Identity, Trust, api_server},
};
use jaco_proto::{Error, ErrorCode, secret::SecretString, v1, v1::deploy_client::DeployClient};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;

use super::*;
use crate::client::fake::{Fake, Service};

const DEADLINE: Duration = Duration::from_secs(30);

/// A fake daemon behind TLS.
struct Remote {
    service: Service,
    address: SocketAddr,
    fingerprint: Fingerprint,
    ca_pem: String,
    task: tokio::task::JoinHandle<()>,
}

impl Remote {
    async fn start() -> Self {
        let now = SystemTime::now();
        let cert = BootstrapCert::generate("node", &["127.0.0.1".parse().unwrap()], now).unwrap();
        let config = api_server(CertSlot::new(&Identity::bootstrap(&cert).unwrap())).unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(config);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        // A failed handshake ends only its connection.
        let incoming = TcpListenerStream::new(listener).filter_map(move |stream| {
            let acceptor = acceptor.clone();
            async move {
                acceptor
                    .accept(stream.ok()?)
                    .await
                    .ok()
                    .map(Ok::<_, std::io::Error>)
            }
        });
        let service = Service::default();
        let router = service.router();
        let task = tokio::spawn(async move {
            router
                .serve_with_incoming(Box::pin(incoming))
                .await
                .unwrap();
        });
        Self {
            service,
            address,
            fingerprint: cert.fingerprint(),
            ca_pem: cert.cert_pem().to_owned(),
            task,
        }
    }

    fn address(&self) -> HostPort {
        HostPort {
            host: self.address.ip().to_string(),
            port: self.address.port(),
        }
    }

    fn client(&self, trust: Trust) -> Client {
        client(vec![self.address()], trust)
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn client(addresses: Vec<HostPort>, trust: Trust) -> Client {
    let token = Some(SecretString::new("sesame".to_owned()));
    Client::new(
        Target::Remote {
            addresses,
            token,
            trust,
        },
        false,
    )
    .unwrap()
}

/// An address without a listener.
async fn unused_address() -> HostPort {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    HostPort {
        host: "127.0.0.1".to_owned(),
        port: listener.local_addr().unwrap().port(),
    }
}

async fn rollback(client: &Client) -> Result<u64, Failure> {
    let call = async |connection| {
        let request = v1::RollbackRequest {
            deployment: "app".to_owned(),
        };
        DeployClient::new(connection).rollback(request).await
    };
    client
        .unary(DEADLINE, call)
        .await
        .map(|response| response.revision)
}

#[tokio::test]
async fn socket_needs_no_token() {
    let server = Fake::start().await;
    assert_eq!(rollback(&server.client()).await.unwrap(), 4);
    assert!(server.client().is_local());
}

#[tokio::test]
async fn pinned_server_receives_the_token() {
    let remote = Remote::start().await;
    for trust in [
        Trust::Ca(remote.ca_pem.clone()),
        Trust::Fingerprint(remote.fingerprint),
        Trust::CaAndFingerprint(remote.ca_pem.clone(), remote.fingerprint),
    ] {
        let client = remote.client(trust);
        assert_eq!(rollback(&client).await.unwrap(), 4);
        assert!(!client.is_local());
    }
    let sent = remote.service.authorization();
    assert_eq!(sent, vec![Some("Bearer sesame".to_owned()); 3]);
}

#[tokio::test]
async fn unverified_server_never_receives_the_token() {
    let (remote, other) = (Remote::start().await, Remote::start().await);
    for trust in [
        Trust::Ca(other.ca_pem.clone()),
        Trust::Fingerprint(other.fingerprint),
        Trust::CaAndFingerprint(remote.ca_pem.clone(), other.fingerprint),
    ] {
        let failure = rollback(&remote.client(trust)).await.unwrap_err();
        assert_eq!(failure.code, "unavailable");
        assert!(
            failure.message.contains(&remote.address.to_string()),
            "{}",
            failure.message
        );
    }
    assert!(remote.service.authorization().is_empty());
}

#[tokio::test]
async fn call_moves_on_from_down_or_leaderless_address() {
    let remote = Remote::start().await;
    let trust = Trust::Fingerprint(remote.fingerprint);
    let down = client(vec![unused_address().await, remote.address()], trust);
    assert_eq!(rollback(&down).await.unwrap(), 4);

    // A server without a leader, which refuses every call.
    let leaderless = Remote::start().await;
    leaderless.service.script(|script| {
        script.refuse = Some(Error::new(ErrorCode::NoLeader, "an election is going on"));
    });
    let pins = format!("{}\n{}", leaderless.ca_pem, remote.ca_pem);
    let both = client(
        vec![leaderless.address(), remote.address()],
        Trust::Ca(pins),
    );
    assert_eq!(rollback(&both).await.unwrap(), 4);
    assert_eq!(leaderless.service.authorization().len(), 1);
    // Later calls start at the address that answered.
    assert_eq!(rollback(&both).await.unwrap(), 4);
    assert_eq!(leaderless.service.authorization().len(), 1);
}

#[tokio::test]
async fn definite_failure_is_not_retried() {
    let (first, second) = (Remote::start().await, Remote::start().await);
    first.service.script(|script| {
        script.refuse = Some(Error::new(ErrorCode::DeploymentNotFound, "no app"));
    });
    let pins = format!("{}\n{}", first.ca_pem, second.ca_pem);
    let both = client(vec![first.address(), second.address()], Trust::Ca(pins));
    assert_eq!(
        rollback(&both).await.unwrap_err().code,
        "deployment_not_found"
    );
    assert!(second.service.authorization().is_empty());
}

#[tokio::test]
async fn failure_names_every_unreachable_address() {
    let remote = Remote::start().await;
    let (a, b) = (unused_address().await, unused_address().await);
    let trust = Trust::Fingerprint(remote.fingerprint);
    let failure = rollback(&client(vec![a.clone(), b.clone()], trust.clone()))
        .await
        .unwrap_err();
    assert_eq!(failure.code, "unavailable");
    assert!(
        failure.message.starts_with("all endpoints unreachable: "),
        "{}",
        failure.message
    );
    for address in [&a, &b] {
        assert!(
            failure.message.contains(&address.to_string()),
            "{}",
            failure.message
        );
    }
    let one = rollback(&client(vec![a.clone()], trust)).await.unwrap_err();
    assert!(
        one.message.starts_with(&format!("connect to {a}: ")),
        "{}",
        one.message
    );
}

#[tokio::test]
async fn failure_of_single_daemon_is_unchanged() {
    let server = Fake::start().await;
    server.script(|script| {
        script.refuse = Some(Error::new(
            ErrorCode::ClusterUninitialized,
            "no cluster yet",
        ));
    });
    let failure = rollback(&server.client()).await.unwrap_err();
    assert_eq!(
        (failure.code.as_str(), failure.message.as_str()),
        ("cluster_uninitialized", "no cluster yet")
    );
}

#[tokio::test]
async fn missing_answer_is_a_deadline_failure() {
    let server = Fake::start().await;
    let never = async |_connection| std::future::pending::<Result<Response<()>, Status>>().await;
    let result = server
        .client()
        .unary(Duration::from_millis(20), never)
        .await;
    assert_eq!(result.unwrap_err().code, "deadline_exceeded");

    let work = std::future::pending::<Result<(), Stop>>();
    let result = within(Some(Duration::from_millis(20)), work).await;
    assert!(matches!(result, Err(Stop::Failed(f)) if f.code == "deadline_exceeded"));
}

#[tokio::test]
async fn consistent_read_sends_the_linearizable_header() {
    let server = Fake::start().await;
    for consistent in [false, true] {
        rollback(&server.client_with(consistent)).await.unwrap();
    }
    assert_eq!(server.reads(), [None, Some("linearizable".to_owned())]);
}

#[test]
fn invalid_token_is_refused_without_showing_it() {
    let target = Target::Remote {
        addresses: vec![HostPort::endpoint("h:1").unwrap()],
        token: Some(SecretString::new("se\nsame".to_owned())),
        trust: Trust::Fingerprint(Fingerprint::of(b"")),
    };
    let failure = Client::new(target, false).err().unwrap();
    assert_eq!(failure.code, "usage_error");
    assert!(!failure.message.contains("same"));
}

#[test]
fn chain_lists_each_cause_once() {
    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] Inner);
    #[derive(Debug, thiserror::Error)]
    #[error("outer: inner")]
    struct Inner(#[source] std::io::Error);
    let error = Outer(Inner(std::io::Error::other("inner")));
    assert_eq!(chain(&error), "outer: outer: inner");
}
