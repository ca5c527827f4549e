//! Tests of the log of requests.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    io::{self, Write},
    sync::mpsc,
};

use jaco_net::ingress::{AccessLog, TrustedProxies};
use serde_json::{Value, json};

use super::*;

/// Passes on each line.
struct Lines(mpsc::Sender<String>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for line in std::str::from_utf8(bytes).unwrap().lines() {
            self.0.send(line.to_owned()).unwrap();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn requests_are_logged_without_their_secrets() {
    let (sender, lines) = mpsc::channel();
    let settings = Settings {
        access_log: Some(AccessLog::start(Lines(sender)).unwrap()),
        ..Settings::default()
    };
    let answering = replica(async |_| text("hello")).await;
    let fixture = ProxyFixture::start(settings);
    let table = RouteTable::new([rule([answering])]);
    fixture.proxy.swap(table.clone());
    let ask = async |host: &str, path: &str| {
        let request = Request::get(path)
            .header("host", host)
            .header("authorization", "Bearer secret")
            .header("cookie", "session=secret")
            .header("x-forwarded-for", "198.51.100.1, 203.0.113.5")
            .body(Empty::<Bytes>::new())
            .unwrap();
        let response = fixture.client().await.send(request).await;
        body(response).await;
        let line = lines.recv_timeout(TIMEOUT).unwrap();
        assert!(!line.contains("secret"), "{line}");
        let mut line: Value = serde_json::from_str(&line).unwrap();
        let object = line.as_object_mut().unwrap();
        assert!(object.remove("time").unwrap().is_string());
        assert!(object.remove("duration").unwrap().is_f64());
        line
    };
    assert_eq!(
        ask("a.example:8080", "/a%20b?token=secret").await,
        json!({
            "client": "127.0.0.1", "peer": "127.0.0.1", "method": "GET", "host": "a.example:8080",
            "path": "/a%20b", "status": 200, "bytes": 5, "proto": "http/1.1", "upstream": "web-0",
        })
    );
    let trusted = TrustedProxies::new([([127, 0, 0, 0].into(), 8)]);
    fixture.proxy.swap(table.trusting(trusted));
    assert_eq!(
        ask("unknown.example", "/").await,
        json!({
            "client": "203.0.113.5", "peer": "127.0.0.1", "method": "GET",
            "host": "unknown.example", "path": "/",
            "status": 404, "bytes": 0, "proto": "http/1.1", "upstream": null,
        })
    );
}
