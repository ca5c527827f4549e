//! Throughput computed from samples of byte counters.

use std::time::{Duration, Instant};

/// Shortest time between two samples that a rate is computed from.
pub const MIN_SPAN: Duration = Duration::from_secs(1);

/// Bytes received from a peer and sent to it since its session began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes received.
    pub rx: u64,
    /// Bytes sent.
    pub tx: u64,
}

/// Bytes per second in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Bytes received per second.
    pub rx: u64,
    /// Bytes sent per second.
    pub tx: u64,
}

/// Rates between the last two samples of a pair of counters.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    last: Option<(Instant, Counters)>,
    rates: Rates,
}

impl Meter {
    /// Handles a sample of the counters and returns the newest rates, which are 0 before the second
    /// sample. A counter below its last value was reset, and counts from 0.
    pub fn handle_sample(&mut self, now: Instant, counters: Counters) -> Rates {
        let Some((at, last)) = self.last else {
            self.last = Some((now, counters));
            return self.rates;
        };
        let span = now.saturating_duration_since(at);
        if span < MIN_SPAN {
            return self.rates;
        }
        let rate = |last: u64, next: u64| {
            let bytes = next.checked_sub(last).unwrap_or(next);
            let millis = span.as_millis().max(1);
            u64::try_from(u128::from(bytes) * 1000 / millis).unwrap_or(u64::MAX)
        };
        self.rates = Rates {
            rx: rate(last.rx, counters.rx),
            tx: rate(last.tx, counters.tx),
        };
        self.last = Some((now, counters));
        self.rates
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_between_two_samples() {
        let start = Instant::now();
        let mut meter = Meter::default();
        let table = [
            // Milliseconds, counters, rates.
            (0, (1_000, 5), (0, 0)),
            (2_000, (5_000, 5), (2_000, 0)),
            // Too early: the rates stay.
            (2_500, (9_000, 9), (2_000, 0)),
            (4_000, (9_000, 2_005), (2_000, 1_000)),
            // Reset counters.
            (5_000, (100, 0), (100, 0)),
            (6_000, (u64::MAX, 0), (u64::MAX - 100, 0)),
        ];
        for (at, (rx, tx), expected) in table {
            let now = start + Duration::from_millis(at);
            let rates = meter.handle_sample(now, Counters { rx, tx });
            assert_eq!((rates.rx, rates.tx), expected, "{at}");
        }
    }
}
