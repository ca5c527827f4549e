//! Judges of certificates: when a node may order one, what lands, and what the nodes present.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant, SystemTime},
};

use jaco_policy::ingress::certificate::{
    Chain, Environment, FailureClass, NEW_LEADER, OrderFailure, Slot,
    backoff::{HOUR, MAX_RETRY_AFTER},
    domains,
    store::{self, Directories, lock_name},
};
use jaco_proto::v1::NodeStatus;
use jaco_state::State;

use super::{
    authority::decode,
    certificates::{Domain, Served, of_slot, present, stored},
    cluster::Cluster,
    time::{SECOND, Time},
    turns::LIMIT,
};

/// Waits after the first failed orders in a row; the last holds for all further ones.
const ORDER_WAITS: [u64; 7] = [60, 120, 240, 480, 960, 1_920, 3_600];
/// Waits after the first failed orders in a row that follow a certificate from staging.
const PROMOTION_WAITS: [u64; 3] = [900, 1_800, 3_600];
/// Time in which a node presents what its state shows.
const SERVE_BOUND: Time = 2 * SECOND;
/// Most by which the clocks of two machines differ, and some more.
const SKEW: Duration = Duration::from_secs(125);
/// Time that a leader needs for a renewal at most, if nothing fails: the lease of an earlier leader,
/// the time for which a new one makes no second attempt, and the skew of the clocks.
const RENEWAL_BOUND: Duration = Duration::from_secs(480);
/// Longest wait for a certificate after the faults; longer backoffs are not waited for.
const LAND_BOUND: Duration = Duration::from_secs(600);

/// Certificates that nodes present wrongly, by run and domain, and since when.
pub(super) type Unserved = BTreeMap<(u64, String), Time>;

impl Domain {
    /// Records the wait that a failed order demands at least.
    pub(super) fn record_failure(&mut self, now: Instant, promotes: bool, failure: &OrderFailure) {
        let waits = match promotes {
            true => &PROMOTION_WAITS[..],
            false => &ORDER_WAITS[..],
        };
        let failures = &mut self.failures[usize::from(promotes)];
        let wait = waits.iter().take(*failures as usize + 1).next_back();
        *failures += 1;
        let own = Duration::from_secs(wait.copied().unwrap_or_default());
        let limit = match failure.class {
            FailureClass::RateLimit => HOUR,
            FailureClass::Validation | FailureClass::Transient | FailureClass::Unknown => own,
        };
        let asked = failure.retry_after.unwrap_or_default().min(MAX_RETRY_AFTER);
        self.not_before = Some(now + own.max(limit).max(asked));
        self.failed = true;
    }
}

/// Time from which on a certificate may be renewed.
pub(super) fn renewal(chain: &Chain) -> SystemTime {
    let third = chain.not_after.checked_sub(chain.lifetime() / 3);
    third.unwrap_or(chain.not_after)
}

impl Cluster {
    /// Judges an order that node `id` begins.
    pub(super) fn judge_order(&mut self, id: u64, domain: &str, slot: Slot) {
        let directories = self.directories();
        let newest = stored(self.oracle.newest(), &directories, domain);
        let Some(machine) = self.machines.get(&id) else {
            return;
        };
        let (instant, wall) = (
            machine.clock.instant(self.now),
            machine.clock.wall(self.now),
        );
        let other = self.machines.keys().find(|other| {
            let known = self.domain(**other, domain);
            **other != id && known.is_some_and(|known| known.order.is_some())
        });
        if let Some(other) = other {
            let what = format!("n{id} orders {domain}, while n{other} does");
            return self.oracle.violate("one order at a time", what);
        }
        let daemon = machine.daemon.as_ref();
        let domains = daemon
            .into_iter()
            .flat_map(|it| it.certificates.domains.iter());
        let running = domains.filter(|(name, it)| *name != domain && it.order.is_some());
        if running.count() >= LIMIT {
            let what = format!("n{id} orders {domain} beside {LIMIT} others");
            return self.oracle.violate("orders take turns", what);
        }
        let staging = of_slot(&newest, Slot::Staging);
        let production = of_slot(&newest, Slot::Production);
        if let Some(chain) = production.filter(|chain| wall < renewal(chain)) {
            let what = format!("n{id} orders {domain} from {slot:?}, which has {chain:?}");
            return self.oracle.violate("orders are needed", what);
        }
        let first = slot == Slot::Production && production.is_none();
        // A leader that was paused does not know yet that another one has removed the certificate.
        let known = daemon.map(|daemon| stored(&daemon.state, &directories, domain));
        let staging = staging.or(known
            .as_ref()
            .and_then(|known| of_slot(known, Slot::Staging)));
        if first && self.stages_first && staging.is_none() {
            let what = format!("n{id} orders {domain} without a certificate from staging");
            return self.oracle.violate("staging before production", what);
        }
        let Some(known) = self
            .daemon(id)
            .and_then(|it| it.certificates.domains.get_mut(domain))
        else {
            return;
        };
        let early = known.not_before.filter(|until| instant < *until);
        let place = usize::from(slot == Slot::Production);
        let orders = known.orders.get_mut(place);
        let before = orders.map_or(0, |orders| {
            *orders += 1;
            *orders - 1
        });
        let new = instant < known.led_since + NEW_LEADER;
        if let Some(until) = early {
            let what = format!("n{id} orders {domain} {:?} too early", until - instant);
            self.oracle.violate("waits are kept", what);
        } else if new && before > 0 {
            let what =
                format!("n{id} orders {domain} from {slot:?} twice, and leads since shortly");
            self.oracle.violate("waits are kept", what);
        }
    }

