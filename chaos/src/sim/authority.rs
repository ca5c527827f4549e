//! A certificate authority in virtual time: latency, refused nonces, rate limits and outages.
//!
//! It answers one request at a time. An order whose client died leaves nothing behind. Whether a domain is valid is decided by the tokens that the nodes serve at that moment.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use jaco_policy::ingress::certificate::{Chain, FailureClass, OrderFailure};

use super::time::{MS, Time};
use crate::Rng;

/// Times that a client sends a request again whose nonce was refused.
const MAX_REFUSED: u32 = 4;
/// Lifetime of certificates that outlive every run.
const LONG: Duration = Duration::from_secs(90 * 24 * 3600);
/// Lifetime of certificates that are renewed within a run.
const SHORT: Duration = Duration::from_secs(480);
/// Age that certificates have when they are issued before an outage of an hour, and their time left:
/// they are renewed from ten minutes on, and outlive the outage and the longest wait after it.
const AGED: (Duration, Duration) = (Duration::from_secs(270 * 60), Duration::from_secs(150 * 60));

/// A disturbance of the authority while it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AuthorityFault {
    /// No request is answered.
    Outage,
    /// New orders are refused, with this `Retry-After`.
    RateLimit(Duration),
    /// Share of requests whose nonce is refused, in thousandths.
    Nonces(u64),
    /// Every answer takes this much longer.
    Slow(Time),
}

/// The authority, with its staging and production directories.
#[derive(Debug)]
pub(super) struct Authority {
    chance: Rng,
    lifetime: Duration,
    /// Age that certificates have when they are issued.
    age: Duration,
    /// Disturbances, by the number of the fault.
    pub(super) faults: BTreeMap<usize, AuthorityFault>,
    orders: u64,
    issued: u64,
}

/// Answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Done,
    /// The nonce was refused: the request is sent again.
    BadNonce,
    Failed(OrderFailure),
}

impl Authority {
    /// An authority whose certificates are renewed within a run in half of the runs in which
    /// `renews` holds.
    pub(super) fn new(mut chance: Rng, renews: bool) -> Self {
        let short = chance.within(0..2) == 0;
        Self {
            chance,
            lifetime: if short && renews { SHORT } else { LONG },
            age: Duration::ZERO,
            faults: BTreeMap::new(),
            orders: 0,
            issued: 0,
        }
    }

    /// Issues certificates whose renewal falls due in an outage of an hour.
    pub(super) fn expect_outage(&mut self) {
        (self.age, self.lifetime) = (AGED.0, AGED.0 + AGED.1);
    }

    /// Issues certificates that outlive every run.
    pub(super) fn end_outage(&mut self) {
        (self.age, self.lifetime) = (Duration::ZERO, LONG);
    }

    /// Number of the next order, unique in a run.
    pub(super) fn next_order(&mut self) -> u64 {
        self.orders += 1;
        self.orders
    }

    /// Time until the next request is answered.
    pub(super) fn latency(&mut self) -> Time {
        let slow = self.faults.values().map(|fault| match *fault {
            AuthorityFault::Slow(time) => time,
            AuthorityFault::Outage | AuthorityFault::RateLimit(_) | AuthorityFault::Nonces(_) => 0,
        });
        self.chance.within(20 * MS..400 * MS) + slow.max().unwrap_or(0)
    }

    /// Answers a request whose nonce was refused `refused` times before.
    pub(super) fn answer(&mut self, begins_order: bool, refused: u32) -> Answer {
        let mut share = 5;
        for fault in self.faults.values() {
            match *fault {
                AuthorityFault::Outage => {
                    return failed(FailureClass::Transient, None, "no answer");
                }
                AuthorityFault::RateLimit(retry_after) if begins_order => {
                    let class = FailureClass::RateLimit;
                    return failed(class, Some(retry_after), "too many orders");
                }
                AuthorityFault::Nonces(refused) => share = share.max(refused),
                AuthorityFault::RateLimit(_) | AuthorityFault::Slow(_) => {}
            }
        }
        match self.chance.within(0..1000) < share {
            true if refused >= MAX_REFUSED => {
                failed(FailureClass::Unknown, None, "nonces are refused")
            }
            true => Answer::BadNonce,
            false => Answer::Done,
        }
    }

    /// Issues a certificate at `wall`.
    pub(super) fn issue(&mut self, wall: SystemTime) -> Chain {
        self.issued += 1;
        let mut fingerprint = [0; 32];
        let (serial, _) = fingerprint.split_at_mut(8);
        serial.copy_from_slice(&self.issued.to_be_bytes());
        Chain {
            fingerprint,
            not_before: wall - self.age,
            not_after: wall - self.age + self.lifetime,
            covers: true,
        }
    }
}

fn failed(class: FailureClass, retry_after: Option<Duration>, reason: &str) -> Answer {
    Answer::Failed(OrderFailure {
        class,
        retry_after,
        reason: reason.to_owned(),
    })
}

/// The stored form of a certificate; the key has the same.
pub(super) fn encode(chain: &Chain) -> Vec<u8> {
    let micros = |at: SystemTime| {
        let since = at.duration_since(SystemTime::UNIX_EPOCH);
        u64::try_from(since.unwrap_or_default().as_micros()).unwrap_or(u64::MAX)
    };
    let times = [micros(chain.not_before), micros(chain.not_after)];
    let times = times.iter().flat_map(|time| time.to_be_bytes());
    chain.fingerprint.into_iter().chain(times).collect()
}

/// Reads the stored form of a certificate; `None` if it is none.
pub(super) fn decode(stored: &[u8]) -> Option<Chain> {
    let (fingerprint, times) = stored.split_first_chunk::<32>()?;
    let (not_before, not_after) = times.split_first_chunk::<8>()?;
    let not_after = not_after.first_chunk::<8>()?;
    let time = |micros: &[u8; 8]| {
        SystemTime::UNIX_EPOCH + Duration::from_micros(u64::from_be_bytes(*micros))
    };
    Some(Chain {
        fingerprint: *fingerprint,
        not_before: time(not_before),
        not_after: time(not_after),
        covers: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_certificate_is_read_back() {
        let mut authority = Authority::new(Rng::new(1), true);
        let wall = SystemTime::UNIX_EPOCH + Duration::from_micros(1_700_000_000_000_001);
        let first = authority.issue(wall);
        let second = authority.issue(wall);
        assert_ne!(first, second);
        assert_eq!(decode(&encode(&second)), Some(second));
        assert_eq!(decode(&encode(&second)[..47]), None);
    }

    #[test]
    fn faults_decide_the_answer() {
        let mut authority = Authority::new(Rng::new(2), false);
        let hour = Duration::from_secs(3600);
        authority.faults.insert(0, AuthorityFault::RateLimit(hour));
        let Answer::Failed(limited) = authority.answer(true, 0) else {
            panic!("the order begins");
        };
        assert_eq!(limited.class, FailureClass::RateLimit);
        assert_eq!(limited.retry_after, Some(hour));
        authority.faults.insert(1, AuthorityFault::Nonces(1000));
        assert_eq!(authority.answer(false, 0), Answer::BadNonce);
        assert!(matches!(
            authority.answer(false, MAX_REFUSED),
            Answer::Failed(_)
        ));
        authority.faults.insert(2, AuthorityFault::Outage);
        let Answer::Failed(away) = authority.answer(false, 0) else {
            panic!("the authority answers");
        };
        assert_eq!(away.class, FailureClass::Transient);
    }
}
