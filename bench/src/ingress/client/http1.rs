//! HTTP/1.1 with little work per request, since clients and proxies share the processors.

use anyhow::{Context as _, Result, ensure};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::{HOST, Resource};

/// Longest head of a response, and the bytes read at a time.
const BUFFER: usize = 64 * 1024;

/// A connection.
pub struct Http1<S> {
    stream: S,
    buffer: Box<[u8]>,
    /// The header with the cookie that the server has set.
    cookie: String,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Http1<S> {
    pub(super) fn new(stream: S) -> Self {
        Self {
            stream,
            buffer: Box::default(),
            cookie: String::new(),
        }
    }

    pub(super) async fn get(&mut self, resource: Resource, last: bool) -> Result<()> {
        if self.buffer.is_empty() {
            self.buffer = vec![0; BUFFER].into();
        }
        let connection = if last { "Connection: close\r\n" } else { "" };
        let (path, cookie) = (resource.path, &self.cookie);
        let request = format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\n{cookie}{connection}\r\n");
        self.stream.write_all(request.as_bytes()).await?;
        self.stream.flush().await?;
        let (mut filled, mut head) = (0, None);
        while head.is_none() {
            let free = self.buffer.get_mut(filled..).unwrap_or_default();
            let count = self.stream.read(free).await?;
            ensure!(count > 0, "the connection ended in the head of a response");
            filled += count;
            head = self.buffer[..filled]
                .windows(4)
                .position(|end| end == b"\r\n\r\n");
        }
        let head = head.context("head")?;
        let Head { length, cookie } = Head::parse(&self.buffer[..head])?;
        if let Some(cookie) = cookie {
            self.cookie = format!("Cookie: {cookie}\r\n");
        }
        ensure!(length == resource.length, "a response has {length} bytes");
        let mut body = filled - head - 4;
        while body < length {
            let count = self.stream.read(&mut self.buffer).await?;
            ensure!(count > 0, "the connection ended in a body");
            body += count;
        }
        ensure!(body == length, "{} bytes follow a response", body - length);
        if last {
            // A TLS peer may leave out the alert; the response was complete by its length.
            let rest = self.stream.read(&mut self.buffer).await.unwrap_or_default();
            ensure!(rest == 0, "{rest} bytes follow the last response");
        }
        Ok(())
    }

    /// Releases the memory that only a request in progress needs.
    pub fn rest(&mut self) {
        self.buffer = Box::default();
    }
}

/// The head of a response whose status is 200.
struct Head<'a> {
    length: usize,
    cookie: Option<&'a str>,
}

impl<'a> Head<'a> {
    fn parse(head: &'a [u8]) -> Result<Self> {
        let head = std::str::from_utf8(head)?;
        let mut lines = head.split("\r\n");
        let status = lines.next().context("status")?;
        ensure!(status.split(' ').nth(1) == Some("200"), "status: {status}");
        let (mut length, mut cookie) = (None, None);
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            if name.eq_ignore_ascii_case("content-length") {
                length = Some(value.trim().parse()?);
            } else if name.eq_ignore_ascii_case("set-cookie") {
                cookie = value.trim().split(';').next();
            }
        }
        let length = length.context("no content-length")?;
        Ok(Self { length, cookie })
    }
}
