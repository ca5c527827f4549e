//! The routing of each node, and the withdrawal of a container from it before its stop signal.
//!
//! The production view decides when a node derives its routing again; the calls by which the nodes
//! tell each other how far they are take effect at once wherever the network lets them pass.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jaco_policy::{
    ingress::{
        table::same_input,
        view::{ServingView, covers},
    },
    runtime::{assignment, replica::core::WITHDRAWAL_TIMEOUT},
};
use jaco_proto::v1::NodeStatus;
use jaco_state::State;

use super::{
    cluster::{Cluster, Local},
    mutation::Mutation,
    ports::PortTable,
    time::{MS, SECOND, Time, Wake},
};

/// Time between two looks at how far the nodes are.
const POLL: Time = 50 * MS;
/// Time limit of a withdrawal on the machine's own clock, which may run fast.
const BOUND: Time = 19 * SECOND / 10;

/// The routing of one daemon.
pub(super) struct Routing {
    pub(super) ports: PortTable,
    view: ServingView,
    installed: Arc<State>,
    wake: Wake,
}

impl Routing {
    pub(super) fn new(state: &Arc<State>, host: &str) -> Self {
        Self {
            ports: PortTable::new(state, host),
            view: ServingView::new(Arc::clone(state), same_input),
            installed: Arc::clone(state),
            wake: Wake::default(),
        }
    }
}

/// Withdrawals by machine and replica.
pub(super) type Withdrawals = BTreeMap<(u64, String), Withdrawal>;

/// The last withdrawal of a replica on one machine.
#[derive(Debug)]
pub(super) struct Withdrawal {
    since: Time,
    /// Run of each machine whose node was ready.
    ready: BTreeSet<(u64, u64)>,
}

/// A wait of a replica's actor for its withdrawal.
#[derive(Clone, Debug)]
pub(super) struct WithdrawalWait {
    pub(super) replica: String,
    pub(super) instance: u64,
    pub(super) generation: u64,
    /// Index of the state that no longer shows the container; `None` before there is one.
    index: Option<u64>,
    until: Time,
}

impl Cluster {
    /// Shows the newest state to the routing of node `id`.
    pub(super) fn route(&mut self, id: u64) {
        if let Some((instant, daemon)) = self.running(id) {
            let newest = Arc::clone(&daemon.state);
            let routing = &mut daemon.routing;
            routing
                .ports
                .view
                .handle_state(instant, Arc::clone(&newest));
            routing.view.handle_state(instant, newest);
        }
        self.schedule_routing(id);
    }

    pub(super) fn routing_due(&mut self, id: u64) {
        let (now, forgets) = (self.now, self.forgets_replicas());
        let Some(host) = self.machines.get(&id).map(|it| it.host.clone()) else {
            return;
        };
        if let Some((instant, daemon)) = self.running(id) {
            let routing = &mut daemon.routing;
            routing.wake.handle_event(now);
            routing.view.handle_timeout(instant);
            if routing.view.poll_update() {
                routing.installed = Arc::clone(routing.view.state());
            }
            routing.ports.view.handle_timeout(instant);
            if routing.ports.view.poll_update() {
                routing.ports.install(&host, forgets);
            }
        }
        self.schedule_routing(id);
    }

    fn schedule_routing(&mut self, id: u64) {
        let deadline = self.running(id).and_then(|(_, daemon)| {
            let routing = &daemon.routing;
            let views = [&routing.view, &routing.ports.view];
            views
                .into_iter()
                .filter_map(ServingView::poll_timeout)
                .min()
        });
        self.schedule_wake(
            id,
            deadline,
            |daemon| &mut daemon.routing.wake,
            Local::Routing,
        );
    }

    /// Begins the withdrawal of a replica on node `id`.
    pub(super) fn withdraw(&mut self, id: u64, replica: &str, instance: u64, generation: u64) {
        let ready = self.ready_machines(id);
        let withdrawal = Withdrawal {
            since: self.now,
            ready: ready
                .into_iter()
                .filter_map(|it| Some((it, self.machines.get(&it)?.run)))
                .collect(),
        };
        self.withdrawals
            .insert((id, replica.to_owned()), withdrawal);
        let wait = WithdrawalWait {
            replica: replica.to_owned(),
            instance,
            generation,
            index: None,
            until: self.now + 2 * time_of(WITHDRAWAL_TIMEOUT),
        };
        self.count("containers withdrawn");
        self.schedule_local(id, MS, Local::Withdrawal(wait));
    }

