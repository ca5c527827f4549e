//! Rate and connection limits per route and client, shared by the threads of a data plane.
//!
//! The rate follows the generic cell rate algorithm (ITU-T I.371, annex A): per client one time is
//! stored, the theoretical arrival of the next request. A request is admitted or refused at once.
//! Memory is bounded: when [`Limiter`] remembers as many clients as it may, others are admitted
//! and counted.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{BuildHasher, RandomState},
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Clients remembered by a [`Limiter`], unless another number is given.
pub const MAX_CLIENTS: usize = 100_000;

/// Number of independently locked parts of a [`Limiter`].
const SHARDS: usize = 64;
/// A part with fewer clients is not searched for idle ones.
const FIRST_SWEEP: usize = 64;
/// Shortest time between two searches for idle clients in a part that is full.
const SWEEP_PAUSE: Duration = Duration::from_secs(1);

/// Longest time in which a burst recovers, 31 years; sums of it fit the type of times.
const MAX_BURST_NANOS: f64 = 1e18;

/// Limits of one route, for each client by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Requests per second in the long run, above 0 and at most 1,000,000.
    pub rps: f64,
    /// Requests admitted at once after a pause; 0 counts as 1.
    pub burst: u32,
    /// Requests in flight, from 1.
    pub connections: u32,
}

/// Client as limits see it: an IPv4 address, or the /64 of an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Client(u128);

impl From<IpAddr> for Client {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            // Above the prefixes, which have 64 bits.
            IpAddr::V4(address) => Self((1 << 64) | u128::from(u32::from(address))),
            IpAddr::V6(address) => Self(u128::from(address) >> 64),
        }
    }
}

/// A route with its limits. Equal for equal arguments of [`Limiter::route`], so that a new route
/// table keeps the counts of routes that did not change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LimitedRoute {
    id: u64,
    limits: Limits,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The client sends requests at a higher rate.
    Rate,
    /// The client has as many requests in flight as it may.
    Connections,
}

/// Refusal of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The limit that is exceeded.
    pub reason: Reason,
    /// Seconds until a further request is worth sending, from 1.
    pub retry_after: u64,
}

/// Counts the requests of clients; clones share the counts.
#[derive(Clone, Debug)]
pub struct Limiter(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    epoch: Instant,
    hasher: RandomState,
    shards: Box<[Mutex<Shard>]>,
    /// Clients per shard.
    capacity: usize,
    untracked: AtomicU64,
}

#[derive(Debug)]
struct Shard {
    clients: HashMap<Key, Bucket>,
    /// Number of clients at which idle ones are searched.
    sweep_at: usize,
    swept: Option<Instant>,
}

type Key = (u64, Client);

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// Theoretical arrival time, in nanoseconds since the epoch.
    arrival: u64,
    in_flight: u32,
}

/// An admitted request; it is in flight until this is dropped.
#[derive(Debug)]
#[must_use = "the request ends when this is dropped"]
pub struct Permit(Option<(Arc<Shared>, Key)>);

impl Limiter {
    /// Remembers about `max_clients` clients, each of them once per route.
    #[must_use]
    pub fn new(max_clients: usize) -> Self {
        let shard = || {
            Mutex::new(Shard {
                clients: HashMap::new(),
                sweep_at: FIRST_SWEEP,
                swept: None,
            })
        };
        Self(Arc::new(Shared {
            epoch: Instant::now(),
            hasher: RandomState::new(),
            shards: (0..SHARDS).map(|_| shard()).collect(),
            capacity: max_clients.div_ceil(SHARDS),
            untracked: AtomicU64::new(0),
        }))
    }

    /// The route of `domain` and `path` with `limits`.
    #[must_use]
    pub fn route(&self, domain: &str, path: &str, limits: Limits) -> LimitedRoute {
        let values = (limits.rps.to_bits(), limits.burst, limits.connections);
        LimitedRoute {
            id: self.0.hasher.hash_one((domain, path, values)),
            limits,
        }
    }

