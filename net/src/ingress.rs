//! The HTTP data plane of the ingress.
//!
//! [`Proxy`] is the handle. Behind it runs one worker thread per core, each with a single-threaded
//! runtime, a listening socket of its own per port and its own idle connections to replicas, so no
//! request waits for another thread. Workers share only immutable values that are replaced
//! atomically: the [`RouteTable`] and the marks of failed replicas. A request finishes on the table
//! it was matched with.
//!
//! - [`table`]: route matching, pure.
//! - [`upstream`]: replica selection within a route, pure.
//! - [`sockets`]: listening sockets, bound here or inherited.
//! - [`certificates`]: the certificate of each domain; `handshake`: the TLS of a connection.
//! - `challenge`: answers to a certificate authority; [`probe`]: to other nodes of the cluster.
//! - [`import`]: checks of a certificate that an operator supplies.
//! - `worker`: the threads; `listener`, `connection`: accepting and serving clients.
//! - `timeouts`: ends connections of clients that are idle, or send or read nothing; `send_timeout`:
//!   resets streams of HTTP/2 that clients leave without a window.
//! - `access_log`: one line per request, if it is on.
//! - `http3`: the same over QUIC.
//! - `forward`: handling of one request: limits, replica selection, retries, upgrade, response.
//! - [`client_address`]: the client of a request; [`affinity`]: its replica, kept by a cookie.

mod access_log;
mod active;
pub mod affinity;
mod body;
pub mod certificates;
mod challenge;
pub mod client_address;
mod connect;
mod connection;
mod forward;
mod handshake;
mod headers;
mod http3;
pub mod import;
mod listener;
mod observe;
mod path;
mod pool;
pub mod probe;
mod proxy;
mod relay;
mod send_timeout;
pub mod sockets;
pub mod table;
mod timeouts;
pub mod upstream;
mod worker;

pub use access_log::{AccessLog, RotatedFile};
pub use affinity::{Affinity, AffinityKey, SameSite};
pub use certificates::{CertificateStore, Certificates, certified_key};
pub use challenge::{Challenge, ChallengeTable};
pub use client_address::TrustedProxies;
pub use http3::sockets::DatagramSockets;
pub use observe::{Finished, Meter, Observe};
pub use probe::{PROBE_PATH, ProbeKey};
pub use proxy::Proxy;
pub use sockets::ListenSockets;
pub use table::{Match, Route, RouteTable, Rule, RuleLimits};
pub use upstream::Upstream;

use std::{
    num::NonZeroUsize,
    thread::available_parallelism,
    time::{Duration, Instant, SystemTime},
};

/// Time to tell both sides of a WebSocket that it is closed.
const CLOSING_TIMEOUT: Duration = Duration::from_millis(500);
/// Bytes by which a buffer exceeds the longest head: a longer one is still read, and answered with
/// 431, and hyper takes a head of maximum length.
const HEAD_MARGIN: usize = 16 * 1024;

/// Limits and timeouts of the proxy.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Number of worker threads; by default one per available core.
    pub workers: NonZeroUsize,
    /// Timeout of connecting to a replica.
    pub connect_timeout: Duration,
    /// Time within which a client must send the head of a request.
    pub request_head_timeout: Duration,
    /// Time after which a client connection without a request is closed. A client that takes nothing
    /// of a response for as long loses its connection, or the stream of HTTP/2 and HTTP/3. Over HTTP/2
    /// the last part of a body has no limit: up to 250 streams of one connection may each hold one
    /// part, at most 16 KiB more than `max_head_bytes`, as long as the connection has a request.
    pub idle_timeout: Duration,
    /// Time a replica may take until its response begins, counted from the last part of the
    /// request.
    pub response_timeout: Duration,
    /// Time for which a replica that failed gets no requests.
    pub down_for: Duration,
    /// Time for which an unused connection to a replica is kept.
    pub pool_idle_timeout: Duration,
    /// Maximum length of a request or response head, in bytes.
    pub max_head_bytes: usize,
    /// Source of the wall time that [`Upstream::fresh_until`] and [`Challenge::expires_at`] are
    /// compared with.
    pub wall_clock: fn() -> SystemTime,
    /// Source of the time that limits of clients count.
    pub clock: fn() -> Instant,
    /// Number of clients remembered for their limits, each of them once per route; further ones are
    /// admitted and counted.
    pub max_limited_clients: usize,
    /// Where finished requests are logged, if anywhere.
    pub access_log: Option<AccessLog>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            workers: available_parallelism().unwrap_or(NonZeroUsize::MIN),
            connect_timeout: Duration::from_secs(3),
            request_head_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(300),
            response_timeout: Duration::from_secs(300),
            down_for: Duration::from_secs(10),
            pool_idle_timeout: Duration::from_secs(60),
            max_head_bytes: 64 * 1024,
            wall_clock: SystemTime::now,
            clock: Instant::now,
            max_limited_clients: crate::limit::MAX_CLIENTS,
            access_log: None,
        }
    }
}

/// Kind of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Plain HTTP/1.1.
    Http,
    /// HTTP/1.1 and HTTP/2 over TLS.
    Https,
}

impl Scheme {
    /// Name of the listening sockets for a successor of this process.
    #[must_use]
    pub fn socket_name(self) -> &'static str {
        match self {
            Self::Http => "ingress.http",
            Self::Https => "ingress.https",
        }
    }

    /// Name of the scheme in a URI.
    fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// Shutdown phase of the connections of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Serving,
    /// Running requests finish; no new ones are accepted.
    Draining,
    /// As before, and WebSockets are closed.
    Closing,
    /// Everything is closed immediately.
    Closed,
}
