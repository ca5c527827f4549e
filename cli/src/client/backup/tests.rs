use std::os::unix::fs::{PermissionsExt, symlink};

use clap::Parser;
use jaco_proto::{Error, ErrorCode};

use super::*;
use crate::client::{
    fake::{Captured, Fake, capture},
    output::Format,
};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

async fn backup(server: &Fake, path: &Path, line: &str) -> (Result<(), Stop>, Captured) {
    let Line { args } = Line::parse_from(["backup"].into_iter().chain(line.split_whitespace()));
    capture(Format::Table, async |ui| {
        run(&args, Some(path), || Ok(server.client()), ui).await
    })
    .await
}

fn failure(result: Result<(), Stop>) -> Failure {
    match result.unwrap_err() {
        Stop::Failed(failure) => *failure,
        Stop::ClosedPipe => panic!("the pipe is closed"),
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn backup_writes_a_private_file() {
    let server = Fake::start().await;
    server.script(|script| script.backup = vec![Ok(b"abc".to_vec()), Ok(b"de".to_vec())]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("b.tgz");
    // The existing file is replaced, including its mode.
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let (result, output) = backup(&server, &path, "").await;
    assert_eq!(result, Ok(()));
    assert_eq!(fs::read(&path).unwrap(), b"abcde");
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert_eq!(output.out, format!("Wrote 5 bytes to {}\n", path.display()));
    assert!(output.err.contains("keys and secrets"), "{}", output.err);
    assert_eq!(names(dir.path()), ["b.tgz"]);
}

#[tokio::test]
async fn failed_backup_keeps_the_existing_file() {
    let server = Fake::start().await;
    let broken = Error::new(ErrorCode::BackupFailed, "no").with("reason", "disk");
    server.script(|script| script.backup = vec![Ok(b"abc".to_vec()), Err(broken)]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("b.tgz");
    fs::write(&path, "old").unwrap();
    let (result, output) = backup(&server, &path, "").await;
    let failure = failure(result);
    assert_eq!(failure.code, "backup_failed");
    assert_eq!(failure.details["reason"], "disk");
    assert_eq!(output.out, "");
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(names(dir.path()), ["b.tgz"]);
}

#[tokio::test]
async fn unwritable_file_is_refused_before_calling() {
    let server = Fake::start().await;
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("link");
    symlink("/etc/passwd", &link).unwrap();
    for path in [
        dir.path().to_owned(),
        dir.path().join("gone/b.tgz"),
        dir.path().join(".."),
        link,
    ] {
        let (result, _) = backup(&server, &path, "").await;
        let failure = failure(result);
        assert_eq!(failure.code, "file_error", "{}", path.display());
        assert_eq!(failure.details["path"], path.display().to_string());
    }
    assert_eq!(server.reads().len(), 0);
    assert_eq!(names(dir.path()), ["link"]);
}

#[tokio::test]
async fn offline_backup_without_a_cluster_fails() {
    let server = Fake::start().await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("b.tgz");
    let data = dir.path().join("data");
    let line = format!("--offline --data-dir {}", data.display());
    let (result, _) = backup(&server, &path, &line).await;
    let failure = failure(result);
    assert_eq!(failure.code, "no_cluster");
    assert_eq!(failure.details["data_dir"], data.display().to_string());
    assert_eq!(names(dir.path()), Vec::<String>::new());
    assert_eq!(server.reads().len(), 0, "no daemon is called");
}

#[tokio::test]
async fn flags_of_a_stopped_daemon_need_offline() {
    let server = Fake::start().await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("b.tgz");
    for line in ["--data-dir /x", "--uncommitted"] {
        let (result, _) = backup(&server, &path, line).await;
        assert_eq!(failure(result).code, "usage_error", "{line}");
    }
    assert!(!path.exists());
}

fn offline(snapshot_index: u64, last_index: u64) -> OfflineView {
    OfflineView {
        snapshot_index,
        snapshot_term: 3,
        last_term: 4,
        last_index,
        state_digest: "0f".to_owned(),
    }
}

#[test]
fn offline_backup_prints_positions_and_digest() {
    let view = |offline: Option<OfflineView>| WroteView {
        path: "b.tgz".to_owned(),
        bytes: 7,
        offline,
    };
    assert_eq!(view(None).text(), "Wrote 7 bytes to b.tgz\n");
    assert_eq!(
        view(Some(offline(9, 12))).text(),
        "Wrote 7 bytes to b.tgz\nsnapshot_index: 9\nsnapshot_term: 3\nlast_term: 4\n\
         last_index: 12\nstate_digest: 0f\n"
    );
    assert_eq!(
        serde_json::to_string(&view(None)).unwrap(),
        r#"{"path":"b.tgz","bytes":7}"#
    );
    assert_eq!(
        serde_json::to_value(view(Some(offline(9, 12)))).unwrap(),
        serde_json::json!({
            "path": "b.tgz", "bytes": 7, "snapshot_index": 9, "snapshot_term": 3,
            "last_term": 4, "last_index": 12, "state_digest": "0f",
        })
    );
}

#[test]
fn offline_backup_counts_the_entries_left_out() {
    assert_eq!(offline(12, 12).warnings().len(), 1);
    let warnings = offline(9, 12).warnings();
    assert!(warnings[0].contains("highest last_term"), "{warnings:?}");
    assert!(warnings[1].starts_with("3 later entries"), "{warnings:?}");
}
