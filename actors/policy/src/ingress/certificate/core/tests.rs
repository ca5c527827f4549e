mod random;

use jaco_proto::v1::AuditEventType;

use super::*;
use crate::ingress::certificate::{Environment, FailureClass, Lock};

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A core and the state that its writes end in, on virtual time.
struct Lab {
    now: Now,
    core: Core,
    facts: Facts,
}

fn settings() -> Settings {
    Settings {
        stage_first: true,
        preflight: false,
        environment: Environment::Prod,
    }
}

fn wanted() -> Facts {
    Facts {
        wanted: true,
        contact: "ops@example.org".to_owned(),
        ..Facts::default()
    }
}

fn start() -> Now {
    Now {
        instant: Instant::now(),
        wall: SystemTime::UNIX_EPOCH + 20_000 * DAY,
    }
}

fn failure(class: FailureClass) -> OrderFailure {
    OrderFailure {
        class,
        retry_after: None,
        reason: "no".to_owned(),
    }
}

impl Lab {
    fn new(settings: Settings, facts: Facts) -> Self {
        let now = start();
        let core = Core::new("a.example", settings, 0.5, facts.clone());
        Self { now, core, facts }
    }

    fn leading(settings: Settings, facts: Facts) -> Self {
        let mut lab = Self::new(settings, facts);
        lab.core.handle_leadership(lab.now, true);
        lab
    }

    /// Certificate that was issued now and lives for 90 days.
    fn chain(&self) -> Chain {
        self.chain_for(90 * DAY)
    }

    fn chain_for(&self, lifetime: Duration) -> Chain {
        Chain {
            fingerprint: [0; 32],
            not_before: self.now.wall,
            not_after: self.now.wall + lifetime,
            covers: true,
        }
    }

    /// Names of the actions since the last call; locks are granted at once.
    fn actions(&mut self) -> Vec<String> {
        let mut names = Vec::new();
        while let Some(action) = self.core.poll_action() {
            let name = match action {
                Action::Lock { until } => {
                    self.facts.lock = Some(Lock { ours: true, until });
                    self.share();
                    continue;
                }
                Action::Unlock => {
                    self.facts.lock = None;
                    self.share();
                    continue;
                }
                Action::Preflight { .. } => "preflight".to_owned(),
                Action::Order { slot, .. } => format!("order {slot:?}"),
                Action::Discard { .. } => "discard".to_owned(),
                Action::Store { slot, event, .. } => {
                    format!("store {slot:?} {}", event.r#type().as_str_name())
                }
                Action::Reseed(slot) => format!("reseed {slot:?}"),
                Action::DeleteStaging => "delete staging".to_owned(),
                Action::DeleteAll => "delete all".to_owned(),
                Action::Audit(event) if event.r#type() == AuditEventType::CertificateWaiting => {
                    format!("waiting {}", event.payload["reason"])
                }
                Action::Audit(event) => {
                    let get = |key: &str| event.payload.get(key).cloned().unwrap_or_default();
                    let wait = get("retry_after");
                    format!(
                        "{} {} {wait}",
                        get("acme_environment"),
                        get("failure_class")
                    )
                }
                Action::QueryRenewal => "query".to_owned(),
            };
            names.push(
                name.replace("AUDIT_EVENT_TYPE_CERTIFICATE_", "")
                    .trim()
                    .to_owned(),
            );
        }
        names
    }

    fn share(&mut self) {
        self.core.handle_facts(self.now, self.facts.clone());
    }

    fn order(&mut self, outcome: Result<Chain, OrderFailure>) {
        let attempt = self.core.attempt;
        self.core.handle_order(self.now, attempt, outcome);
    }

    fn store(&mut self, slot: Slot, chain: Chain) {
        match slot {
            Slot::Staging => self.facts.staging = Some(chain),
            Slot::Production => self.facts.production = Some(chain),
        }
        self.facts.stored = true;
        self.share();
    }

    /// Passes time, handling every deadline on the way.
    fn pass(&mut self, by: Duration) -> Vec<String> {
        let end = self.now.instant + by;
        let mut seen = self.actions();
        while let Some(due) = self.core.poll_timeout().filter(|due| *due <= end) {
            let step = due.saturating_duration_since(self.now.instant);
            self.advance(step);
            self.core.handle_timeout(self.now);
            seen.extend(self.actions());
            let next = self.core.poll_timeout();
            assert!(next.is_none_or(|next| next > self.now.instant), "spins");
        }
        self.advance(end - self.now.instant);
        seen
    }

    fn advance(&mut self, by: Duration) {
        self.now.instant += by;
        self.now.wall += by;
    }

