//! The published ports of each node, and the judge of where they lead.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jaco_policy::ingress::{
    ports::{PortKey, ServedPort, same_input, served_ports},
    table::NodeFacts,
    view::{ServingView, covers},
};
use jaco_proto::v1::ReplicaState;
use jaco_state::State;

use super::{
    cluster::Cluster,
    mutation::Mutation,
    time::{SECOND, Time},
};

/// Time in which the ports of a node follow its state: the longest debounce, and some more.
const FOLLOW_BOUND: Time = 2 * SECOND;

/// The published ports of one daemon.
pub(super) struct PortTable {
    pub(super) view: ServingView,
    installed: Arc<State>,
    table: BTreeMap<PortKey, ServedPort>,
}

/// Upstreams that a port must not have, by run of the node, and since when.
pub(super) type Astray = BTreeMap<(u64, String), Time>;

impl PortTable {
    /// Derives the ports of `host` from `state`.
    pub(super) fn new(state: &Arc<State>, host: &str) -> Self {
        let mut ports = Self {
            view: ServingView::new(Arc::clone(state), same_input),
            installed: Arc::default(),
            table: BTreeMap::new(),
        };
        ports.install(host, false);
        ports
    }

    /// Derives the ports again; with the planted bug, only if other ones are published.
    pub(super) fn install(&mut self, host: &str, forgets_replicas: bool) {
        let state = Arc::clone(self.view.state());
        let before = std::mem::replace(&mut self.installed, Arc::clone(&state));
        if forgets_replicas && before.tcp_routes.ptr_eq(&state.tcp_routes) {
            return;
        }
        let facts = NodeFacts {
            hostname: host.to_owned(),
            https: false,
            mesh: true,
            unreached: Default::default(),
        };
        // Hosts without heartbeats are the concern of node health.
        let fresh: BTreeSet<String> = state.nodes.keys().cloned().collect();
        self.table = served_ports(&state, &facts, &fresh);
    }

    /// Whether the ports agree with `state`.
    pub(super) fn covers(&self, state: &State) -> bool {
        covers(&self.installed, state, same_input)
    }

    /// Whether a port leads to the replica on `host`.
    pub(super) fn leads_to(&self, host: &str, replica: &str) -> bool {
        let mut upstreams = self.table.values().flat_map(|served| &served.upstreams);
        upstreams.any(|upstream| upstream.host == host && upstream.replica == replica)
    }

    /// The upstreams of all ports that are no running replicas of the service that `state` publishes
    /// the port for.
    fn astray<'a>(&'a self, state: &'a State) -> impl Iterator<Item = String> + 'a {
        self.table.iter().flat_map(move |(key, served)| {
            let mut routes = state.tcp_routes.values();
            let route = routes.find(|route| PortKey::of(route) == Some(*key));
            let wrong = served.upstreams.iter().filter(move |upstream| {
                let row = state.replicas_desired.get(&upstream.replica);
                let seen = state.replicas_observed.get(&upstream.replica);
                let is_own = row.zip(route).is_some_and(|(row, route)| {
                    row.deployment == route.deployment && row.service == route.service
                });
                let runs = seen.is_some_and(|seen| {
                    seen.state() == ReplicaState::Running && seen.host == upstream.host
                });
                !is_own || !runs
            });
            wrong.map(move |upstream| format!("{key} leads to {upstream:?}"))
        })
    }
}

impl Cluster {
    /// Judges where the ports of every node lead.
    pub(super) fn audit_ports(&mut self) {
        let now = self.now;
        let mut astray = Vec::new();
        for machine in self.machines.values().filter(|it| it.paused_until <= now) {
            let daemon = machine.daemon.as_ref();
            let found = daemon.map(|it| it.routing.ports.astray(&it.state));
            let found = found.into_iter().flatten();
            astray.extend(found.map(|what| (machine.run, format!("{}: {what}", machine.host))));
        }
        let before = std::mem::take(&mut self.astray);
        for key in astray {
            let since = before.get(&key).copied().unwrap_or(now);
            if now >= since + FOLLOW_BOUND && !self.was_paused_since(key.0, since) {
                self.oracle
                    .violate("ports lead to running replicas", key.1.clone());
            }
            self.astray.insert(key, since);
        }
    }

    /// Whether the daemon of this run was paused after `since`.
    fn was_paused_since(&self, run: u64, since: Time) -> bool {
        let mut machines = self.machines.values();
        let machine = machines.find(|machine| machine.run == run);
        machine.is_some_and(|it| it.paused_until + it.late_wake + FOLLOW_BOUND > since)
    }

    pub(super) fn forgets_replicas(&self) -> bool {
        self.has(Mutation::KeepPortTable)
    }
}
