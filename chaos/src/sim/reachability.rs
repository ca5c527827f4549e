//! Judge of the network: which containers reach each other, and what leaves a machine unencrypted.
//!
//! A packet takes the path that the kernels have at this moment, regardless of what any daemon
//! believes: the source's ruleset and routes, the mesh with its allowed addresses at both ends, and
//! the destination's ruleset and bridges.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use jaco_engine::cidr::Cidr;
use jaco_policy::network::{
    names::NetworkId,
    readiness,
    scopes::{internal_networks, scopes},
};

use super::{
    cluster::{Cluster, Local, Machine},
    kernel::{Route, Tampering, contains},
    mesh::{machine_of, public_key},
    mutation::Mutation,
    time::{MS, SECOND, Time},
};

/// Time in which a daemon that runs repairs a change of the kernel: a second, and the requests to the
/// kernel.
const REPAIR_BOUND: Time = 2 * SECOND;
/// Longest pause of a daemon after a request to the kernel failed.
const RETRY_BOUND: Time = 31 * SECOND;
/// Longest additional time of requests to a slow kernel, which may be made one after the other.
pub(super) const SLOWEST: Time = 1_500 * MS;

/// Name of the mesh device.
const DEVICE: &str = "jaco0";

/// Time after which a change of the kernel is repaired in every case that is judged.
const FORGOTTEN: Time = 2 * RETRY_BOUND;

/// Observations on which the judge excuses a machine.
#[derive(Debug, Default)]
pub(super) struct Reachability {
    /// Time at which another program last changed the table of a machine.
    tables: BTreeMap<u64, Time>,
    /// Time at which another program last changed the mesh of a machine.
    meshes: BTreeMap<u64, Time>,
    /// Time from which on the daemon of a machine could repair something.
    able_from: BTreeMap<u64, Time>,
    /// Time of the last failed request to the kernel of a machine.
    failed: BTreeMap<u64, Time>,
    /// Machines that left, and the time at which a member learned it.
    left: BTreeMap<(u64, u64), Time>,
}

/// Address of a running container in one of its networks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Endpoint<'a> {
    pub(super) machine: u64,
    pub(super) network: &'a NetworkId,
    pub(super) address: Ipv4Addr,
    pub(super) container: &'a str,
}

/// Place of a packet in its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packet {
    /// It begins the connection.
    First,
    /// An earlier one was answered.
    Next,
}

/// End of a packet's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It arrives at the container with this address on this machine.
    Arrives(u64),
    Dropped,
    /// It leaves the machine unencrypted, as the mesh has no route for it.
    Leaves,
    /// It leaves the machine unencrypted by the route of another program.
    Taken,
}

impl Reachability {
    /// The daemon of `id` could not act until now.
    pub(super) fn hinder(&mut self, id: u64, now: Time) {
        self.able_from.insert(id, now);
    }

    /// A request to the kernel of `id` failed.
    pub(super) fn record_failure(&mut self, id: u64, now: Time) {
        self.failed.insert(id, now);
    }

    /// Whether another program ever changed the mesh of `id`.
    pub(super) fn mesh_was_damaged(&self, id: u64) -> bool {
        self.meshes.contains_key(&id)
    }

    /// Whether the daemon of a machine may still be repairing what happened at `since`.
    fn is_excused(&self, machine: &Machine, since: Time, now: Time) -> bool {
        let id = machine.id;
        let able = machine.daemon.as_ref().is_some_and(|daemon| {
            daemon.status.leader_id.is_some()
                && machine.paused_until <= now
                && !machine.kernel.failing
        });
        if !able {
            return true;
        }
        let mut from = since.max(self.able_from.get(&id).copied().unwrap_or(0));
        from = from.max(machine.paused_until + machine.late_wake);
        let failed = self.failed.get(&id).copied().unwrap_or(0);
        // A change is learned up to a second after the daemon learns it.
        if failed + REPAIR_BOUND >= since && failed > 0 {
            from = from.max(failed + RETRY_BOUND);
        }
        let slow = machine
            .kernel
            .slowed_at
            .is_some_and(|at| at + 4 * SLOWEST > from);
        now <= from + REPAIR_BOUND + if slow { 5 * SLOWEST } else { 0 }
    }

