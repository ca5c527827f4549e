//! The certificates of each node: the production core of each domain, the facts it decides on, and
//! the certificate that the node presents.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Instant, SystemTime},
};

use jaco_policy::{
    ingress::certificate::{
        Action, Chain, Core, Environment, Facts, Lock, Settings, Slot, audit, domains, jitter,
        queue::{Queue, Ticket},
        served::{Candidate, Origin, select},
        store::{
            self, CertificateKeys, Directories, LETS_ENCRYPT, directory_name, lock_name, removal,
        },
    },
    runtime::replica::core::Now,
};
use jaco_proto::v1::{self, command::Payload};
use jaco_state::{State, batch, command};

use super::{
    authority::{decode, encode},
    calls::{Change, Requester},
    cluster::{Cluster, Local},
    mutation::Mutation,
    orders::{Order, OrderStep},
    time::{MS, Wake},
    turns::LIMIT,
};

/// The certificates of one daemon.
pub(super) struct Certificates {
    /// The state that the facts and what is served were derived from.
    pub(super) handled: Arc<State>,
    pub(super) domains: BTreeMap<String, Domain>,
    /// Certificate presented for each domain.
    pub(super) served: BTreeMap<String, Served>,
    pub(super) queue: Queue,
    wake: Wake,
}

/// A certificate that is presented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Served {
    pub(super) slot: Slot,
    pub(super) chain: Chain,
}

/// A domain with its core, and the record of the judges in this leadership.
pub(super) struct Domain {
    pub(super) core: Core,
    /// Turn of the domain, or its wait for one.
    pub(super) ticket: Option<Ticket>,
    pub(super) order: Option<Order>,
    /// Issued certificate that the state does not show yet, and its attempt.
    pub(super) issued: Option<(u64, Chain)>,
    pub(super) led_since: Instant,
    /// Orders of this leadership: from staging, from production.
    pub(super) orders: [u32; 2],
    /// End of the wait that the last failed order demands.
    pub(super) not_before: Option<Instant>,
    pub(super) failed: bool,
    /// Failed orders of this leadership since the last success: orders, promotions.
    pub(super) failures: [u32; 2],
}

impl Domain {
    fn lead(&mut self, now: Now, leads: bool) {
        if leads {
            (self.led_since, self.orders) = (now.instant, [0; 2]);
            (self.not_before, self.failed) = (None, false);
            self.failures = [0; 2];
        }
        self.core.handle_leadership(now, leads);
    }
}

impl Certificates {
    pub(super) fn new() -> Self {
        Self {
            handled: Arc::default(),
            domains: BTreeMap::new(),
            served: BTreeMap::new(),
            queue: Queue::new(LIMIT),
            wake: Wake::default(),
        }
    }
}

/// Certificates stored for a domain, by place; of several the one that expires last.
pub(super) fn stored(state: &State, directories: &Directories, domain: &str) -> Vec<Served> {
    let mut found: Vec<Served> = store::certificates(state, domain)
        .filter_map(|stored| {
            Some(Served {
                slot: directories.slot_of(stored.directory),
                chain: decode(&stored.chain.value)?,
            })
        })
        .collect();
    found.sort_by_key(|served| (served.slot, std::cmp::Reverse(served.chain.not_after)));
    found.dedup_by_key(|served| served.slot);
    found
}

pub(super) fn of_slot(stored: &[Served], slot: Slot) -> Option<Chain> {
    let found = stored.iter().find(|served| served.slot == slot);
    found.map(|served| served.chain)
}

/// Whether two states agree on everything about certificates.
fn same_input(a: &State, b: &State) -> bool {
    a.routes.ptr_eq(&b.routes)
        && a.route_tls_overrides.ptr_eq(&b.route_tls_overrides)
        && a.deployments.ptr_eq(&b.deployments)
        && a.certs.ptr_eq(&b.certs)
        && a.cert_blobs.ptr_eq(&b.cert_blobs)
        && a.challenge_tokens.ptr_eq(&b.challenge_tokens)
}

fn facts(state: &State, stored: &[Served], host: &str, domain: &str, wanted: bool) -> Facts {
    let lock = state.certs.get(&lock_name(domain));
    let lock = lock.filter(|lock| !lock.lessee.is_empty());
    Facts {
        wanted,
        staging: of_slot(stored, Slot::Staging),
        production: of_slot(stored, Slot::Production),
        stored: store::keys(state, domain).next().is_some(),
        lock: lock.and_then(|lock| {
            Some(Lock {
                ours: lock.lessee == host,
                until: SystemTime::try_from(lock.lock_until?).ok()?,
            })
        }),
        ..Facts::default()
    }
}

impl Cluster {
    pub(super) fn directories(&self) -> Directories {
        Directories::of_config(LETS_ENCRYPT, !self.stages_first)
    }

