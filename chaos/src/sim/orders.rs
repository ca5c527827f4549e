//! Orders of certificates: the steps that a leader takes at the authority, each of which it may not
//! survive.

use std::{collections::BTreeSet, time::Duration};

use jaco_policy::ingress::certificate::{
    FailureClass, OrderFailure, Slot,
    store::{account_key, directory_name},
};
use jaco_proto::v1::{self, command::Payload};

use super::{
    authority::Answer,
    calls::{Reply, Requester},
    certificates::{of_slot, stored},
    cluster::{Cluster, Event, Local},
    fault::IssuerFault,
    mutation::Mutation,
    time::{MS, SECOND, Time},
};

/// Longest wait until all ready nodes have a token.
const SPREAD: Time = 5 * SECOND;
/// Lifetime of a token.
const TOKEN_LIFETIME: Duration = Duration::from_secs(10 * 60);
/// Time between two looks at how far the nodes are.
const POLL: Time = 50 * MS;

/// Steps of an order, in which a fault can hit the node that takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum OrderStep {
    /// Asks for an account.
    Account,
    /// Stores the account.
    StoreAccount,
    /// Begins the order.
    Begin,
    /// Stores the token of the challenge.
    StoreToken,
    /// Waits until the ready nodes have the token.
    Spread,
    /// Lets the authority validate the domain.
    Validate,
    /// Obtains the certificate.
    Finalize,
    /// Stores the certificate.
    Store,
}

impl OrderStep {
    /// All steps.
    pub(super) const ALL: [Self; 8] = [
        Self::Account,
        Self::StoreAccount,
        Self::Begin,
        Self::StoreToken,
        Self::Spread,
        Self::Validate,
        Self::Finalize,
        Self::Store,
    ];
}

/// An order under way on one node.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) number: u64,
    pub(super) attempt: u64,
    pub(super) slot: Slot,
    /// Whether this is the first production order after a staging certificate.
    promotes: bool,
    contact: String,
    step: OrderStep,
    /// Times that the authority refused the nonce of this step.
    refused: u32,
    /// Time at which the token was stored, and the index of its entry.
    token: Option<(Time, u64)>,
    /// Ready machines when the token was stored, with their runs.
    ready: BTreeSet<(u64, u64)>,
}

impl Order {
    fn token_name(&self) -> String {
        format!("token-{}", self.number)
    }
}

fn failure(class: FailureClass, reason: &str) -> OrderFailure {
    OrderFailure {
        class,
        retry_after: None,
        reason: reason.to_owned(),
    }
}

impl Cluster {
    pub(super) fn begin_order(
        &mut self,
        id: u64,
        domain: &str,
        attempt: u64,
        slot: Slot,
        contact: String,
    ) {
        self.judge_order(id, domain, slot);
        let number = self.authority.next_order();
        self.count(match slot {
            Slot::Staging => "staging orders",
            Slot::Production => "production orders",
        });
        self.note(&[60, id, number], || {
            format!("n{id} orders {domain} from {slot:?} as order {number}")
        });
        let promotes =
            slot == Slot::Production && self.stages_first && !self.has_production(id, domain);
        let order = Order {
            number,
            attempt,
            slot,
            promotes,
            contact,
            step: OrderStep::Account,
            refused: 0,
            token: None,
            ready: BTreeSet::new(),
        };
        let daemon = self.daemon(id);
        let known = daemon.and_then(|it| it.certificates.domains.get_mut(domain));
        if let Some(known) = known {
            known.order = Some(order);
        }
        let directory = directory_name(self.directories().address(slot));
        let has_account = self.order_account(id, domain, &directory);
        let first = match has_account {
            true => OrderStep::Begin,
            false => OrderStep::Account,
        };
        self.enter(id, domain, number, first);
    }

    /// Whether the core of `domain` knows a production certificate.
    fn has_production(&self, id: u64, domain: &str) -> bool {
        let daemon = self.machines.get(&id).and_then(|it| it.daemon.as_ref());
        daemon.is_some_and(|it| {
            let stored = stored(&it.certificates.handled, &self.directories(), domain);
            of_slot(&stored, Slot::Production).is_some()
        })
    }

    /// Whether the state of node `id` has the account of the order of `domain`.
    fn order_account(&self, id: u64, domain: &str, directory: &str) -> bool {
        let contact = self.domain(id, domain).and_then(|it| it.order.as_ref());
        let contact = contact.map_or("", |order| order.contact.as_str());
        let daemon = self.machines.get(&id).and_then(|it| it.daemon.as_ref());
        let key = account_key(directory, contact);
        daemon.is_some_and(|it| it.state.cert_blobs.contains_key(&key))
    }

    fn order(&mut self, id: u64, domain: &str, number: u64) -> Option<&mut Order> {
        let domains = &mut self.daemon(id)?.certificates.domains;
        let order = domains.get_mut(domain)?.order.as_mut()?;
        (order.number == number).then_some(order)
    }

