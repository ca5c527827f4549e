//! Limits and timeouts of the transport.

use std::{sync::Arc, time::Duration};

use quinn::{IdleTimeout, TransportConfig, VarInt};

use super::BindError;

/// Limits and timeouts; the defaults are what the cluster runs with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Time without a packet from the peer after which one is sent that keeps the connection open.
    /// The default is longer than the interval of the peers' heartbeats, which keep it open
    /// themselves, and half of `idle`.
    pub keep_alive: Duration,
    /// Time without any packet from the peer after which a connection is closed.
    pub idle: Duration,
    /// Timeout of a handshake, greeting included.
    pub handshake: Duration,
    /// Concurrent handshakes with addresses at which no member is known.
    pub unknown: usize,
    /// Concurrent handshakes with addresses of members; in addition to `unknown`.
    pub members: usize,
    /// Concurrent handshakes with one validated address.
    pub per_address: usize,
    /// Concurrent handshakes with one address that is not validated and may be spoofed; further
    /// attempts get a Retry.
    pub unvalidated_per_address: usize,
    /// Number of concurrent handshakes from which on every new address must be validated by a
    /// Retry.
    pub unvalidated: usize,
    /// Concurrent bidirectional streams that the peer may open.
    pub calls: u32,
    /// Concurrent unidirectional streams that the peer may open.
    pub streams: u32,
    /// Bytes of one stream that are buffered here until they are read.
    pub stream_window: u32,
    /// Bytes sent to the peer that are not yet acknowledged.
    pub send_window: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            keep_alive: Duration::from_millis(2500),
            idle: Duration::from_secs(5),
            handshake: Duration::from_secs(5),
            unknown: 64,
            members: 64,
            per_address: 16,
            unvalidated_per_address: 2,
            unvalidated: 16,
            calls: 512,
            streams: 8,
            stream_window: 512 << 10,
            send_window: 32 << 20,
        }
    }
}

impl Settings {
    pub(super) fn transport(&self) -> Result<Arc<TransportConfig>, BindError> {
        let idle = IdleTimeout::try_from(self.idle).map_err(|_| BindError::Setting("idle"))?;
        // The connection window holds every stream's window, so unread streams never block the raft
        // stream. It is also the most that a peer can make this node hold unread: 260 MiB by default.
        let whole = u64::from(self.stream_window) * u64::from(self.calls + self.streams);
        let whole = VarInt::from_u64(whole).map_err(|_| BindError::Setting("stream_window"))?;
        let mut config = TransportConfig::default();
        config
            .max_concurrent_bidi_streams(VarInt::from_u32(self.calls))
            .max_concurrent_uni_streams(VarInt::from_u32(self.streams))
            .stream_receive_window(VarInt::from_u32(self.stream_window))
            .receive_window(whole)
            .send_window(self.send_window)
            .keep_alive_interval(Some(self.keep_alive))
            .max_idle_timeout(Some(idle))
            // The RTT between members is short: with the default of 333 ms a lost handshake packet
            // would cost about a second.
            .initial_rtt(Duration::from_millis(100))
            .datagram_receive_buffer_size(None);
        Ok(Arc::new(config))
    }
}
