//! Judge of forged sources: containers that send packets with the addresses of others.

use std::net::Ipv4Addr;

use super::{
    cluster::Cluster,
    reachability::{Endpoint, Fate, Packet, endpoints},
};

/// A mesh address, which belongs to no container.
const MESH: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 200);

impl Cluster {
    /// Judges which packets of the container behind `from` reach `to`, on a network that it is not
    /// on: with an address of that network on any machine, and with a mesh address.
    pub(super) fn judge_forged(
        &self,
        from: &Endpoint<'_>,
        to: &Endpoint<'_>,
    ) -> Option<(&'static str, String)> {
        let machine = self.machines.get(&from.machine)?;
        let receiver = self.machines.get(&to.machine)?;
        let is_member = |endpoint: Endpoint<'_>| {
            endpoint.container == from.container && endpoint.network == to.network
        };
        if endpoints(machine).any(is_member) {
            return None;
        }
        let blocks = self
            .machines
            .values()
            .filter_map(|machine| machine.engine.networks().get(to.network));
        // No container has the last address before the broadcast address.
        let unused = blocks.filter_map(|block| u32::try_from(block.last() - 1).ok());
        for claimed in unused.map(Ipv4Addr::from).chain([MESH]) {
            let fate = self.fate(machine, from.network, claimed, to.address, Packet::First);
            let judge = &self.reachability;
            let excused = || {
                let mut on_path = [machine, receiver].into_iter();
                on_path.any(|machine| judge.excuses_table(machine, self.now))
            };
            if fate == Fate::Arrives(to.machine) && !excused() {
                let what = format!(
                    "{} of {} on n{} reaches {} of {} on n{} as {claimed}",
                    from.container,
                    from.network,
                    from.machine,
                    to.container,
                    to.network,
                    to.machine,
                );
                return Some(("no forged source", what));
            }
        }
        None
    }
}
