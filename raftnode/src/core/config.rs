//! Raft's parameters, in ticks.

/// Parameters of one [`RaftCore`](super::RaftCore).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Id of this node in the group, not 0.
    pub id: u64,
    /// Index of the last entry the state machine has applied.
    pub applied: u64,
    /// Distinguishes this run of the node from earlier ones, so that the response to a read of an
    /// earlier run is not matched to a new read.
    pub incarnation: u64,
    /// Ticks between the heartbeats of a leader.
    pub heartbeat_ticks: usize,
    /// Shortest election timeout, in ticks; the longest is one tick less than twice this.
    pub election_ticks: usize,
    /// Seed of the election timeouts: equal seeds draw equal timeouts.
    pub seed: u64,
}

impl Config {
    /// Creates the defaults for ticks of 100 ms: a heartbeat every 3 ticks and an election timeout
    /// of 10 to 19 ticks, seeded from the id and the incarnation.
    #[must_use]
    pub fn new(id: u64, applied: u64, incarnation: u64) -> Self {
        Self {
            id,
            applied,
            incarnation,
            heartbeat_ticks: 3,
            election_ticks: 10,
            seed: mix(mix(id) ^ incarnation),
        }
    }

    /// Returns the election timeout in `term`, in ticks, within raft's bounds. One draw per term is
    /// enough: nodes that share a timeout and split the vote draw again in the next term.
    pub(super) fn election_timeout(&self, term: u64) -> usize {
        let spread = self.election_ticks.max(1) as u64;
        self.election_ticks + (mix(self.seed ^ mix(term)) % spread) as usize
    }

    pub(super) fn raft(&self) -> raft::Config {
        raft::Config {
            id: self.id,
            applied: self.applied,
            heartbeat_tick: self.heartbeat_ticks,
            election_tick: self.election_ticks,
            // The default of 0 would send one entry per message.
            max_size_per_msg: 1 << 20,
            max_committed_size_per_ready: 16 << 20,
            max_inflight_msgs: 64,
            check_quorum: true,
            pre_vote: true,
            ..raft::Config::default()
        }
    }
}

/// Scatters a number over 64 bits (finalizer of SplitMix64).
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn election_timeouts_depend_on_seed_node_and_term() {
        let config = Config::new(1, 0, 1);
        let other = Config::new(2, 0, 1);
        let draw = |c: &Config| (1..200).map(|t| c.election_timeout(t)).collect::<Vec<_>>();
        assert_eq!(draw(&config), draw(&config.clone()));
        let pairs = draw(&config).into_iter().zip(draw(&other));
        let equal = pairs.filter(|(a, b)| a == b).count();
        assert!(equal < 50, "nodes with equal timeouts split the vote");
        for ticks in 10..20 {
            assert!(draw(&config).contains(&ticks), "{ticks} is never drawn");
        }
        assert!(draw(&config).iter().all(|t| (10..20).contains(t)));
    }
}
