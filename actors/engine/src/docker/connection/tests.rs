use std::sync::Mutex;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixListener,
};

use super::*;
use crate::error::ERROR_MAX;

/// Fake engine that responds with its version, and with an empty list to any other request.
#[derive(Clone, Default)]
struct Answering {
    /// Requested paths without their queries.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Answering {
    fn listen(&self, socket: &Path, version: &'static str) -> tokio::task::JoinHandle<()> {
        let listener = UnixListener::bind(socket).unwrap();
        let this = self.clone();
        tokio::spawn(async move {
            let mut served = tokio::task::JoinSet::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let this = this.clone();
                served.spawn(async move {
                    let mut request = Vec::new();
                    while stream.read_buf(&mut request).await.unwrap_or(0) > 0 {
                        let text = String::from_utf8_lossy(&request).into_owned();
                        let Some((head, _)) = text.split_once("\r\n\r\n") else {
                            continue;
                        };
                        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                        let body = if path.ends_with("/version") {
                            format!("{{\"ApiVersion\":\"{version}\"}}")
                        } else {
                            "[]".to_owned()
                        };
                        this.asked.lock().unwrap().push(path);
                        let answer = format!(
                            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\
                             Content-Length: {}\r\n\r\n{body}",
                            body.len()
                        );
                        stream.write_all(answer.as_bytes()).await.unwrap();
                        request.clear();
                    }
                });
            }
        })
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

async fn ask(connection: &Connection) -> Result<(), EngineError> {
    let answer = connection.client().await?.list_networks(None).await;
    connection.map_result(answer).map(drop)
}

async fn spoken(connection: &Connection) -> String {
    connection
        .client()
        .await
        .unwrap()
        .client_version()
        .to_string()
}

#[tokio::test]
async fn version_is_negotiated_again_with_a_new_engine() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("engine.sock");
    let connection = Connection::new(&socket);
    let error = ask(&connection).await.unwrap_err();
    assert!(matches!(error, EngineError::Unreachable(_)), "{error}");

    let engine = Answering::default();
    let old = engine.listen(&socket, "1.41");
    for _ in 0..2 {
        ask(&connection).await.unwrap();
    }
    assert_eq!(engine.take(), ["/version", "/networks", "/networks"]);
    assert_eq!(spoken(&connection).await, "1.41");

    old.abort();
    let _ = old.await;
    std::fs::remove_file(&socket).unwrap();
    let error = ask(&connection).await.unwrap_err();
    assert!(matches!(error, EngineError::Unreachable(_)), "{error}");

    let _new = engine.listen(&socket, "1.40");
    ask(&connection).await.unwrap();
    assert_eq!(spoken(&connection).await, "1.40");
}

#[tokio::test]
async fn unreachable_engine_error_includes_causes() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("engine.sock");
    // The socket exists, but has no listener.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let error = ask(&Connection::new(&socket)).await.unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
}

#[test]
fn responses_map_to_engine_errors() {
    let server = |status_code| Error::DockerResponseServerError {
        status_code,
        message: "why".into(),
    };
    let why = || "why".to_owned();
    for (status, error) in [
        (404, EngineError::NotFound(why())),
        (409, EngineError::Conflict(why())),
        (
            500,
            EngineError::Api {
                status: 500,
                message: why(),
            },
        ),
    ] {
        assert_eq!(EngineError::from(server(status)), error);
    }
    let timeout = EngineError::from(Error::RequestTimeoutError);
    assert!(matches!(timeout, EngineError::Unreachable(_)), "{timeout}");
}

#[test]
fn error_text_is_bounded_without_control_characters() {
    let page = format!("bad \u{1b}[31m\n{}", "ä".repeat(ERROR_MAX));
    let shown = EngineError::from(Error::DockerStreamError { error: page }).to_string();
    assert!(shown.starts_with("bad  [31m ä"), "{shown}");
    assert!(shown.len() <= ERROR_MAX + '…'.len_utf8() && shown.ends_with('…'));
}
