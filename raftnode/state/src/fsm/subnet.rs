//! Address blocks of networks, one per deployment, network and host.

use std::{net::Ipv4Addr, ops::RangeInclusive};

use jaco_proto::{Error, v1};

use super::{Origin, Tx, reject};
use crate::quarantine::is_quarantined;

/// Stores an address block that the leader chose, unless it shares an address with the block of
/// another key or with one in quarantine.
pub(super) fn allocate(
    tx: &mut Tx,
    origin: &Origin<'_>,
    command: &v1::SubnetAllocate,
) -> Result<(), Error> {
    if command.cidr.is_empty() {
        return Err(reject::invalid("cidr", "empty"));
    }
    let key = (
        command.deployment.clone(),
        command.network.clone(),
        command.host.clone(),
    );
    let others = { tx.state().subnets.iter() }.filter(|(other, _)| **other != key);
    let mut others = others.map(|(_, subnet)| subnet);
    let holder = others.find(|subnet| overlap(&subnet.cidr, &command.cidr));
    if let Some(holder) = holder {
        return Err(
            reject::conflict(reject::CIDR_TAKEN, "the address block is taken")
                .with("cidr", &command.cidr)
                .with("deployment", &holder.deployment)
                .with("network", &holder.network)
                .with("host", &holder.host),
        );
    }
    let former = tx.get::<v1::Subnet>(&key);
    let held = former.as_ref().map(|former| &former.cidr);
    if held != Some(&command.cidr) {
        release_expired(tx, origin);
        let mut quarantined = tx.state().freed_subnets.keys();
        if let Some(freed) = quarantined.find(|freed| overlap(freed, &command.cidr)) {
            return Err(reject::conflict(
                reject::CIDR_QUARANTINED,
                "the address block was freed a short time ago",
            )
            .with("cidr", freed));
        }
        if let Some(former) = former {
            quarantine(tx, origin, &former)?;
        }
    }
    tx.put(v1::Subnet {
        deployment: command.deployment.clone(),
        network: command.network.clone(),
        cidr: command.cidr.clone(),
        allocated_at: Some(origin.ts),
        host: command.host.clone(),
    })
}

/// Whether two blocks share an address. A text that is no IPv4 block shares with its equal only.
fn overlap(a: &str, b: &str) -> bool {
    match (addresses(a), addresses(b)) {
        (Some(a), Some(b)) => a.start() <= b.end() && b.start() <= a.end(),
        _ => a == b,
    }
}

/// Addresses of an IPv4 block like `10.42.7.0/24`; its host bits are ignored.
fn addresses(cidr: &str) -> Option<RangeInclusive<u32>> {
    parse(cidr).map(|(addresses, _)| addresses)
}

/// Text of an IPv4 block without its host bits: equal for equal blocks.
fn canonical(cidr: &str) -> Option<String> {
    let (addresses, bits) = parse(cidr)?;
    Some(format!("{}/{bits}", Ipv4Addr::from(*addresses.start())))
}

/// Addresses of an IPv4 block, and the length of its prefix.
fn parse(cidr: &str) -> Option<(RangeInclusive<u32>, u32)> {
    let (address, bits) = cidr.split_once('/')?;
    let address = u32::from(address.parse::<Ipv4Addr>().ok()?);
    let bits: u32 = bits.parse().ok().filter(|bits| *bits <= 32)?;
    let hosts = u32::MAX.checked_shr(bits).unwrap_or(0);
    Some((address & !hosts..=address | hosts, bits))
}

/// Frees every block that matches all the fields that are set, except those in use.
///
/// The command is decided on an earlier state: since then the deployment may have been applied
/// again, or the member may have joined again, and use the block they have. Both free their blocks
/// themselves when they go.
pub(super) fn free(
    tx: &mut Tx,
    origin: &Origin<'_>,
    command: &v1::SubnetFree,
) -> Result<(), Error> {
    let v1::SubnetFree {
        deployment,
        network,
        host,
    } = command;
    if deployment.is_empty() && network.is_empty() && host.is_empty() {
        return Err(reject::invalid("deployment", "no field is set"));
    }
    // A cheap copy: this command changes neither deployments nor members.
    let state = tx.state().clone();
    let used = state.networks_in_use();
    let matches = |wanted: &String, actual: &String| wanted.is_empty() || wanted == actual;
    release(tx, origin, |subnet| {
        let in_use = used.contains_block(subnet);
        !in_use
            && matches(deployment, &subnet.deployment)
            && matches(network, &subnet.network)
            && matches(host, &subnet.host)
    })
}

/// Deletes every row that `matches`, and puts the blocks in quarantine.
pub(super) fn release(
    tx: &mut Tx,
    origin: &Origin<'_>,
    matches: impl Fn(&v1::Subnet) -> bool,
) -> Result<(), Error> {
    let freed = tx.remove_where(matches);
    if !freed.is_empty() {
        release_expired(tx, origin);
    }
    freed
        .iter()
        .try_for_each(|subnet| quarantine(tx, origin, subnet))
}

/// Puts the block of a row in quarantine; an unparsable one holds no addresses.
fn quarantine(tx: &mut Tx, origin: &Origin<'_>, subnet: &v1::Subnet) -> Result<(), Error> {
    let Some(cidr) = canonical(&subnet.cidr) else {
        return Ok(());
    };
    tx.put(v1::FreedSubnet {
        cidr,
        deployment: subnet.deployment.clone(),
        network: subnet.network.clone(),
        host: subnet.host.clone(),
        freed_at: Some(origin.ts),
        raft_index: tx.index(),
    })
}

/// Forgets the blocks whose quarantine has ended. Every change of a block does so, so their number
/// is bounded by the allocations of a few minutes, and by the size of the pool.
fn release_expired(tx: &mut Tx, origin: &Origin<'_>) {
    tx.remove_where::<v1::FreedSubnet>(|freed| !is_quarantined(freed, &origin.ts));
}
