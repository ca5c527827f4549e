//! Requests of HTTP clients to the ingress, well-formed and malformed.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use anyhow::Result;
use jaco_chaos::{until, wait::PATIENCE};

use super::Scene;

impl Scene {
    pub(in crate::secrets) async fn sends_requests(&mut self) -> Result<()> {
        let [query, cookie, bearer, basic, body] =
            ["query", "cookie", "bearer", "basic", "body"].map(|name| self.markers.plant(name));
        let port = self.daemon.http_port();
        until("the ingress listens", PATIENCE, || async {
            TcpStream::connect(("127.0.0.1", port)).map(drop)
        })
        .await?;
        let headers = |host: &str| {
            format!(
                "host: {host}\r\ncookie: session={cookie}\r\nauthorization: Bearer {bearer}\r\n\
                 proxy-authorization: Basic {basic}\r\nconnection: close\r\n"
            )
        };
        let post = format!(
            "POST /f?q={query} HTTP/1.1\r\n{}content-length: {}\r\n\r\n{body}",
            headers("a.example"),
            body.len()
        );
        for request in [
            format!(
                "GET /?token={query} HTTP/1.1\r\n{}\r\n",
                headers("a.example")
            ),
            format!(
                "GET /?token={query} HTTP/1.1\r\n{}\r\n",
                headers("nobody.example")
            ),
            format!(
                "GET /?token={query} HTTP/9.9\r\n{}\r\n",
                headers("a.example")
            ),
            format!(
                "GET /?token={query} HTTP/1.1\r\n{}broken {cookie}\r\n\r\n",
                headers("a.example")
            ),
            format!(
                "GET ws://a.example/?q={query} HTTP/1.1\r\n{}upgrade: websocket\r\n\r\n",
                headers("a.example")
            ),
            post,
            format!(
                "POST /?{query} HTTP/1.1\r\n{}content-length: 9999\r\n\r\n{body}",
                headers("a.example")
            ),
        ] {
            let mut stream = TcpStream::connect(("127.0.0.1", port))?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(request.as_bytes())?;
            let half = request.contains("9999");
            if !half {
                // The response is the container's, or an error of the ingress.
                let _ = stream.read_to_end(&mut Vec::new());
            }
        }
        Ok(())
    }
}
