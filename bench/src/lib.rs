//! Benchmarks.

pub mod group;

use std::time::{Duration, Instant};

/// What one thing took, many times over.
#[derive(Clone, Debug)]
pub struct Samples(Vec<Duration>);

impl Samples {
    /// Sorts measurements; there must be one.
    #[must_use]
    pub fn new(mut samples: Vec<Duration>) -> Self {
        samples.sort_unstable();
        Self(samples)
    }

    /// Measures `work`, `count` times, after a tenth as many runs that do not count.
    ///
    /// # Errors
    /// The first of `work`.
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

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The time that `percent` of them did not exceed.
    #[must_use]
    pub fn percentile(&self, percent: usize) -> Duration {
        let at = (self.0.len() * percent / 100).min(self.0.len() - 1);
        self.0[at]
    }
}

/// For people.
#[must_use]
pub fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
