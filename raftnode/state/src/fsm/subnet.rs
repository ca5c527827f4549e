//! Address blocks of networks, one per deployment, network and host.

use std::{net::Ipv4Addr, ops::RangeInclusive};

use jaco_proto::{Error, v1};

use super::{Origin, Tx, reject};

/// Stores an address block that the leader chose, unless it shares an address with the block of
/// another key.
pub(super) fn allocate(
    tx: &mut Tx,
    origin: &Origin<'_>,
    command: &v1::SubnetAllocate,
) -> Result<(), Error> {
    if command.cidr.is_empty() {
        return Err(reject::invalid("cidr", "empty"));
    }
    let key = (&command.deployment, &command.network, &command.host);
    let holder = tx.state().subnets.values().find(|subnet| {
        (&subnet.deployment, &subnet.network, &subnet.host) != key
            && overlap(&subnet.cidr, &command.cidr)
    });
    if let Some(holder) = holder {
        return Err(
            reject::conflict(reject::CIDR_TAKEN, "the address block is taken")
                .with("cidr", &command.cidr)
                .with("deployment", &holder.deployment)
                .with("network", &holder.network)
                .with("host", &holder.host),
        );
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
    let (address, bits) = cidr.split_once('/')?;
    let address = u32::from(address.parse::<Ipv4Addr>().ok()?);
    let bits: u32 = bits.parse().ok().filter(|bits| *bits <= 32)?;
    let hosts = u32::MAX.checked_shr(bits).unwrap_or(0);
    Some(address & !hosts..=address | hosts)
}

/// Frees every block that matches all the fields that are set, except those in use.
///
/// The command is decided on an earlier state: since then the deployment may have been applied
/// again, or the member may have joined again, and use the block they have. Both free their blocks
/// themselves when they go.
pub(super) fn free(tx: &mut Tx, command: &v1::SubnetFree) -> Result<(), Error> {
    let v1::SubnetFree {
        deployment,
        network,
        host,
    } = command;
    if deployment.is_empty() && network.is_empty() && host.is_empty() {
        return Err(reject::invalid("deployment", "no field is set"));
    }
    // Cheap copies of maps that this command does not change.
    let (deployments, nodes) = (tx.state().deployments.clone(), tx.state().nodes.clone());
    let matches = |wanted: &String, actual: &String| wanted.is_empty() || wanted == actual;
    tx.remove_where::<v1::Subnet>(|subnet| {
        let in_use =
            deployments.contains_key(&subnet.deployment) && nodes.contains_key(&subnet.host);
        !in_use
            && matches(deployment, &subnet.deployment)
            && matches(network, &subnet.network)
            && matches(host, &subnet.host)
    });
    Ok(())
}
