//! Shared code of the benchmarks.

pub mod forwarding;
pub mod group;

use std::time::{Duration, Instant};

use jaco_proto::v1::{self, command::Payload};
use jaco_raftnode::command;
use prost_types::Timestamp;

/// Sorted durations of repeated runs.
#[derive(Clone, Debug)]
pub struct Samples(Vec<Duration>);

impl Samples {
    /// Sorts measurements; at least one is required.
    #[must_use]
    pub fn new(mut samples: Vec<Duration>) -> Self {
        samples.sort_unstable();
        Self(samples)
    }

    /// Measures `work` `count` times, after a warm-up of a tenth as many runs.
    ///
    /// # Errors
    /// The first error of `work`.
    pub fn of<E>(count: usize, mut work: impl FnMut() -> Result<(), E>) -> Result<Self, E> {
        for _ in 0..count.div_ceil(10) {
            work()?;
        }
        let mut samples = Vec::with_capacity(count);
        for _ in 0..count {
            let start = Instant::now();
            work()?;
            samples.push(start.elapsed());
        }
        Ok(Self::new(samples))
    }

    /// Number of measurements.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The duration that `percent` of the measurements do not exceed.
    #[must_use]
    pub fn percentile(&self, percent: usize) -> Duration {
        let at = (self.0.len() * percent / 100).min(self.0.len() - 1);
        self.0[at]
    }
}

/// Milliseconds, for printing.
#[must_use]
pub fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// Builds a command that stores one value.
#[must_use]
pub fn put_blob(key: String, value: Vec<u8>) -> v1::Command {
    let blob = v1::CertBlob {
        key,
        value,
        ..v1::CertBlob::default()
    };
    let upsert = Payload::CertBlobUpsert(v1::CertBlobUpsert { blob: Some(blob) });
    let ts = Timestamp {
        seconds: 1_700_000_000,
        nanos: 0,
    };
    command("bench", ts, upsert)
}
