//! Tests our server with a client in another language: the wire format must suit any gRPC peer, not
//! only our own library.
//!
//! Needs `python3` with `venv`. The client's packages are installed once, under
//! `$JACO_CACHE_DIR` (default `~/.cache/jaco`).

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use futures::{StreamExt, stream, stream::BoxStream};
use jaco_proto::{
    Error, ErrorCode, FILE_DESCRIPTOR_SET,
    v1::{
        ApplyRequest, ApplyResponse, ControlRolloutRequest, ControlRolloutResponse, DeleteRequest,
        DeleteResponse, DeployStatusRequest, DeployStatusResponse, Deployment, GetReplicasRequest,
        GetReplicasResponse, GetRouteRequest, GetRouteResponse, LogLine, LogsRequest,
        ReplicaObserved, RollbackRequest, RollbackResponse, ServiceSpec, SetTlsRequest,
        SetTlsResponse,
        deploy_server::{Deploy, DeployServer},
    },
};
use prost_types::Timestamp;
use tokio::net::{TcpListener, UnixListener};
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tonic::{Request, Response, Status, transport::Server};

const PACKAGES: [&str; 3] = ["grpcio", "grpcio-status", "protobuf"];
const IMPORTS: &str = "import grpc, grpc_status, google.protobuf";
const CHECKS: usize = 7;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_client_sees_messages_errors_and_metadata() {
    let dir = tempfile::tempdir().unwrap();
    let descriptors = dir.path().join("descriptors.bin");
    std::fs::write(&descriptors, FILE_DESCRIPTOR_SET).unwrap();
    let socket = dir.path().join("jaco.sock");
    let unix = UnixListener::bind(&socket).unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = tcp.local_addr().unwrap();
    tokio::spawn(server().serve_with_incoming(UnixListenerStream::new(unix)));
    tokio::spawn(server().serve_with_incoming(TcpListenerStream::new(tcp)));

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign/client.py");
    let targets = [format!("unix:{}", socket.display()), address.to_string()];
    let output = tokio::task::spawn_blocking(move || {
        run(Command::new(client_python())
            .arg(script)
            .arg(descriptors)
            .args(targets))
    })
    .await
    .unwrap();

    let seen = String::from_utf8_lossy(&output.stdout);
    let passed = seen.lines().filter(|line| line.starts_with("ok ")).count();
    assert_eq!(passed, CHECKS * 2, "{seen}");
}

fn server() -> tonic::transport::server::Router {
    Server::builder().add_service(DeployServer::new(Fixture))
}

/// Returns one fixed outcome per method.
struct Fixture;

#[tonic::async_trait]
impl Deploy for Fixture {
    type LogsStream = BoxStream<'static, Result<LogLine, Status>>;

    async fn apply(
        &self,
        request: Request<ApplyRequest>,
    ) -> Result<Response<ApplyResponse>, Status> {
        let request = request.into_inner();
        assert!(request.dry_run);
        assert_eq!(request.jaco_yaml, [0x00, 0xff]);
        let error = Error::new(ErrorCode::ReservedPort, "port 80 belongs to the ingress")
            .with("service", "web")
            .with("port", 80)
            .with("entry", "80:8080");
        Err(error.into())
    }

    async fn rollback(
        &self,
        request: Request<RollbackRequest>,
    ) -> Result<Response<RollbackResponse>, Status> {
        let name = request.into_inner().deployment;
        let text = format!("no deployment {name} → 100 %");
        let error = Error::new(ErrorCode::DeploymentNotFound, text).with("deployment", name);
        Err(error.into())
    }

    async fn delete(
        &self,
        request: Request<DeleteRequest>,
    ) -> Result<Response<DeleteResponse>, Status> {
        let mut response = Response::new(DeleteResponse {});
        for (from, to) in [
            ("authorization", "seen-authorization"),
            ("x-request-id", "x-request-id"),
        ] {
            if let Some(value) = request.metadata().get(from) {
                response.metadata_mut().insert(to, value.clone());
            }
        }
        Ok(response)
    }

    async fn status(
        &self,
        _request: Request<DeployStatusRequest>,
    ) -> Result<Response<DeployStatusResponse>, Status> {
        let details = [("b", "2"), ("a", "1")];
        let deployment = Deployment {
            name: "shop".to_owned(),
            highest_revision: 7,
            status_details: details
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            services: vec![ServiceSpec {
                hosts: vec!["h1".to_owned(), "h2".to_owned()],
                ..Default::default()
            }],
            ..Default::default()
        };
        let replica = ReplicaObserved {
            state: 4321,
            started_at: Some(Timestamp {
                seconds: 1,
                nanos: 999_999_999,
            }),
            ..Default::default()
        };
        Ok(Response::new(DeployStatusResponse {
            deployments: vec![deployment],
            replicas: vec![replica],
            ..Default::default()
        }))
    }

    async fn logs(
        &self,
        request: Request<LogsRequest>,
    ) -> Result<Response<Self::LogsStream>, Status> {
        if !request.into_inner().follow {
            return Err(Error::new(ErrorCode::NoLeader, "no leader").into());
        }
        let broken = Error::new(ErrorCode::LogsStream, "stream of b broke").with("host", "b");
        let items = [
            Ok(log_line("one", 1, 5)),
            Ok(log_line("two", 2, 6)),
            Err(broken.into()),
        ];
        Ok(Response::new(stream::iter(items).boxed()))
    }

    async fn get_replicas(
        &self,
        _request: Request<GetReplicasRequest>,
    ) -> Result<Response<GetReplicasResponse>, Status> {
        Ok(Response::new(GetReplicasResponse::default()))
    }

    async fn get_route(
        &self,
        _request: Request<GetRouteRequest>,
    ) -> Result<Response<GetRouteResponse>, Status> {
        let mut error = Error::new(ErrorCode::ValidationFailed, "x".repeat(1 << 20));
        for index in 0..100 {
            error = error.with(format!("key{index}"), "y".repeat(1 << 12));
        }
        Err(error.into())
    }

    async fn set_tls(
        &self,
        _request: Request<SetTlsRequest>,
    ) -> Result<Response<SetTlsResponse>, Status> {
        Err(Status::unimplemented("not called"))
    }

    async fn control_rollout(
        &self,
        _request: Request<ControlRolloutRequest>,
    ) -> Result<Response<ControlRolloutResponse>, Status> {
        Err(Status::unimplemented("not called"))
    }
}

fn log_line(line: &str, seconds: i64, nanos: i32) -> LogLine {
    LogLine {
        line: line.to_owned(),
        ts: Some(Timestamp { seconds, nanos }),
        ..Default::default()
    }
}

/// Returns the interpreter of an environment with the client's packages, created on first use.
fn client_python() -> PathBuf {
    let environment = cache_dir().join("grpcio-venv");
    let python = environment.join("bin/python3");
    let usable = Command::new(&python)
        .args(["-c", IMPORTS])
        .output()
        .is_ok_and(|output| output.status.success());
    if !usable {
        run(Command::new("python3")
            .args(["-m", "venv", "--clear"])
            .arg(&environment));
        run(Command::new(&python)
            .args(["-m", "pip", "install", "--quiet"])
            .args(PACKAGES));
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
