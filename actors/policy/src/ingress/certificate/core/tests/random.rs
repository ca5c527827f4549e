//! Two nodes, one replicated state and an authority, under random faults on virtual time.

use super::*;
use crate::ingress::certificate::jitter;

/// Linear congruential generator; only its high bits are used.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % limit
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

/// Replicated rows; the holder of the lock is a node.
#[derive(Default)]
struct Rows {
    wanted: bool,
    staging: Option<Chain>,
    production: Option<Chain>,
    lock: Option<(usize, SystemTime)>,
}

struct Node {
    core: Core,
    leads: bool,
    /// Whether it has its turn.
    turn: bool,
    /// Order under way: attempt, slot, end.
    order: Option<(u64, Slot, Instant)>,
    /// Certificates in hand.
    hand: Option<(u64, Chain)>,
    led_since: Instant,
    orders: Vec<(Instant, Slot)>,
}

struct World {
    now: Now,
    random: Random,
    rows: Rows,
    nodes: [Node; 2],
    faults: bool,
    issued: u8,
    stores: u32,
    audits: u32,
    domain: String,
}

impl World {
    fn new(seed: u64) -> Self {
        let now = start();
        let domain = format!("{seed}.example");
        let settings = Settings {
            stage_first: !seed.is_multiple_of(3),
            preflight: seed.is_multiple_of(2),
            environment: Environment::Prod,
        };
        let node = || Node {
            core: Core::new(&domain, settings, jitter(&domain), Facts::default()),
            leads: false,
            turn: false,
            order: None,
            hand: None,
            led_since: now.instant,
            orders: Vec::new(),
        };
        Self {
            now,
            random: Random(seed),
            rows: Rows {
                wanted: true,
                ..Rows::default()
            },
            nodes: [node(), node()],
            faults: true,
            issued: 0,
            stores: 0,
            audits: 0,
            domain: domain.clone(),
        }
    }

    fn facts(&self, node: usize) -> Facts {
        Facts {
            wanted: self.rows.wanted,
            staging: self.rows.staging,
            production: self.rows.production,
            stored: self.rows.staging.is_some() || self.rows.production.is_some(),
            lock: self.rows.lock.map(|(holder, until)| Lock {
                ours: holder == node,
                until,
            }),
            ..Facts::default()
        }
    }

    fn share(&mut self) {
        for node in 0..2 {
            let facts = self.facts(node);
            self.nodes[node].core.handle_facts(self.now, facts);
        }
    }

    /// Runs the actions of `node`; writes of a node that does not lead, and some others, are lost.
    fn run(&mut self, node: usize) -> Result<(), String> {
        while let Some(action) = self.nodes[node].core.poll_action() {
            let lost = !self.nodes[node].leads || (self.faults && self.random.percent(20));
            let wall = self.now.wall;
            match action {
                Action::Lock { until } if !lost => {
                    let holder = self.rows.lock.filter(|(_, until)| wall < *until);
                    if holder.is_none_or(|(holder, _)| holder == node) {
                        self.rows.lock = Some((node, until));
                    }
                }
                Action::Unlock if !lost => self.rows.lock = None,
                // A turn may take a while to come.
                Action::Queue { due } => {
                    if due > self.now.wall {
                        return Err("is due in the future".to_owned());
                    }
                    self.nodes[node].turn = true;
                    if !(self.faults && self.random.percent(30)) {
                        self.nodes[node].core.handle_turn(self.now);
                    }
                }
                Action::EndTurn => {
                    if !std::mem::take(&mut self.nodes[node].turn) {
                        return Err("ends a turn it does not have".to_owned());
                    }
                }
                Action::Preflight { attempt } => {
                    let bad = self.faults && self.random.percent(30);
                    let verdict = if bad { Err("dns".to_owned()) } else { Ok(()) };
                    self.nodes[node]
                        .core
                        .handle_preflight(self.now, attempt, verdict);
                }
                Action::Order { attempt, slot, .. } => self.order(node, attempt, slot)?,
                Action::Discard { attempt } => {
                    let mine = &mut self.nodes[node];
                    mine.order.take_if(|(running, ..)| *running <= attempt);
                    mine.hand.take_if(|(held, _)| *held <= attempt);
                }
                Action::Store { attempt, slot, .. } => {
                    let held = self.nodes[node].hand.filter(|(held, _)| *held == attempt);
                    let (_, chain) = held.ok_or("stores what it discarded")?;
                    if !lost {
                        self.store(slot, chain)?;
                    }
                }
                Action::DeleteStaging if !lost => {
                    if self.rows.production.is_none() {
                        return Err("nothing is left to serve".to_owned());
                    }
                    self.rows.staging = None;
                }
                Action::DeleteAll if !lost => {
                    if self.rows.wanted {
                        return Err("deletes a wanted certificate".to_owned());
                    }
                    (self.rows.staging, self.rows.production) = (None, None);
                }
                Action::QueryRenewal => {
                    self.nodes[node]
                        .core
                        .handle_renewal_window(self.now, None, None);
                }
                Action::Audit(_) => self.audits += 1,
                Action::Lock { .. }
                | Action::Unlock
                | Action::Reseed(_)
                | Action::DeleteStaging
                | Action::DeleteAll => {}
            }
            self.share();
        }
        Ok(())
    }

