//! Round-trip times to other members.

use std::{fmt, time::Duration};

use jaco_state::State;
use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, histogram::Histogram},
};

use super::{metrics::buckets, series::Series};

/// Measured round-trip times by member.
#[derive(Debug)]
pub(super) struct RoundTrips(Series<String, Measured>);

#[derive(Debug)]
struct Measured(Histogram);

impl Default for Measured {
    fn default() -> Self {
        Self(buckets())
    }
}

impl RoundTrips {
    pub(super) fn new() -> Self {
        Self(Series::new())
    }

    pub(super) fn observe(&self, peer: &str, rtt: Duration) {
        self.0.of(peer.to_owned()).0.observe(rtt.as_secs_f64());
    }

    pub(super) fn sweep(&self, state: &State) {
        self.0.sweep(|peer| state.nodes.contains_key(peer));
    }

    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "From this node to another and back, as its connection measures it.";
        let mut family =
            encoder.encode_descriptor("peer_rtt_seconds", help, None, MetricType::Histogram)?;
        for (peer, measured) in self.0.all() {
            let labels = [("peer", peer.as_str())];
            measured.0.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