    /// Takes the next step of an order.
    fn enter(&mut self, id: u64, domain: &str, number: u64, step: OrderStep) {
        let Some(order) = self.order(id, domain, number) else {
            return;
        };
        (order.step, order.refused) = (step, 0);
        let (slot, contact, token) = (order.slot, order.contact.clone(), order.token_name());
        if self.spring_issuer_fault(id, step) {
            return;
        }
        let requester = || Requester::Order(domain.to_owned(), number);
        match step {
            OrderStep::StoreAccount => {
                let directory = directory_name(self.directories().address(slot));
                let blob = v1::CertBlob {
                    key: account_key(&directory, &contact),
                    value: b"account".to_vec(),
                    updated_at: None,
                };
                let upsert = v1::CertBlobUpsert { blob: Some(blob) };
                let payloads = vec![Payload::CertBlobUpsert(upsert)];
                self.write_certificate(id, requester(), payloads);
            }
            OrderStep::StoreToken => {
                let wall = self.machines.get(&id).map(|it| it.clock.wall(self.now));
                let token = v1::ChallengeToken {
                    key_auth: format!("{token}.key"),
                    token,
                    domain: domain.to_owned(),
                    expires_at: wall.map(|wall| jaco_proto::timestamp(wall + TOKEN_LIFETIME)),
                };
                let store = v1::ChallengeTokenStore { token: Some(token) };
                let payloads = vec![Payload::ChallengeTokenStore(store)];
                self.write_certificate(id, requester(), payloads);
            }
            OrderStep::Spread => self.order_event(id, domain, number),
            OrderStep::Account | OrderStep::Begin | OrderStep::Validate | OrderStep::Finalize => {
                let latency = self.authority.latency();
                self.schedule_local(id, latency, Local::Order(domain.to_owned(), number));
            }
            OrderStep::Store => {}
        }
    }

    /// The authority answers, or the spread of the token is looked at again.
    pub(super) fn order_event(&mut self, id: u64, domain: &str, number: u64) {
        let Some(order) = self.order(id, domain, number) else {
            return;
        };
        let (step, refused) = (order.step, order.refused);
        if step == OrderStep::Spread {
            return self.await_spread(id, domain, number);
        }
        match self.authority.answer(step == OrderStep::Begin, refused) {
            Answer::BadNonce => {
                self.count("refused nonces");
                if let Some(order) = self.order(id, domain, number) {
                    order.refused += 1;
                }
                let latency = self.authority.latency();
                self.schedule_local(id, latency, Local::Order(domain.to_owned(), number));
            }
            Answer::Failed(failure) => self.fail_order(id, domain, number, failure),
            Answer::Done => match step {
                OrderStep::Account => self.enter(id, domain, number, OrderStep::StoreAccount),
                OrderStep::Begin => self.enter(id, domain, number, OrderStep::StoreToken),
                OrderStep::Validate => self.validate(id, domain, number),
                OrderStep::Finalize => self.finish_order(id, domain, number),
                OrderStep::StoreAccount
                | OrderStep::StoreToken
                | OrderStep::Spread
                | OrderStep::Store => {}
            },
        }
    }

    /// A write of an order ended.
    pub(super) fn order_written(&mut self, id: u64, domain: &str, number: u64, reply: &Reply) {
        let ready = self.ready_machines(id);
        let runs = |it| Some((it, self.machines.get(&it)?.run));
        let ready = ready.into_iter().filter_map(runs).collect();
        let now = self.now;
        let Some(order) = self.order(id, domain, number) else {
            return;
        };
        let Reply::Done(index) = *reply else {
            let failure = failure(FailureClass::Transient, "not committed");
            return self.fail_order(id, domain, number, failure);
        };
        let next = match order.step {
            OrderStep::StoreAccount => OrderStep::Begin,
            OrderStep::StoreToken => {
                (order.token, order.ready) = (Some((now, index)), ready);
                match self.has(Mutation::ValidateBeforeSpread) {
                    true => OrderStep::Validate,
                    false => OrderStep::Spread,
                }
            }
            OrderStep::Account
            | OrderStep::Begin
            | OrderStep::Spread
            | OrderStep::Validate
            | OrderStep::Finalize
            | OrderStep::Store => return,
        };
        self.enter(id, domain, number, next);
    }

    fn await_spread(&mut self, id: u64, domain: &str, number: u64) {
        let now = self.now;
        let Some(order) = self.order(id, domain, number) else {
            return;
        };
        let (Some((since, index)), ready) = (order.token, order.ready.clone()) else {
            return;
        };
        let everywhere = ready.iter().all(|(it, _)| self.has_routed(id, *it, index));
        if everywhere || now >= since + SPREAD {
            self.enter(id, domain, number, OrderStep::Validate);
        } else {
            self.schedule_local(id, POLL, Local::Order(domain.to_owned(), number));
        }
    }

