//! Network of a machine in its kernel, which outlives the daemon: the isolation table, the mesh
//! device and the routes.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use jaco_engine::cidr::Cidr;
use jaco_policy::network::{
    firewall::{
        core::{Applied, Rendered},
        ruleset::{PREROUTING, Rule, Ruleset, Set, Span, Verdict},
    },
    mesh::{
        foreign::{ForeignRoute, MAIN_TABLE},
        plan::{DeviceRoute, DeviceState, Observed, Peer, Step},
    },
    names::NetworkId,
};
use jaco_state::State;

use super::{mutation::Mutation, reachability::Packet, time::Time};

/// Flag of a table that belongs to a process (`NFT_TABLE_F_OWNER`).
const OWNER: u32 = 2;

/// A part of the kernel. With a planted bug the daemon is shown something else than packets meet.
#[derive(Debug, Default)]
struct Part<T> {
    shown: T,
    real: T,
}

impl<T: Clone> Part<T> {
    fn set(&mut self, value: T) {
        self.shown = value.clone();
        self.real = value;
    }
}

/// An address that no container and no host has (RFC 5737).
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

/// The kernel of one machine.
#[derive(Debug, Default)]
pub(super) struct Kernel {
    table: Part<Option<Ruleset>>,
    /// Whether the table drops packets between two networks of 256 addresses, as far as known.
    verdicts: RefCell<BTreeMap<(u32, u32), bool>>,
    /// Whether the rules of the engine, which drop packets between bridges, exempt containers.
    pub(super) accepts: bool,
    /// Whether the table belongs to another process, and cannot be replaced.
    owned: bool,
    /// Whether another program may have changed the table since the daemon has read it.
    disturbed: bool,
    /// Source and destination of the tracked connections, which were answered.
    flows: BTreeSet<(Ipv4Addr, Ipv4Addr)>,
    device: Option<DeviceState>,
    /// Peers that the device has beside those it was given.
    former_peers: Vec<Peer>,
    blackholes: Part<BTreeSet<Cidr>>,
    /// Destinations of the routes of another program.
    foreign: BTreeSet<Cidr>,
    /// Requests fail.
    pub(super) failing: bool,
    /// Additional time of every request.
    pub(super) slow: Time,
    /// Time of the last request that took longer.
    pub(super) slowed_at: Option<Time>,
    /// Whether the daemon is yet to be notified of a change of the table, and of the mesh.
    pub(super) unseen: (bool, bool),
}

/// A change of the kernel by another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tampering {
    /// Deletes the isolation table.
    FlushTable,
    /// Deletes the rule that drops packets between networks.
    DeleteDrop,
    /// Deletes the drawn element of every set that has it.
    DeleteElement(u64),
    /// Puts the drop before the rules that accept.
    ReorderRules,
    /// Deletes the mesh device.
    DeleteDevice,
    /// Deletes the routes over the mesh device.
    DeleteRoutes,
    /// Deletes the device's routes and the blackholes.
    DeleteAllRoutes,
}

impl Tampering {
    /// Those of the isolation table; the others concern the mesh.
    pub(super) fn concerns_table(self) -> bool {
        match self {
            Self::FlushTable | Self::DeleteDrop | Self::DeleteElement(_) | Self::ReorderRules => {
                true
            }
            Self::DeleteDevice | Self::DeleteRoutes | Self::DeleteAllRoutes => false,
        }
    }
}

/// Next hop of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// Bridge of this machine.
    Bridge,
    /// The mesh device.
    Mesh,
    /// The packet is discarded.
    Discard,
    /// The interface of another program's route.
    Foreign,
    /// The machine's uplink.
    Default,
}

impl Kernel {
    /// The isolation table as the daemon reads it.
    pub(super) fn table(&self) -> Option<&Ruleset> {
        self.table.shown.as_ref()
    }

    /// Lets the daemon read the isolation table.
    pub(super) fn read_table(&mut self) -> Option<Ruleset> {
        self.disturbed = false;
        self.table.shown.clone()
    }

    /// The mesh as the daemon reads it.
    pub(super) fn observed(&self) -> Observed {
        Observed {
            blackholes: self.blackholes.shown.clone(),
            foreign: self.foreign.iter().copied().map(foreign_route).collect(),
            device: self.device.clone(),
        }
    }

