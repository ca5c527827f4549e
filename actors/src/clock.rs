//! Wall-clock time, and time that counts while the machine is suspended, as a dependency.
//!
//! Timeouts and intervals use tokio's clock, which tests pause and advance, and which stands still
//! while the machine is suspended. Wall-clock time is only for the timestamps that are written into
//! commands and shown to people, and for the phase of heartbeats. Decisions about contact with other members use
//! [`Clock::instant`]: the others run on while this machine is suspended.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use prost_types::Timestamp;
use rustix::time::{ClockId, clock_gettime};

/// Source of time; a clone reads the same source.
#[derive(Clone)]
pub struct Clock {
    wall: Arc<dyn Fn() -> SystemTime + Send + Sync>,
    suspended: Arc<dyn Fn() -> Duration + Send + Sync>,
}

impl Clock {
    /// Returns the clock of the machine.
    #[must_use]
    pub fn system() -> Self {
        time_suspended(); // suspensions count from here
        Self {
            wall: Arc::new(SystemTime::now),
            suspended: Arc::new(time_suspended),
        }
    }

    /// Returns a clock whose wall-clock time is the result of `now`, of a machine that is never
    /// suspended, for tests.
    pub fn from_fn(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self {
            wall: Arc::new(now),
            suspended: Arc::new(|| Duration::ZERO),
        }
    }

    /// Returns this clock on a machine that was suspended for the result of `suspended` in all,
    /// which must not decrease, for tests.
    #[must_use]
    pub fn with_suspended(self, suspended: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self {
            suspended: Arc::new(suspended),
            ..self
        }
    }

    /// Returns the current time.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        (self.wall)()
    }

    /// Returns a time that never decreases and includes the time for which the machine was
    /// suspended; only to be compared with other results of this clock. In tests it follows tokio's
    /// paused clock.
    #[must_use]
    pub fn instant(&self) -> Instant {
        tokio::time::Instant::now().into_std() + (self.suspended)()
    }

    /// Returns the current time in the form of commands and entities; times before 1970 read as
    /// 1970.
    #[must_use]
    pub fn timestamp(&self) -> Timestamp {
        jaco_proto::timestamp(self.now())
    }
}

/// Time for which the machine was suspended since the first call; never decreases. It is the
/// advance of `CLOCK_BOOTTIME` over `CLOCK_MONOTONIC`, see `clock_gettime(2)`.
fn time_suspended() -> Duration {
    static AT_START: OnceLock<i128> = OnceLock::new();
    static LONGEST: AtomicU64 = AtomicU64::new(0);
    let read = |clock| {
        let time = clock_gettime(clock);
        i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
    };
    // In this order a delay between the two makes the difference too small, never too large.
    let with_suspensions = read(ClockId::Boottime);
    let difference = with_suspensions - read(ClockId::Monotonic);
    // Not zero after earlier suspensions, nor in a time namespace.
    let at_start = *AT_START.get_or_init(|| difference);
    let suspended = u64::try_from(difference - at_start).unwrap_or(0);
    let longest = LONGEST.fetch_max(suspended, Ordering::Relaxed);
    Duration::from_nanos(longest.max(suspended))
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn instant_counts_suspensions() {
        const HOUR: Duration = Duration::from_secs(3600);
        let hours = Arc::new(AtomicU64::new(0));
        let read = Arc::clone(&hours);
        let suspended = move || HOUR * u32::try_from(read.load(Ordering::Relaxed)).unwrap();
        let clock = Clock::system().with_suspended(suspended);
        let start = clock.instant();
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(clock.instant() - start, Duration::from_secs(5));
        hours.store(2, Ordering::Relaxed);
        assert_eq!(clock.instant() - start, 2 * HOUR + Duration::from_secs(5));
    }

    #[test]
    fn machine_clock_never_decreases() {
        let clock = Clock::system();
        let mut last = clock.instant();
        for _ in 0..1000 {
            let now = clock.instant();
            assert!(now >= last);
            last = now;
        }
    }
}
