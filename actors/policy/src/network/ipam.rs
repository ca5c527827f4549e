//! Allocation of address blocks to networks.
//!
//! One block per (deployment, network, host), chosen by the leader: the lowest block of the pool
//! that overlaps no row, was not freed recently and was not refused by the host because its
//! addresses are already in use there. The choice is a pure function of the state and the time.

use std::{fmt, net::Ipv4Addr};

use jaco_engine::cidr::Cidr;
use jaco_proto::v1;
use jaco_state::State;
use prost_types::Timestamp;

use super::mesh;

pub use jaco_state::QUARANTINE;

/// Address range of the cluster and the size of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    range: Cidr,
    block: u8,
}

/// Error of a pool with unsupported sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPool {
    /// The pool is too large or too small.
    #[error("an address pool is a /8 to a /20, not a /{0}")]
    Range(u8),
    /// The blocks are too large or too small.
    #[error("an address block is a /24 to a /28, not a /{0}")]
    Block(u8),
}

impl Pool {
    /// Creates a pool that is divided into blocks with a prefix of `block` bits.
    ///
    /// # Errors
    /// [`InvalidPool`] unless the pool is a /8 to /20 and the blocks are /24 to /28.
    pub fn new(range: Cidr, block: u8) -> Result<Self, InvalidPool> {
        if !(8..=20).contains(&range.prefix()) {
            return Err(InvalidPool::Range(range.prefix()));
        }
        if !(24..=28).contains(&block) {
            return Err(InvalidPool::Block(block));
        }
        Ok(Self { range, block })
    }

    /// Addresses of the pool.
    #[must_use]
    pub fn range(self) -> Cidr {
        self.range
    }

    /// Prefix length of a block, 24 to 28.
    #[must_use]
    pub fn block(self) -> u8 {
        self.block
    }

    /// Pool that the cluster was created with; `None` before there is one, and in a cluster of a
    /// version that did not store it.
    #[must_use]
    pub fn of_cluster(state: &State) -> Option<Self> {
        let meta = state.cluster.as_deref()?;
        let range = meta.ipam_pool.parse().ok()?;
        Self::new(range, u8::try_from(meta.ipam_block).ok()?).ok()
    }

    /// Number of blocks in the pool.
    #[must_use]
    pub fn blocks(self) -> u64 {
        1 << (self.block - self.range.prefix())
    }

    /// Gateway of the block that contains `address`; `None` outside the pool.
    #[must_use]
    pub fn gateway_of(self, address: Ipv4Addr) -> Option<Ipv4Addr> {
        let address = u32::from(address);
        let inside = (self.range.first()..=self.range.last()).contains(&u64::from(address));
        let hosts = u32::MAX.checked_shr(u32::from(self.block)).unwrap_or(0);
        inside.then(|| Cidr::aligned(address & !hosts, self.block).gateway())
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in blocks of /{}", self.range, self.block)
    }
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            range: Cidr::aligned(u32::from_be_bytes([10, 244, 0, 0]), 16),
            block: 24,
        }
    }
}

/// Owner of an address block: a network of a deployment on one host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubnetKey {
    /// Deployment name.
    pub deployment: String,
    /// Network name, `_default` for the default network.
    pub network: String,
    /// Hostname.
    pub host: String,
}

impl fmt::Display for SubnetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} on {}", self.deployment, self.network, self.host)
    }
}

/// Decision about the block of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It already has this block.
    Existing(Cidr),
    /// Commit this block.
    Allocate(Cidr),
    /// No block is left.
    Exhausted,
}

/// Decides about the block of `key`, excluding blocks that overlap a `refused` one or one in
/// quarantine. `now` is the timestamp of the command that would assign the block.
#[must_use]
pub fn decide(
    now: &Timestamp,
    state: &State,
    key: &SubnetKey,
    pool: Pool,
    refused: &[Cidr],
) -> Decision {
    let usable = |cidr: &Cidr| !refused.iter().any(|refused| refused.overlaps(*cidr));
    if let Some(cidr) = existing(state, key).filter(usable) {
        return Decision::Existing(cidr);
    }
    // A row with an unparsable block holds no addresses; allocating replaces it.
    let taken = state
        .subnets
        .values()
        .filter_map(|row| row.cidr.parse().ok());
    let quarantined = state.quarantined(now);
    let quarantined = quarantined.filter_map(|freed| freed.cidr.parse().ok());
    let taken = taken.chain(quarantined).chain(refused.iter().copied());
    // A wide pool may hold the addresses of the nodes themselves.
    let taken = taken.chain([mesh::address::network()]);
    match lowest_free(pool, taken) {
        Some(cidr) => Decision::Allocate(cidr),
        None => Decision::Exhausted,
    }
}

/// Block of `key` in `state`.
#[must_use]
pub fn existing(state: &State, key: &SubnetKey) -> Option<Cidr> {
    let SubnetKey {
        deployment,
        network,
        host,
    } = key.clone();
    state
        .subnets
        .get(&(deployment, network, host))?
        .cidr
        .parse()
        .ok()
}

/// Fraction of the pool's blocks that a row overlaps, from 0 to 1.
#[must_use]
pub fn utilisation(state: &State, pool: Pool) -> f64 {
    let size = 1_u64 << (32 - pool.block);
    let mut used = std::collections::BTreeSet::new();
    for row in state.subnets.values() {
        let Ok(row) = row.cidr.parse::<Cidr>() else {
            continue;
        };
        let first = row.first().max(pool.range.first());
        let last = row.last().min(pool.range.last());
        if first <= last {
            used.extend(first / size..=last / size);
        }
    }
    used.len() as f64 / pool.blocks() as f64
}

/// Lowest block of `pool` that overlaps none of `taken`.
fn lowest_free(pool: Pool, taken: impl Iterator<Item = Cidr>) -> Option<Cidr> {
    let size = 1_u64 << (32 - pool.block);
    let mut taken: Vec<Cidr> = taken.filter(|cidr| cidr.overlaps(pool.range)).collect();
    taken.sort_unstable_by_key(|cidr| cidr.first());
    let mut free = pool.range.first();
    for cidr in taken {
        if cidr.first() >= free + size {
            break; // sorted: all later blocks start higher
        }
        if cidr.last() >= free {
            free = (cidr.last() + 1).next_multiple_of(size);
        }
    }
    if free > pool.range.last() {
        return None;
    }
    let base = u32::try_from(free).ok()?;
    Some(Cidr::aligned(base, pool.block))
}

/// Command payload that assigns `cidr` to `key`.
#[must_use]
pub fn allocation(key: &SubnetKey, cidr: Cidr) -> v1::SubnetAllocate {
    v1::SubnetAllocate {
        deployment: key.deployment.clone(),
        network: key.network.clone(),
        cidr: cidr.to_string(),
        host: key.host.clone(),
    }
}

#[cfg(test)]
mod tests;