    /// Loads a ruleset of the rows of `state`, with the planted bug if there is one.
    pub(super) fn load(
        &mut self,
        rendered: &Rendered,
        state: Option<&State>,
        mutation: Option<Mutation>,
    ) -> Applied {
        self.verdicts.get_mut().clear();
        self.table.set(Some(rendered.ruleset.clone()));
        if mutation == Some(Mutation::MergeEqualNames) {
            self.table.real = Some(merge_equal_names(rendered));
        }
        if mutation == Some(Mutation::StaleBlocksKept) {
            self.table.real = state.map(Ruleset::of_state);
        }
        if mutation == Some(Mutation::PassOutside)
            && let Some(table) = &mut self.table.real
        {
            for chain in &mut table.chains {
                let drops = |rule: &Rule| matches!(rule, Rule::DropOutside { .. });
                chain.rules.retain(|rule| !drops(rule));
            }
        }
        if mutation == Some(Mutation::LetInternalOut)
            && let Some(table) = &mut self.table.real
        {
            for chain in &mut table.chains {
                chain
                    .rules
                    .retain(|rule| !matches!(rule, Rule::DropFrom(_)));
            }
        }
        if mutation == Some(Mutation::AdmitAnySource)
            && let Some(table) = &mut self.table.real
        {
            table.chains.retain(|chain| chain.name != PREROUTING);
        }
        match self.disturbed {
            true => Applied::Disturbed,
            false => Applied::Undisturbed,
        }
    }

    /// Carries out a step of the mesh, with the planted bug if there is one.
    pub(super) fn carry_out(
        &mut self,
        step: &Step,
        mutation: Option<Mutation>,
    ) -> Result<(), String> {
        if self.failing {
            return Err("on purpose".to_owned());
        }
        match step {
            Step::AddBlackhole(cidr) => {
                self.blackholes.shown.insert(*cidr);
                if mutation != Some(Mutation::ForgetBlackhole) {
                    self.blackholes.real.insert(*cidr);
                }
                return Ok(());
            }
            Step::RemoveBlackhole(cidr) => {
                self.blackholes.shown.remove(cidr);
                self.blackholes.real.remove(cidr);
                return Ok(());
            }
            Step::OpenDevice => {
                self.device = Some(DeviceState::default());
                self.former_peers.clear();
                return Ok(());
            }
            Step::SetUp
            | Step::AddAddress(_)
            | Step::SetPeers(_)
            | Step::RemoveRoute(_)
            | Step::AddRoute(_)
            | Step::ReplaceRoute(_)
            | Step::RemoveAddress(_) => {}
        }
        let device = self.device.as_mut().ok_or("there is no device")?;
        match step {
            Step::SetUp => device.up = true,
            Step::AddAddress(address) => drop(device.addresses.insert(*address)),
            Step::RemoveAddress(address) => drop(device.addresses.remove(address)),
            Step::AddRoute(route) => drop(device.routes.insert(*route)),
            Step::RemoveRoute(route) => drop(device.routes.remove(route)),
            Step::ReplaceRoute(route) => {
                let place = |other: &DeviceRoute| (other.to, other.metric);
                device.routes.retain(|other| place(other) != place(route));
                device.routes.insert(*route);
            }
            Step::SetPeers(peers) => {
                let former = std::mem::replace(&mut device.peers, peers.clone());
                if mutation == Some(Mutation::KeepOldPeers) {
                    self.former_peers.extend(former);
                    let present = |key| device.peers.iter().any(|peer| peer.public_key == key);
                    self.former_peers.retain(|peer| !present(peer.public_key));
                }
            }
            Step::AddBlackhole(_) | Step::RemoveBlackhole(_) | Step::OpenDevice => {}
        }
        Ok(())
    }

    /// Lets another program change the kernel; `shown` is whether the daemon is shown the change.
    pub(super) fn tamper(&mut self, tampering: Tampering, shown: bool) {
        self.verdicts.get_mut().clear();
        self.disturbed |= shown;
        let device = self.device.as_mut();
        match tampering {
            Tampering::FlushTable => self.table.real = None,
            Tampering::DeleteDrop | Tampering::DeleteElement(_) | Tampering::ReorderRules => {
                if let Some(table) = &mut self.table.real {
                    edit(table, tampering);
                }
            }
            Tampering::DeleteDevice => self.delete_device(),
            Tampering::DeleteRoutes => {
                if let Some(device) = device {
                    device.routes.clear();
                }
            }
            Tampering::DeleteAllRoutes => {
                if let Some(device) = device {
                    device.routes.clear();
                }
                self.blackholes.set(BTreeSet::new());
            }
        }
        if shown {
            self.table.shown.clone_from(&self.table.real);
        }
    }