    /// Shows the newest state to the certificates of node `id`.
    pub(super) fn certify(&mut self, id: u64) {
        let (now, directories) = (self.now, self.directories());
        let mutation = self.plan.mutation;
        let stage_first = self.stages_first && mutation != Some(Mutation::SkipStaging);
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let now = Now {
            instant: machine.clock.instant(now),
            wall: machine.clock.wall(now),
        };
        let host = machine.host.clone();
        let Some(daemon) = &mut machine.daemon else {
            return;
        };
        let (state, leads) = (Arc::clone(&daemon.state), daemon.status.leading);
        let certificates = &mut daemon.certificates;
        let before = std::mem::replace(&mut certificates.handled, Arc::clone(&state));
        if same_input(&before, &state) {
            return;
        }
        let wanted = domains::wanted(&state, "");
        let mut all: BTreeSet<String> = store::domains(&state);
        all.extend(wanted.keys().cloned());
        let holds = |domain: &String| {
            let lock = state.certs.get(&lock_name(domain));
            lock.is_some_and(|lock| lock.lessee == host)
        };
        all.extend(certificates.domains.keys().filter(|it| holds(it)).cloned());
        let Certificates { domains, queue, .. } = &mut *certificates;
        domains.retain(|name, domain| {
            let kept = all.contains(name);
            if let Some(ticket) = domain.ticket.filter(|_| !kept) {
                queue.handle_end(ticket);
            }
            kept
        });
        let old = std::mem::take(&mut certificates.served);
        for domain in &all {
            let stored = stored(&state, &directories, domain);
            let is_wanted = wanted.contains_key(domain);
            if is_wanted && let Some(served) = present(now.wall, &stored) {
                let kept = old.get(domain).copied();
                let kept = kept.filter(|_| mutation == Some(Mutation::KeepServedCertificate));
                let served = kept.unwrap_or(served);
                certificates.served.insert(domain.clone(), served);
            }
            let mut facts = facts(&state, &stored, &host, domain, is_wanted);
            if let Some(mutation) = mutation {
                mutation.patch_facts(&mut facts, now.wall);
            }
            match certificates.domains.get_mut(domain) {
                Some(known) => known.core.handle_facts(now, facts),
                None => {
                    let settings = Settings {
                        stage_first,
                        preflight: false,
                        environment: Environment::Prod,
                    };
                    let core = Core::new(domain, settings, jitter(domain), facts);
                    let mut new = Domain {
                        core,
                        ticket: None,
                        order: None,
                        issued: None,
                        led_since: now.instant,
                        orders: [0; 2],
                        not_before: None,
                        failed: false,
                        failures: [0; 2],
                    };
                    new.lead(now, leads);
                    certificates.domains.insert(domain.clone(), new);
                }
            }
        }
        self.drive_certificates(id);
    }

    /// The node's leadership changed.
    pub(super) fn certificate_leadership(&mut self, id: u64, leads: bool) {
        self.with_domains(id, |now, domain| domain.lead(now, leads));
    }

    pub(super) fn certificates_due(&mut self, id: u64) {
        let now = self.now;
        if let Some(daemon) = self.daemon(id) {
            daemon.certificates.wake.handle_event(now);
        }
        self.with_domains(id, |now, domain| domain.core.handle_timeout(now));
    }

    fn with_domains(&mut self, id: u64, change: impl Fn(Now, &mut Domain)) {
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let now = Now {
            instant: machine.clock.instant(self.now),
            wall: machine.clock.wall(self.now),
        };
        if let Some(daemon) = &mut machine.daemon {
            for domain in daemon.certificates.domains.values_mut() {
                change(now, domain);
            }
        }
        self.drive_certificates(id);
    }

    /// Hands an event to the core of a domain, if the node still has it.
    pub(super) fn with_domain(
        &mut self,
        id: u64,
        name: &str,
        change: impl FnOnce(Now, &mut Domain),
    ) {
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let now = Now {
            instant: machine.clock.instant(self.now),
            wall: machine.clock.wall(self.now),
        };
        let daemon = machine.daemon.as_mut();
        if let Some(domain) = daemon.and_then(|it| it.certificates.domains.get_mut(name)) {
            change(now, domain);
        }
        self.drive_certificates(id);
    }

    pub(super) fn domain(&self, id: u64, name: &str) -> Option<&Domain> {
        let daemon = self.machines.get(&id)?.daemon.as_ref()?;
        daemon.certificates.domains.get(name)
    }

    /// Runs the actions of all cores and grants turns, then schedules the earliest deadline.
    fn drive_certificates(&mut self, id: u64) {
        loop {
            let action = self.daemon(id).and_then(|daemon| {
                let mut domains = daemon.certificates.domains.iter_mut();
                domains.find_map(|(name, domain)| Some((name.clone(), domain.core.poll_action()?)))
            });
            match action {
                Some((name, action)) => self.run_certificate_action(id, &name, action),
                None if self.begin_turn(id) => {}
                None => break,
            }
        }
        let deadline = self.daemon(id).and_then(|daemon| {
            let domains = daemon.certificates.domains.values();
            domains
                .filter_map(|domain| domain.core.poll_timeout())
                .min()
        });
        self.schedule_wake(
            id,
            deadline,
            |daemon| &mut daemon.certificates.wake,
            Local::CertificatesDue,
        );
    }

