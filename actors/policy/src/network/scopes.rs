//! Isolation scopes: the address blocks of each (deployment, network) over all hosts.
//!
//! Containers of one scope reach each other on every host; containers of two scopes never do.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::Ipv4Addr,
};

use jaco_engine::cidr::Cidr;
use jaco_state::State;

use super::names::{DEFAULT_NETWORK, NetworkId, sha1_hex};

/// Longest set name made of the names of deployment and network, in bytes.
const PLAIN_BYTES: usize = 63;
/// Hex digits of the hash in the name of a set whose plain name is too long or taken.
const SHORT_HASH: usize = 8;
/// Hex digits of the hash if the short one is taken as well: all of SHA-1.
const FULL_HASH: usize = 40;

/// Blocks of one network over all hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Network.
    pub id: NetworkId,
    /// Name of the kernel set that holds the blocks.
    pub set: String,
    /// Blocks, sorted and disjoint.
    pub blocks: Vec<Cidr>,
    /// Whether its containers reach each other only.
    pub internal: bool,
}

/// Scopes of the address blocks in `state`, sorted by (deployment, network).
///
/// A row whose block cannot be parsed holds no addresses.
#[must_use]
pub fn scopes(state: &State) -> Vec<Scope> {
    let mut found: BTreeMap<NetworkId, Vec<Cidr>> = BTreeMap::new();
    let mut rows = state.subnets.iter().peekable();
    while let Some(((deployment, network, _), row)) = rows.next() {
        let mut blocks: Vec<Cidr> = row.cidr.parse().into_iter().collect();
        // The rows are sorted by deployment, network and host.
        while let Some((_, row)) =
            rows.next_if(|(key, _)| key.0 == *deployment && key.1 == *network)
        {
            blocks.extend(row.cidr.parse::<Cidr>());
        }
        if !blocks.is_empty() {
            let id = network_id(deployment, network);
            found.entry(id).or_default().append(&mut blocks);
        }
    }
    let ids: Vec<NetworkId> = found.keys().cloned().collect();
    let named = ids.iter().zip(set_names(&ids));
    let named: Vec<_> = named.map(|(id, set)| (id.clone(), set)).collect();
    named
        .into_iter()
        .zip(found.into_values())
        .map(|((id, set), mut blocks)| {
            disjoint(&mut blocks);
            Scope {
                internal: is_internal(state, &id),
                id,
                set,
                blocks,
            }
        })
        .collect()
}

/// Whether the deployment of a network declares it as internal.
#[must_use]
pub fn is_internal(state: &State, id: &NetworkId) -> bool {
    let deployment = state.deployments.get(id.deployment());
    let mut networks = deployment.into_iter().flat_map(|row| &row.networks);
    networks.any(|network| network.internal && network.name == id.network())
}

/// The internal networks of all deployments.
#[must_use]
pub fn internal_networks(state: &State) -> BTreeSet<NetworkId> {
    let rows = state.deployments.values();
    let internal = rows.flat_map(|row| {
        let networks = row.networks.iter().filter(|network| network.internal);
        networks.map(|network| NetworkId::new(&row.name, &network.name))
    });
    internal.collect()
}

/// Sorts blocks and removes those that lie in another one.
pub(super) fn disjoint(blocks: &mut Vec<Cidr>) {
    // One number is compared faster than a pair.
    blocks.sort_unstable_by_key(|block| (block.first() << 8) | u64::from(block.prefix()));
    blocks.dedup_by(|next, kept| next.last() <= kept.last());
}

/// Whether the isolation lets a container with address `from` reach the address `to`: between two
/// addresses of containers only traffic within one network passes, and from an internal network
/// nothing else does.
///
/// `pool` holds the blocks of all networks. Its addresses without a row belong to no network: those
/// of a block that left the rows may still be in use. Nor do addresses that rows of two networks have, which
/// the allocation of blocks rules out. Computed from the rows alone, so that it can
/// judge the ruleset.
#[must_use]
pub fn allowed(state: &State, pool: Cidr, from: Ipv4Addr, to: Ipv4Addr) -> bool {
    let holds = |cidr: Cidr, address: Ipv4Addr| {
        (cidr.first()..=cidr.last()).contains(&u64::from(u32::from(address)))
    };
    // Two hosts of one network are one owner.
    let owners = |address: Ipv4Addr| -> BTreeSet<NetworkId> {
        let rows = state.subnets.iter();
        rows.filter(|(_, row)| row.cidr.parse().is_ok_and(|cidr| holds(cidr, address)))
            .map(|((deployment, network, _), _)| network_id(deployment, network))
            .collect()
    };
    let outside =
        |owners: &BTreeSet<NetworkId>, address| owners.is_empty() && !holds(pool, address);
    let (of_from, of_to) = (owners(from), owners(to));
    let confined = of_from.iter().any(|id| is_internal(state, id));
    let leaves = outside(&of_from, from) || outside(&of_to, to);
    leaves && !confined || of_from.len() == 1 && of_from == of_to
}

/// Network of a row with this key.
pub(super) fn network_id(deployment: &str, network: &str) -> NetworkId {
    match network {
        "" => NetworkId::new(deployment, DEFAULT_NETWORK),
        _ => NetworkId::new(deployment, network),
    }
}

