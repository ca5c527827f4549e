//! The peers of a device, and how one set of them becomes another.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use super::{
    Error, Peer, PublicKey,
    allowed_ips::{AllowedIps, Conflict},
};

/// Bits of an index that select the slot; the bits above count the peers that had the slot.
const SLOT_BITS: u32 = 12;
/// Most peers of a device.
const MAX_PEERS: usize = 1 << SLOT_BITS;
/// Indices have 24 bits: the protocol core puts the number of the session below them.
const INDEX_MASK: u32 = 0x00ff_ffff;

/// A set of peers; immutable, and replaced as a whole. `T` is the tunnel to a peer.
#[derive(Debug)]
pub(super) struct Table<T> {
    slots: Vec<Option<Entry<T>>>,
    /// The index that the next peer in each slot gets.
    next_index: Vec<u32>,
    by_key: BTreeMap<PublicKey, u16>,
    routes: AllowedIps,
}

/// A peer and its tunnel.
#[derive(Debug)]
pub(super) struct Entry<T> {
    pub(super) index: u32,
    pub(super) peer: Peer,
    pub(super) tunnel: Arc<T>,
}

/// The difference between two sets of peers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    pub(super) added: Vec<PublicKey>,
    pub(super) removed: Vec<PublicKey>,
    /// Peers that stay, with another endpoint than they were given before.
    pub(super) moved: Vec<PublicKey>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            next_index: Vec::new(),
            by_key: BTreeMap::new(),
            routes: AllowedIps::default(),
        }
    }
}

impl<T> Table<T> {
    /// Makes the table of other peers. Peers that stay keep their slot, index and tunnel; `make` makes
    /// the tunnel of a new peer with its index.
    pub(super) fn replace(
        &self,
        peers: Vec<Peer>,
        own: PublicKey,
        mut make: impl FnMut(&Peer, u32) -> T,
    ) -> Result<(Self, Changes), Error> {
        validate(&peers, own)?;
        let mut changes = Changes::default();
        let wanted: BTreeSet<_> = peers.iter().map(|peer| peer.public_key).collect();
        changes.removed = self
            .by_key
            .keys()
            .filter(|key| !wanted.contains(key))
            .copied()
            .collect();
        let mut table = Self {
            slots: Vec::new(),
            next_index: self.next_index.clone(),
            by_key: BTreeMap::new(),
            routes: AllowedIps::default(),
        };
        let (kept, new): (Vec<_>, Vec<_>) = peers
            .into_iter()
            .partition(|peer| self.by_key.contains_key(&peer.public_key));
        for peer in kept {
            let Some((slot, old)) = self.find(peer.public_key) else {
                continue;
            };
            if peer.endpoint != old.peer.endpoint {
                changes.moved.push(peer.public_key);
            }
            let (index, tunnel) = (old.index, Arc::clone(&old.tunnel));
            table.put(
                slot,
                Entry {
                    index,
                    peer,
                    tunnel,
                },
            );
        }
        for peer in new {
            let slot = table.free_slot();
            let index = table.take_index(slot);
            changes.added.push(peer.public_key);
            let tunnel = Arc::new(make(&peer, index));
            table.put(
                slot,
                Entry {
                    index,
                    peer,
                    tunnel,
                },
            );
        }
        table.routes = AllowedIps::new(table.networks()).map_err(|conflict| match conflict {
            Conflict::Invalid(address, length) => Error::InvalidPrefix(address, length),
            Conflict::Duplicate(address, length) => Error::DuplicatePrefix(address, length),
        })?;
        Ok((table, changes))
    }

    /// The peer that an index of a message names, in which the session counts in the lowest byte.
    pub(super) fn by_receiver(&self, receiver: u32) -> Option<&Entry<T>> {
        let index = receiver >> 8;
        let slot = index & (MAX_PEERS as u32 - 1);
        let entry = self.slots.get(usize::try_from(slot).ok()?)?.as_ref()?;
        (entry.index == index).then_some(entry)
    }

    /// The peer with a key.
    pub(super) fn by_key(&self, key: PublicKey) -> Option<&Entry<T>> {
        self.find(key).map(|(_, entry)| entry)
    }

    /// The peer that packets to an address go to, and packets from it come from.
    pub(super) fn route(&self, address: Ipv4Addr) -> Option<&Entry<T>> {
        let slot = self.routes.lookup(address)?;
        self.slots.get(usize::from(slot))?.as_ref()
    }

    /// All peers, by key.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry<T>> {
        let slots = self.by_key.values();
        slots.filter_map(|slot| self.slots.get(usize::from(*slot))?.as_ref())
    }

    fn find(&self, key: PublicKey) -> Option<(u16, &Entry<T>)> {
        let slot = *self.by_key.get(&key)?;
        Some((slot, self.slots.get(usize::from(slot))?.as_ref()?))
    }

    fn put(&mut self, slot: u16, entry: Entry<T>) {
        let at = usize::from(slot);
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || None);
        }
        self.by_key.insert(entry.peer.public_key, slot);
        self.slots[at] = Some(entry);
    }

    /// The lowest free slot; [`validate`] has checked that there is one.
    fn free_slot(&self) -> u16 {
        let free = self.slots.iter().position(Option::is_none);
        u16::try_from(free.unwrap_or(self.slots.len())).unwrap_or(u16::MAX)
    }

    /// An index that selects the slot, and that no recent peer in the slot had: a late message of a
    /// removed peer then meets no session.
    fn take_index(&mut self, slot: u16) -> u32 {
        for at in self.next_index.len()..=usize::from(slot) {
            self.next_index.push(u32::try_from(at).unwrap_or(0));
        }
        let next = &mut self.next_index[usize::from(slot)];
        let index = *next;
        *next = (index + (1 << SLOT_BITS)) & INDEX_MASK;
        index
    }

    fn networks(&self) -> impl Iterator<Item = (Ipv4Addr, u8, u16)> {
        self.by_key.values().flat_map(|&slot| {
            let entry = self.slots.get(usize::from(slot)).and_then(Option::as_ref);
            let networks = entry.into_iter().flat_map(|entry| &entry.peer.allowed_ips);
            networks.map(move |&(address, length)| (address, length, slot))
        })
    }
}

fn validate(peers: &[Peer], own: PublicKey) -> Result<(), Error> {
    if peers.len() > MAX_PEERS {
        return Err(Error::TooManyPeers(MAX_PEERS));
    }
    let mut keys = BTreeSet::new();
    for peer in peers {
        if peer.public_key == own {
            return Err(Error::InvalidPeer(own));
        }
        if !keys.insert(peer.public_key) {
            return Err(Error::DuplicatePeer(peer.public_key));
        }
        if let Some(endpoint) = peer.endpoint
            && (!matches!(endpoint, SocketAddr::V4(_)) || endpoint.port() == 0)
        {
            return Err(Error::InvalidEndpoint(endpoint));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