    /// Deletes the device, as the end of the process does that opened it.
    pub(super) fn delete_device(&mut self) {
        self.device = None;
        self.former_peers.clear();
    }

    /// Loses everything, as a reboot does.
    pub(super) fn reboot(&mut self) {
        let (failing, slow) = (self.failing, self.slow);
        *self = Self {
            failing,
            slow,
            ..Self::default()
        };
    }

    /// Whether the isolation admits a packet with source `from` that comes by `interface`, to which
    /// the route to `from` leads if it is `routed`.
    pub(super) fn admits_source(&self, from: Ipv4Addr, interface: &str, routed: bool) -> bool {
        let table = self.table.real.as_ref();
        table.is_none_or(|table| table.admits_source(from, interface, routed))
    }

    /// Lets another process own the table, which is empty then, or end, and the table with it.
    pub(super) fn set_owned(&mut self, owned: bool) {
        if owned != self.owned {
            let empty = Ruleset {
                flags: OWNER,
                ..Ruleset::default()
            };
            self.verdicts.get_mut().clear();
            self.table.set(owned.then_some(empty));
            self.owned = owned;
            self.disturbed = true;
        }
    }

    /// Sets the destinations of the routes of another program; returns whether they differ.
    pub(super) fn set_foreign(&mut self, foreign: BTreeSet<Cidr>) -> bool {
        let differs = self.foreign != foreign;
        self.foreign = foreign;
        differs
    }

    /// Destinations of the routes of another program.
    pub(super) fn foreign(&self) -> &BTreeSet<Cidr> {
        &self.foreign
    }

    /// Whether the isolation drops a packet that another program's route leads out of this machine.
    pub(super) fn drops_outside(&self, from: Ipv4Addr, to: Ipv4Addr) -> bool {
        let table = self.table.real.as_ref();
        table.is_some_and(|table| table.drops_outside(from, to))
    }

    /// Whether the table belongs to another process.
    pub(super) fn is_owned(&self) -> bool {
        self.owned
    }

    /// Whether a packet with source `from` passes the isolation on its way out of the cluster.
    pub(super) fn lets_out(&self, from: Ipv4Addr) -> bool {
        let table = self.table.real.as_ref();
        table.is_none_or(|table| table.verdict(from, OUTSIDE, false) == Verdict::Accept)
    }

    /// Whether the isolation, or the engine, drops a packet.
    pub(super) fn drops(&self, from: Ipv4Addr, to: Ipv4Addr, packet: Packet) -> bool {
        if !self.accepts {
            return true;
        }
        let Some(table) = &self.table.real else {
            return false;
        };
        if packet == Packet::Next && self.flows.contains(&(from, to)) {
            return table.verdict(from, to, true) == Verdict::Drop;
        }
        // Blocks are no smaller, so all addresses of such a network share their fate.
        let pair = (u32::from(from) >> 8, u32::from(to) >> 8);
        let mut verdicts = self.verdicts.borrow_mut();
        let drops = || table.verdict(from, to, false) == Verdict::Drop;
        *verdicts.entry(pair).or_insert_with(drops)
    }

    /// Tracks a connection that was answered.
    pub(super) fn track(&mut self, from: Ipv4Addr, to: Ipv4Addr) {
        self.flows.insert((from, to));
    }

    /// Ends the tracked connections that `ruleset` forbids, except with the planted bug.
    pub(super) fn cut_flows(&mut self, ruleset: &Ruleset, mutation: Option<Mutation>) {
        if mutation != Some(Mutation::KeepFlows) {
            self.flows.retain(|(from, to)| !ruleset.forbids(*from, *to));
        }
    }

