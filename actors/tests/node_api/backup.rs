//! Backups of a running node and of a stopped one.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use futures::{TryStreamExt, future::join_all};
use jaco_actors::{Node, clock::Clock, node::Export};
use jaco_proto::{
    error::DecodedError,
    v1::{self, AuditEventType, command::Payload},
};
use jaco_raftnode::{
    LeaderProposer, State,
    archive::{self, Archive, ArchiveLimits},
    command,
    offline::Replay,
    storage::Position,
};
use tonic::Streaming;

use crate::lab::{Client, Lab, state, until};

/// Version reported by the lab's nodes.
const VERSION: &str = "0.0.0-test";

pub(crate) fn opened(bytes: &[u8]) -> Archive {
    archive::read(bytes, VERSION, &ArchiveLimits::default()).unwrap()
}

pub(crate) async fn begin(client: &Client) -> Result<Streaming<v1::BackupChunk>, DecodedError> {
    let answer = client.cluster().backup(v1::BackupRequest {}).await?;
    Ok(answer.into_inner())
}

pub(crate) async fn backup(client: &Client) -> Result<Vec<u8>, DecodedError> {
    let pieces: Vec<_> = begin(client).await?.try_collect().await?;
    let sizes: Vec<_> = pieces.iter().map(|piece| piece.data.len()).collect();
    let (last, full) = sizes.split_last().unwrap();
    assert!(full.iter().all(|size| *size == 65536), "{sizes:?}");
    assert!((1..=65536).contains(last), "{sizes:?}");
    Ok(pieces.into_iter().flat_map(|piece| piece.data).collect())
}

/// Adds incompressible data to the state.
async fn fill(node: &Node, blobs: u8) {
    let raft = node.raft().unwrap();
    for n in 0..blobs {
        let mut seed = u64::from(n) + 1;
        let noise = std::iter::repeat_with(|| {
            // xorshift: the sequence only has to be incompressible.
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed as u8
        });
        let blob = v1::CertBlob {
            key: format!("k{n}"),
            value: noise.take(1 << 20).collect(),
            updated_at: None,
        };
        let upsert = Payload::CertBlobUpsert(v1::CertBlobUpsert { blob: Some(blob) });
        let now = Clock::system().timestamp();
        raft.propose(command("test", now, upsert)).await.unwrap();
    }
}