    fn order(&mut self, node: usize, attempt: u64, slot: Slot) -> Result<(), String> {
        let mine = &self.nodes[node];
        if !mine.leads {
            return Err("a follower orders".to_owned());
        }
        if !mine.turn {
            return Err("orders out of turn".to_owned());
        }
        if mine.order.is_some() {
            return Err("two orders at once on a node".to_owned());
        }
        if self
            .rows
            .lock
            .is_none_or(|(holder, until)| holder != node || until <= self.now.wall)
        {
            return Err("orders without the lock".to_owned());
        }
        // The order of a former leader ends with its leadership.
        if self.nodes[1 - node].order.is_some() {
            return Err("two nodes order at once".to_owned());
        }
        let early = self.now.instant < mine.led_since + NEW_LEADER;
        let spent = |(at, of): &&(Instant, Slot)| *at >= mine.led_since && *of == slot;
        if early && mine.orders.iter().filter(spent).count() > 0 {
            return Err(format!("second {slot:?} order of a new leader"));
        }
        let last = mine.orders.iter().rev().find(|(_, of)| *of == slot);
        if last.is_some_and(|(at, _)| *at >= mine.led_since && self.now.instant < *at + MINUTE) {
            return Err("orders follow too fast".to_owned());
        }
        let takes = if self.faults {
            self.random.below(7 * 60)
        } else {
            5
        };
        let end = self.now.instant + Duration::from_secs(takes);
        self.nodes[node].order = Some((attempt, slot, end));
        self.nodes[node].orders.push((self.now.instant, slot));
        Ok(())
    }

    fn store(&mut self, slot: Slot, chain: Chain) -> Result<(), String> {
        let row = match slot {
            Slot::Staging => &mut self.rows.staging,
            Slot::Production => &mut self.rows.production,
        };
        if row.is_some_and(|old| chain.not_after <= old.not_after) {
            return Err("the stored certificate got worse".to_owned());
        }
        *row = Some(chain);
        self.stores += 1;
        Ok(())
    }

    fn finish_order(&mut self, node: usize) {
        let Some((attempt, _, end)) = self.nodes[node].order else {
            return;
        };
        if self.now.instant < end {
            return;
        }
        self.nodes[node].order = None;
        let outcome = if self.faults && self.random.percent(50) {
            let class = match self.random.below(4) {
                0 => FailureClass::RateLimit,
                1 => FailureClass::Validation,
                2 => FailureClass::Transient,
                _ => FailureClass::Unknown,
            };
            Err(failure(class))
        } else {
            self.issued = self.issued.wrapping_add(1);
            let days = if self.faults {
                1 + self.random.below(90)
            } else {
                90
            };
            let chain = Chain {
                fingerprint: [self.issued; 32],
                not_before: self.now.wall,
                not_after: self.now.wall + u32::try_from(days).unwrap() * DAY,
                covers: !(self.faults && self.random.percent(5)),
            };
            self.nodes[node].hand = Some((attempt, chain));
            Ok(chain)
        };
        self.nodes[node]
            .core
            .handle_order(self.now, attempt, outcome);
    }

