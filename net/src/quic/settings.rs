//! Sizes and times of the transport.

use std::{sync::Arc, time::Duration};

use quinn::{IdleTimeout, TransportConfig, VarInt};

use super::BindError;

/// Sizes and times; the defaults are what the cluster runs with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Time between packets that keep a silent connection open.
    pub keep_alive: Duration,
    /// Silence after which a connection is over.
    pub idle: Duration,
    /// Time a handshake may take, greeting included.
    pub handshake: Duration,
    /// Handshakes under way at once with addresses that no member is known at.
    pub strangers: usize,
    /// The same, with addresses of members; on top of `strangers`.
    pub members: usize,
    /// Handshakes under way at once with one address that has proved itself.
    pub per_address: usize,
    /// The same of one that has not, and that anybody can claim: more have to prove it.
    pub claimed: usize,
    /// Handshakes under way from which on an address must prove that it receives what is sent
    /// to it.
    pub unproven: usize,
    /// Streams with answers that the other side may hold open.
    pub calls: u32,
    /// Streams without answers that the other side may hold open.
    pub streams: u32,
    /// Bytes of one stream that may wait here to be read.
    pub stream_window: u32,
    /// Bytes on the way to the other side, not yet acknowledged.
    pub send_window: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            keep_alive: Duration::from_secs(1),
            idle: Duration::from_secs(5),
            handshake: Duration::from_secs(5),
            strangers: 64,
            members: 64,
            per_address: 16,
            claimed: 2,
            unproven: 16,
            calls: 1024,
            streams: 32,
            stream_window: 1 << 20,
            send_window: 32 << 20,
        }
    }
}

impl Settings {
    pub(super) fn transport(&self) -> Result<Arc<TransportConfig>, BindError> {
        let idle = IdleTimeout::try_from(self.idle).map_err(|_| BindError::Setting("idle"))?;
        // Every stream may be full of what nobody reads, and the raft stream still goes on.
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
            // Members are close; a handshake packet that is lost should not cost a second.
            .initial_rtt(Duration::from_millis(100))
            .datagram_receive_buffer_size(None);
        Ok(Arc::new(config))
    }
}