fn backups_in(state: &State) -> Vec<Arc<v1::AuditEvent>> {
    let kind = AuditEventType::BackupTaken;
    let events = state.audit.values().filter(|e| e.r#type() == kind);
    events.cloned().collect()
}

#[tokio::test]
async fn backup_holds_the_state_and_is_recorded() {
    let lab = Lab::new();
    let (node, token) = lab.bootstrapped().await;
    fill(&node, 1).await;
    lab.local().issue("ci", false).await.unwrap();
    let before = state(&node);

    let archive = opened(&backup(&lab.pinned(Some(&token))).await.unwrap());
    assert_eq!(archive.state, *before);
    let meta = &archive.meta;
    assert_eq!(meta.snapshot_index, before.applied_index);
    assert!(meta.snapshot_term > 1, "{meta:?}");
    assert_eq!(meta.jaco_version, VERSION);
    let leader = format!("{}:7001", lab.address().ip());
    assert_eq!(meta.leader_at_snapshot, leader);
    // The end of the stream follows the record.
    let after = state(&node);
    let events = backups_in(&after);
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].identity, "bootstrap");
    let payload: BTreeMap<_, _> = [
        ("snapshot_index", before.applied_index.to_string()),
        ("requested_by", "bootstrap".to_owned()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into();
    assert_eq!(events[0].payload, payload);
    node.stop().await;
}

#[tokio::test]
async fn backup_needs_a_cluster_and_a_token() {
    let lab = Lab::new();
    let node = lab.start().await;
    let error = backup(&lab.local()).await.unwrap_err();
    assert_eq!(error.code, "cluster_uninitialized");
    lab.init().await.unwrap();
    let error = backup(&lab.pinned(None)).await.unwrap_err();
    assert_eq!(error.code, "token_invalid");
    node.stop().await;
}

#[tokio::test]
async fn disconnected_callers_free_their_backup_slots() {
    let lab = Lab::new();
    let (node, _) = lab.bootstrapped().await;
    // More than is ever buffered between an encoder and a caller that does not read.
    fill(&node, 3).await;
    let client = lab.local();
    let stalled = join_all((0..4).map(|_| begin(&client))).await;
    let mut stalled: Vec<_> = stalled.into_iter().map(Result::unwrap).collect();
    for pieces in &mut stalled {
        assert!(pieces.message().await.unwrap().is_some());
    }
    let error = begin(&client).await.err().unwrap();
    assert_eq!(error.code, "backup_failed");
    assert!(error.details["reason"].contains("4 backups"), "{error:?}");
    drop(stalled);
    let bytes = loop {
        match backup(&client).await {
            Ok(bytes) => break bytes,
            Err(error) => assert_eq!(error.code, "backup_failed"),
        }
    };
    assert!(opened(&bytes).state.cert_blobs.len() == 3);
    // The disconnected callers have a part of an archive.
    until(&node, "every backup is recorded", |state| {
        backups_in(state).len() == 5
    })
    .await;
    node.stop().await;
}

#[tokio::test]
async fn backups_under_load_are_consistent() {
    let lab = Lab::new();
    let (node, _) = lab.bootstrapped().await;
    let client = lab.local();
    let (taken, backups) = tokio::sync::watch::channel(0);
    let writers = (0..4).map(|writer| {
        let (client, backups) = (client.clone(), backups.clone());
        tokio::spawn(async move {
            let mut written = 0_usize;
            // The writers go on until two backups were taken, however long one takes.
            while written < 40 || *backups.borrow() < 2 {
                client
                    .issue(&format!("w{writer}-{written}"), false)
                    .await
                    .unwrap();
                written += 1;
            }
            written
        })
    });
    let writers: Vec<_> = writers.collect();
    let mut archives = Vec::new();
    while !writers.iter().all(tokio::task::JoinHandle::is_finished) {
        archives.push(opened(&backup(&client).await.unwrap()));
        taken.send_replace(archives.len());
    }
    let written = join_all(writers).await.into_iter().map(Result::unwrap);
    let tokens = 1 + written.sum::<usize>();
    let last = until(&node, "all tokens", |state| state.tokens.len() == tokens).await;
    assert!(archives.len() > 1);
    for archive in &archives {
        let index = archive.meta.snapshot_index;
        // An archive holds a token if and only if its command is not after the index; the audit
        // trail lists all of them.
        let issued = last.audit.range(..=(index, u32::MAX)).map(|(_, e)| e);
        let issued: Vec<_> = issued
            .filter(|e| e.r#type() == AuditEventType::TokenIssue)
            .map(|e| e.payload["identity"].as_str())
            .chain(["bootstrap"])
            .collect();
        let mut issued = issued;
        issued.sort_unstable();
        let found: Vec<_> = archive.state.tokens.keys().map(String::as_str).collect();
        assert_eq!(found, issued, "at {index}");
        assert!(archive.state.audit.keys().all(|(at, _)| *at <= index));
    }
    node.stop().await;
}

fn files(dir: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut found: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .flat_map(|path| match path.is_dir() {
            true => files(&path),
            false => vec![(path.clone(), fs::read(&path).unwrap())],
        })
        .collect();
    found.sort();
    found
}

#[tokio::test]
async fn export_reads_a_stopped_node_without_writing() {
    let lab = Lab::new();
    let (node, _) = lab.bootstrapped().await;
    lab.local().issue("ci", false).await.unwrap();
    let export = || Export::read(&lab.data(), VERSION, &Clock::system(), Replay::Committed);
    let error = export().unwrap_err();
    assert_eq!(error.code.as_str(), "backup_failed");
    assert!(
        error.details["reason"].contains("another daemon"),
        "{error:?}"
    );

    node.stop().await;
    let before = state(&node);
    drop(node);
    let untouched = files(&lab.data());
    let mut bytes = Vec::new();
    let exported = export().unwrap();
    exported.write(&mut bytes).unwrap();
    assert_eq!(files(&lab.data()), untouched);
    let archive = opened(&bytes);
    assert_eq!(archive.state, *before);
    assert_eq!(archive.meta.leader_at_snapshot, "");
    // The archive of the only voter ends with its log.
    let Position { index, term } = exported.last;
    assert_eq!(archive.meta.snapshot_index, index);
    assert_eq!(archive.meta.snapshot_term, term);

    fs::remove_dir_all(lab.data().join("raft")).unwrap();
    assert_eq!(export().unwrap_err().code.as_str(), "no_cluster");
    fs::remove_dir_all(lab.data()).unwrap();
    assert_eq!(export().unwrap_err().code.as_str(), "no_cluster");
    assert!(!lab.data().exists());
}