    /// Looks whether a container has been withdrawn everywhere.
    pub(super) fn withdrawal(&mut self, id: u64, mut wait: WithdrawalWait) {
        let skips = self.has(Mutation::StopWithoutWithdrawal);
        let Some(machine) = self.machines.get(&id) else {
            return;
        };
        let Some(daemon) = &machine.daemon else {
            return;
        };
        let state = &daemon.state;
        if wait.index.is_none() && !assignment::is_routed(state, &machine.host, &wait.replica) {
            wait.index = Some(state.applied_index);
        }
        let everywhere = wait.index.is_some_and(|index| {
            let ready = self.ready_machines(id);
            ready.into_iter().all(|it| self.has_routed(id, it, index))
        });
        if everywhere || skips {
            self.withdrawn(id, &wait);
        } else if self.now < wait.until {
            self.schedule_local(id, POLL, Local::Withdrawal(wait));
        }
    }

    /// Machines whose nodes are ready as node `id` knows.
    pub(super) fn ready_machines(&self, id: u64) -> Vec<u64> {
        let daemon = self.machines.get(&id).and_then(|it| it.daemon.as_ref());
        let Some(daemon) = daemon else {
            return Vec::new();
        };
        let ready = daemon.state.nodes.values();
        let ready = ready.filter(|node| node.status() == NodeStatus::Ready);
        ready.map(|node| node.raft_id).collect()
    }

    /// Whether node `asked` tells node `id` that its routing agrees with the entry at `index`.
    pub(super) fn has_routed(&self, id: u64, asked: u64, index: u64) -> bool {
        let cut = self.network.is_cut(id, asked) || self.network.is_cut(asked, id);
        let machine = self.machines.get(&asked);
        let up = machine.filter(|machine| machine.paused_until <= self.now);
        let daemon = up.and_then(|machine| machine.daemon.as_ref());
        daemon.is_some_and(|daemon| {
            (asked == id || !cut)
                && daemon.state.applied_index >= index
                && covers(&daemon.routing.installed, &daemon.state, same_input)
                && daemon.routing.ports.covers(&daemon.state)
        })
    }

    /// Judges a stop signal: clients must not be led to the container any more by a node that was
    /// ready, unless it had the time to apply the withdrawal.
    pub(super) fn judge_stop(&mut self, id: u64, replica: &str, container: &str) {
        let Some(withdrawal) = self.withdrawals.get(&(id, replica.to_owned())) else {
            return;
        };
        if self.now - withdrawal.since >= BOUND {
            return;
        }
        let Some(host) = self.machines.get(&id).map(|machine| machine.host.as_str()) else {
            return;
        };
        // A node that is ready no longer is not waited for.
        let ready = self.ready_machines(id);
        let leads_there = |(asked, run): &&(u64, u64)| {
            if !ready.contains(asked) {
                return false;
            }
            let machine = self.machines.get(asked).filter(|it| it.run == *run);
            let daemon = machine.and_then(|machine| machine.daemon.as_ref());
            daemon.is_some_and(|daemon| {
                let shown = &daemon.routing.installed;
                let seen = shown.replicas_observed.get(replica);
                (assignment::is_routed(shown, host, replica)
                    && seen.is_some_and(|seen| seen.container_id == container))
                    || daemon.routing.ports.leads_to(host, replica)
            })
        };
        if let Some((asked, _)) = withdrawal.ready.iter().find(leads_there) {
            let what = format!("n{id} stops {container} of {replica}, to which n{asked} routes");
            self.oracle.violate("withdrawn before the stop", what);
        }
    }
}

fn time_of(duration: std::time::Duration) -> Time {
    Time::try_from(duration.as_micros()).unwrap_or(Time::MAX)
}
