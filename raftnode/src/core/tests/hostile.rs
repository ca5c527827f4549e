//! Fuzzes the core with messages that no correct peer sends; the node must survive them.

use raft::eraftpb::{ConfState, Snapshot, SnapshotMetadata};

use super::*;

/// Draws numbers close to meaningful ones.
struct Draw(u64);

impl Draw {
    fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }

    fn near(&mut self, around: u64) -> u64 {
        match self.below(10) {
            0 => 0,
            1 => u64::MAX,
            2 => u64::MAX / 2,
            _ => around.saturating_add(self.below(6)).saturating_sub(3),
        }
    }

    fn ids(&mut self) -> Vec<u64> {
        (0..self.below(4)).map(|_| self.below(5)).collect()
    }

    fn entries(&mut self, index: u64, term: u64) -> Vec<Entry> {
        let gap = u64::from(self.below(8) == 0);
        let mut entries = Vec::new();
        for at in 0..self.below(4) {
            let mut entry = Entry {
                index: index.wrapping_add(1 + gap + at),
                term: self.near(term),
                data: vec![0; [0, 8][self.below(2) as usize]],
                ..Entry::default()
            };
            entry.entry_type = self.below(4) as i32;
            entries.push(entry);
        }
        entries
    }

    fn snapshot(&mut self, status: &RaftStatus) -> Snapshot {
        let conf_state = ConfState {
            voters: self.ids(),
            learners: self.ids(),
            voters_outgoing: if self.below(3) == 0 {
                self.ids()
            } else {
                vec![]
            },
            learners_next: if self.below(3) == 0 {
                self.ids()
            } else {
                vec![]
            },
            auto_leave: self.below(4) == 0,
        };
        Snapshot {
            metadata: Some(SnapshotMetadata {
                conf_state: Some(conf_state).filter(|_| self.below(8) > 0),
                index: self.near(status.last_index),
                term: self.near(status.term),
            }),
            ..Snapshot::default()
        }
    }

    fn message(&mut self, to: u64, status: &RaftStatus) -> Message {
        let index = self.near(status.last_index);
        let term = self.near(status.term);
        let mut message = Message {
            msg_type: self.below(22) as i32,
            to: if self.below(20) == 0 { 9 } else { to },
            from: [0, 1, 2, 3, 99][self.below(5) as usize],
            term,
            index,
            log_term: self.near(status.term),
            commit: self.near(status.commit),
            commit_term: self.near(status.term),
            reject: self.below(2) == 0,
            reject_hint: self.near(status.last_index),
            request_snapshot: [0, 0, 0, status.last_index, u64::MAX][self.below(5) as usize],
            context: vec![1; [0, 3, 24][self.below(3) as usize]],
            priority: [0, 0, i64::MAX, i64::MIN][self.below(4) as usize],
            entries: self.entries(index, term),
            ..Message::default()
        };
        if self.below(3) > 0 || message.msg_type == MessageType::MsgSnapshot as i32 {
            message.snapshot = Some(self.snapshot(status));
        }
        message
    }
}

#[test]
fn arbitrary_messages_do_not_stop_a_node() {
    for seed in 1..400 {
        let mut cluster = SimCluster::new(3, seed);
        let leader = cluster.elect();
        cluster.propose(leader, 5);
        cluster.converge();
        cluster.join(4);
        if seed % 2 == 0 {
            cluster.compact(leader);
        }
        let mut draw = Draw(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        for _ in 0..60 {
            let to = 1 + draw.below(4);
            let message = draw.message(to, &cluster.status(to));
            // Many messages are rejected; an accepted one may violate the safety of the group.
            let _ = cluster.inject(to, message);
            cluster.answer(to);
            if draw.below(4) == 0 {
                cluster.pass(1);
            }
        }
    }
}
