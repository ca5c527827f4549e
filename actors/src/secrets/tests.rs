//! The actor on a state in memory, with the other members as functions.

use std::{
    collections::BTreeMap,
    fs,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use futures::future::BoxFuture;
use jaco_net::{pki::BootstrapCert, secrets::SecretsKey};
use jaco_proto::{
    ErrorCode,
    v1::{self, AuditEventType, command::Payload},
};
use jaco_raftnode::{LeaderProposer as _, State, StateReader as _, testing::MemoryRaft};
use jaco_state::command;
use jaco_supervision::{KillMode, Strategy, SupervisorSpec, Tree};
use tokio::sync::watch;

use super::{Args, KeyFile, KeyPeers, RESEALERS, Reseal, Secrets, child};
use crate::{clock::Clock, commit::CommitLock, ingress::certificate, lock::lock};

const HOSTS: [&str; 3] = ["a", "b", "c"];

/// Disks of the other members; one that is absent cannot be reached.
#[derive(Clone, Default)]
struct Disks(Arc<Mutex<BTreeMap<String, Vec<SecretsKey>>>>);

impl Disks {
    fn reachable(hosts: &[&str]) -> Self {
        let disks = hosts.iter().map(|host| ((*host).to_owned(), Vec::new()));
        Self(Arc::new(Mutex::new(disks.collect())))
    }

    fn of(&self, host: &str) -> Vec<SecretsKey> {
        lock(&self.0).get(host).cloned().unwrap_or_default()
    }

    fn put(&self, host: &str, key: &SecretsKey) {
        lock(&self.0)
            .entry(host.to_owned())
            .or_default()
            .push(key.clone());
    }
}

impl KeyPeers for Disks {
    fn store(&self, host: &str, key: &SecretsKey) -> BoxFuture<'static, Result<(), String>> {
        let mut disks = lock(&self.0);
        let stored = match disks.get_mut(host) {
            Some(disk) => {
                disk.push(key.clone());
                Ok(())
            }
            None => Err("unreachable".to_owned()),
        };
        Box::pin(async move { stored })
    }

    fn fetch(&self, host: &str, id: &str) -> BoxFuture<'static, Result<SecretsKey, String>> {
        let found = self.of(host).into_iter().find(|key| key.id() == id);
        Box::pin(async move { found.ok_or_else(|| "no such key".to_owned()) })
    }
}

impl Secrets {
    /// Access to a key that no actor replaces.
    pub(crate) fn fixed(key: Option<SecretsKey>) -> Self {
        let key = watch::Sender::new(key.map(Arc::new)).subscribe();
        let (_, unstarted) = child(Args {
            host: "a".to_owned(),
            file: "secrets.key".into(),
            raft: Arc::new(MemoryRaft::with_ready_nodes(&HOSTS)),
            is_leader: watch::Sender::new(false).subscribe(),
            peers: Arc::new(Disks::default()),
            clock: Clock::system(),
            sealing_lock: CommitLock::default(),
            reseal: &[],
        });
        Self { key, ..unstarted }
    }
}

struct Member {
    raft: MemoryRaft,
    file: KeyFile,
    secrets: Secrets,
    tree: Tree,
    _leading: watch::Sender<bool>,
}

impl Member {
    /// Starts the leader `a` on the state of `raft`.
    async fn start(raft: &MemoryRaft, dir: &tempfile::TempDir, disks: &Disks) -> Self {
        Self::sealing(raft, dir, disks, &[]).await
    }

    async fn sealing(
        raft: &MemoryRaft,
        dir: &tempfile::TempDir,
        disks: &Disks,
        reseal: &'static [Reseal],
    ) -> Self {
        let file = KeyFile::new(dir.path().join("secrets.key"));
        let leading = watch::Sender::new(true);
        let (spec, secrets) = child(Args {
            host: "a".to_owned(),
            file: file.path().to_owned(),
            raft: Arc::new(raft.clone()),
            is_leader: leading.subscribe(),
            peers: Arc::new(disks.clone()),
            clock: Clock::system(),
            sealing_lock: CommitLock::default(),
            reseal,
        });
        let root = SupervisorSpec::new(Strategy::OneForOne).child(spec);
        let tree = Tree::start("node", root).await.unwrap();
        secrets.actor.running().await;
        Self {
            raft: raft.clone(),
            file,
            secrets,
            tree,
            _leading: leading,
        }
    }

    /// Waits until the member has the key that the state names.
    async fn key(&self) -> Arc<SecretsKey> {
        let mut key = self.secrets.subscribe();
        let held = key.wait_for(Option::is_some).await.unwrap();
        held.clone().unwrap()
    }

    fn named(&self) -> String {
        self.raft
            .state()
            .cluster
            .as_ref()
            .unwrap()
            .secrets_key_id
            .clone()
    }
}

