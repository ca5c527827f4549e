use jaco_net::pki::BootstrapCert;
use jaco_proto::{timestamp, v1::AuditEventType};
use jaco_raftnode::{StateReader as _, command, testing::MemoryRaft};
use jaco_supervision::{Strategy, SupervisorSpec, Tree};
use prost_types::Timestamp;

use super::*;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn at(day: u32) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_900_000_000) + DAY * day
}

/// A certificate that expires on a day, sealed with a key.
fn sealed(key: &SecretsKey, name: &str, day: u32) -> v1::ImportedCert {
    let issued = BootstrapCert::generate("a-example", &[], at(0)).unwrap();
    let mut cert = v1::ImportedCert {
        name: name.to_owned(),
        chain_pem: issued.cert_pem().as_bytes().to_vec(),
        not_before: Some(timestamp(at(0))),
        not_after: Some(timestamp(at(day))),
        fingerprint: vec![u8::try_from(day).unwrap(); 32],
        ..v1::ImportedCert::default()
    };
    let (entity, version) = sealed_as(&cert);
    let key_pem = issued.key_pem().expose().as_bytes();
    cert.sealed_key = key.seal(&entity, version, key_pem).unwrap();
    cert
}

struct Lab {
    raft: MemoryRaft,
    lead: watch::Sender<bool>,
    key: watch::Sender<Option<Arc<SecretsKey>>>,
    imported: watch::Receiver<Imported>,
    _tree: Tree,
}

impl Lab {
    async fn start(key: Option<SecretsKey>) -> Self {
        let raft = MemoryRaft::with_ready_nodes(&["n1"]);
        let begin = Instant::now();
        let clock = Clock::from_fn(move || at(0) + begin.elapsed());
        let (lead, is_leader) = watch::channel(true);
        let (key, secrets_key) = watch::channel(key.map(Arc::new));
        let (sender, imported) = watch::channel(Imported::default());
        let args = ImportArgs {
            raft: Arc::new(raft.clone()),
            is_leader,
            clock,
            secrets_key,
            imported: sender,
        };
        let spec = SupervisorSpec::new(Strategy::OneForOne).child(child(args));
        Self {
            raft,
            lead,
            key,
            imported,
            _tree: Tree::start("ingress", spec).await.unwrap(),
        }
    }

    fn import(&self, cert: v1::ImportedCert) {
        let upsert = v1::ImportedCertUpsert { cert: Some(cert) };
        let upsert = Payload::ImportedCertUpsert(upsert);
        let upsert = command("ops", Timestamp::default(), upsert);
        self.raft.apply(upsert).unwrap();
    }

    async fn until(&mut self, holds: impl Fn(&Imported) -> bool) -> Imported {
        let waited = self.imported.wait_for(|imported| holds(imported));
        let waited = tokio::time::timeout(DAY * 100, waited).await;
        waited.expect("in time").unwrap().clone()
    }

