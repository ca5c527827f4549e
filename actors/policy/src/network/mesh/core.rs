//! Decides when the mesh is compared with the kernel and carries out what differs.
//!
//! One pass at a time: look at the kernel and resolve the names of peers, then apply the steps of
//! the plan. A pass begins at the start, after changes of the state or of the kernel, and on a
//! timer.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::Arc,
    time::{Duration, Instant},
};

use jaco_engine::cidr::Cidr;
use jaco_state::State;

use super::{
    foreign::ForeignRoute,
    plan::{ApplyError, Observed, Peer, Step, plan, resolve_peers, teardown},
    repair::{Repair, Target},
    repair_log::RepairLog,
    wanted::{Wanted, are_like},
};
use crate::{
    debounce::{Action as DebounceAction, Debounce},
    network::{
        firewall::core::{Rendered, Status},
        names::NetworkId,
        readiness::{IsolationStatus, MeshStatus, Overlap},
    },
};

/// Quiet time after a change before a pass.
pub const DEBOUNCE: Duration = Duration::from_millis(200);
/// Longest delay of a pass by further changes.
pub const MAX_DEBOUNCE: Duration = Duration::from_secs(1);
/// Interval of passes without a change.
pub const TICK: Duration = Duration::from_secs(30);
/// Delay of the pass after a failed one; doubles up to [`TICK`].
pub const FIRST_RETRY: Duration = Duration::from_secs(1);
/// Longest time until the changes of a failed pass are announced.
const SETTLING: Duration = Duration::from_millis(200);
/// Longest time that what an earlier process admitted stays admitted without a test of the ruleset.
pub const INHERITANCE: Duration = Duration::from_secs(2);
/// Most foreign routes that a status names.
const MAX_SHOWN: usize = 4;
/// Reason of a node without a mesh because it was removed from the cluster.
const NO_MEMBER: &str = "this node is no member of the cluster";

/// Reason of a node that still waits for its isolation.
const NOT_IN_FORCE: &str = "the isolation ruleset is not in force";

/// Action for the driver to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Look at the kernel and resolve the names of peers.
    Look {
        /// Networks in which routes of other programs are looked for.
        networks: BTreeSet<Cidr>,
        /// The names. They may be answered later, by [`Core::handle_resolved`]; until then their last
        /// addresses are used.
        names: BTreeSet<String>,
    },
    /// Carry out these steps in order.
    Apply(Vec<Step>),
    /// Record that these differences were removed, which another program had made.
    Audit(BTreeSet<Repair>),
}

/// Outcome of [`Action::Look`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The mesh that the kernel has.
    pub observed: Observed,
    /// IPv4 addresses of the names that could be resolved.
    pub resolved: BTreeMap<String, Ipv4Addr>,
}

/// The isolation of deployments on a host.
#[derive(Clone, Debug)]
pub enum Isolation {
    /// Waived by the configuration.
    Off,
    /// Not tested yet.
    Untested,
    /// No ruleset is in force, as far as the last test shows.
    NotInForce,
    /// The ruleset that this host enforces.
    InForce(Arc<Rendered>),
}

impl Isolation {
    /// Isolation by a host's firewall.
    #[must_use]
    pub fn of(firewall: &Status) -> Self {
        let tested = firewall.isolation == IsolationStatus::Enforced;
        match firewall.enforced.as_ref().filter(|_| tested) {
            Some(enforced) => Self::InForce(Arc::clone(enforced)),
            None if firewall.isolation == IsolationStatus::Pending => Self::Untested,
            None => Self::NotInForce,
        }
    }

    /// Whether packets to the block of a network may be admitted.
    fn admits(&self, network: &NetworkId, block: Cidr) -> bool {
        match self {
            Self::Off => true,
            Self::Untested | Self::NotInForce => false,
            Self::InForce(ruleset) => ruleset.includes(network, block),
        }
    }
}

