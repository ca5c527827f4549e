mod failures;
mod issuance;
mod leadership;
mod random;
mod renewal;
mod store;
mod turn;

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
    /// Whether a turn comes as soon as it is asked for.
    turns: bool,
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
        let turns = true;
        Self {
            now,
            core,
            facts,
            turns,
        }
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

    /// Names of the actions since the last call; locks are granted at once, and turns if they come.
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
                Action::Queue { .. } if self.turns => {
                    self.core.handle_turn(self.now);
                    continue;
                }
                Action::EndTurn if self.turns => continue,
                Action::Queue { due } => {
                    let since = self.now.wall.duration_since(due).unwrap();
                    format!("queue since {} s", since.as_secs())
                }
                Action::EndTurn => "end turn".to_owned(),
                Action::Preflight { .. } => "preflight".to_owned(),
                Action::Order { slot, renews, .. } => {
                    format!("order {slot:?}{}", if renews { " again" } else { "" })
                }
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
