//! Blocks that this host cannot use, because something else on it has their addresses: a network
//! that somebody made, or one that the engine forgot to let go of.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use crate::network::{cidr::Cidr, engine::EngineError};

/// The newest refusals are remembered; the leader takes no more of them at once.
pub(crate) const REMEMBERED: usize = 64;

/// What the bridges of a host know of its blocks, while the process lives. A clone is the same.
#[derive(Clone, Debug, Default)]
pub struct Refused(Arc<Mutex<VecDeque<Cidr>>>);

impl Refused {
    pub(super) fn add(&self, cidr: Cidr) {
        let mut blocks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !blocks.contains(&cidr) {
            blocks.push_back(cidr);
        }
        if blocks.len() > REMEMBERED {
            blocks.pop_front();
        }
    }

    pub(super) fn blocks(&self) -> Vec<Cidr> {
        let blocks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.iter().copied().collect()
    }
}

/// Whether the engine refuses a network because of its addresses. Neither Docker nor Podman has a
/// status of its own for that: "Pool overlaps with other one on this address space", "networks
/// have overlapping IPv4", "subnet 10.9.0.0/24 is already used on the host or by another config".
pub(super) fn is_about_addresses(error: &EngineError) -> bool {
    match error {
        EngineError::Unreachable(_) | EngineError::NotFound(_) => false,
        EngineError::Conflict(message) | EngineError::Api { message, .. } => {
            let message = message.to_ascii_lowercase();
            message.contains("overlap") || message.contains("is already used on the host")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_because_of_addresses_are_told_from_others() {
        let api = |message: &str| EngineError::Api {
            status: 403,
            message: message.to_owned(),
        };
        for message in [
            "Pool overlaps with other one on this address space",
            "cannot create network 1 (br-1): conflicts with network 2 (br-2): networks have \
             overlapping IPv4",
            "subnet 10.9.0.0/24 is already used on the host or by another config",
        ] {
            assert!(is_about_addresses(&api(message)), "{message}");
            let conflict = EngineError::Conflict(message.to_owned());
            assert!(is_about_addresses(&conflict), "{message}");
            let unreachable = EngineError::Unreachable(message.to_owned());
            assert!(!is_about_addresses(&unreachable), "{message}");
        }
        let other = api("network with name a already exists");
        assert!(!is_about_addresses(&other));
    }

    #[test]
    fn the_newest_refusals_are_remembered_once_each() {
        let refused = Refused::default();
        let block = |n: u8| Cidr::new([10, 9, n, 0].into(), 24).unwrap();
        for n in (0..=64).chain([64]) {
            refused.add(block(n));
        }
        let expected: Vec<_> = (1..=64).map(block).collect();
        assert_eq!(refused.blocks(), expected);
    }
}