    /// Next hop of a packet to `to` on a machine with these bridges.
    pub(super) fn route(&self, bridges: &BTreeMap<NetworkId, Cidr>, to: Ipv4Addr) -> Route {
        let bridges = bridges.values().map(|cidr| (*cidr, 2, Route::Bridge));
        let device = self.device.iter().filter(|device| device.up);
        let routes = device.flat_map(|device| &device.routes);
        let routes = routes.map(|route| (route.to, 1, Route::Mesh));
        let blackholes = self.blackholes.real.iter();
        let blackholes = blackholes.map(|cidr| (*cidr, 0, Route::Discard));
        let foreign = self.foreign.iter();
        let foreign = foreign.map(|cidr| (*cidr, 3, Route::Foreign));
        let all = bridges.chain(routes).chain(blackholes).chain(foreign);
        let matching = all.filter(|(cidr, ..)| contains(*cidr, to));
        let best = matching.max_by_key(|(cidr, rank, _)| (cidr.prefix(), *rank));
        best.map_or(Route::Default, |(.., route)| route)
    }

    /// Key of the peer to which packets to `address` are encrypted, and from which alone packets
    /// with that source are accepted.
    pub(super) fn peer_of(&self, address: Ipv4Addr) -> Option<[u8; 32]> {
        let allowed = self.peers().flat_map(|peer| {
            let cidrs = peer.allowed_ips.iter();
            let cidrs = cidrs.filter(|cidr| contains(**cidr, address));
            cidrs.map(|cidr| (cidr.prefix(), peer.public_key))
        });
        allowed
            .max_by_key(|(prefix, _)| *prefix)
            .map(|(_, key)| key)
    }

    /// Networks that the device admits packets of.
    pub(super) fn admitted(&self) -> BTreeSet<Cidr> {
        let peers = self.device.iter().flat_map(|device| &device.peers);
        peers.flat_map(|peer| &peer.allowed_ips).copied().collect()
    }

    /// Peers of a device that is up.
    pub(super) fn peers(&self) -> impl Iterator<Item = &Peer> {
        let device = self.device.iter().filter(|device| device.up);
        device.flat_map(|device| device.peers.iter().chain(&self.former_peers))
    }
}

/// A route of another program as the daemon is shown it.
fn foreign_route(to: Cidr) -> ForeignRoute {
    ForeignRoute {
        to,
        interfaces: vec!["eth1".to_owned()],
        table: MAIN_TABLE,
    }
}

/// Whether `cidr` holds `address`.
pub(super) fn contains(cidr: Cidr, address: Ipv4Addr) -> bool {
    cidr.overlaps(Cidr::aligned(address.into(), 32))
}

fn edit(table: &mut Ruleset, tampering: Tampering) {
    let elements: BTreeSet<Span> = table
        .sets
        .iter()
        .flat_map(|set| set.spans())
        .copied()
        .collect();
    for rules in table.chains.iter_mut().map(|chain| &mut chain.rules) {
        match tampering {
            Tampering::DeleteDrop => drop(rules.pop()),
            Tampering::ReorderRules => rules.reverse(),
            _ => {}
        }
    }
    if let Tampering::DeleteElement(drawn) = tampering
        && !elements.is_empty()
    {
        let nth = usize::try_from(drawn).unwrap_or(0) % elements.len();
        let deleted = elements.into_iter().nth(nth);
        for set in &mut table.sets {
            if let Some(spans) = set.spans_mut() {
                spans.retain(|span| Some(*span) != deleted);
            }
        }
    }
}

/// The ruleset in which networks share a set if their names are equal once characters outside
/// `[A-Za-z0-9_]` are replaced.
fn merge_equal_names(rendered: &Rendered) -> Ruleset {
    let plain = |id: &NetworkId| {
        let name = format!("{}_{}", id.deployment(), id.network());
        name.replace(|c: char| !c.is_ascii_alphanumeric(), "_")
    };
    let mut ruleset = rendered.ruleset.clone();
    let mut merged: BTreeMap<String, Vec<Span>> = BTreeMap::new();
    for scope in &rendered.scopes {
        let spans = scope.blocks.iter().copied().map(Span::from);
        merged.entry(plain(&scope.id)).or_default().extend(spans);
    }
    merged.values_mut().for_each(|spans| spans.sort_unstable());
    for scope in &rendered.scopes {
        let named = |set: &&mut Set| set.name == scope.set;
        if let Some(set) = ruleset.sets.iter_mut().find(named)
            && let (Some(held), Some(spans)) = (set.spans_mut(), merged.get(&plain(&scope.id)))
        {
            held.clone_from(spans);
        }
    }
    ruleset
}
