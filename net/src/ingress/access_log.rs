//! The log of requests: one JSON object per line.
//!
//! Workers hand over what they know and never wait: a thread of its own formats and writes. When it
//! falls behind, requests are left out and counted. A line holds no header field, no query string
//! and nothing of a body, since these may be secret.

mod file;

use std::{
    io::{self, BufWriter, Write},
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::SystemTime,
};

use http::{Method, Request, Version};
use serde_json::json;

pub use self::file::RotatedFile;
use super::{
    Finished, active::WorkerTable, body::ClientBody, client_address::ClientAddress,
    connection::Connection,
};

/// Requests that wait to be written; with the limits of their texts this bounds the memory.
const QUEUE: usize = 4096;
/// Longest host and path in a line, in bytes; the rest is cut off.
const MAX_HOST: usize = 255;
const MAX_PATH: usize = 1024;

/// The log of requests; clones share it. Its thread ends with the last clone.
#[derive(Clone, Debug)]
pub struct AccessLog(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    entries: SyncSender<Entry>,
    dropped: Arc<AtomicU64>,
}

impl AccessLog {
    /// Starts a thread that writes lines to `sink`.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(sink: impl Write + Send + 'static) -> io::Result<Self> {
        let (entries, received) = sync_channel(QUEUE);
        let dropped = Arc::new(AtomicU64::new(0));
        let lost = dropped.clone();
        thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(move || write_all(&received, sink, &lost))?;
        Ok(Self(Arc::new(Shared { entries, dropped })))
    }

    /// Number of requests that were not written, because the queue was full or writing failed.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    fn record(&self, entry: Entry) {
        if self.0.entries.try_send(entry).is_err() {
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// One finished request.
#[derive(Debug)]
struct Entry {
    at: SystemTime,
    client: IpAddr,
    peer: IpAddr,
    method: Method,
    host: String,
    path: String,
    bytes: u64,
    replica: Option<Arc<str>>,
    finished: Finished,
}

/// A request that will be logged.
pub(super) struct Logged {
    log: AccessLog,
    at: SystemTime,
    /// Address that the request is attributed to; behind a trusted proxy not the peer's.
    client: IpAddr,
    /// Address of the other end of the connection.
    peer: IpAddr,
    method: Method,
    host: String,
    path: String,
    /// Bytes of the body of the response that were sent.
    pub(super) bytes: u64,
    /// The replica that answers.
    pub(super) replica: Option<Arc<str>>,
}

impl Logged {
    /// Notes what is known when the head of a request has arrived.
    pub(super) fn new(
        log: &AccessLog,
        connection: &Connection,
        table: &WorkerTable,
        request: &Request<ClientBody>,
    ) -> Self {
        let (peer, trusted) = (connection.peer_ip, table.0.table.trusted_proxies());
        let client = ClientAddress::find(peer, request.headers(), trusted);
        let authority = request
            .uri()
            .authority()
            .map(|authority| authority.as_str());
        let field = request.headers().get(http::header::HOST);
        let host = authority.or_else(|| field.and_then(|host| host.to_str().ok()));
        // Only the name of a user could stand before it, and that may come with a password.
        let host = host.and_then(|host| host.rsplit('@').next());
        Self {
            log: log.clone(),
            at: (connection.worker.shared.settings.wall_clock)(),
            client: client.address,
            peer,
            method: request.method().clone(),
            host: cut(host.unwrap_or_default(), MAX_HOST),
            path: cut(request.uri().path(), MAX_PATH),
            bytes: 0,
            replica: None,
        }
    }

    /// Hands the request over when its response has ended.
    pub(super) fn write(self, finished: &Finished) {
        self.log.record(Entry {
            at: self.at,
            client: self.client,
            peer: self.peer,
            method: self.method,
            host: self.host,
            path: self.path,
            bytes: self.bytes,
            replica: self.replica,
            finished: *finished,
        });
    }
}

fn cut(text: &str, limit: usize) -> String {
    let mut end = limit.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// Writes until the last handle is gone; flushes when nothing waits.
fn write_all(entries: &Receiver<Entry>, sink: impl Write, lost: &AtomicU64) {
    let mut sink = BufWriter::with_capacity(64 * 1024, sink);
    let mut failing = false;
    while let Ok(first) = entries.recv() {
        let mut count = 0;
        let mut batch = std::iter::once(first).chain(entries.try_iter());
        let written = batch.try_for_each(|entry| {
            count += 1;
            sink.write_all(&line(&entry))
        });
        let Err(why) = written.and_then(|()| sink.flush()) else {
            failing = false;
            continue;
        };
        lost.fetch_add(count, Ordering::Relaxed);
        if !failing {
            tracing::error!(subsystem = "ingress", error = %why, "failed to write the log of requests");
        }
        failing = true;
        // The rest of the buffer might begin in the middle of a line.
        let (inner, _) = sink.into_parts();
        sink = BufWriter::with_capacity(64 * 1024, inner);
    }
}

fn line(entry: &Entry) -> Vec<u8> {
    let proto = match entry.finished.version {
        Version::HTTP_09 | Version::HTTP_10 => "http/1.0",
        Version::HTTP_2 => "http/2",
        Version::HTTP_3 => "http/3",
        _ => "http/1.1", // the type is not exhaustive
    };
    let took = entry.finished.took.map(|took| took.as_secs_f64());
    let object = json!({
        "time": time(entry.at),
        "client": entry.client.to_string(),
        "peer": entry.peer.to_string(),
        "method": entry.method.as_str(),
        "host": entry.host,
        "path": entry.path,
        "status": entry.finished.status.as_u16(),
        "bytes": entry.bytes,
        "duration": took,
        "proto": proto,
        "upstream": entry.replica.as_deref(),
    });
    let mut line = object.to_string().into_bytes();
    line.push(b'\n');
    line
}

/// RFC 3339 in UTC with milliseconds.
fn time(at: SystemTime) -> String {
    let since = at
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let seconds = since.as_secs();
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let millis = since.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// Year, month and day of a number of days after 1 January 1970 in the Gregorian calendar.
fn date(days: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| {
        (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400)
    };
    // Whole cycles of 400 years are equal.
    let (cycles, mut left) = (days / 146_097, days % 146_097);
    let mut year = 1970 + cycles * 400;
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        if left < length {
            break;
        }
        left -= length;
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::StatusCode;

    use super::*;

    fn entry(path: &str) -> Entry {
        Entry {
            at: SystemTime::UNIX_EPOCH + Duration::from_millis(1_709_210_096_007),
            client: [192, 0, 2, 7].into(),
            peer: [10, 0, 0, 1].into(),
            method: Method::GET,
            host: "a.example".to_owned(),
            path: path.to_owned(),
            bytes: 12,
            replica: Some("shop/web/0".into()),
            finished: Finished {
                status: StatusCode::OK,
                version: Version::HTTP_3,
                took: Some(Duration::from_millis(250)),
            },
        }
    }

    #[test]
    fn line_is_one_object() {
        let text = String::from_utf8(line(&entry("/a\"\n"))).unwrap();
        assert_eq!(text.matches('\n').count(), 1);
        let object: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            object,
            json!({
                "time": "2024-02-29T12:34:56.007Z",
                "client": "192.0.2.7",
                "peer": "10.0.0.1",
                "method": "GET",
                "host": "a.example",
                "path": "/a\"\n",
                "status": 200,
                "bytes": 12,
                "duration": 0.25,
                "proto": "http/3",
                "upstream": "shop/web/0",
            })
        );
    }

    #[test]
    fn dates_follow_the_calendar() {
        for (days, expected) in [
            (0, (1970, 1, 1)),
            (58, (1970, 2, 28)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (20_819, (2027, 1, 1)),
            (47_540, (2100, 2, 28)),
            (47_541, (2100, 3, 1)),
            (146_097, (2370, 1, 1)),
        ] {
            assert_eq!(date(days), expected, "{days}");
        }
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        assert_eq!(cut("aßb", 2), "a");
        assert_eq!(cut("aßb", 3), "aß");
        assert_eq!(cut("a", 3), "a");
    }

    /// Writes once the other end of the channel allows it.
    struct Gate(Receiver<io::Result<()>>);

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let allowed = self.0.recv().unwrap_or(Ok(()));
            allowed.map(|()| bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_lost_to_the_disk_are_counted() {
        let (allow, gate) = std::sync::mpsc::channel();
        let log = AccessLog::start(Gate(gate)).unwrap();
        log.record(entry("/first"));
        // At most the queue and one buffer are held; the thread waits at the gate.
        let many = u64::try_from(QUEUE).unwrap() + 3000;
        for _ in 0..many {
            log.record(entry("/more"));
        }
        let full = log.dropped();
        assert!(full > 0 && full < many, "{full}");
        allow.send(Err(io::ErrorKind::StorageFull.into())).unwrap();
        while log.dropped() == full {
            thread::yield_now();
        }
    }
}
