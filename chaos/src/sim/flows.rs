//! Judge of connections that were begun: senders of datagrams that never end, as long as their
//! container runs. The kernels on the path track what passes them, and let the rest of it pass
//! whatever the rules say of new connections.

use std::{collections::BTreeSet, net::Ipv4Addr};

use jaco_policy::network::names::NetworkId;

use super::{
    cluster::Cluster,
    reachability::{Endpoint, Fate, Packet, distinct, endpoints},
};

/// Most senders of a run; further ones do not begin.
const MAX_SENDERS: usize = 300;

/// A container that sends to an address again and again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Sender {
    machine: u64,
    container: String,
    network: NetworkId,
    from: Ipv4Addr,
    to: Ipv4Addr,
}

/// The senders of a run.
#[derive(Debug, Default)]
pub(super) struct Flows {
    senders: BTreeSet<Sender>,
}

impl Cluster {
    /// Lets every sender of the cluster send, and judges where the datagrams arrive; then lets the
    /// containers of machine `changed` begin to send to whatever they reach.
    pub(super) fn judge_flows(&mut self, changed: u64) -> Option<(&'static str, String)> {
        let mut flows = std::mem::take(&mut self.flows);
        flows.senders.retain(|sender| self.sends(sender));
        let found = flows
            .senders
            .iter()
            .find_map(|sender| self.judge_datagram(sender));
        if found.is_none() {
            let begun = self.new_senders(&flows, changed);
            for (sender, receiver) in begun {
                for id in [sender.machine, receiver] {
                    if let Some(machine) = self.machines.get_mut(&id) {
                        machine.kernel.track(sender.from, sender.to);
                    }
                }
                self.note(&[53, sender.machine, receiver], || {
                    let (machine, network) = (sender.machine, &sender.network);
                    let (from, to) = (sender.from, sender.to);
                    format!(
                        "{from} of {network} on n{machine} begins to send to {to} on n{receiver}"
                    )
                });
                flows.senders.insert(sender);
            }
        }
        self.flows = flows;
        found
    }

    fn sends(&self, sender: &Sender) -> bool {
        let machine = self.machines.get(&sender.machine);
        let machine = machine.filter(|machine| !machine.removed);
        let is_source = |endpoint: Endpoint<'_>| {
            endpoint.address == sender.from && endpoint.container == sender.container
        };
        machine.is_some_and(|machine| endpoints(machine).any(is_source))
    }

    /// Judges the next datagram of `sender`.
    fn judge_datagram(&self, sender: &Sender) -> Option<(&'static str, String)> {
        let machine = self.machines.get(&sender.machine)?;
        let Fate::Arrives(at) = self.fate(
            machine,
            &sender.network,
            sender.from,
            sender.to,
            Packet::Next,
        ) else {
            return None;
        };
        let receiver = self.machines.get(&at).filter(|machine| !machine.removed)?;
        let target = endpoints(receiver).find(|endpoint| {
            endpoint.address == sender.to
                && *endpoint.network != sender.network
                && endpoint.container != sender.container
        })?;
        let judge = &self.reachability;
        let excused = [machine, receiver]
            .into_iter()
            .any(|machine| judge.excuses_table(machine, self.now));
        (!excused).then(|| {
            let what = format!(
                "{} of {} ({}) on n{} goes on sending to {} of {} ({}) on n{at}",
                sender.container,
                sender.network,
                sender.from,
                sender.machine,
                target.container,
                target.network,
                target.address,
            );
            ("no forbidden connection", what)
        })
    }

    /// Senders that begin, each with the machine of its receiver.
    fn new_senders(&self, flows: &Flows, changed: u64) -> Vec<(Sender, u64)> {
        let members = || self.machines.values().filter(|machine| !machine.removed);
        let Some(own) = members().find(|machine| machine.id == changed) else {
            return Vec::new();
        };
        let own = distinct(own);
        let room = MAX_SENDERS.saturating_sub(flows.senders.len());
        let others: Vec<Endpoint<'_>> = members().flat_map(distinct).collect();
        let pairs = own.iter().flat_map(|own| {
            let pair = move |other| [(own, other), (other, own)];
            others.iter().flat_map(pair)
        });
        let pairs = pairs.filter(|(from, to)| {
            // Within one bridge nothing is tracked.
            from.container != to.container
                && (from.machine != to.machine || from.network != to.network)
        });
        let begun = pairs.filter_map(|(from, to)| {
            let sender = Sender {
                machine: from.machine,
                container: from.container.to_owned(),
                network: from.network.clone(),
                from: from.address,
                to: to.address,
            };
            if flows.senders.contains(&sender) {
                return None;
            }
            let machine = self.machines.get(&from.machine)?;
            let fate = self.fate(
                machine,
                from.network,
                from.address,
                to.address,
                Packet::First,
            );
            (fate == Fate::Arrives(to.machine)).then_some((sender, to.machine))
        });
        begun.take(room).collect()
    }
}