/// State machine of a node's mesh; see the module documentation.
#[derive(Clone, Debug)]
pub struct Core {
    hostname: String,
    port: u16,
    /// Addresses of all blocks.
    pool: Cidr,
    /// The ruleset that this host enforces; `None` without isolation.
    isolation: Isolation,
    /// Blocks that the device of an earlier process admits, and how long they stay admitted.
    inherited: Option<(BTreeSet<Cidr>, Instant)>,
    /// Nodes and blocks of the newest state.
    state: Option<State>,
    wanted: Option<Wanted>,
    /// Whether `wanted` changed since the last pass began.
    wanted_changed: bool,
    /// Whether the mesh of a former member is left.
    leaves: bool,
    /// Whether the steps in progress remove it.
    tears_down: bool,
    closes: bool,
    debounce: Debounce,
    next_pass: Instant,
    /// Time before which changes of the kernel, which may be those of a failed pass, cause no pass.
    settled_at: Option<Instant>,
    retry: Duration,
    due: bool,
    busy: bool,
    steps: Option<Vec<Step>>,
    /// Newest addresses of names; kept while a name cannot be resolved, so that its peer stays.
    names: BTreeMap<String, Ipv4Addr>,
    unresolved: Vec<String>,
    repairs: RepairLog,
    has_run: bool,
    /// Whether the kernel discarded the packets that must not leave unencrypted when it was last
    /// looked at.
    protected: bool,
    /// Routes of other programs that it had then, which take such packets.
    foreign: BTreeSet<ForeignRoute>,
    status: MeshStatus,
}

impl Core {
    /// Creates the core of `hostname`; `port` is used for peers that have published none.
    #[must_use]
    pub fn new(now: Instant, hostname: &str, port: u16) -> Self {
        Self {
            hostname: hostname.to_owned(),
            port,
            pool: Cidr::aligned(u32::from_be_bytes([10, 244, 0, 0]), 16),
            isolation: Isolation::Off,
            inherited: None,
            state: None,
            wanted: None,
            wanted_changed: false,
            leaves: false,
            tears_down: false,
            closes: false,
            debounce: Debounce::new(DEBOUNCE, MAX_DEBOUNCE),
            next_pass: now,
            settled_at: None,
            retry: FIRST_RETRY,
            due: false,
            busy: false,
            steps: None,
            names: BTreeMap::new(),
            unresolved: Vec::new(),
            repairs: RepairLog::new(now),
            has_run: false,
            protected: false,
            foreign: BTreeSet::new(),
            status: MeshStatus::Unprotected("the mesh device is not set up yet".to_owned()),
        }
    }

    /// Handles the addresses of the cluster's blocks, `10.244.0.0/16` by default: those of
    /// [`ipam::Pool`](crate::network::ipam::Pool).
    pub fn handle_pool(&mut self, now: Instant, pool: Cidr) {
        if self.pool != pool {
            self.pool = pool;
            self.refresh(now);
        }
    }

    /// Handles the isolation of deployments on this host, which is off at first.
    ///
    /// Packets of a peer's block are admitted only while the ruleset includes the block: without it
    /// they would pass to every container.
    pub fn handle_isolation(&mut self, now: Instant, isolation: Isolation) {
        let waited = self.awaits_isolation();
        self.isolation = isolation;
        if !matches!(self.isolation, Isolation::Untested) {
            self.inherited = None;
        }
        self.refresh(now);
        if waited != self.awaits_isolation() {
            // All blocks are admitted now, or none may be any more.
            self.next_pass = now;
        }
    }

    /// Handles the blocks that the device of an earlier process admits. While the ruleset is not tested
    /// they stay admitted, at most for [`INHERITANCE`]: the kernel has what that process enforced.
    pub fn handle_inherited(&mut self, now: Instant, blocks: BTreeSet<Cidr>) {
        if matches!(self.isolation, Isolation::Untested) && !blocks.is_empty() {
            self.inherited = Some((blocks, now + INHERITANCE));
            self.refresh(now);
        }
    }

    /// Whether no block is admitted, as no ruleset is in force yet.
    #[must_use]
    pub fn awaits_isolation(&self) -> bool {
        matches!(self.isolation, Isolation::Untested | Isolation::NotInForce)
    }

    /// Handles a new state.
    pub fn handle_state(&mut self, now: Instant, state: &State) {
        let unchanged = self.state.as_ref().is_some_and(|last| {
            last.subnets.ptr_eq(&state.subnets)
                && (last.nodes.ptr_eq(&state.nodes) || are_like(last, state))
        });
        if unchanged {
            return;
        }
        self.state = Some(State {
            nodes: state.nodes.clone(),
            subnets: state.subnets.clone(),
            ..State::default()
        });
        self.refresh(now);
    }

    /// Computes the mesh again, which causes a pass if it differs.
    fn refresh(&mut self, now: Instant) {
        let (isolation, inherited) = (&self.isolation, &self.inherited);
        let is_inherited = |block| {
            let mut blocks = inherited.iter().map(|(blocks, _)| blocks);
            blocks.any(|blocks| blocks.contains(&block))
        };
        let wanted = self.state.as_ref().and_then(|state| {
            Wanted::of(
                state,
                &self.hostname,
                self.port,
                self.pool,
                |network, block| isolation.admits(network, block) || is_inherited(block),
            )
        });
        if wanted == self.wanted {
            return;
        }
        // The first pass of a member waits for no further changes, nor does the last one.
        if self.wanted.is_none() || wanted.is_none() {
            self.next_pass = now;
            self.retry = FIRST_RETRY;
        } else {
            self.debounce.handle_change(now);
        }
        self.leaves = wanted.is_none();
        if self.leaves {
            self.status = MeshStatus::Unprotected(NO_MEMBER.to_owned());
        }
        self.wanted = wanted;
        self.wanted_changed = true;
    }

