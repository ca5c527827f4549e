//! Durations of repeated runs.

use std::time::{Duration, Instant};

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

    /// The duration that `share` of the measurements, from 0 to 1, do not exceed.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        let at = (self.0.len() as f64 * share) as usize;
        self.0[at.min(self.0.len() - 1)]
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