    fn run_certificate_action(&mut self, id: u64, domain: &str, action: Action) {
        let name = lock_name(domain);
        let state = match self.daemon(id) {
            Some(daemon) => Arc::clone(&daemon.state),
            None => return,
        };
        let directories = self.directories();
        match action {
            Action::Lock { until } => {
                let Some(lessee) = self.machines.get(&id).map(|it| it.host.clone()) else {
                    return;
                };
                let until = Some(jaco_proto::timestamp(until));
                let lock = v1::CertLock {
                    name,
                    lessee,
                    until,
                };
                self.write_certificate(id, Requester::Detached, vec![Payload::CertLock(lock)]);
            }
            Action::Unlock => {
                let unlock = Payload::CertUnlock(v1::CertUnlock { name });
                self.write_certificate(id, Requester::Detached, vec![unlock]);
            }
            Action::Queue { due } => self.queue_up(id, domain, due),
            Action::EndTurn => self.end_turn(id, domain),
            Action::Preflight { attempt } => {
                let preflighted = Local::Preflighted(domain.to_owned(), attempt);
                self.schedule_local(id, 200 * MS, preflighted);
            }
            Action::Order {
                attempt,
                slot,
                contact,
                renews: _,
            } => self.begin_order(id, domain, attempt, slot, contact),
            Action::Discard { attempt } => {
                let daemon = self.daemon(id);
                let known = daemon.and_then(|it| it.certificates.domains.get_mut(domain));
                if let Some(known) = known {
                    known.order.take_if(|order| order.attempt <= attempt);
                    known.issued.take_if(|(held, _)| *held <= attempt);
                }
            }
            Action::Store {
                attempt,
                slot,
                event,
            } => {
                let held = self.domain(id, domain).and_then(|known| known.issued);
                let Some((_, chain)) = held.filter(|(held, _)| *held == attempt) else {
                    return;
                };
                if self.spring_issuer_fault(id, OrderStep::Store) {
                    return;
                }
                let directory = directory_name(directories.address(slot));
                let keys = CertificateKeys::new(domain, &directory);
                let mut payloads = Vec::from(keys.upserts(encode(&chain), encode(&chain)));
                payloads.push(Payload::AuditAppend(v1::AuditAppend { event: Some(event) }));
                self.write_certificate(id, Requester::Detached, payloads);
            }
            // No node of the simulation has copies on disk.
            Action::Reseed(_) => {}
            Action::DeleteStaging => {
                let staging = store::certificates(&state, domain)
                    .filter(|stored| directories.slot_of(stored.directory) == Slot::Staging);
                let keys = staging.flat_map(|it| [it.chain.key.clone(), it.key.key.clone()]);
                self.write_certificate(id, Requester::Detached, keys.map(removal).collect());
            }
            Action::DeleteAll => {
                let payloads = store::keys(&state, domain).map(removal).collect();
                self.write_certificate(id, Requester::Detached, payloads);
            }
            Action::Audit(event) => {
                let append = Payload::AuditAppend(v1::AuditAppend { event: Some(event) });
                self.write_certificate(id, Requester::Detached, vec![append]);
            }
            Action::QueryRenewal => {
                self.with_domain(id, domain, |now, it| {
                    it.core.handle_renewal_window(now, None, None);
                });
            }
        }
    }

    pub(super) fn preflighted(&mut self, id: u64, domain: &str, attempt: u64) {
        self.with_domain(id, domain, |now, it| {
            it.core.handle_preflight(now, attempt, Ok(()));
        });
    }

    /// Proposes payloads in one entry. Only a leader writes; the state shows whether it took effect.
    pub(super) fn write_certificate(
        &mut self,
        id: u64,
        requester: Requester,
        payloads: Vec<Payload>,
    ) {
        if payloads.is_empty() {
            return;
        }
        let Some(machine) = self.machines.get(&id) else {
            return;
        };
        let ts = machine.clock.timestamp(self.now);
        let leads = machine.daemon.as_ref().is_some_and(|it| it.status.leading);
        if !leads {
            return self.complete(id, requester, super::calls::Reply::NotAppended);
        }
        let children = payloads.into_iter();
        let children = children.map(|payload| command(audit::IDENTITY, ts, payload));
        let entry = batch(audit::IDENTITY, ts, children.collect());
        self.submit(id, requester, Change::Command(entry));
    }
}

/// Certificate to present for a domain with these stored ones.
pub(super) fn present(wall: SystemTime, stored: &[Served]) -> Option<Served> {
    let candidates = stored.iter().map(|served| Candidate {
        origin: match served.slot {
            Slot::Staging => Origin::Staging,
            Slot::Production => Origin::Production,
        },
        not_after: served.chain.not_after,
        certificate: *served,
    });
    select(wall, candidates).map(|candidate| candidate.certificate)
}
