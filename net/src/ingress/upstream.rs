//! Selection of the replica that serves a request.

use std::{
    collections::HashMap,
    fmt,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwapOption;
use tokio::time::Instant;

/// One replica of a route.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Upstream {
    /// Id of the replica, for health marks and logs.
    pub replica: Arc<str>,
    /// Address it listens on.
    pub addr: SocketAddr,
    /// When the last observation of the replica becomes stale; `None` if this node observes it
    /// itself.
    pub fresh_until: Option<SystemTime>,
    /// Whether the replica is being withdrawn: it keeps the clients that its cookies name, and gets
    /// others only if no other replica is eligible.
    pub leaving: bool,
}

/// Replicas that failed recently, as observed by this node.
///
/// Shared by all workers, so that one failed attempt is enough for all of them. The marks are an
/// immutable map: reading costs an atomic load, and only a failure copies the map.
#[derive(Debug)]
pub(super) struct Health {
    down_for: Duration,
    marks: ArcSwapOption<Marks>,
}

type Marks = HashMap<(Arc<str>, SocketAddr), Instant>;

impl Health {
    pub(super) fn new(down_for: Duration) -> Self {
        Self {
            down_for,
            marks: ArcSwapOption::empty(),
        }
    }

    /// Excludes `upstream` for `down_for` from `now` on; `why` is logged.
    pub(super) fn mark_down(&self, upstream: &Upstream, now: Instant, why: &dyn fmt::Display) {
        let key = (upstream.replica.clone(), upstream.addr);
        let previous = self.marks.rcu(|marks| {
            let current = marks.iter().flat_map(|marks| marks.iter());
            let current = current.filter(|(_, until)| **until > now);
            let mut next: Marks = current.map(|(key, until)| (key.clone(), *until)).collect();
            next.insert(key.clone(), now + self.down_for);
            Some(Arc::new(next))
        });
        let is_down = |marks: Arc<Marks>| marks.get(&key).is_some_and(|until| *until > now);
        if !previous.is_some_and(is_down) {
            tracing::info!(subsystem = "ingress", replica_id = %upstream.replica, addr = %upstream.addr, %why, "upstream marked down");
        }
    }

    /// The marks, unless all have expired.
    fn marks(&self, now: Instant) -> Option<Arc<Marks>> {
        let loaded = self.marks.load();
        let marks = loaded.as_ref()?;
        if marks.values().any(|until| *until > now) {
            return Some(marks.clone());
        }
        // Nothing is lost if a worker adds a mark meanwhile: then the pointers differ.
        self.marks.compare_and_swap(&loaded, None);
        None
    }

    /// Picks `preferred` if it is eligible, else one of `upstreams` at random, one that is not
    /// leaving if there is one. In `tried`, marked down and stale ones are not eligible. Returns the
    /// position.
    pub(super) fn pick(
        &self,
        upstreams: &[Upstream],
        tried: &[usize],
        preferred: Option<usize>,
        now: Instant,
        wall: impl Fn() -> SystemTime,
        rng: &SplitMix64,
    ) -> Option<usize> {
        let wall = upstreams.iter().any(|u| u.fresh_until.is_some()).then(wall);
        let fresh = |upstream: &Upstream| match (upstream.fresh_until, wall) {
            (Some(until), Some(wall)) => wall < until,
            (None, _) | (_, None) => true,
        };
        let marks = self.marks(now);
        let up = |upstream: &Upstream| {
            marks.as_ref().is_none_or(|marks| {
                let mark = marks.get(&(upstream.replica.clone(), upstream.addr));
                mark.is_none_or(|until| *until <= now)
            })
        };
        let eligible =
            |at: &usize| !tried.contains(at) && fresh(&upstreams[*at]) && up(&upstreams[*at]);
        let known = |at: &usize| *at < upstreams.len();
        if let Some(preferred) = preferred.filter(known).filter(eligible) {
            return Some(preferred);
        }
        let random = |leaving: bool| {
            let of_kind = |at: &usize| upstreams[*at].leaving == leaving;
            let all = || (0..upstreams.len()).filter(of_kind).filter(eligible);
            match all().count() {
                0 => None,
                1 => all().next(),
                many => all().nth(rng.below(many)),
            }
        };
        random(false).or_else(|| random(true))
    }
}

/// Fast pseudo-random numbers for load balancing (splitmix64); not for secrets.
#[derive(Debug)]
pub(super) struct SplitMix64(AtomicU64);

