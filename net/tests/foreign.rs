//! Tests HTTP/3 with a client in another language: that of the other tests shares its library with
//! the server.
//!
//! Needs `python3` with `venv`. The client's packages are installed once, under
//! `$JACO_CACHE_DIR` (default `~/.cache/jaco`).

use std::{
    convert::Infallible,
    env,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::Arc,
};

use http::{Request, Response};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use jaco_net::ingress::{
    Certificates, DatagramSockets, Proxy, RouteTable, Rule, Settings, Upstream, certified_key,
};
use jaco_proto::secret::SecretString;
use tokio::net::TcpListener;

const PACKAGE: &str = "aioquic";
const CHECKS: usize = 6;

/// A replica that sends each body back.
async fn echo() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("its address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = service_fn(async |request: Request<Incoming>| {
                Ok::<_, Infallible>(Response::new(request.into_body()))
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    addr
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_client_speaks_http3() {
    let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
    let key = SecretString::from(made.signing_key.serialize_pem());
    let certificate = certified_key(&made.cert.pem(), &key).unwrap();
    let proxy = Proxy::new(Settings::default());
    let named = [("a.example".to_owned(), certificate)];
    proxy.certificates().swap(Certificates::new(named));
    proxy.swap(RouteTable::new([Rule {
        domain: "a.example".to_owned(),
        upstreams: vec![Upstream {
            replica: Arc::from("web-0"),
            addr: echo().await,
            fresh_until: None,
            leaving: false,
        }],
        ..Rule::default()
    }]));
    let sockets = DatagramSockets::bind(([127, 0, 0, 1], 0).into(), proxy.workers()).unwrap();
    let port = sockets.local_addr().port();
    proxy.listen_http3(sockets).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.pem");
    std::fs::write(&ca, made.cert.pem()).unwrap();

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign/client.py");
    let output = tokio::task::spawn_blocking(move || {
        run(Command::new(client_python())
            .arg(script)
            .arg(port.to_string())
            .arg(ca))
    })
    .await
    .unwrap();

    let seen = String::from_utf8_lossy(&output.stdout);
    let passed = seen.lines().filter(|line| line.starts_with("ok ")).count();
    assert_eq!(passed, CHECKS, "{seen}");
}

/// Returns the interpreter of an environment with the client's package, created on first use.
fn client_python() -> PathBuf {
    let environment = cache_dir().join("aioquic-venv");
    let python = environment.join("bin/python3");
    let usable = Command::new(&python)
        .args(["-c", "import aioquic.h3.connection"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !usable {
        run(Command::new("python3")
            .args(["-m", "venv", "--clear"])
            .arg(&environment));
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet", PACKAGE]));
    }
    python
}

fn cache_dir() -> PathBuf {
    match env::var_os("JACO_CACHE_DIR") {
        Some(dir) => dir.into(),
        None => Path::new(&env::var_os("HOME").expect("HOME")).join(".cache/jaco"),
    }
}

fn run(command: &mut Command) -> Output {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    output
}