/// Names of the sets of `ids`, which are distinct, in the same order.
///
/// Replacing characters is not injective: all networks that share a name get one with a hash.
fn set_names(ids: &[NetworkId]) -> Vec<String> {
    let mut forms = vec![Form::Plain; ids.len()];
    loop {
        let names = ids.iter().zip(&forms);
        let names: Vec<String> = names.map(|(id, form)| set_name(id, *form)).collect();
        let mut holders: HashMap<&str, Vec<usize>> = HashMap::with_capacity(names.len());
        for (index, name) in names.iter().enumerate() {
            holders.entry(name).or_default().push(index);
        }
        let mut changed = false;
        for index in holders.into_values().filter(|all| all.len() > 1).flatten() {
            changed |= forms[index] != Form::FullHash;
            forms[index] = forms[index].longer();
        }
        if !changed {
            return names;
        }
    }
}

/// Form of a set name; each is more distinctive than the one before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Readable if it is short enough.
    Plain,
    ShortHash,
    FullHash,
}

impl Form {
    fn longer(self) -> Self {
        match self {
            Self::Plain => Self::ShortHash,
            Self::ShortHash | Self::FullHash => Self::FullHash,
        }
    }
}

fn set_name(id: &NetworkId, form: Form) -> String {
    let name = readable_name(id);
    let digits = match form {
        Form::Plain if name.len() <= PLAIN_BYTES => return name,
        Form::Plain | Form::ShortHash => SHORT_HASH,
        Form::FullHash => FULL_HASH,
    };
    let hash = sha1_hex(&format!("{}/{}", id.deployment(), id.network()));
    format!("{name:.16}_{hash:.digits$}")
}

fn readable_name(id: &NetworkId) -> String {
    let readable = |text: &str| -> String {
        let bytes = text.bytes();
        bytes
            .map(|byte| match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => char::from(byte),
                _ => '_',
            })
            .collect()
    };
    format!(
        "dep_net_{}_{}",
        readable(id.deployment()),
        readable(id.network())
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::testing::state;

    fn names(ids: &[(&str, &str)]) -> Vec<String> {
        let mut ids: Vec<_> = ids.iter().map(|(d, n)| NetworkId::new(*d, *n)).collect();
        ids.sort();
        set_names(&ids)
    }

    #[test]
    fn set_names_match_the_documented_examples() {
        let (long_a, long_b) = ("a".repeat(40), "b".repeat(40));
        for (deployment, network, expected) in [
            ("front", "_default", "dep_net_front__default"),
            ("front", "default", "dep_net_front__default"),
            ("my-dep.v1", "front-end", "dep_net_my_dep_v1_front_end"),
            (&*long_a, &*long_b, "dep_net_aaaaaaaa_67eddbcc"),
        ] {
            assert_eq!(names(&[(deployment, network)]), [expected]);
        }
    }

    #[test]
    fn networks_with_one_plain_name_get_hashes() {
        let alone = names(&[("my-dep", "n"), ("other", "n")]);
        assert_eq!(alone, ["dep_net_my_dep_n", "dep_net_other_n"]);
        let shared = names(&[("my-dep", "n"), ("my_dep", "n"), ("other", "n")]);
        assert!(shared[0].starts_with("dep_net_my_dep_n_"), "{shared:?}");
        assert!(shared[1].starts_with("dep_net_my_dep_n_"), "{shared:?}");
        assert_ne!(shared[0], shared[1]);
        assert_eq!(shared[2], "dep_net_other_n");
        let split = names(&[("a", "b_c"), ("a_b", "c")]);
        assert_ne!(split[0], split[1]);
    }

    #[test]
    fn network_named_like_a_hash_stays_apart() {
        let (long_a, long_b) = ("a".repeat(40), "b".repeat(40));
        let found = names(&[(&long_a, &long_b), ("aaaaaaaa", "67eddbcc")]);
        let distinct: BTreeSet<_> = found.iter().collect();
        assert_eq!(distinct.len(), 2, "{found:?}");
    }

    #[test]
    fn rows_of_all_hosts_form_one_scope() {
        let state = state(&[
            ("web", "front", "n2", "10.244.3.0/24"),
            ("web", "front", "n1", "10.244.9.0/24"),
            ("web", "_default", "n1", "10.244.0.0/24"),
            ("web", "default", "n2", "10.244.1.0/24"),
            ("web", "front", "n3", "not a block"),
            ("none", "front", "n3", ""),
        ]);
        let found = scopes(&state);
        let blocks = |scope: &Scope| -> Vec<String> {
            scope.blocks.iter().map(ToString::to_string).collect()
        };
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].set, "dep_net_web__default");
        assert_eq!(blocks(&found[0]), ["10.244.0.0/24", "10.244.1.0/24"]);
        assert_eq!(blocks(&found[1]), ["10.244.3.0/24", "10.244.9.0/24"]);
    }

    #[test]
    fn nested_blocks_are_held_once() {
        let state = state(&[
            ("web", "front", "n1", "10.244.0.0/28"),
            ("web", "front", "n2", "10.244.0.0/24"),
            ("web", "front", "n3", "10.244.0.128/25"),
        ]);
        assert_eq!(scopes(&state)[0].blocks.len(), 1);
    }
}