    /// Handles a change of the kernel's links, addresses or routes, or a failure of the device.
    pub fn handle_change(&mut self, now: Instant) {
        if self.settled_at.is_none_or(|at| at <= now) {
            self.debounce.handle_change(now);
        }
    }

    /// Handles addresses of names that [`Action::Look`] lists, if they were not part of its outcome.
    pub fn handle_resolved(&mut self, now: Instant, resolved: BTreeMap<String, Ipv4Addr>) {
        let last = self.peers();
        self.names.extend(resolved);
        if self.peers() != last {
            self.wanted_changed = true;
            self.debounce.handle_change(now);
        }
        self.unresolved = self.unresolved_names();
    }

    /// Handles the outcome of [`Action::Look`].
    pub fn handle_seen(&mut self, now: Instant, seen: Result<Seen, String>) {
        let Seen { observed, resolved } = match seen {
            Ok(seen) => seen,
            Err(reason) => return self.finish(now, Err(reason.into())),
        };
        self.names.extend(resolved);
        let names = self.names_of_peers();
        self.names.retain(|name, _| names.contains(name));
        self.unresolved = self.unresolved_names();
        let target = self.wanted.clone().map(|wanted| Target {
            wanted,
            peers: self.peers(),
        });
        self.protected = target
            .as_ref()
            .is_some_and(|target| target.wanted.blackholes.is_subset(&observed.blackholes));
        self.foreign.clone_from(&observed.foreign);
        let overlap = target.as_ref().and_then(|target| target.wanted.overlap());
        if let Some(overlap) = overlap {
            return self.refuse(now, overlap);
        }
        let steps = match &target {
            Some(target) => plan(&target.wanted, target.peers.clone(), &observed),
            None => teardown(&observed),
        };
        self.tears_down = target.is_none();
        self.repairs.handle_plan(target, &observed, &steps);
        if steps.is_empty() {
            self.finish(now, Ok(()));
        } else {
            self.steps = Some(steps);
        }
    }

    fn names_of_peers(&self) -> BTreeSet<String> {
        let peers = self.wanted.iter().flat_map(|wanted| &wanted.peers);
        let names = peers.filter_map(|peer| peer.literal().err());
        names.map(str::to_owned).collect()
    }

    /// The peers with a known address.
    fn peers(&self) -> Vec<Peer> {
        let wanted = self.wanted.as_ref();
        wanted.map_or_else(Vec::new, |wanted| resolve_peers(wanted, &self.names).0)
    }

    fn unresolved_names(&self) -> Vec<String> {
        let names = self
            .wanted
            .iter()
            .flat_map(|wanted| resolve_peers(wanted, &self.names).1);
        names.map(str::to_owned).collect()
    }

    /// Handles the outcome of [`Action::Apply`].
    pub fn handle_applied(&mut self, now: Instant, outcome: Result<(), ApplyError>) {
        self.finish(now, outcome);
    }