    /// Time until the next order, with everything that happens until then.
    fn until_order(&mut self, limit: Duration) -> Option<Duration> {
        let begin = self.now.instant;
        let mut seen = self.actions();
        loop {
            if seen.iter().any(|action| action.starts_with("order")) {
                return Some(self.now.instant - begin);
            }
            let due = self.core.poll_timeout()?;
            if due > begin + limit {
                return None;
            }
            seen = self.pass(due - self.now.instant);
        }
    }

    fn issue(&mut self, slot: Slot) -> Vec<String> {
        let chain = self.chain();
        self.order(Ok(chain));
        let mut seen = self.actions();
        self.store(slot, chain);
        seen.extend(self.actions());
        seen
    }
}

#[test]
fn first_certificate_is_staged_then_promoted() {
    let mut lab = Lab::leading(settings(), wanted());
    assert_eq!(lab.actions(), ["order Staging"]);
    let staged = lab.issue(Slot::Staging);
    assert_eq!(
        staged,
        ["store Staging ISSUED", "discard", "order Production"]
    );
    assert_eq!(lab.core.status(lab.now.wall).phase, Phase::Ordering);
    let issued = lab.issue(Slot::Production);
    assert_eq!(
        issued,
        ["store Production ISSUED", "delete staging", "discard"]
    );
    assert_eq!(lab.facts.lock, None, "released");
    assert_eq!(lab.core.status(lab.now.wall).phase, Phase::Valid);
    lab.facts.staging = None;
    lab.share();
    let quiet = lab.pass(3 * 3600 * Duration::from_secs(1));
    assert!(!quiet.iter().any(|action| action != "query"), "{quiet:?}");
}

#[test]
fn other_directories_are_ordered_from_directly() {
    let direct = Settings {
        stage_first: false,
        ..settings()
    };
    let mut lab = Lab::leading(direct, wanted());
    assert_eq!(lab.actions(), ["order Production"]);
    lab.order(Err(failure(FailureClass::Validation)));
    assert_eq!(lab.actions(), ["discard", "prod validation 1m0s"]);
}

#[test]
fn follower_does_nothing() {
    let mut lab = Lab::new(settings(), wanted());
    assert_eq!(lab.pass(DAY), [""; 0]);
    assert_eq!(lab.core.poll_timeout(), None);
}

#[test]
fn failed_orders_wait_as_the_table_says() {
    use FailureClass::{RateLimit, Transient, Unknown, Validation};
    let mut lab = Lab::leading(settings(), wanted());
    lab.pass(NEW_LEADER);
    for (class, minutes) in [
        (Validation, 1),
        (Transient, 2),
        (Unknown, 4),
        (RateLimit, 60),
    ] {
        lab.order(Err(failure(class)));
        let waited = lab.until_order(2 * 60 * MINUTE);
        assert_eq!(waited, Some(minutes * MINUTE), "{class:?}");
    }
}

#[test]
fn failed_promotion_stages_again_after_its_own_wait() {
    let mut lab = Lab::leading(settings(), wanted());
    lab.actions();
    lab.issue(Slot::Staging);
    for minutes in [15, 30, 60, 60] {
        lab.order(Err(failure(FailureClass::Unknown)));
        let expected = format!(
            "prod unknown {}",
            match minutes {
                60 => "1h0m0s".to_owned(),
                minutes => format!("{minutes}m0s"),
            }
        );
        assert_eq!(lab.actions(), ["discard".to_owned(), expected]);
        let waited = lab.until_order(2 * 60 * MINUTE);
        assert_eq!(waited, Some(minutes * MINUTE));
        assert!(lab.facts.staging.is_some(), "still served");
        assert_eq!(lab.issue(Slot::Staging)[2], "order Production");
    }
}

#[test]
fn order_is_cancelled_after_its_window() {
    let mut lab = Lab::leading(settings(), wanted());
    lab.actions();
    lab.issue(Slot::Staging);
    let seen = lab.pass(WINDOW);
    assert_eq!(seen, ["discard", "prod transient 15m0s"]);
    // The outcome of the cancelled order comes too late.
    let chain = lab.chain();
    lab.order(Ok(chain));
    assert_eq!(lab.actions(), [""; 0]);
}

#[test]
fn staging_certificate_of_other_names_is_refused() {
    let mut lab = Lab::leading(settings(), wanted());
    lab.actions();
    let covers = false;
    let chain = Chain {
        covers,
        ..lab.chain()
    };
    lab.order(Ok(chain));
    assert_eq!(lab.actions(), ["discard", "staging unknown"]);
    assert_eq!(lab.until_order(2 * 60 * MINUTE), Some(60 * MINUTE));
}

