//! Times at which heartbeats are sent.

use std::time::{Duration, UNIX_EPOCH};

use tokio::time::{Instant, sleep_until};

use crate::clock::Clock;

/// Heartbeat interval.
pub(super) const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);

/// Common origin of the times of all heartbeats: the last multiple of the interval on the wall clock.
///
/// Nodes whose clocks agree then send at the same time, and one wake-up serves what a node sends and
/// what it receives. A wrong clock changes the phase of its node's heartbeats, and nothing else.
pub(super) fn origin(clock: &Clock) -> Instant {
    let wall = clock.now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let past = Duration::from_secs(wall.as_secs() % HEARTBEAT_INTERVAL.as_secs())
        + Duration::from_nanos(wall.subsec_nanos().into());
    let now = Instant::now();
    now.checked_sub(past).unwrap_or(now)
}

/// Times of the heartbeats on one connection: the first at once, the others at multiples of
/// [`HEARTBEAT_INTERVAL`] since an origin. With a common origin one wake-up serves all connections.
#[derive(Debug)]
pub(super) struct HeartbeatTimer {
    origin: Instant,
    next: Instant,
}

impl HeartbeatTimer {
    pub(super) fn new(origin: Instant) -> Self {
        let next = Instant::now();
        Self { origin, next }
    }

    /// Waits until the next heartbeat is due. One that is late moves none of those after it.
    ///
    /// # Cancel safety
    /// Cancelled, no heartbeat is skipped.
    pub(super) async fn tick(&mut self) {
        sleep_until(self.next).await;
        let past = self.origin.elapsed().as_nanos() / HEARTBEAT_INTERVAL.as_nanos();
        let past = u32::try_from(past).unwrap_or(u32::MAX - 1); // after 272 years
        self.next = self.origin + HEARTBEAT_INTERVAL * (past + 1);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn connections_share_the_times_after_their_first() {
        let origin = Instant::now();
        let mut sent = Vec::new();
        for age in [100, 1_300, 2_000] {
            advance(Duration::from_millis(age)).await;
            let mut timer = HeartbeatTimer::new(origin);
            timer.tick().await;
            let first = origin.elapsed().as_millis();
            timer.tick().await;
            sent.push((first, origin.elapsed().as_millis()));
        }
        assert_eq!(sent, [(100, 2_000), (3_300, 4_000), (6_000, 8_000)]);
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_with_equal_clocks_send_together() {
        let begun = Instant::now();
        let wall = UNIX_EPOCH + Duration::from_millis(1_000_001_234);
        let clock = Clock::from_fn(move || wall + begun.elapsed());
        let mut sent = Vec::new();
        for age in [0, 700, 1_500] {
            advance(Duration::from_millis(age)).await;
            let mut timer = HeartbeatTimer::new(origin(&clock));
            timer.tick().await;
            timer.tick().await;
            let at = clock.now().duration_since(UNIX_EPOCH).unwrap();
            sent.push(at.as_millis() % 2_000);
        }
        assert_eq!(sent, [0; 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn late_heartbeat_moves_no_other() {
        let origin = Instant::now();
        let mut timer = HeartbeatTimer::new(origin);
        timer.tick().await;
        advance(Duration::from_millis(3_900)).await;
        timer.tick().await;
        assert_eq!(origin.elapsed().as_millis(), 3_900);
        timer.tick().await;
        assert_eq!(origin.elapsed().as_millis(), 4_000);
    }
}
