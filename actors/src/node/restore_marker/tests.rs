use jaco_raftnode::{StateReader as _, testing::MemoryRaft};
use tempfile::TempDir;

use super::*;

fn marker(snapshot_index: u64) -> RestoreMarker {
    RestoreMarker {
        cluster_id: "c-1".to_owned(),
        snapshot_index,
        taken_at: "2024-05-06T07:08:09Z".to_owned(),
        imported_at: "2024-05-07T00:00:00Z".to_owned(),
    }
}

struct RestoreFixture {
    dir: TempDir,
    raft: MemoryRaft,
    leading: watch::Sender<bool>,
    stopping: watch::Sender<bool>,
}

impl RestoreFixture {
    fn new(snapshot_index: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(
            dir.path().join("restore.txt"),
            marker(snapshot_index).to_text(),
        )
        .unwrap();
        Self {
            dir,
            raft: MemoryRaft::new(State {
                applied_index: snapshot_index,
                ..State::default()
            }),
            leading: watch::Sender::new(false),
            stopping: watch::Sender::new(false),
        }
    }

    fn recorder(&self) -> RestoreRecorder<MemoryRaft> {
        RestoreRecorder {
            raft: self.raft.clone(),
            is_leader: self.leading.subscribe(),
            clock: Clock::system(),
            layout: Layout::new(self.dir.path()),
            stopping: self.stopping.subscribe(),
        }
    }

    /// Runs a start of the node until the restore is recorded.
    async fn start(&self) {
        let marker = RestoreMarker::read(&Layout::new(self.dir.path())).unwrap();
        if let Some(marker) = marker {
            self.recorder().run(marker).await;
        }
    }

    fn marker_is_there(&self) -> bool {
        self.dir.path().join("restore.txt").exists()
    }

    fn recorded_restores(&self) -> usize {
        let state = self.raft.state();
        let kind = AuditEventType::RestoreCompleted;
        state.audit.values().filter(|e| e.r#type() == kind).count()
    }
}

#[test]
fn marker_round_trips_as_four_lines() {
    let text = "cluster_id=c-1\nsnapshot_index=42\ntaken_at=2024-05-06T07:08:09Z\n\
                imported_at=2024-05-07T00:00:00Z\n";
    assert_eq!(marker(42).to_text(), text);
    assert_eq!(RestoreMarker::parse(text), Some(marker(42)));
    for line in text.lines() {
        let rest = text.replace(&format!("{line}\n"), "");
        assert_eq!(RestoreMarker::parse(&rest), None, "without {line}");
    }
    assert_eq!(RestoreMarker::parse(&text.replace("=42", "=x")), None);
}

#[tokio::test(start_paused = true)]
async fn leader_records_a_restore_once() {
    let fixture = RestoreFixture::new(42);
    fixture.leading.send_replace(true);
    fixture.start().await;
    assert!(!fixture.marker_is_there());
    let state = fixture.raft.state();
    let event = state.audit.get(&(43, 0)).unwrap();
    assert_eq!(event.r#type(), AuditEventType::RestoreCompleted);
    assert_eq!(event.identity, "restore");
    assert!(event.ts.is_some());
    let payload: Vec<_> = event
        .payload
        .iter()
        .map(|(k, v)| format!("{k}={v}"))
        .collect();
    assert_eq!(
        payload,
        [
            "cluster_id=c-1",
            "snapshot_index=42",
            "taken_at=2024-05-06T07:08:09Z"
        ]
    );
    fixture.start().await;
    assert_eq!(fixture.recorded_restores(), 1);
}

#[tokio::test(start_paused = true)]
async fn follower_records_nothing_until_it_leads() {
    let fixture = RestoreFixture::new(42);
    let start = fixture.start();
    tokio::pin!(start);
    let waited = tokio::time::timeout(Duration::from_secs(60), &mut start).await;
    assert!(waited.is_err());
    assert_eq!(
        (fixture.recorded_restores(), fixture.marker_is_there()),
        (0, true)
    );
    fixture.leading.send_replace(true);
    start.await;
    assert_eq!(
        (fixture.recorded_restores(), fixture.marker_is_there()),
        (1, false)
    );
}

#[tokio::test(start_paused = true)]
async fn stop_ends_the_wait_for_leadership() {
    let fixture = RestoreFixture::new(42);
    fixture.stopping.send_replace(true);
    fixture.start().await;
    assert_eq!(
        (fixture.recorded_restores(), fixture.marker_is_there()),
        (0, true)
    );
}

/// Kill after the event was applied and before the file was deleted.
#[tokio::test(start_paused = true)]
async fn crash_before_deletion_appends_no_second_event() {
    let fixture = RestoreFixture::new(42);
    fixture.leading.send_replace(true);
    fixture.start().await;
    fs::write(fixture.dir.path().join("restore.txt"), marker(42).to_text()).unwrap();
    fixture.start().await;
    assert_eq!(
        (fixture.recorded_restores(), fixture.marker_is_there()),
        (1, false)
    );
}

/// The audit trail of the archive may hold events of earlier restores.
#[tokio::test(start_paused = true)]
async fn each_restore_appends_its_own_event() {
    let mut fixture = RestoreFixture::new(42);
    fixture.leading.send_replace(true);
    fixture.start().await;
    let state = State::clone(&fixture.raft.state());
    let again = RestoreFixture::new(state.applied_index);
    fixture.dir = again.dir;
    fixture.start().await;
    assert_eq!(
        (fixture.recorded_restores(), fixture.marker_is_there()),
        (2, false)
    );
}

#[tokio::test(start_paused = true)]
async fn only_definitely_failed_proposals_are_retried() {
    for (error, wanted) in [
        (ProposeError::NoLeader, (1, false)),
        (ProposeError::Busy, (1, false)),
        (ProposeError::Unavailable, (1, false)),
        // Unknown outcome and never applied: left to the next start.
        (ProposeError::Unknown("lost".to_owned()), (0, true)),
    ] {
        let fixture = RestoreFixture::new(42);
        fixture.leading.send_replace(true);
        fixture.raft.fail_next(1, error.clone());
        let _ = tokio::time::timeout(Duration::from_secs(60), fixture.start()).await;
        assert_eq!(
            (fixture.recorded_restores(), fixture.marker_is_there()),
            wanted,
            "{error}"
        );
        fixture.start().await;
        assert_eq!(
            (fixture.recorded_restores(), fixture.marker_is_there()),
            (1, false)
        );
    }
    let fixture = RestoreFixture::new(42);
    fixture.leading.send_replace(true);
    fixture.raft.lose_next_answers(1);
    fixture.start().await;
    assert_eq!(
        (fixture.recorded_restores(), fixture.marker_is_there()),
        (1, false)
    );
}

#[test]
fn corrupt_marker_is_refused_and_kept() {
    let fixture = RestoreFixture::new(42);
    fs::write(fixture.dir.path().join("restore.txt"), "hello").unwrap();
    let error = RestoreMarker::read(&Layout::new(fixture.dir.path())).unwrap_err();
    assert!(matches!(error, FilesError::Corrupt { .. }), "{error}");
    assert!(fixture.marker_is_there());
}
