//! A cluster that lost its majority for good, and one whose backup becomes a new cluster.
//!
//! In full, after `cargo build --release -p jaco-cli -p jaco-chaos --bins`:
//! `JACO_BACKUPS=20 cargo test --release -p jaco-chaos --test cluster recovery`.
//! `JACO_BACKUPS` is how many backups are taken under load.

use std::{
    fs::{self, File},
    net::IpAddr,
    path::Path,
    process::Output,
    time::{Duration, Instant},
};

use jaco_chaos::{
    Lab, Registers, Rng,
    disk::{self, Remains},
    lab::wire,
    turn, until,
    wait::PATIENCE,
};
use jaco_net::{pki::files::NodeFiles, quic::Settings};
use jaco_proto::v1;
use jaco_raftnode::{
    archive::{self, Archive, Limits},
    restore::restored,
    storage,
};
use serde_json::Value;

use crate::{
    hostile::attacker::{endpoint, files_of, peer_address},
    size,
    world::three_voters,
};

const LIMIT: Duration = Duration::from_secs(60);
/// More would make the followers drop the entries that lead to the backups.
const WRITES: usize = 3000;

/// What a command that worked printed.
fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn opened(path: &Path) -> Archive {
    archive::read(File::open(path).unwrap(), "", &Limits::default()).unwrap()
}