impl SplitMix64 {
    /// A generator seeded from the system.
    pub(super) fn new() -> Self {
        // Without system randomness the load is still balanced, only predictably.
        Self::seeded(getrandom::u64().unwrap_or_default())
    }

    pub(super) fn seeded(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// A number below `bound`, which must not be 0.
    fn below(&self, bound: usize) -> usize {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        // Multiply-shift instead of a remainder: its bias is negligible for small bounds.
        let scaled = (u128::from(z) * bound as u128) >> 64;
        usize::try_from(scaled).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    const DOWN_FOR: Duration = Duration::from_secs(10);

    fn upstreams(count: u8) -> Vec<Upstream> {
        (0..count)
            .map(|n| Upstream {
                replica: format!("web-{n}").into(),
                addr: ([10, 0, 0, n], 80).into(),
                fresh_until: None,
                leaving: false,
            })
            .collect()
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[tokio::test(start_paused = true)]
    async fn every_eligible_replica_gets_its_share() {
        let (health, rng) = (Health::new(DOWN_FOR), SplitMix64::seeded(7));
        let all = upstreams(3);
        let mut hits = [0u32; 3];
        for _ in 0..3000 {
            let at = health
                .pick(&all, &[], None, Instant::now(), || at(0), &rng)
                .unwrap();
            hits[at] += 1;
        }
        assert!(hits.iter().all(|&n| (850..1150).contains(&n)), "{hits:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn failed_replica_is_excluded_until_its_mark_expires() {
        let (health, rng) = (Health::new(DOWN_FOR), SplitMix64::seeded(7));
        let one = upstreams(1);
        let pick = |now| health.pick(&one, &[], None, now, || at(0), &rng);
        let failed = Instant::now();
        health.mark_down(&one[0], failed, &"test");
        assert_eq!(pick(failed), None);
        assert_eq!(pick(failed + DOWN_FOR - Duration::from_millis(1)), None);
        assert_eq!(pick(failed + DOWN_FOR), Some(0));
    }

    #[tokio::test(start_paused = true)]
    async fn health_mark_does_not_outlive_its_replica() {
        let (health, rng) = (Health::new(DOWN_FOR), SplitMix64::seeded(7));
        let mut next = upstreams(1);
        health.mark_down(&next[0], Instant::now(), &"test");
        next[0].replica = "web-9".into();
        assert_eq!(
            health.pick(&next, &[], None, Instant::now(), || at(0), &rng),
            Some(0)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn stale_and_tried_replicas_are_not_picked() {
        let (health, rng) = (Health::new(DOWN_FOR), SplitMix64::seeded(7));
        let mut two = upstreams(2);
        two[0].fresh_until = Some(at(100));
        let pick =
            |tried: &[usize], wall| health.pick(&two, tried, None, Instant::now(), || wall, &rng);
        assert_eq!(pick(&[1], at(99)), Some(0));
        assert_eq!(pick(&[1], at(100)), None, "stale from fresh_until on");
        assert_eq!(pick(&[], at(100)), Some(1));
        assert_eq!(pick(&[0, 1], at(0)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn preferred_replica_is_picked_while_eligible() {
        let (health, rng) = (Health::new(DOWN_FOR), SplitMix64::seeded(7));
        let three = upstreams(3);
        let pick = |tried: &[usize], preferred| {
            let now = Instant::now();
            health.pick(&three, tried, preferred, now, || at(0), &rng)
        };
        for _ in 0..50 {
            assert_eq!(pick(&[], Some(1)), Some(1));
            assert_ne!(pick(&[1], Some(1)).unwrap(), 1);
        }
        assert!(pick(&[], Some(3)).is_some(), "no such replica");
        health.mark_down(&three[1], Instant::now(), &"test");
        assert_ne!(pick(&[], Some(1)).unwrap(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn leaving_replica_serves_its_clients_or_alone() {
        let (health, rng) = (Health::new(DOWN_FOR), SplitMix64::seeded(7));
        let mut three = upstreams(3);
        three[0].leaving = true;
        three[2].leaving = true;
        let pick = |tried: &[usize], preferred| {
            let now = Instant::now();
            health.pick(&three, tried, preferred, now, || at(0), &rng)
        };
        for _ in 0..50 {
            assert_eq!(pick(&[], None), Some(1));
        }
        assert_eq!(pick(&[], Some(0)), Some(0));
        assert_eq!(pick(&[1, 0], None), Some(2));
    }
}