    /// Days of the warnings, by the day on which each was given.
    fn warnings(&self) -> Vec<(u64, String)> {
        let state = self.raft.state();
        let events = state.audit.values();
        let events = events.filter(|event| event.r#type() == AuditEventType::CertificateExpiring);
        let given = events.map(|event| {
            let ts = SystemTime::try_from(event.ts.unwrap()).unwrap();
            let since = ts.duration_since(at(0)).unwrap();
            (
                since.as_secs() / DAY.as_secs(),
                event.payload["days"].clone(),
            )
        });
        given.collect()
    }
}

#[tokio::test(start_paused = true)]
async fn certificates_are_opened_with_the_key() {
    let key = SecretsKey::new([1; 32]);
    let mut lab = Lab::start(None).await;
    lab.import(sealed(&key, "a.example", 50));
    lab.import(sealed(&SecretsKey::new([2; 32]), "b.example", 50));
    lab.key.send_replace(Some(Arc::new(key.clone())));
    let imported = lab.until(|imported| !imported.by_name.is_empty()).await;
    let names: Vec<_> = imported.by_name.keys().collect();
    assert_eq!(names, ["a.example"], "the other one was sealed otherwise");
    let material = &imported.by_name["a.example"];
    assert!(material.key_pem.expose().contains("PRIVATE KEY"));
    assert_eq!(material.chain.not_after, at(50));

    lab.import(sealed(&key, "*.example", 60));
    lab.until(|imported| imported.by_name.len() == 2).await;
    lab.key.send_replace(None);
    lab.until(|imported| imported.by_name.is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn rotation_does_not_interrupt_service() {
    let (old, new) = (SecretsKey::new([1; 32]), SecretsKey::new([2; 32]));
    for key_first in [false, true] {
        let mut lab = Lab::start(Some(old.clone())).await;
        lab.import(sealed(&old, "a.example", 50));
        let served = |imported: &Imported| imported.by_name.contains_key("a.example");
        lab.until(served).await;
        let mut published = lab.imported.clone();
        let lost = tokio::spawn(async move {
            let lost = published.wait_for(|imported| !served(imported));
            tokio::time::timeout(DAY, lost).await.is_ok()
        });
        let resealed = reseal(&lab.raft.state(), Some(&old), &new).unwrap();
        let [Payload::ImportedCertUpsert(upsert)] = &resealed[..] else {
            panic!("{resealed:?}");
        };
        let row = upsert.cert.clone().unwrap();
        assert!(open(&new, &row).is_some());
        let key = Some(Arc::new(new.clone()));
        if key_first {
            lab.key.send_replace(key);
            tokio::time::sleep(Duration::from_secs(1)).await;
            lab.import(row);
        } else {
            lab.import(row);
            tokio::time::sleep(Duration::from_secs(1)).await;
            lab.key.send_replace(key);
        }
        assert!(!lost.await.unwrap(), "key first: {key_first}");
    }
}

#[tokio::test(start_paused = true)]
async fn values_are_not_sealed_anew_without_their_key() {
    let (old, new) = (SecretsKey::new([1; 32]), SecretsKey::new([2; 32]));
    let lab = Lab::start(None).await;
    let state = lab.raft.state();
    assert_eq!(reseal(&state, None, &new).unwrap().len(), 0);
    lab.import(sealed(&old, "a.example", 50));
    let error = reseal(&lab.raft.state(), None, &new).unwrap_err();
    assert_eq!(error.code, ErrorCode::SecretsKeyMissing);
}

#[tokio::test(start_paused = true)]
async fn moved_key_does_not_open() {
    let key = SecretsKey::new([1; 32]);
    let one = sealed(&key, "a.example", 50);
    assert!(open(&key, &one).is_some());
    let renamed = v1::ImportedCert {
        name: "b.example".to_owned(),
        ..one.clone()
    };
    assert!(open(&key, &renamed).is_none());
    let other = v1::ImportedCert {
        fingerprint: vec![9; 32],
        ..one
    };
    assert!(open(&key, &other).is_none());
}

#[tokio::test(start_paused = true)]
async fn leader_warns_once_at_each_time() {
    let key = SecretsKey::new([1; 32]);
    let cert = sealed(&key, "a.example", 50);
    let mut lab = Lab::start(Some(key)).await;
    lab.import(cert);
    lab.until(|imported| !imported.by_name.is_empty()).await;
    tokio::time::sleep(DAY * 30).await;
    // The next leader knows the warning from the state.
    lab.lead.send_replace(false);
    tokio::time::sleep(DAY).await;
    lab.lead.send_replace(true);
    tokio::time::sleep(DAY * 20).await;
    let expected = [(20, "30"), (43, "7"), (49, "1")];
    let expected = expected.map(|(day, days)| (day, days.to_owned()));
    assert_eq!(lab.warnings(), expected);
}

#[tokio::test(start_paused = true)]
async fn follower_gives_no_warnings() {
    let key = SecretsKey::new([1; 32]);
    let cert = sealed(&key, "a.example", 5);
    let mut lab = Lab::start(Some(key)).await;
    lab.lead.send_replace(false);
    tokio::time::sleep(DAY).await;
    lab.import(cert);
    lab.until(|imported| !imported.by_name.is_empty()).await;
    tokio::time::sleep(DAY * 6).await;
    assert_eq!(lab.warnings(), []);
}
