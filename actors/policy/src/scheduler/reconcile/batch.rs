//! Packs the commands of a pass into one batch within raft's size limit.

use jaco_proto::v1::{self, command::Payload};
use jaco_state::batch;
use prost::Message as _;
use prost_types::Timestamp;

use super::{IDENTITY, Pass, Summary};

/// Limit of a batch's encoded commands in bytes: half of raft's default limit. A replica takes some
/// hundred bytes, and a service may have ten thousand replicas.
pub const MAX_BATCH_BYTES: usize = 4 << 20;

/// Upper bound of a command's tag and length prefix in its batch.
const FRAMING: usize = 8;

/// Commands of a pass, in order.
#[derive(Default)]
pub(super) struct PassCommands {
    commands: Vec<v1::Command>,
    /// Encoded bytes up to the end of each command.
    ends: Vec<usize>,
    /// Index at which each section begins; a section is one deployment, or the commands of none.
    sections: Vec<usize>,
    /// Indexes of commands that must be in the same batch as their predecessor.
    tied_to_previous: Vec<usize>,
}

impl PassCommands {
    /// Begins a section; sections are split across batches only if necessary.
    pub(super) fn begin_section(&mut self) {
        self.sections.push(self.commands.len());
    }

    pub(super) fn push(&mut self, command: v1::Command) {
        let before = self.ends.last().copied().unwrap_or(0);
        self.ends.push(before + command.encoded_len() + FRAMING);
        self.commands.push(command);
    }

    /// Adds a command that must be in the same batch as its predecessor, because the next pass
    /// would not issue it again.
    pub(super) fn push_with_last(&mut self, command: v1::Command) {
        self.tied_to_previous.push(self.commands.len());
        self.push(command);
    }

    /// Builds the batch of the leading commands that fit, of whole sections if at least one fits.
    /// Passes depend only on the state, so the next one issues the remaining commands.
    pub(super) fn finish(mut self, now: Timestamp) -> Pass {
        let all = self.commands.len();
        self.commands.truncate(self.fitting(MAX_BATCH_BYTES));
        let mut summary = Summary {
            deferred: all - self.commands.len(),
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

    /// Number of leading commands that fit; at least one if there are any.
    fn fitting(&self, room: usize) -> usize {
        let most = self.ends.partition_point(|end| *end <= room);
        if most == self.commands.len() {
            return most;
        }
        let section = self.sections.iter().rfind(|at| **at <= most);
        match section {
            Some(at) if *at > 0 => *at,
            Some(_) | None => {
                let breaks = |at: &usize| self.tied_to_previous.binary_search(at).is_err();
                let last = (1..=most).rfind(breaks);
                // A single command above the limit is left for raft to reject.
                last.or_else(|| (most.max(1)..self.commands.len()).find(breaks))
                    .unwrap_or(self.commands.len())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn children(sections: &[&[(usize, bool)]]) -> PassCommands {
        let mut children = PassCommands::default();
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
    fn batches_are_split_between_deployments_if_possible() {
        // Each command takes 100 bytes with its framing.
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
            // Even if nothing fits, bound commands stay together.
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
