//! Snapshot transfer from sender to receiver.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use jaco_proto::v1;
use jaco_state::State;

use super::*;

fn state(entities: usize) -> State {
    let mut state = State {
        applied_index: 9,
        ..State::default()
    };
    for n in 0..entities {
        let blob = v1::CertBlob {
            key: format!("k{n:06}"),
            value: vec![n as u8; 300],
            ..v1::CertBlob::default()
        };
        state.cert_blobs.insert(blob.key.clone(), Arc::new(blob));
    }
    state.cluster = Some(Arc::new(v1::ClusterMeta {
        cluster_id: "c".into(),
        ..v1::ClusterMeta::default()
    }));
    state
}

fn chunks(state: &State) -> Vec<Vec<u8>> {
    let state = Arc::new(state.clone());
    let mut content = OutgoingSnapshot::new(Vec::new(), state, SizeLimit::none(), |_| {}).content;
    std::iter::from_fn(|| content.next_chunk()).collect()
}

fn receive(chunks: &[Vec<u8>], limit: u64) -> Result<State, SnapshotRefused> {
    let dir = tempfile::tempdir().unwrap();
    let mut spool = Spool::create(&dir.path().join("snapshots"), 1, limit).unwrap();
    for chunk in chunks {
        spool.write(chunk)?;
    }
    spool.finish(9)
}

#[test]
fn snapshot_round_trips() {
    for entities in [0, 1, 1000] {
        let state = state(entities);
        let chunks = chunks(&state);
        assert!(chunks.iter().all(|c| c.len() <= CHUNK_BYTES));
        let bytes = chunks.concat();
        let content = bytes.len() - TRAILER;
        assert_eq!(bytes[..content], state.encode_snapshot());
        assert_eq!(receive(&chunks, u64::MAX).unwrap(), state);
        let single: Vec<_> = bytes.iter().take(4000).map(|b| vec![*b]).collect();
        let rest = bytes[single.len()..].to_vec();
        assert_eq!(
            receive(&[single, vec![rest]].concat(), 1 << 30).unwrap(),
            state
        );
    }
}

#[test]
fn damaged_snapshot_is_rejected() {
    let bytes = chunks(&state(300)).concat();
    let refused = |bytes: &[u8]| receive(&[bytes.to_vec()], u64::MAX).unwrap_err();
    for at in [0, bytes.len() / 2, bytes.len() - TRAILER, bytes.len() - 1] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        let error = refused(&damaged);
        assert!(
            matches!(error, SnapshotRefused::Damaged(_)),
            "{at}: {error}"
        );
    }
    for length in [0, 1, TRAILER, bytes.len() - 1] {
        let error = refused(&bytes[..length]);
        assert!(
            matches!(error, SnapshotRefused::Damaged(_)),
            "{length}: {error}"
        );
    }
    let longer = [bytes.clone(), vec![0]].concat();
    assert!(matches!(refused(&longer), SnapshotRefused::Damaged(_)));
    // Intact, but not a valid state: the sender's content was invalid.
    let content = b"\x12\x03abc";
    let digest = <sha2::Sha256 as sha2::Digest>::digest(content);
    let whole = [&content[..], &trailer(5, digest.into())].concat();
    assert!(matches!(refused(&whole), SnapshotRefused::Content(_)));
    let content = b"\xc0\xb2\x04\x01";
    let digest = <sha2::Sha256 as sha2::Digest>::digest(content);
    let whole = [&content[..], &trailer(4, digest.into())].concat();
    assert!(matches!(refused(&whole), SnapshotRefused::Newer(_)));
}

#[test]
fn snapshot_size_is_bounded() {
    let chunks = chunks(&state(300));
    let content = chunks.concat().len() - TRAILER;
    assert!(receive(&chunks, content as u64).is_ok());
    let error = receive(&chunks, content as u64 - 1).unwrap_err();
    assert!(matches!(error, SnapshotRefused::TooLarge { .. }), "{error}");
}

#[test]
fn spool_file_and_directory_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("snapshots");
    clear(&directory).unwrap();
    let mut spool = Spool::create(&directory, 1, 100).unwrap();
    spool.write(&[0; 90]).unwrap();
    assert!(directory.join("incoming-1").exists());
    drop(spool);
    assert!(!directory.join("incoming-1").exists());
    std::fs::write(directory.join("incoming-7"), "left over").unwrap();
    clear(&directory).unwrap();
    assert!(!directory.exists());
}

/// Reports of the outcome so far.
type Reports = Arc<Mutex<Vec<bool>>>;

fn outgoing(state: &Arc<State>, limit: SizeLimit) -> (OutgoingSnapshot, Reports) {
    let reports = Reports::default();
    let note = Arc::clone(&reports);
    let report = move |delivered| note.lock().unwrap().push(delivered);
    let outgoing = OutgoingSnapshot::new(Vec::new(), Arc::clone(state), limit, report);
    (outgoing, reports)
}

#[test]
fn snapshot_dropped_early_is_abandoned() {
    let state = Arc::new(state(1000));
    let (mut half, reports) = outgoing(&state, SizeLimit::none());
    half.content.next_chunk().unwrap();
    assert!(reports.lock().unwrap().is_empty());
    drop(half);
    assert_eq!(*reports.lock().unwrap(), [false]);
    let (mut whole, reports) = outgoing(&state, SizeLimit::none());
    while whole.content.next_chunk().is_some() {}
    assert!(reports.lock().unwrap().is_empty(), "no answer yet");
    drop(whole);
    assert_eq!(*reports.lock().unwrap(), [false], "no answer came");
}

#[test]
fn delivered_snapshot_is_reported_once() {
    let state = Arc::new(state(1000));
    // The receiver may answer before it has taken all of the content, which is dropped elsewhere.
    for content_first in [true, false] {
        let (snapshot, reports) = outgoing(&state, SizeLimit::none());
        let OutgoingSnapshot {
            mut content,
            report,
            ..
        } = snapshot;
        content.next_chunk().unwrap();
        if content_first {
            drop(content);
            report.delivered();
        } else {
            report.delivered();
            drop(content);
        }
        assert_eq!(*reports.lock().unwrap(), [true], "{content_first}");
    }
}

#[test]
fn oversized_snapshot_is_not_sent() {
    let state = Arc::new(state(10));
    let logged = Arc::<AtomicBool>::default();
    let length = state.snapshot_length();
    for (bytes, sent) in [(length, true), (length - 1, false), (length, true)] {
        let limit = SizeLimit {
            bytes,
            logged: Arc::clone(&logged),
        };
        let (mut snapshot, reports) = outgoing(&state, limit);
        let chunks = std::iter::from_fn(|| snapshot.content.next_chunk()).count();
        assert_eq!(chunks > 0, sent, "{bytes}");
        drop(snapshot);
        assert_eq!(*reports.lock().unwrap(), [false]);
        assert_eq!(
            logged.load(Ordering::Relaxed),
            !sent,
            "reset once a snapshot fits"
        );
    }
}
