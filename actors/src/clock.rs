//! Wall-clock time as a dependency.
//!
//! Timeouts and intervals use tokio's clock, which tests pause and advance; this one is only for
//! the timestamps that are written into commands and shown to people.

use std::{fmt, sync::Arc, time::SystemTime};

use prost_types::Timestamp;

/// Source of wall-clock time; a clone reads the same source.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> SystemTime + Send + Sync>);

impl Clock {
    /// Returns the clock of the machine.
    #[must_use]
    pub fn system() -> Self {
        Self(Arc::new(SystemTime::now))
    }

    /// Returns a clock that reads the result of `now`, for tests.
    pub fn from_fn(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// Returns the current time.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        (self.0)()
    }

    /// Returns the current time in the form of commands and entities; times before 1970 read as
    /// 1970.
    #[must_use]
    pub fn timestamp(&self) -> Timestamp {
        jaco_proto::timestamp(self.now())
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}
