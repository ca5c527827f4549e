//! Raft's parameters, in ticks.

/// Parameters of one [`RaftCore`](super::RaftCore).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Id of this node in the group, not 0.
    pub id: u64,
    /// Index of the last entry the state machine has applied.
    pub applied: u64,
    /// Distinguishes this run of the node from earlier ones, so that an answer to a read of an
    /// earlier run is not taken for an answer to a new one.
    pub incarnation: u64,
    /// Ticks between heartbeats of a leader.
    pub heartbeat_ticks: usize,
    /// Shortest election timeout; the longest is twice as long.
    pub election_ticks: usize,
}

impl Config {
    /// Defaults for ticks of 100 ms: a heartbeat every 3, an election after 10 to 20.
    #[must_use]
    pub fn new(id: u64, applied: u64, incarnation: u64) -> Self {
        Self {
            id,
            applied,
            incarnation,
            heartbeat_ticks: 3,
            election_ticks: 10,
        }
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