    /// Handles the passing of the deadline; has no effect before it.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.inherited.take_if(|(_, until)| *until <= now).is_some() {
            self.refresh(now);
            self.next_pass = now;
        }
        self.debounce.handle_timeout(now);
        self.due |= self.debounce.poll_action() == Some(DebounceAction::Run);
        if self.next_pass <= now {
            self.due = true;
            self.next_pass = now + TICK;
        }
        self.repairs.handle_timeout(now);
    }

    /// Returns the next action.
    pub fn poll_action(&mut self) -> Option<Action> {
        if let Some(repairs) = self.repairs.poll_audit() {
            return Some(Action::Audit(repairs));
        }
        if let Some(steps) = self.steps.take() {
            return Some(Action::Apply(steps));
        }
        if self.busy || !self.due {
            return None;
        }
        self.due = false;
        // Until this node is a member there is nothing to set up.
        if self.wanted.is_none() && !self.leaves {
            return None;
        }
        self.busy = true;
        // The pass covers every change so far.
        self.debounce = Debounce::new(DEBOUNCE, MAX_DEBOUNCE);
        self.wanted_changed = false;
        let wanted = self.wanted.as_ref();
        Some(Action::Look {
            networks: wanted.map_or_else(BTreeSet::new, |wanted| wanted.blackholes.clone()),
            names: self.names_of_peers(),
        })
    }

    /// Whether the driver must close the device, and must have closed it before it runs the next
    /// action: this node is a member no more. True once.
    pub fn poll_close(&mut self) -> bool {
        std::mem::take(&mut self.closes)
    }

    /// Time at which to call [`Core::handle_timeout`].
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        let change = self.debounce.poll_timeout().into_iter();
        let inherited = self.inherited.iter().map(|(_, until)| *until);
        let others = change.chain(self.repairs.poll_timeout()).chain(inherited);
        others.fold(self.next_pass, Instant::min)
    }

    /// State of the mesh after the last pass.
    #[must_use]
    pub fn status(&self) -> &MeshStatus {
        &self.status
    }

    /// Whether a pass has ended.
    #[must_use]
    pub fn has_run(&self) -> bool {
        self.has_run
    }

    /// Names of peers that have no address yet; the peers are left out.
    #[must_use]
    pub fn unresolved(&self) -> &[String] {
        &self.unresolved
    }

    /// Names of peers that the blackholes keep this node from, unless it has a better route to them.
    /// Such a peer refuses to set its own mesh up.
    pub fn overlapping(&self) -> impl Iterator<Item = &str> {
        self.wanted.iter().flat_map(Wanted::overlapping)
    }

    fn finish(&mut self, now: Instant, outcome: Result<(), ApplyError>) {
        self.busy = false;
        self.has_run = true;
        let tears_down = std::mem::take(&mut self.tears_down);
        self.repairs.handle_finished(outcome.is_ok());
        match outcome {
            Ok(()) => {
                self.retry = FIRST_RETRY;
                self.settled_at = None;
                if !self.wanted_changed {
                    self.next_pass = now + TICK;
                }
                if tears_down {
                    self.closes = true;
                    self.leaves &= self.wanted_changed;
                } else if self.wanted.is_some() {
                    self.protected = true;
                    self.status = match (
                        self.foreign_routes(BTreeSet::new()),
                        self.awaits_isolation(),
                    ) {
                        (Some(foreign), _) => foreign,
                        (None, true) => MeshStatus::Unavailable(NOT_IN_FORCE.to_owned()),
                        (None, false) => MeshStatus::Up,
                    };
                }
            }
            Err(failure) => self.fail(now, failure),
        }
    }

    /// Ends a pass without a step, as blackholes would cut this node off. Those of an earlier address
    /// stay: without them packets of containers would leave unencrypted.
    fn refuse(&mut self, now: Instant, overlap: Overlap) {
        self.busy = false;
        self.has_run = true;
        self.repairs = RepairLog::new(now);
        if !self.wanted_changed {
            self.next_pass = now + TICK;
        }
        self.status = MeshStatus::Overlaps(overlap);
    }

    /// Status of a node with routes of other programs that take packets of the mesh, if there are any;
    /// `unreached` are the blocks that have no route.
    fn foreign_routes(&self, mut unreached: BTreeSet<Cidr>) -> Option<MeshStatus> {
        let routes = self.wanted.iter().flat_map(Wanted::routes);
        let is_taken = |block: &Cidr| self.foreign.iter().any(|found| found.to.overlaps(*block));
        unreached.extend(routes.filter(is_taken));
        let shown = self.foreign.iter().take(MAX_SHOWN);
        let shown: Vec<String> = shown.map(ToString::to_string).collect();
        let more = match self.foreign.len().saturating_sub(MAX_SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        (!shown.is_empty()).then(|| MeshStatus::ForeignRoutes {
            routes: shown.join(", ") + &more,
            unreached,
        })
    }

    fn fail(&mut self, now: Instant, failure: ApplyError) {
        let at = now + self.retry;
        self.retry = (self.retry * 2).min(TICK);
        self.settled_at = Some(now + SETTLING);
        let ApplyError { reason, unreached } = failure;
        // Then every blackhole was added, too.
        self.protected |= unreached.is_some();
        self.status = match self.foreign_routes(unreached.clone().unwrap_or_default()) {
            Some(foreign) => foreign,
            None if !self.protected => MeshStatus::Unprotected(reason),
            None => match unreached.filter(|_| !self.awaits_isolation()) {
                Some(unreached) => MeshStatus::Partial { reason, unreached },
                None => MeshStatus::Unavailable(reason),
            },
        };
        // Changes during the pass may be its own.
        if !self.wanted_changed {
            self.debounce = Debounce::new(DEBOUNCE, MAX_DEBOUNCE);
            self.due = false;
            self.next_pass = at;
        }
    }
}

#[cfg(test)]
mod tests;