    fn lead(&mut self, node: usize, leads: bool) {
        self.nodes[node].leads = leads;
        if leads {
            self.nodes[node].led_since = self.now.instant;
        }
        self.nodes[node].core.handle_leadership(self.now, leads);
    }

    /// Passes a random time, then lets something happen.
    fn step(&mut self) -> Result<(), String> {
        let seconds = match self.random.below(4) {
            0 => 1 + self.random.below(10),
            1 | 2 => 1 + self.random.below(300),
            _ => 1 + self.random.below(20_000),
        };
        self.pass(Duration::from_secs(seconds))?;
        match self.random.below(12) {
            0 => {
                for node in 0..2 {
                    let leads = self.nodes[node].leads;
                    self.lead(node, false);
                    self.run(node)?;
                    if !leads && self.random.percent(80) {
                        self.lead(node, true);
                    }
                }
                // At most one leads.
                if self.nodes[0].leads && self.nodes[1].leads {
                    self.lead(0, false);
                    self.run(0)?;
                }
            }
            1 => {
                self.rows.wanted = self.random.percent(80);
                self.share();
            }
            _ => {}
        }
        self.run(0)?;
        self.run(1)
    }

    fn pass(&mut self, by: Duration) -> Result<(), String> {
        let end = self.now.instant + by;
        loop {
            let due = self.nodes.iter().flat_map(|node| {
                let order = node.order.map(|(_, _, end)| end);
                [node.core.poll_timeout(), order].into_iter().flatten()
            });
            let due = due.min().filter(|due| *due <= end);
            let step = due
                .unwrap_or(end)
                .saturating_duration_since(self.now.instant);
            self.now.instant += step;
            self.now.wall += step;
            for node in 0..2 {
                self.finish_order(node);
                if self.nodes[node].turn && self.random.percent(50) {
                    self.nodes[node].core.handle_turn(self.now);
                }
                self.nodes[node].core.handle_timeout(self.now);
                self.run(node)?;
                let next = self.nodes[node].core.poll_timeout();
                if next.is_some_and(|next| next <= self.now.instant) {
                    return Err("spins".to_owned());
                }
            }
            if due.is_none() {
                return Ok(());
            }
        }
    }

    /// Ends the faults; the certificate has to follow within two hours.
    fn heal(&mut self) -> Result<(), String> {
        self.faults = false;
        self.rows.wanted = true;
        self.share();
        for node in 0..2 {
            self.nodes[node].core.handle_turn(self.now);
        }
        self.lead(1, false);
        self.run(1)?;
        if !self.nodes[0].leads {
            self.lead(0, true);
        }
        self.run(0)?;
        self.pass(2 * 3600 * Duration::from_secs(1))?;
        let production = self.rows.production;
        if !production.is_some_and(|chain| chain.is_valid(self.now.wall)) {
            return Err(format!("no certificate: {:?}", self.nodes[0].core));
        }
        if self.rows.staging.is_some() {
            return Err("the staging certificate is left".to_owned());
        }
        self.rows.wanted = false;
        self.share();
        self.run(0)?;
        self.pass(MINUTE)?;
        if self.rows.production.is_some() || self.rows.lock.is_some() {
            return Err("an unwanted certificate is left".to_owned());
        }
        Ok(())
    }
}

#[test]
fn random_faults_never_break_the_rules() {
    let (mut stores, mut audits) = (0, 0);
    for seed in 0..200 {
        let mut world = World::new(seed);
        for step in 0..150 {
            let done = world.step();
            done.unwrap_or_else(|why| panic!("seed {seed} step {step} {}: {why}", world.domain));
        }
        world
            .heal()
            .unwrap_or_else(|why| panic!("seed {seed} after healing: {why}"));
        stores += world.stores;
        audits += world.audits;
    }
    assert!(stores > 500 && audits > 500, "{stores} {audits}");
}
