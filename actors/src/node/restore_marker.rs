//! `restore.txt`: marker of a restore that the audit trail does not hold yet.
//!
//! The first start after a restore appends `restore_completed` to the audit trail, once, and then
//! deletes the file. The trail itself shows whether that was done: a restored cluster continues at
//! the index of its snapshot, so every such event after that index is about this restore.

use std::{fs, io, sync::Arc, time::Duration};

use jaco_proto::{
    chain,
    v1::{self, AuditEventType, command::Payload},
};
use jaco_raftnode::{LeaderProposer, ProposeError, State, archive::Meta, command};
use prost_types::Timestamp;
use tokio::sync::watch;

use super::files::{FilesError, Layout};
use crate::clock::Clock;

/// Identity of the event.
const IDENTITY: &str = "restore";
/// Delay before the next attempt after one that certainly had no effect.
const RETRY: Duration = Duration::from_secs(1);

/// Content of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RestoreMarker {
    pub(super) cluster_id: String,
    pub(super) snapshot_index: u64,
    /// RFC 3339.
    pub(super) taken_at: String,
    /// RFC 3339.
    pub(super) imported_at: String,
}

impl RestoreMarker {
    /// Describes the restore at `now` of the archive with `meta`.
    pub(super) fn new(meta: &Meta, now: Timestamp) -> Self {
        Self {
            cluster_id: meta.cluster_id.clone(),
            snapshot_index: meta.snapshot_index,
            taken_at: meta.taken_at.clone(),
            imported_at: Timestamp { nanos: 0, ..now }.to_string(),
        }
    }

    /// The file's content.
    pub(super) fn to_text(&self) -> String {
        let Self {
            cluster_id,
            snapshot_index,
            taken_at,
            imported_at,
        } = self;
        format!(
            "cluster_id={cluster_id}\nsnapshot_index={snapshot_index}\n\
             taken_at={taken_at}\nimported_at={imported_at}\n"
        )
    }

    /// Parses the file; unknown keys are ignored.
    fn parse(text: &str) -> Option<Self> {
        let value = |key: &str| {
            text.lines()
                .filter_map(|line| line.split_once('='))
                .find_map(|(found, value)| (found == key).then(|| value.to_owned()))
        };
        Some(Self {
            cluster_id: value("cluster_id")?,
            snapshot_index: value("snapshot_index")?.parse().ok()?,
            taken_at: value("taken_at")?,
            imported_at: value("imported_at")?,
        })
    }

    /// Reads the marker of a restore that is not recorded yet, if there is one.
    pub(super) fn read(layout: &Layout) -> Result<Option<Self>, FilesError> {
        let path = layout.marker();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(FilesError::io("read", &path)(error)),
        };
        match Self::parse(&text) {
            Some(marker) => Ok(Some(marker)),
            None => Err(FilesError::Corrupt {
                path,
                reason: "not the marker of a restore".to_owned(),
            }),
        }
    }

    fn event(&self) -> v1::AuditEvent {
        let payload = [
            ("cluster_id", self.cluster_id.clone()),
            ("snapshot_index", self.snapshot_index.to_string()),
            ("taken_at", self.taken_at.clone()),
        ];
        v1::AuditEvent {
            r#type: AuditEventType::RestoreCompleted.into(),
            payload: payload.map(|(key, value)| (key.to_owned(), value)).into(),
            ..Default::default()
        }
    }

    /// Whether the audit trail holds the event of this restore.
    fn is_recorded(&self, state: &State) -> bool {
        let after = self.snapshot_index.saturating_add(1);
        state
            .audit
            .range((after, 0)..)
            .any(|(_, event)| event.r#type() == AuditEventType::RestoreCompleted)
    }
}

/// Appends the event of a restore to the audit trail, then deletes the marker.
pub(super) struct RestoreRecorder<P> {
    pub(super) raft: P,
    pub(super) is_leader: watch::Receiver<bool>,
    pub(super) clock: Clock,
    pub(super) layout: Layout,
    /// Set when the node stops.
    pub(super) stopping: watch::Receiver<bool>,
}

/// Starts to record the restore whose marker is on disk, if there is one. Called once per node: two
/// recorders at a time would append the event twice.
pub(super) fn record_restore<P: LeaderProposer>(recorder: RestoreRecorder<P>) {
    match RestoreMarker::read(&recorder.layout) {
        Ok(None) => {}
        Ok(Some(marker)) => {
            tokio::spawn(recorder.run(marker));
        }
        // The cluster works without the event.
        Err(error) => {
            tracing::warn!(
                subsystem = "jacod",
                error = chain(&error),
                "restore is not recorded"
            );
        }
    }
}

impl<P: LeaderProposer> RestoreRecorder<P> {
    async fn run(mut self, marker: RestoreMarker) {
        let mut stopping = self.stopping.clone();
        let recorded = tokio::select! {
            recorded = self.record(&marker) => recorded,
            // A receive error means that the node is already gone.
            _ = stopping.wait_for(|&stopping| stopping) => return,
        };
        if let Err(error) = recorded {
            tracing::warn!(subsystem = "jacod", %error, "restore is not recorded");
            return;
        }
        match jaco_net::pki::files::remove(&self.layout.marker()) {
            Ok(()) => tracing::info!(
                subsystem = "jacod",
                cluster = marker.cluster_id,
                index = marker.snapshot_index,
                "restore is recorded"
            ),
            // The next start finds the event and retries the deletion.
            Err(error) => {
                tracing::warn!(
                    subsystem = "jacod",
                    error = chain(&error),
                    "restore marker was not deleted"
                );
            }
        }
    }

    /// Returns once the audit trail holds the event.
    async fn record(&mut self, marker: &RestoreMarker) -> Result<(), ProposeError> {
        loop {
            // A leader has applied every entry that earlier runs appended.
            let leads = self.is_leader.wait_for(|&leading| leading).await;
            leads.map_err(|_| ProposeError::Unavailable)?;
            if marker.is_recorded(&self.raft.state()) {
                return Ok(());
            }
            let append = Payload::AuditAppend(v1::AuditAppend {
                event: Some(marker.event()),
            });
            let proposal = command(IDENTITY, self.clock.timestamp(), append);
            match self.raft.propose(proposal).await {
                Ok(_) => break,
                Err(error @ ProposeError::Rejected(_)) => return Err(error),
                // The event may still be applied, so it must not be proposed again. If it never is,
                // the next start sees that for certain.
                Err(ProposeError::Unknown(_)) => break,
                Err(ProposeError::NoLeader | ProposeError::Busy | ProposeError::Unavailable) => {
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
        let mut states: watch::Receiver<Arc<State>> = self.raft.subscribe();
        let shown = states.wait_for(|state| marker.is_recorded(state)).await;
        shown.map(drop).map_err(|_| ProposeError::Unavailable)
    }
}

#[cfg(test)]
mod tests;