    /// Whether the table of a machine may still be under repair.
    pub(super) fn excuses_table(&self, machine: &Machine, now: Time) -> bool {
        self.excuses(&self.tables, machine, now)
    }

    fn excuses(&self, changes: &BTreeMap<u64, Time>, machine: &Machine, now: Time) -> bool {
        let changed = changes.get(&machine.id);
        changed.is_some_and(|since| self.is_excused(machine, *since, now))
    }
}

/// Endpoints of the running containers of a machine.
pub(super) fn endpoints(machine: &Machine) -> impl Iterator<Item = Endpoint<'_>> {
    machine.engine.running().flat_map(move |container| {
        let addresses = container.addresses.iter();
        addresses.map(move |(network, address)| Endpoint {
            machine: machine.id,
            network,
            address: *address,
            container: &container.id,
        })
    })
}

/// One endpoint of each network on each machine: the others share its fate.
pub(super) fn distinct(machine: &Machine) -> Vec<Endpoint<'_>> {
    let mut seen = BTreeSet::new();
    endpoints(machine)
        .filter(|endpoint| seen.insert(endpoint.network))
        .collect()
}

impl Cluster {
    /// Path of a packet with source `from`, which a container on `network` of a machine sends to the
    /// address `to`.
    pub(super) fn fate(
        &self,
        machine: &Machine,
        network: &NetworkId,
        from: Ipv4Addr,
        to: Ipv4Addr,
        packet: Packet,
    ) -> Fate {
        let bridges = machine.engine.networks();
        let own = bridges.get(network).copied();
        if own.is_some_and(|cidr| contains(cidr, to)) {
            return Fate::Arrives(machine.id);
        }
        let kernel = &machine.kernel;
        let routed = own.is_some_and(|cidr| contains(cidr, from))
            && kernel.route(bridges, from) == Route::Bridge;
        if !kernel.admits_source(from, &network.bridge_name(), routed)
            || kernel.drops(from, to, packet)
        {
            return Fate::Dropped;
        }
        match machine.kernel.route(bridges, to) {
            Route::Bridge => Fate::Arrives(machine.id),
            Route::Discard => Fate::Dropped,
            // Whatever the ruleset drops: the routes are judged alone.
            Route::Default => Fate::Leaves,
            Route::Foreign if kernel.drops_outside(from, to) => Fate::Dropped,
            Route::Foreign => Fate::Taken,
            Route::Mesh => self.fate_in_mesh(machine, from, to, packet),
        }
    }

    fn fate_in_mesh(
        &self,
        machine: &Machine,
        from: Ipv4Addr,
        to: Ipv4Addr,
        packet: Packet,
    ) -> Fate {
        let peer = machine.kernel.peer_of(to).map(machine_of);
        let Some(receiver) = peer.and_then(|peer| self.machines.get(&peer)) else {
            return Fate::Dropped;
        };
        let sender = public_key(machine.id);
        let accepted = receiver.kernel.peer_of(from) == Some(sender);
        let bridges = receiver.engine.networks();
        let routed = receiver.kernel.route(bridges, from) == Route::Mesh;
        if !accepted
            || !receiver.kernel.admits_source(from, DEVICE, routed)
            || receiver.kernel.drops(from, to, packet)
        {
            return Fate::Dropped;
        }
        match receiver.kernel.route(bridges, to) {
            Route::Bridge => Fate::Arrives(receiver.id),
            Route::Discard | Route::Default | Route::Foreign | Route::Mesh => Fate::Dropped,
        }
    }