    /// Admits a request of `client` at `now`, or says why not. A refused request counts for nothing.
    ///
    /// # Errors
    /// The limit that is exceeded.
    pub fn admit(
        &self,
        route: &LimitedRoute,
        client: Client,
        now: Instant,
    ) -> Result<Permit, Refusal> {
        let key = (route.id, client);
        let elapsed = nanos(now.saturating_duration_since(self.0.epoch));
        let mut shard = self.0.shard(&key);
        shard.make_room(self.0.capacity, now, elapsed);
        let is_full = shard.clients.len() >= self.0.capacity;
        match shard.clients.entry(key) {
            Entry::Occupied(entry) => entry.into_mut().admit(&route.limits, elapsed)?,
            Entry::Vacant(_) if is_full => {
                self.0.untracked.fetch_add(1, Ordering::Relaxed);
                return Ok(Permit(None));
            }
            Entry::Vacant(entry) => {
                entry
                    .insert(Bucket::default())
                    .admit(&route.limits, elapsed)?;
            }
        }
        Ok(Permit(Some((self.0.clone(), key))))
    }

    /// Clients that are remembered.
    #[must_use]
    pub fn clients(&self) -> usize {
        let shards = self.0.shards.iter();
        shards.map(|shard| lock(shard).clients.len()).sum()
    }

    /// Requests admitted uncounted, because there were too many clients.
    #[must_use]
    pub fn untracked(&self) -> u64 {
        self.0.untracked.load(Ordering::Relaxed)
    }
}

impl Default for Limiter {
    fn default() -> Self {
        Self::new(MAX_CLIENTS)
    }
}

impl Shared {
    fn shard(&self, key: &Key) -> MutexGuard<'_, Shard> {
        let hash = self.hasher.hash_one(key);
        // The remainder is below the number of shards.
        lock(&self.shards[(hash % SHARDS as u64) as usize])
    }
}

impl Shard {
    /// Drops idle clients once their number doubled since the last time, or from time to time if
    /// there is no room left: the cost per admitted request stays constant.
    fn make_room(&mut self, capacity: usize, now: Instant, elapsed: u64) {
        if self.clients.len() < self.sweep_at.min(capacity) {
            return;
        }
        let is_due = |last| now.saturating_duration_since(last) >= SWEEP_PAUSE;
        if self.clients.len() >= capacity && !self.swept.is_none_or(is_due) {
            return;
        }
        self.clients.retain(|_, bucket| !bucket.is_idle(elapsed));
        self.clients.shrink_to(self.clients.len() * 2);
        self.sweep_at = FIRST_SWEEP.max(self.clients.len() * 2);
        self.swept = Some(now);
    }
}

impl Bucket {
    fn admit(&mut self, limits: &Limits, now: u64) -> Result<(), Refusal> {
        if self.in_flight >= limits.connections.max(1) {
            return Err(Refusal {
                reason: Reason::Connections,
                retry_after: 1,
            });
        }
        // A rate of almost nothing must not make the burst endless.
        let interval = (1e9 / limits.rps).min(MAX_BURST_NANOS / f64::from(limits.burst.max(1)));
        // The conversion saturates.
        let tolerance = (interval * f64::from(limits.burst.saturating_sub(1))) as u64;
        let early = self.arrival.saturating_sub(now).saturating_sub(tolerance);
        if early > 0 {
            return Err(Refusal {
                reason: Reason::Rate,
                retry_after: early.div_ceil(1_000_000_000),
            });
        }
        self.arrival = self.arrival.max(now).saturating_add(interval as u64);
        self.in_flight += 1;
        Ok(())
    }

    /// Whether forgetting the client changes nothing.
    fn is_idle(&self, now: u64) -> bool {
        self.in_flight == 0 && self.arrival <= now
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some((shared, key)) = self.0.take() else {
            return;
        };
        if let Some(bucket) = shared.shard(&key).clients.get_mut(&key) {
            bucket.in_flight = bucket.in_flight.saturating_sub(1);
        }
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