    /// The authority asks a node for the token; a balancer may pick any that is ready.
    fn validate(&mut self, id: u64, domain: &str, number: u64) {
        let Some(order) = self.order(id, domain, number) else {
            return;
        };
        let (token, stored, ready) = (order.token_name(), order.token, order.ready.clone());
        let Some((since, index)) = stored else {
            return;
        };
        let wrong = self.without_token(&token);
        if let Some((_, asked)) = wrong.first() {
            let early = self.now < since + SPREAD * 9 / 10;
            let waited_for = wrong.iter().find(|(run, it)| {
                // Between applying the token and serving it lie some milliseconds.
                let machine = self.machines.get(it);
                let daemon = machine.and_then(|it| it.daemon.as_ref());
                let soon = daemon.is_some_and(|it| it.notified && it.state.applied_index >= index);
                ready.contains(&(*it, *run)) && !soon
            });
            if let Some((_, it)) = waited_for.filter(|_| early) {
                let what = format!(
                    "n{id} lets the authority validate {domain} after {} ms, and n{it} lacks the token",
                    (self.now - since) / MS
                );
                self.oracle.violate("tokens before validation", what);
            }
            self.count("domains found invalid");
            let reason = format!("n{asked} does not know the token");
            let failure = failure(FailureClass::Validation, &reason);
            return self.fail_order(id, domain, number, failure);
        }
        self.enter(id, domain, number, OrderStep::Finalize);
    }

    /// Runs and numbers of the ready machines that do not serve a token, though they serve.
    fn without_token(&self, token: &str) -> Vec<(u64, u64)> {
        let newest = self.oracle.newest();
        let machines = self.machines.values().filter(|machine| {
            let node = newest.nodes.get(&machine.host);
            node.is_some_and(|node| node.status() == v1::NodeStatus::Ready)
        });
        let wrong = machines.filter(|machine| {
            let daemon = machine.daemon.as_ref();
            daemon.is_some_and(|it| !it.certificates.handled.challenge_tokens.contains_key(token))
        });
        wrong.map(|machine| (machine.run, machine.id)).collect()
    }

    fn fail_order(&mut self, id: u64, domain: &str, number: u64, failure: OrderFailure) {
        let Some(order) = self.order(id, domain, number) else {
            return;
        };
        let (attempt, promotes) = (order.attempt, order.promotes);
        self.count("failed orders");
        self.note(&[61, id, number], || {
            format!("order {number} of n{id} fails: {failure:?}")
        });
        let forgets = self.has(Mutation::ForgetRetryAfter);
        self.with_domain(id, domain, |now, it| {
            it.order = None;
            it.record_failure(now.instant, promotes, &failure);
            let reported = match forgets {
                true => OrderFailure {
                    class: FailureClass::Transient,
                    retry_after: None,
                    ..failure
                },
                false => failure,
            };
            it.core.handle_order(now, attempt, Err(reported));
        });
    }

    fn finish_order(&mut self, id: u64, domain: &str, number: u64) {
        let Some(order) = self.order(id, domain, number) else {
            return;
        };
        let (attempt, slot) = (order.attempt, order.slot);
        let wall = self.true_wall();
        let chain = self.authority.issue(wall);
        let directories = self.directories();
        let newest = stored(self.oracle.newest(), &directories, domain);
        self.count("certificates issued");
        self.judge_issued(domain, slot);
        if slot == Slot::Production && of_slot(&newest, slot).is_some() {
            self.count("certificates renewed");
        }
        self.note(&[62, id, number], || {
            format!("order {number} of n{id} yields {:?}", chain.fingerprint)
        });
        self.with_domain(id, domain, |now, it| {
            it.order = None;
            it.failures = match slot {
                Slot::Staging => [0, it.failures[1]],
                Slot::Production => [0; 2],
            };
            it.issued = Some((attempt, chain));
            it.core.handle_order(now, attempt, Ok(chain));
        });
    }

    /// Lets a fault hit node `id` if it waits for this step of an order; `true` if the node is down.
    pub(super) fn spring_issuer_fault(&mut self, id: u64, step: OrderStep) -> bool {
        let mut armed = self.issuer_faults.iter();
        let armed = armed.find(|(_, (of, ..))| *of == step);
        let Some((&number, &(_, fault, span))) = armed else {
            return false;
        };
        self.issuer_faults.remove(&number);
        self.note(&[63, id], || format!("n{id} suffers {fault:?} in {step:?}"));
        self.count("issuers hit");
        match fault {
            IssuerFault::Crash(crash) => {
                let event = Event::TrapSprung(id, crash, span);
                self.agenda.add(self.now, event);
                true
            }
            IssuerFault::Pause => {
                let until = (self.now + span).min(self.plan.fault_window);
                if let Some(machine) = self.machines.get_mut(&id) {
                    machine.paused_until = machine.paused_until.max(until);
                    machine.late_wake = 0;
                }
                false
            }
        }
    }
}