    /// Judges all packets to and from containers of machine `changed`.
    pub(super) fn judge(&mut self, changed: u64) {
        let found = self.judged(changed);
        if let Some((invariant, what)) = found.or_else(|| self.judge_flows(changed)) {
            self.oracle.violate(invariant, what);
        }
    }

    fn judged(&self, changed: u64) -> Option<(&'static str, String)> {
        let members = || self.machines.values().filter(|machine| !machine.removed);
        let own = distinct(
            self.machines
                .get(&changed)
                .filter(|machine| !machine.removed)?,
        );
        if own.is_empty() {
            return None;
        }
        let machine = self.machines.get(&changed)?;
        let found = self.judge_joined(machine);
        let found = found.or_else(|| self.judge_internal(machine));
        if found.is_some() {
            return found;
        }
        for machine in members() {
            for other in distinct(machine) {
                for own in &own {
                    let found = self.judge_pair(own, &other);
                    let found = found.or_else(|| self.judge_pair(&other, own));
                    let found = found.or_else(|| self.judge_forged(own, &other));
                    let found = found.or_else(|| self.judge_forged(&other, own));
                    if found.is_some() {
                        return found;
                    }
                }
            }
        }
        None
    }

    /// A container that is on internal networks only reaches nothing outside of the cluster. That of a
    /// deleted deployment is not judged: a daemon that starts again no longer knows its network. Nor is one
    /// on a network that is internal only since the last ruleset that the kernel took.
    fn judge_internal(&self, machine: &Machine) -> Option<(&'static str, String)> {
        let status = &machine.daemon.as_ref()?.isolation.status;
        let enforced = status.enforced.iter().flat_map(|last| &last.scopes);
        let enforced: BTreeSet<_> = enforced
            .filter(|scope| scope.internal)
            .map(|scope| &scope.id)
            .collect();
        let mut internal = internal_networks(self.oracle.newest());
        internal.retain(|network| enforced.contains(network));
        let (confined, others): (Vec<_>, Vec<_>) =
            endpoints(machine).partition(|endpoint| internal.contains(endpoint.network));
        let is_elsewhere = |container: &str| others.iter().any(|one| one.container == container);
        let mut confined = confined.into_iter();
        let out = confined.find(|endpoint| {
            !is_elsewhere(endpoint.container) && machine.kernel.lets_out(endpoint.address)
        })?;
        // Nothing else keeps packets in while the table is another program's: replicas leave the node then.
        if machine.kernel.is_owned() || self.reachability.excuses_table(machine, self.now) {
            return None;
        }
        let what = format!(
            "{} of {} ({}) on n{} reaches the outside",
            out.container, out.network, out.address, out.machine
        );
        Some(("internal networks lead nowhere", what))
    }

    fn judge_pair(&self, from: &Endpoint<'_>, to: &Endpoint<'_>) -> Option<(&'static str, String)> {
        let allowed = from.network == to.network;
        if allowed && from.machine == to.machine {
            return None;
        }
        let machine = self.machines.get(&from.machine)?;
        let leaves = || {
            let bridges = machine.engine.networks();
            let route = machine.kernel.route(bridges, to.address);
            matches!(route, Route::Default | Route::Foreign)
        };
        if allowed && !leaves() {
            return None;
        }
        let receiver = self.machines.get(&to.machine)?;
        // A container that is in both networks does not ask the machine.
        let other =
            |known: &Endpoint<'_>| known.network == to.network && known.container != from.container;
        let to = match from.container == to.container {
            true => &endpoints(receiver).find(other)?,
            false => to,
        };
        let judge = &self.reachability;
        let what = || {
            format!(
                "{} of {} ({}) on n{} to {} of {} ({}) on n{}",
                from.container,
                from.network,
                from.address,
                from.machine,
                to.container,
                to.network,
                to.address,
                to.machine,
            )
        };
        let packet = Packet::First;
        match self.fate(machine, from.network, from.address, to.address, packet) {
            Fate::Arrives(at) if at == to.machine && !allowed => {
                let excused = [machine, receiver]
                    .into_iter()
                    .any(|machine| judge.excuses_table(machine, self.now));
                (!excused).then(|| ("no forbidden connection", what()))
            }
            Fate::Leaves if from.machine != to.machine => {
                let excused = judge.excuses(&judge.meshes, machine, self.now);
                (!excused).then(|| ("no plaintext", what()))
            }
            Fate::Taken if from.machine != to.machine => {
                let excused = judge.excuses_table(machine, self.now);
                (!excused).then(|| ("no plaintext", what()))
            }
            Fate::Arrives(_) | Fate::Dropped | Fate::Leaves | Fate::Taken => None,
        }
    }