#[test]
fn new_leader_makes_one_attempt_in_five_minutes() {
    let mut lab = Lab::leading(settings(), wanted());
    lab.actions();
    lab.order(Err(failure(FailureClass::Validation)));
    assert_eq!(lab.until_order(60 * MINUTE), Some(NEW_LEADER));
    lab.order(Err(failure(FailureClass::Validation)));
    assert_eq!(lab.until_order(60 * MINUTE), Some(2 * MINUTE));
    // Its backoff ends with its leadership.
    lab.order(Err(failure(FailureClass::RateLimit)));
    lab.core.handle_leadership(lab.now, false);
    lab.core.handle_leadership(lab.now, true);
    assert_eq!(lab.until_order(60 * MINUTE), Some(Duration::ZERO));
}

#[test]
fn new_leader_waits_for_the_lock() {
    let mut facts = wanted();
    facts.lock = Some(Lock {
        ours: false,
        until: start().wall + 3 * MINUTE,
    });
    let mut lab = Lab::leading(settings(), facts);
    let waited = lab.until_order(10 * MINUTE).unwrap();
    assert_eq!(waited.as_secs(), 180);
    lab.order(Err(failure(FailureClass::Unknown)));
    lab.actions();
    assert_eq!(lab.facts.lock, None, "released");
}

#[test]
fn new_leader_promotes_a_stored_staging_certificate() {
    let mut lab = Lab::new(settings(), wanted());
    let chain = lab.chain();
    lab.store(Slot::Staging, chain);
    lab.core.handle_leadership(lab.now, true);
    assert_eq!(lab.actions(), ["order Production"]);
}

#[test]
fn lock_is_renewed_while_an_order_runs() {
    let mut lab = Lab::leading(settings(), wanted());
    lab.actions();
    lab.pass(4 * MINUTE);
    let until = lab.facts.lock.unwrap().until;
    let left = until.duration_since(lab.now.wall).unwrap();
    assert!(left > LEASE - LEASE_RENEWAL, "{left:?}");
}

#[test]
fn lost_lock_ends_the_order() {
    let mut lab = Lab::leading(settings(), wanted());
    lab.actions();
    let until = lab.now.wall + LEASE;
    lab.facts.lock = Some(Lock { ours: false, until });
    lab.share();
    assert_eq!(lab.actions(), ["discard", "staging transient"]);
}

#[test]
fn renewal_begins_at_a_third_of_the_life() {
    let mut lab = Lab::new(settings(), wanted());
    let chain = lab.chain();
    lab.store(Slot::Production, chain);
    lab.core.handle_leadership(lab.now, true);
    let waited = lab.until_order(90 * DAY).unwrap();
    assert!(
        waited > 60 * DAY && waited <= 60 * DAY + 10 * MINUTE,
        "{waited:?}"
    );
    let seen = lab.issue(Slot::Production);
    assert_eq!(seen, ["store Production RENEWED", "discard"]);
}

#[test]
fn authority_may_only_advance_a_renewal() {
    for (days, expected) in [(10, 10), (-5, 0), (80, 60)] {
        let mut lab = Lab::new(settings(), wanted());
        let chain = lab.chain();
        lab.store(Slot::Production, chain);
        lab.core.handle_leadership(lab.now, true);
        let at = |days: i64| {
            let start = lab.now.wall - 10 * DAY;
            start + u32::try_from(days + 10).unwrap() * DAY
        };
        let window = RenewalWindow {
            start: at(days),
            end: at(days),
        };
        let week = Some(7 * DAY);
        lab.core.handle_renewal_window(lab.now, Some(window), week);
        let waited = lab.until_order(90 * DAY).unwrap();
        assert_eq!(waited.as_secs() / DAY.as_secs(), expected, "{days}");
    }
}

#[test]
fn renewals_are_an_hour_apart() {
    let mut lab = Lab::new(settings(), wanted());
    let chain = lab.chain();
    lab.store(Slot::Production, chain);
    lab.core.handle_leadership(lab.now, true);
    let past = lab.now.wall - DAY;
    let window = RenewalWindow {
        start: past,
        end: past,
    };
    let mut orders = 0;
    let begin = lab.now.instant;
    while lab.now.instant < begin + DAY {
        lab.core.handle_renewal_window(lab.now, Some(window), None);
        if lab.until_order(DAY).is_some() {
            orders += 1;
            lab.advance(Duration::from_secs(1));
            lab.issue(Slot::Production);
        }
    }
    assert!((20..=26).contains(&orders), "{orders}");
}

#[test]
fn renewal_that_expires_earlier_is_not_stored() {
    let mut lab = Lab::new(settings(), wanted());
    let chain = lab.chain();
    lab.store(Slot::Production, chain);
    lab.core.handle_leadership(lab.now, true);
    lab.until_order(90 * DAY).unwrap();
    let shorter = lab.chain_for(DAY);
    lab.order(Ok(shorter));
    assert_eq!(lab.actions(), ["discard", "prod unknown 1m0s"]);
}

