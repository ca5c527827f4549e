//! Time from the start of `jacod` until it answers `Cluster.Status` as a member, and until it
//! leads: with an almost empty state, and with 100,000 entities.

#![expect(clippy::print_stdout, reason = "the figures are the output")]

use std::{
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use jaco_chaos::{Daemon, Settings};
use jaco_proto::v1;
use jaco_raftnode::{State, Storage, storage};
use prost_types::Timestamp;

/// Entities of each of four kinds.
const EACH: u32 = 25_000;
const ROUNDS: usize = 5;
const LIMIT: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> Result<()> {
    let mut daemon = Daemon::bootstrap(Settings {
        quiet: true,
        ..Settings::default()
    })
    .await?;
    daemon.stop().await?;
    println!(
        "{:>9} {:>12} {:>12} {:>12}   median of {ROUNDS}",
        "entities", "answers", "leads", "resident"
    );
    let empty = starts(&mut daemon, "goal: answers within 150 ms").await?;
    let entities = fill(&daemon)?;
    let full = starts(&mut daemon, "goal: answers within 1 s").await?;
    println!(
        "resident memory per entity: {:.0} bytes, of which encoded {:.0}",
        (full as f64 - empty as f64) / f64::from(EACH * 4),
        entities as f64 / f64::from(EACH * 4),
    );
    Ok(())
}

/// Starts the daemon several times; returns the median resident memory in bytes.
async fn starts(daemon: &mut Daemon, goal: &str) -> Result<u64> {
    let (mut answers, mut leads, mut resident) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        daemon.spawn()?;
        let status = member(daemon, begun, |_| true).await?;
        answers.push(begun.elapsed());
        if status.leader_hostname.is_empty() {
            member(daemon, begun, |status| !status.leader_hostname.is_empty()).await?;
        }
        leads.push(begun.elapsed());
        tokio::time::sleep(Duration::from_secs(1)).await; // tasks started after the election
        resident.push(daemon.rss_bytes()?);
        daemon.stop().await?;
    }
    for times in [&mut answers, &mut leads] {
        times.sort_unstable();
    }
    resident.sort_unstable();
    let storage = Storage::open(&daemon.data_dir().join("raft"))?;
    let entities = storage.load_state()?.rows().count();
    let resident = resident[ROUNDS / 2];
    println!(
        "{entities:>9} {:>12.1?} {:>12.1?} {:>9.1} MB   {goal}",
        answers[ROUNDS / 2],
        leads[ROUNDS / 2],
        resident as f64 / 1e6,
    );
    Ok(resident)
}

/// Waits until the daemon reports itself a member and `wanted` holds for its status.
async fn member(
    daemon: &Daemon,
    begun: Instant,
    wanted: impl Fn(&v1::ClusterStatusResponse) -> bool,
) -> Result<v1::ClusterStatusResponse> {
    loop {
        match daemon.api().status().await {
            Ok(status) if status.initialized && wanted(&status) => return Ok(status),
            Ok(_) | Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
        ensure!(begun.elapsed() < LIMIT, "the daemon does not come up");
    }
}

/// Rewrites the state with many more rows; returns their encoded size in bytes.
fn fill(daemon: &Daemon) -> Result<usize> {
    let path = daemon.data_dir().join("raft");
    let storage = Storage::open(&path)?;
    let mut state = storage.load_state()?;
    drop(storage);
    let before: usize = state.rows().map(|(_, value)| value.len()).sum();
    for number in 0..EACH {
        add(&mut state, number);
    }
    let rows: Vec<_> = state
        .rows()
        .map(|(key, value)| storage::Row {
            key,
            value: Some(value),
        })
        .collect();
    fs::remove_dir_all(&path)?;
    storage::bootstrap_with_rows(&path, 1, &[1], &rows)?;
    let after: usize = state.rows().map(|(_, value)| value.len()).sum();
    Ok(after - before)
}

/// Adds one entity of each kind; none of them causes any action of the daemon.
fn add(state: &mut State, number: u32) {
    let name = format!("bench-{number:06}");
    let ts = Some(Timestamp {
        seconds: 1_700_000_000,
        nanos: 0,
    });
    let token = v1::Token {
        identity: name.clone(),
        hashed_secret: [number.to_be_bytes().as_slice(), &[7; 28]].concat(),
        issued_at: ts,
        ..Default::default()
    };
    let event = v1::AuditEvent {
        r#type: v1::AuditEventType::TokenIssue.into(),
        identity: "local".to_owned(),
        ts,
        payload: [("identity", name.as_str()), ("allows_privileged", "false")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        raft_index: u64::from(number) + 2,
        ..Default::default()
    };
    let blob = v1::CertBlob {
        key: format!("certificates/{name}.example.com"),
        value: vec![number as u8; 200],
        ..Default::default()
    };
    let credential = v1::RegistryCredential {
        registry: format!("registry.example.com/{name}"),
        username: name.clone(),
        secret: vec![number as u8; 32],
        updated_at: ts,
    };
    state.tokens.insert(name, Arc::new(token));
    state.audit.insert((event.raft_index, 0), Arc::new(event));
    state.cert_blobs.insert(blob.key.clone(), Arc::new(blob));
    let registry = credential.registry.clone();
    state
        .registry_credentials
        .insert(registry, Arc::new(credential));
}