    /// Judges everything that becomes a violation by the passing of time.
    pub(super) fn judge_all(&mut self) {
        for id in self.machines.keys().copied().collect::<Vec<_>>() {
            let judge = &self.reachability;
            let changes = [judge.tables.get(&id), judge.meshes.get(&id)];
            let recent = |since: &&Time| **since + FORGOTTEN > self.now;
            if changes.into_iter().flatten().any(|since| recent(&since)) {
                self.judge(id);
            }
            self.judge_peers(id);
            self.judge_foreign(id);
        }
    }

    /// A member must know the routes that take packets of its containers, so that it starts none.
    fn judge_foreign(&mut self, id: u64) {
        let Some(machine) = self.machines.get(&id).filter(|machine| !machine.removed) else {
            return;
        };
        let Some(daemon) = &machine.daemon else {
            return;
        };
        let known = matches!(
            daemon.mesh.core.status(),
            readiness::MeshStatus::Unprotected(_) | readiness::MeshStatus::ForeignRoutes { .. }
        );
        let judge = &self.reachability;
        let excused = judge.excuses(&judge.meshes, machine, self.now);
        if !machine.kernel.foreign().is_empty() && !known && !excused {
            let what = format!(
                "n{id} has foreign routes and is {:?}",
                daemon.mesh.core.status()
            );
            self.oracle.violate("foreign routes are known", what);
        }
    }

    /// A member must not accept packets of a machine that left.
    fn judge_peers(&mut self, id: u64) {
        let now = self.now;
        let Some(machine) = self.machines.get(&id) else {
            return;
        };
        let Some(daemon) = machine.daemon.as_ref().filter(|_| !machine.removed) else {
            return;
        };
        for peer in machine
            .kernel
            .peers()
            .map(|peer| machine_of(peer.public_key))
        {
            let host = format!("n{peer}");
            if daemon.state.nodes.contains_key(&host) {
                continue;
            }
            let since = *self.reachability.left.entry((id, peer)).or_insert(now);
            if !self.reachability.is_excused(machine, since, now) {
                let what = format!("n{id} accepts packets of {host}, which left");
                return self.oracle.violate("no forbidden connection", what);
            }
        }
    }

    /// Lets another program change the kernel of machine `id`.
    pub(super) fn tamper(&mut self, id: u64, tampering: Tampering) {
        let shown = !self.has(Mutation::NoDriftRepair);
        let now = self.now;
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        machine.kernel.tamper(tampering, shown);
        self.count("kernels tampered with");
        if tampering.concerns_table() {
            self.reachability.tables.insert(id, now);
            self.table_loaded(id);
        } else {
            self.reachability.meshes.insert(id, now);
            self.mesh_changed(id);
        }
    }

    /// Lets another process own the isolation table of machine `id`, or end.
    pub(super) fn own_table(&mut self, id: u64, owned: bool) {
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        if machine.kernel.is_owned() != owned {
            machine.kernel.set_owned(owned);
            self.count("changes of a table's owner");
            self.reachability.tables.insert(id, self.now);
            self.table_loaded(id);
        }
    }