fn name(raft: &MemoryRaft, key_id: String) {
    let set = v1::SecretsKeySet {
        key_id,
        replaces: String::new(),
    };
    let payload = Payload::SecretsKeySet(set);
    raft.apply(command("test", Default::default(), payload))
        .unwrap();
}

fn cluster() -> (MemoryRaft, tempfile::TempDir) {
    let raft = MemoryRaft::with_ready_nodes(&HOSTS);
    assert!(raft.leading_term().is_some());
    (raft, tempfile::tempdir().unwrap())
}

#[tokio::test(start_paused = true)]
async fn leader_makes_a_key_that_a_majority_has() {
    let (raft, dir) = cluster();
    let disks = Disks::reachable(&["b"]);
    let member = Member::start(&raft, &dir, &disks).await;
    let key = member.key().await;
    assert_eq!(key.id(), member.named());
    assert_eq!(member.file.read().unwrap(), [SecretsKey::clone(&key)]);
    assert_eq!(disks.of("b"), [SecretsKey::clone(&key)]);
    let state = raft.state();
    let event = state.audit.values().next_back().unwrap();
    assert_eq!(event.r#type(), AuditEventType::SecretsKey);
    assert_eq!(
        (event.payload["action"].as_str(), event.identity.as_str()),
        ("made", "secrets")
    );
    assert_eq!(event.payload["key_id"], key.id());
}

#[tokio::test(start_paused = true)]
async fn key_is_not_named_without_a_majority() {
    let (raft, dir) = cluster();
    let disks = Disks::default();
    let member = Member::start(&raft, &dir, &disks).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(member.named(), "");
    let error = member.secrets.key().unwrap_err();
    assert_eq!(error.code, ErrorCode::SecretsKeyMissing);
    // The same key is used once another member can be reached.
    let made = member.file.read().unwrap();
    lock(&disks.0).insert("c".to_owned(), Vec::new());
    assert_eq!(vec![SecretsKey::clone(&*member.key().await)], made);
}

#[tokio::test(start_paused = true)]
async fn restarted_actor_finds_its_key_on_disk() {
    let (raft, dir) = cluster();
    let disks = Disks::reachable(&["b"]);
    let member = Member::start(&raft, &dir, &disks).await;
    let key = member.key().await;
    lock(&disks.0).clear();
    member.tree.kill("node/secrets", KillMode::Kill).unwrap();
    let fetched = member.secrets.fetch(key.id());
    let fetched = match fetched.await {
        Ok(fetched) => fetched,
        // The call came while the actor was down.
        Err(_) => {
            tokio::time::sleep(Duration::from_secs(5)).await;
            member.secrets.fetch(key.id()).await.unwrap()
        }
    };
    assert_eq!(fetched, *key);
    assert_eq!(member.key().await, key);
}

#[tokio::test(start_paused = true)]
async fn member_without_the_file_fetches_the_key() {
    let (raft, dir) = cluster();
    let key = SecretsKey::new([7; 32]);
    let disks = Disks::default();
    disks.put("c", &SecretsKey::new([8; 32]));
    name(&raft, key.id());
    let member = Member::start(&raft, &dir, &disks).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(member.secrets.key().is_err(), "no member has it");
    assert_eq!(member.named(), key.id(), "no other key takes its place");
    disks.put("b", &key);
    assert_eq!(*member.key().await, key);
    assert_eq!(member.file.read().unwrap(), [key]);
}

#[tokio::test(start_paused = true)]
async fn damaged_or_wrong_file_is_replaced() {
    let key = SecretsKey::new([7; 32]);
    let wrong = SecretsKey::new([9; 32]).to_text();
    for content in ["damaged", wrong.expose()] {
        let (raft, dir) = cluster();
        fs::write(dir.path().join("secrets.key"), content).unwrap();
        let disks = Disks::default();
        disks.put("b", &key);
        name(&raft, key.id());
        let member = Member::start(&raft, &dir, &disks).await;
        assert_eq!(*member.key().await, key);
        assert!(member.file.read().unwrap().contains(&key));
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_named_key_is_imported() {
    let (raft, dir) = cluster();
    let key = SecretsKey::new([7; 32]);
    name(&raft, key.id());
    let member = Member::start(&raft, &dir, &Disks::default()).await;
    let error = member
        .secrets
        .import(SecretsKey::new([8; 32]))
        .await
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::SecretsKeyMismatch);
    assert_eq!(error.details["expected"], key.id());
    assert!(member.file.read().unwrap().is_empty());
    assert_eq!(member.secrets.import(key.clone()).await.unwrap(), key.id());
    assert_eq!(*member.key().await, key);
}

/// Stands for the rows of a vertical: seals the key's id into the cluster configuration.
fn reseal_into_config(
    state: &State,
    old: Option<&SecretsKey>,
    new: &SecretsKey,
) -> Result<Vec<Payload>, jaco_proto::Error> {
    // Nothing is sealed before the first key.
    if state.cluster.as_ref().unwrap().secrets_key_id.is_empty() {
        return Ok(Vec::new());
    }
    let old = old.ok_or_else(super::missing)?;
    Ok(vec![Payload::ClusterConfigSet(v1::ClusterConfigSet {
        key: "sealed".to_owned(),
        value: format!("{} {}", old.id(), new.id()),
        unset: false,
    })])
}

#[tokio::test(start_paused = true)]
async fn rotation_seals_every_value_anew() {
    let (raft, dir) = cluster();
    let disks = Disks::reachable(&["b", "c"]);
    let member = Member::sealing(&raft, &dir, &disks, &[reseal_into_config]).await;
    let before = member.key().await;
    let rotated = member.secrets.rotate("ops".to_owned()).await.unwrap();
    assert_ne!(rotated, before.id());
    assert_eq!(member.named(), rotated);
    let state = raft.state();
    let sealed = &state.cluster_config["sealed"];
    assert_eq!(sealed.value, format!("{} {rotated}", before.id()));
    let last = state.applied_index;
    let entry = state
        .audit
        .range((last, 0)..)
        .map(|(_, event)| event.r#type());
    let both = [AuditEventType::SecretsKey, AuditEventType::ConfigChanged];
    assert_eq!(entry.collect::<Vec<_>>(), both, "in one entry");
    let mut key = member.secrets.subscribe();
    let new = key.wait_for(|key| key.as_ref().is_some_and(|key| key.id() == rotated));
    assert_eq!(new.await.unwrap().as_ref().unwrap().id(), rotated);
    let event = state
        .audit
        .values()
        .rfind(|event| event.r#type() == AuditEventType::SecretsKey);
    let event = event.unwrap();
    assert_eq!(
        (event.payload["action"].as_str(), event.identity.as_str()),
        ("rotated", "ops")
    );
}

#[tokio::test(start_paused = true)]
async fn rotation_keeps_imported_certificates_readable() {
    let (raft, dir) = cluster();
    let disks = Disks::reachable(&["b", "c"]);
    let member = Member::sealing(&raft, &dir, &disks, RESEALERS).await;
    let before = member.key().await;
    let issued = BootstrapCert::generate("a-example", &[], SystemTime::now()).unwrap();
    let mut cert = v1::ImportedCert {
        name: "a-example".to_owned(),
        chain_pem: issued.cert_pem().as_bytes().to_vec(),
        not_before: Some(Default::default()),
        not_after: Some(Default::default()),
        fingerprint: vec![7; 32],
        imported_by: "ops".to_owned(),
        ..v1::ImportedCert::default()
    };
    let secret = issued.key_pem().expose();
    cert.sealed_key = certificate::seal(&before, &cert, secret.as_bytes()).unwrap();
    // Another one is sealed with a key that is lost.
    let lost = v1::ImportedCert {
        name: "b-example".to_owned(),
        ..cert.clone()
    };
    for cert in [cert, lost.clone()] {
        let upsert = v1::ImportedCertUpsert { cert: Some(cert) };
        let payload = Payload::ImportedCertUpsert(upsert);
        raft.apply(command("ops", Default::default(), payload))
            .unwrap();
    }
    let events = || {
        let state = raft.state();
        let events = state.audit.values();
        let events = events.filter(|event| event.r#type() == AuditEventType::CertificateImported);
        events.count()
    };
    assert_eq!(events(), 2);
    let rotated = member.secrets.rotate("admin".to_owned()).await.unwrap();
    let mut key = member.secrets.subscribe();
    let new = key.wait_for(|key| key.as_ref().is_some_and(|key| key.id() == rotated));
    let new = new.await.unwrap().clone().unwrap();
    let state = raft.state();
    let row = &state.imported_certs["a-example"];
    let opened = certificate::open(&new, row).unwrap();
    assert_eq!(opened.key_pem.expose(), secret);
    assert!(certificate::open(&before, row).is_none());
    assert_eq!(row.imported_by, "ops");
    let lost = lost.sealed_key;
    assert_eq!(state.imported_certs["b-example"].sealed_key, lost);
    assert_eq!(events(), 2, "nothing was imported");
}

#[tokio::test(start_paused = true)]
async fn rotation_without_a_majority_leaves_the_key() {
    let (raft, dir) = cluster();
    let disks = Disks::reachable(&["b"]);
    let member = Member::start(&raft, &dir, &disks).await;
    let key = member.key().await;
    lock(&disks.0).clear();
    let error = member.secrets.rotate("ops".to_owned()).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::QuorumLost);
    assert_eq!((member.named(), member.key().await), (key.id(), key));
}
