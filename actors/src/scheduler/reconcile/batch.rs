//! The commands of a pass as one batch that raft takes.

use jaco_proto::v1::{self, command::Payload};
use jaco_raftnode::batch;
use prost::Message as _;
use prost_types::Timestamp;

use super::{IDENTITY, Pass, Summary};

/// Encoded bytes of the commands of a batch: half of what raft takes by default. A replica is
/// some hundred bytes, and a service may have ten thousand.
pub(super) const ROOM: usize = 4 << 20;

/// Tag and length of a command in its batch.
const FRAMING: usize = 8;

/// Commands of a pass, in order.
#[derive(Default)]
pub(super) struct Children {
    commands: Vec<v1::Command>,
    /// Encoded bytes up to the end of each command.
    ends: Vec<usize>,
    /// Where a section begins: a deployment, or what belongs to none.
    sections: Vec<usize>,
    /// Commands that go with the one before.
    bound: Vec<usize>,
}

impl Children {
    /// What follows is better not torn from each other.
    pub(super) fn begin_section(&mut self) {
        self.sections.push(self.commands.len());
    }

    pub(super) fn push(&mut self, command: v1::Command) {
        let before = self.ends.last().copied().unwrap_or(0);
        self.ends.push(before + command.encoded_len() + FRAMING);
        self.commands.push(command);
    }

    /// Adds a command that the next pass would not find missing if the one before were applied
    /// without it.
    pub(super) fn push_with_last(&mut self, command: v1::Command) {
        self.bound.push(self.commands.len());
        self.push(command);
    }

    /// As many commands as there is room for, whole sections if one fits at all. Each pass plans
    /// from the state alone, so the next one finds what was left.
    pub(super) fn finish(mut self, now: Timestamp) -> Pass {
        let all = self.commands.len();
        self.commands.truncate(self.fitting(ROOM));
        let mut summary = Summary {
            left: all - self.commands.len(),
            ..Summary::default()
        };
        for command in &self.commands {
            match &command.payload {
                Some(Payload::ReplicaDesiredUpsert(_)) => summary.upserts += 1,
                Some(Payload::ReplicaDesiredRemove(_)) => summary.removals += 1,
                Some(Payload::DeploymentStatusUpdate(_)) => summary.statuses += 1,
                Some(Payload::RestartCounterUpdate(_)) => summary.counters += 1,
                Some(_) | None => {}
            }
        }
        let commands = self.commands;
        let batch = (!commands.is_empty()).then(|| batch(IDENTITY, now, commands));
        Pass { batch, summary }
    }

    /// How many commands, from the first, there is room for; never none if there are any.
    fn fitting(&self, room: usize) -> usize {
        let most = self.ends.partition_point(|end| *end <= room);
        if most == self.commands.len() {
            return most;
        }
        let section = self.sections.iter().rfind(|at| **at <= most);
        match section {
            Some(at) if *at > 0 => *at,
            Some(_) | None => {
                let breaks = |at: &usize| self.bound.binary_search(at).is_err();
                let last = (1..=most).rfind(breaks);
                // One that is too large by itself is raft's to refuse.
                last.or_else(|| (most.max(1)..self.commands.len()).find(breaks))
                    .unwrap_or(self.commands.len())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn children(sections: &[&[(usize, bool)]]) -> Children {
        let mut children = Children::default();
        for section in sections {
            children.begin_section();
            for (bytes, bound) in *section {
                let command = v1::Command {
                    identity: "x".repeat(*bytes),
                    ..Default::default()
                };
                assert_eq!(command.encoded_len(), bytes + 2);
                if *bound {
                    children.push_with_last(command);
                } else {
                    children.push(command);
                }
            }
        }
        children
    }

    #[test]
    fn a_batch_is_cut_between_deployments_and_within_one_only_if_it_must() {
        // Each of these is 100 bytes with its framing.
        let one = (90, false);
        let with = (90, true);
        for (sections, room, expected) in [
            (&[&[one, one][..], &[one]][..], 300, 3),
            (&[&[one, one], &[one]], 299, 2),
            (&[&[one, one], &[one]], 200, 2),
            (&[&[one, one], &[one]], 199, 1),
            (&[&[one, one, one], &[one]], 250, 2),
            (&[&[one, with, one, with], &[one]], 350, 2),
            (&[&[one], &[one, one, one]], 350, 1),
            (&[&[], &[one, one]], 150, 1),
            // No room at all: still what belongs together.
            (&[&[one, with, with, one]], 150, 3),
            (&[&[one, with]], 50, 2),
            (&[&[one, one]], 50, 1),
            (&[&[]], 50, 0),
        ] {
            let children = children(sections);
            assert_eq!(children.fitting(room), expected, "{sections:?} in {room}");
        }
    }
}