fn hex(bytes: [u8; 32]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn refused(lab: &Lab, files: &NodeFiles, target: u8) {
    let hub = lab.wire().namespace().to_owned();
    let from = (hub.as_str(), IpAddr::V4(wire::HUB));
    let endpoint = endpoint(lab, from, files, target, Settings::default());
    let host = lab.node(target).host().to_owned();
    let error = endpoint.dial(&host, peer_address(lab, target)).await;
    let error = error.unwrap_err();
    assert!(
        error.is_refusal(),
        "{} at n{target}: {error}",
        files.hostname
    );
}

async fn issue(lab: &Lab, index: u8, identity: &str) -> Result<(), String> {
    let request = v1::TokenIssueRequest {
        identity: identity.to_owned(),
        allows_privileged: false,
    };
    let mut tokens = lab.node(index).api().tokens();
    let issued = tokens.issue(request).await;
    issued
        .map(drop)
        .map_err(|status| jaco_proto::error::DecodedError::from(status).code)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_survivor_becomes_the_cluster() {
    let _turn = turn::alone().await;
    let mut rng = Rng::announced();
    let mut lab = three_voters(rng.number()).await;
    let apis = lab.nodes().iter().map(|node| node.api().clone()).collect();
    let clients = Registers::start(apis, 4, rng.number());
    until("some writes", LIMIT, || async {
        let accepted = clients.accepted();
        if accepted >= 100 {
            Ok(())
        } else {
            Err(accepted)
        }
    })
    .await
    .unwrap();
    let outcome = clients.stop().await.unwrap();
    // What only two disks hold is lost with them; that is told to whoever restores.
    lab.same_state().await.unwrap();
    let former: Vec<NodeFiles> = (1..=3).map(|index| files_of(&lab, index)).collect();

    for index in [2, 3] {
        lab.node_mut(index).kill().unwrap();
        lab.node_mut(index).wipe().unwrap();
    }
    until("quorum_lost", PATIENCE, || async {
        match issue(&lab, 1, "lost").await {
            Err(code) if code == "quorum_lost" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    let asked = Instant::now();
    assert_eq!(issue(&lab, 1, "lost").await.unwrap_err(), "quorum_lost");
    println!("a write is refused within {:?}", asked.elapsed());
    let mut credentials = lab.node(1).api().registry();
    let listed = credentials.list(v1::RegistryCredentialListRequest {}).await;
    assert!(!listed.unwrap().into_inner().credentials.is_empty());

    // The survivor is saved, and is the first of a new cluster on another machine.
    lab.node_mut(1).stop().await.unwrap();
    let path = lab.dir().join("survivor.tgz");
    let shown = path.display().to_string();
    let words = ["backup", "--offline", "--output", &shown, "-o", "json"];
    let saved = json(&lab.node(1).jaco(&words).await.unwrap());
    let (state, position) = storage::examine(&lab.node(1).path("data/raft")).unwrap();
    let archive = opened(&path);
    assert_eq!(saved["snapshot_index"], position.index);
    assert_eq!(saved["state_digest"], hex(state.digest()).as_str());
    assert_eq!(archive.state.digest(), state.digest());

    let words = ["restore", "--input", &shown, "--name", "n2", "-o", "json"];
    let made = json(&lab.node(2).jaco(&words).await.unwrap());
    println!("saved {saved}\nmade {made}");
    assert_eq!(made["state_digest"], saved["state_digest"]);
    assert_eq!(made["snapshot_index"], saved["snapshot_index"]);
    lab.node_mut(1).wipe().unwrap();
    lab.node_mut(2).start().await.unwrap();
    assert_eq!(lab.wait_voters(1).await.unwrap(), ["n2"]);
    outcome
        .check(&lab.node(2).api().linearizable())
        .await
        .unwrap();
    for files in &former {
        refused(&lab, files, 2).await;
    }

    for index in [1, 3] {
        lab.node_mut(index).start().await.unwrap();
        lab.join(index, 2).await.unwrap();
    }
    lab.agree(3).await.unwrap();
    lab.wait_voters(3).await.unwrap();
    issue(&lab, 1, "found").await.unwrap();
    let index = lab.same_state().await.unwrap();
    println!("three of them agree at index {index}");
    for node in lab.nodes() {
        outcome.check(&node.api().linearizable()).await.unwrap();
        for files in &former {
            refused(&lab, files, node.index()).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_under_load_is_the_state_at_its_index_on_every_member_and_a_new_machine() {
    let _turn = turn::alone().await;
    let mut rng = Rng::announced();
    let mut lab = Lab::builder()
        .nodes(4)
        .seed(rng.number())
        .start()
        .await
        .unwrap();
    lab.init().await.unwrap();
    for index in [2, 3] {
        lab.join(index, 1).await.unwrap();
    }
    lab.wait_voters(3).await.unwrap();
    // From this state, the log leads to every later one.
    lab.same_state().await.unwrap();
    let begin = lab.dir().join("begin");
    lab.node_mut(3).stop().await.unwrap();
    disk::copy(&lab.node(3).path("data"), &begin).unwrap();
    lab.node_mut(3).start().await.unwrap();
    lab.agree(3).await.unwrap();

    let apis = lab.nodes()[..3].iter().map(|node| node.api().clone());
    let clients = Registers::start(apis.collect(), 8, rng.number());
    until("some writes", LIMIT, || async {
        let accepted = clients.accepted();
        if accepted >= 200 {
            Ok(())
        } else {
            Err(accepted)
        }
    })
    .await
    .unwrap();
    let mut saved = Vec::new();
    for n in 0..size("JACO_BACKUPS", 4) {
        let before = clients.accepted();
        clients.next_accepted(Instant::now(), LIMIT).await.unwrap();
        let path = lab.dir().join(format!("backup-{n}.tgz"));
        let shown = path.display().to_string();
        let through = lab.node(u8::try_from(n % 3 + 1).unwrap());
        let words = ["backup", "--output", &shown, "-o", "json"];
        json(&through.jaco(&words).await.unwrap());
        println!("{} writes during backup {n}", clients.accepted() - before);
        if clients.accepted() < WRITES {
            saved.push(path);
        }
    }
    let outcome = clients.stop().await.unwrap();
    println!("errors: {:?}", outcome.errors);
    lab.same_state().await.unwrap();
    for index in 1..=3 {
        lab.node_mut(index).stop().await.unwrap();
    }
    let begin = Remains::open(&begin).unwrap();
    let ends: Vec<Remains> = (1..=3)
        .map(|index| {
            let copy = lab.dir().join(format!("end-{index}"));
            disk::copy(&lab.node(index).path("data"), &copy).unwrap();
            Remains::open(&copy).unwrap()
        })
        .collect();
    for path in &saved {
        let archive = opened(path);
        let index = archive.meta.snapshot_index;
        for (end, member) in ends.iter().zip(1..) {
            let then = end.replay(begin.state.clone(), index).unwrap();
            assert_eq!(
                hex(then.digest()),
                hex(archive.state.digest()),
                "{index} on n{member}"
            );
        }
        println!("index {index}: {}", hex(archive.state.digest()));
    }

    // The last of them, on a machine that never was a member.
    let path = saved.pop().unwrap();
    let archive = opened(&path);
    let shown = path.display().to_string();
    lab.node_mut(4).stop().await.unwrap();
    lab.node_mut(4).wipe().unwrap();
    let words = ["restore", "--input", &shown, "--name", "n4", "-o", "json"];
    let made = json(&lab.node(4).jaco(&words).await.unwrap());
    assert_eq!(made["state_digest"], hex(archive.state.digest()).as_str());
    let (state, position) = storage::examine(&lab.node(4).path("data/raft")).unwrap();
    assert_eq!(position, archive.meta.position());
    let own = v1::Node::clone(&state.nodes["n4"]);
    assert_eq!(state.digest(), restored(&archive.state, own).0.digest());
    lab.node_mut(4).start().await.unwrap();
    assert_eq!(lab.wait_voters(1).await.unwrap(), ["n4"]);
    issue(&lab, 4, "goes-on").await.unwrap();
    fs::remove_file(path).unwrap();
}