    /// Lets another program of machine `id` have routes to a part of every block of the others, or
    /// none.
    pub(super) fn lead_away(&mut self, id: u64, leads: bool) {
        let others = self
            .machines
            .values()
            .filter(|other| other.id != id && leads);
        let blocks = others.flat_map(|other| other.engine.networks().values());
        let halves = blocks.map(|block| Cidr::aligned(block.network().into(), block.prefix() + 1));
        let halves: BTreeSet<Cidr> = halves.collect();
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let present = !machine.kernel.foreign().is_empty();
        if leads != present && machine.kernel.set_foreign(halves) {
            self.count("changes of foreign routes");
            self.reachability.meshes.insert(id, self.now);
            self.mesh_changed(id);
        }
    }

    /// The isolation table of machine `id` has changed.
    pub(super) fn table_loaded(&mut self, id: u64) {
        self.announce(id, (true, false));
        self.judge(id);
    }

    /// The mesh device of machine `id`, or a route, has changed.
    pub(super) fn mesh_changed(&mut self, id: u64) {
        self.announce(id, (false, true));
        self.judge(id);
    }

    /// Lets the daemon of machine `id` know of a change of its kernel.
    fn announce(&mut self, id: u64, (table, mesh): (bool, bool)) {
        let soon = self.kernel_chance.within(MS / 10..3 * MS);
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        // A daemon that starts looks at the kernel anyway.
        if machine.daemon.is_none() {
            return;
        }
        let unseen = &mut machine.kernel.unseen;
        let pending = unseen.0 || unseen.1;
        *unseen = (unseen.0 || table, unseen.1 || mesh);
        if !pending {
            self.schedule_local(id, soon, Local::KernelChanged);
        }
    }

    pub(super) fn kernel_changed(&mut self, id: u64) {
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let (table, mesh) = std::mem::take(&mut machine.kernel.unseen);
        if table {
            self.drive_isolation(id, |core, now| core.handle_kernel_event(now));
        }
        if mesh {
            self.drive_mesh(id, |core, now| core.handle_change(now));
        }
    }

    /// Reason why the networks are not at rest: an allowed pair that is apart, a ruleset of another
    /// state, or a bridge without a row.
    pub(super) fn unrest_of_networks(&self) -> Option<String> {
        let members = || self.machines.values().filter(|machine| !machine.removed);
        let scopes = scopes(self.oracle.newest());
        for machine in members() {
            let host = &machine.host;
            let daemon = machine.daemon.as_ref()?;
            let enforced = daemon.isolation.status.enforced.as_ref();
            // Blocks that left the rows stay apart for some minutes.
            let current = enforced.is_some_and(|enforced| {
                enforced.scopes == scopes && machine.kernel.table() == Some(&enforced.ruleset)
            });
            if !current {
                return Some(format!("{host} has the ruleset of another state"));
            }
            if *daemon.mesh.core.status() != readiness::MeshStatus::Up {
                return Some(format!(
                    "the mesh of {host} is {:?}",
                    daemon.mesh.core.status()
                ));
            }
            for (network, cidr) in machine.engine.networks() {
                let key = (
                    network.deployment().to_owned(),
                    network.network().to_owned(),
                    host.clone(),
                );
                let row = self.oracle.newest().subnets.get(&key);
                if row.is_none_or(|row| row.cidr != cidr.to_string()) {
                    return Some(format!("{host} has a bridge of {network} with {cidr}"));
                }
            }
        }
        for (from, to) in members().flat_map(|from| members().map(move |to| (from, to))) {
            for source in distinct(from) {
                let same = |to: &Endpoint<'_>| to.network == source.network;
                for target in distinct(to).into_iter().filter(same) {
                    let (by, address) = (source.network, source.address);
                    let fate = self.fate(from, by, address, target.address, Packet::First);
                    if fate != Fate::Arrives(to.id) {
                        return Some(format!("{source:?} does not reach {target:?}: {fate:?}"));
                    }
                }
            }
        }
        None
    }
}