#[test]
fn domain_that_points_elsewhere_costs_no_order() {
    let checked = Settings {
        preflight: true,
        ..settings()
    };
    let mut lab = Lab::leading(checked, wanted());
    for (round, seconds) in [60, 120, 240, 480, 600, 600].into_iter().enumerate() {
        assert_eq!(lab.actions(), ["preflight"]);
        let attempt = lab.core.attempt;
        let verdict = Err("192.0.2.1: not ours".to_owned());
        lab.core.handle_preflight(lab.now, attempt, verdict);
        // The same reason is recorded once.
        let recorded = (round == 0).then_some("waiting 192.0.2.1: not ours");
        assert_eq!(lab.actions(), Vec::from_iter(recorded));
        let status = lab.core.status(lab.now.wall);
        assert_eq!(status.phase, Phase::WaitingDns);
        assert_eq!(status.reason, "192.0.2.1: not ours");
        let wait = Duration::from_secs(seconds);
        assert_eq!(lab.pass(wait - Duration::from_secs(1)), [""; 0]);
        lab.advance(Duration::from_secs(1));
        lab.core.handle_timeout(lab.now);
    }
    assert_eq!(lab.actions(), ["preflight"]);
    let attempt = lab.core.attempt;
    lab.core.handle_preflight(lab.now, attempt, Ok(()));
    assert_eq!(lab.actions(), ["order Staging"]);
    assert_eq!(
        lab.issue(Slot::Staging)[2],
        "order Production",
        "checked once"
    );
}

#[test]
fn certificate_of_an_operator_suspends_orders() {
    let mut lab = Lab::leading(settings(), wanted());
    assert_eq!(lab.actions(), ["order Staging"]);
    lab.facts.imported = true;
    lab.share();
    assert_eq!(lab.actions(), ["discard"]);
    assert_eq!(lab.core.status(lab.now.wall).phase, Phase::Valid);
    assert_eq!(lab.pass(DAY), [""; 0]);
    lab.facts.imported = false;
    lab.share();
    assert_eq!(lab.actions(), ["order Staging"]);
}

#[test]
fn removed_route_cancels_and_deletes() {
    let mut lab = Lab::leading(settings(), wanted());
    lab.actions();
    lab.issue(Slot::Staging);
    lab.facts.wanted = false;
    lab.share();
    assert_eq!(lab.actions(), ["discard", "delete all"]);
    assert_eq!(lab.facts.lock, None);
    assert_eq!(
        lab.pass(2 * WRITE_RETRY),
        ["delete all"; 2],
        "until it is gone"
    );
    lab.facts = Facts::default();
    lab.share();
    assert_eq!(lab.pass(DAY), [""; 0]);
}

#[test]
fn copy_on_disk_replaces_a_lost_certificate() {
    let mut lab = Lab::new(settings(), wanted());
    let chain = lab.chain();
    lab.facts.local.production = Some(chain);
    lab.share();
    lab.core.handle_leadership(lab.now, true);
    assert_eq!(lab.actions(), ["reseed Production"]);
    lab.store(Slot::Production, chain);
    assert_eq!(lab.pass(3600 * Duration::from_secs(1)), [""; 0]);
    // An expired copy is of no use.
    let mut lab = Lab::new(settings(), wanted());
    let mut expired = lab.chain();
    expired.not_after = lab.now.wall;
    lab.facts.local.production = Some(expired);
    lab.share();
    lab.core.handle_leadership(lab.now, true);
    assert_eq!(lab.actions(), ["order Staging"]);
}

#[test]
fn certificate_in_hand_survives_a_change_of_leadership() {
    let mut lab = Lab::leading(settings(), wanted());
    lab.actions();
    let chain = lab.chain();
    lab.order(Ok(chain));
    assert_eq!(lab.actions(), ["store Staging ISSUED"]);
    lab.core.handle_leadership(lab.now, false);
    lab.pass(MINUTE);
    lab.core.handle_leadership(lab.now, true);
    assert_eq!(lab.actions(), ["store Staging ISSUED"]);
    // Unless another leader was faster.
    lab.core.handle_leadership(lab.now, false);
    lab.store(Slot::Production, chain);
    lab.core.handle_leadership(lab.now, true);
    assert_eq!(lab.actions(), ["discard"]);
}

#[test]
fn write_missing_from_the_state_is_repeated() {
    let mut lab = Lab::leading(settings(), wanted());
    lab.actions();
    let chain = lab.chain();
    lab.order(Ok(chain));
    assert_eq!(lab.actions().len(), 1);
    let seen = lab.pass(3 * WRITE_RETRY);
    assert_eq!(seen, ["store Staging ISSUED"; 3]);
}