    /// Judges what the nodes present, and whether certificates are renewed in time.
    pub(super) fn audit_certificates(&mut self) {
        let directories = self.directories();
        let now = self.now;
        let mut wrong = Vec::new();
        for machine in self.machines.values().filter(|it| it.paused_until <= now) {
            let Some(daemon) = &machine.daemon else {
                continue;
            };
            let wall = machine.clock.wall(now);
            for domain in domains::wanted(&daemon.state, "").keys() {
                let stored = stored(&daemon.state, &directories, domain);
                let served = daemon.certificates.served.get(domain);
                if let Some(what) = wrongly_served(wall, &stored, served) {
                    let what = format!("{} for {domain}: {what}", machine.host);
                    wrong.push(((machine.run, domain.clone()), what));
                }
            }
        }
        let before = std::mem::take(&mut self.unserved);
        for (key, what) in wrong {
            let since = before.get(&key).copied().unwrap_or(now);
            if now >= since + SERVE_BOUND {
                self.oracle.violate("newest certificate is served", what);
            }
            self.unserved.insert(key, since);
        }
        self.judge_renewals(&directories);
        self.judge_outage();
    }

    /// No certificate expires while a leader had the time to renew it and nothing failed.
    fn judge_renewals(&mut self, directories: &Directories) {
        let wall = self.true_wall();
        let Some(leader) = self.leader() else {
            return;
        };
        let newest = self.oracle.newest();
        let wanted = domains::wanted(newest, "");
        let expired = wanted.into_keys().find(|domain| {
            let chain = of_slot(&stored(newest, directories, domain), Slot::Production);
            chain.is_some_and(|chain| chain.not_after + SKEW / 2 < wall)
                && self.domain(leader, domain).is_some_and(|known| {
                    let machine = self.machines.get(&leader);
                    let led = machine.is_some_and(|machine| {
                        machine.clock.instant(self.now) > known.led_since + RENEWAL_BOUND
                    });
                    led && !known.failed
                })
        });
        if let Some(domain) = expired {
            let what = format!("the certificate of {domain} expired under n{leader}");
            self.oracle.violate("renewed before expiry", what);
        }
    }

    /// Reason why the certificates are not at rest; `None` if they are, or wait for long.
    pub(super) fn unrest_of_certificates(&self, leader: u64) -> Option<String> {
        let directories = self.directories();
        let newest = self.oracle.newest();
        let wall = self.true_wall();
        for domain in domains::wanted(newest, "").keys() {
            let stored = stored(newest, &directories, domain);
            for machine in self.machines.values() {
                let node = newest.nodes.get(&machine.host);
                let ready = node.is_some_and(|node| node.status() == NodeStatus::Ready);
                let Some(daemon) = machine.daemon.as_ref().filter(|_| ready) else {
                    continue;
                };
                let served = daemon.certificates.served.get(domain);
                let own = machine.clock.wall(self.now);
                if let Some(what) = wrongly_served(own, &stored, served) {
                    return Some(format!("{} for {domain}: {what}", machine.host));
                }
            }
            let waits = self.machines.get(&leader).is_some_and(|machine| {
                let known = self.domain(leader, domain);
                let until = known.and_then(|known| known.core.poll_timeout());
                let instant = machine.clock.instant(self.now);
                until.is_some_and(|until| until > instant + LAND_BOUND)
            });
            let production = of_slot(&stored, Slot::Production);
            if let Some(outage) = &self.outage
                && outage.awaits(domain, production.as_ref())
            {
                return Some(format!("{domain} was not renewed after the outage"));
            }
            if !self.awaits_certificates() || waits {
                continue;
            }
            if production.is_none_or(|chain| chain.not_after <= wall) {
                return Some(format!("{domain} has no certificate but {stored:?}"));
            }
            if of_slot(&stored, Slot::Staging).is_some() {
                return Some(format!("{domain} still has a certificate from staging"));
            }
            let lock = newest.certs.get(&lock_name(domain));
            if lock.is_some_and(|lock| !lock.lessee.is_empty()) {
                return Some(format!("the lock of {domain} is held"));
            }
        }
        None
    }
}

/// Describes a certificate that is presented instead of the newest one of the state, if it is.
fn wrongly_served(wall: SystemTime, stored: &[Served], served: Option<&Served>) -> Option<String> {
    let newest = present(wall, stored);
    // A certificate that has expired meanwhile is presented until something changes.
    let expired = served.is_some_and(|served| served.chain.not_after <= wall);
    (newest.as_ref() != served && !expired).then(|| format!("{served:?} instead of {newest:?}"))
}

/// Describes a production certificate that replaced one long before it had to be renewed.
pub(super) fn needless_renewal(before: &State, after: &State) -> Option<String> {
    if before.cert_blobs.ptr_eq(&after.cert_blobs) {
        return None;
    }
    let domains = store::domains(after);
    domains.into_iter().find_map(|domain| {
        store::certificates(after, &domain).find_map(|new| {
            let mut known = store::certificates(before, &domain);
            let old = known.find(|old| old.directory == new.directory)?;
            let (old, new_chain) = (decode(&old.chain.value)?, decode(&new.chain.value)?);
            let early = new_chain.not_before + SKEW < renewal(&old);
            let production = store::environment(new.directory) == Environment::Prod;
            (production && early && old != new_chain)
                .then(|| format!("{domain} gets {new_chain:?} beside {old:?}"))
        })
    })
}
