//! Blocks that this host cannot use because their addresses are already in use on it: by a network
//! created outside JACO, or by one that the engine failed to release.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use jaco_engine::{EngineError, cidr::Cidr};

/// Number of newest refusals kept; the leader accepts at most this many per request.
pub const MAX_REFUSED_BLOCKS: usize = 64;

/// Blocks refused by a host, kept for the lifetime of the process; clones share state.
#[derive(Clone, Debug, Default)]
pub struct RefusedBlocks(Arc<Mutex<VecDeque<Cidr>>>);

impl RefusedBlocks {
    /// Adds a block; drops the oldest one beyond [`MAX_REFUSED_BLOCKS`].
    pub fn add(&self, cidr: Cidr) {
        let mut blocks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !blocks.contains(&cidr) {
            blocks.push_back(cidr);
        }
        if blocks.len() > MAX_REFUSED_BLOCKS {
            blocks.pop_front();
        }
    }

    /// Returns the blocks, oldest first.
    #[must_use]
    pub fn blocks(&self) -> Vec<Cidr> {
        let blocks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.iter().copied().collect()
    }
}

/// Whether the engine rejects a network because of its addresses. Neither Docker nor Podman has a
/// distinct status for that, only messages: "Pool overlaps with other one on this address space",
/// "networks have overlapping IPv4", "subnet 10.9.0.0/24 is already used on the host or by another
/// config".
#[must_use]
pub fn is_address_conflict(error: &EngineError) -> bool {
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
    fn address_conflicts_are_recognized_by_message() {
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
            assert!(is_address_conflict(&api(message)), "{message}");
            let conflict = EngineError::Conflict(message.to_owned());
            assert!(is_address_conflict(&conflict), "{message}");
            let unreachable = EngineError::Unreachable(message.to_owned());
            assert!(!is_address_conflict(&unreachable), "{message}");
        }
        let other = api("network with name a already exists");
        assert!(!is_address_conflict(&other));
    }

    #[test]
    fn newest_refusals_are_kept_once_each() {
        let refused = RefusedBlocks::default();
        let block = |n: u8| Cidr::new([10, 9, n, 0].into(), 24).unwrap();
        for n in (0..=64).chain([64]) {
            refused.add(block(n));
        }
        let expected: Vec<_> = (1..=64).map(block).collect();
        assert_eq!(refused.blocks(), expected);
    }
}
