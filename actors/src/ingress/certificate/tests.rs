use std::{
    collections::VecDeque,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use jaco_net::{acme::Issued, pki::BootstrapCert};
use jaco_policy::ingress::certificate::{
    FailureClass, OrderFailure, RenewalWindow, Slot,
    store::{self, LETS_ENCRYPT, account_key, directory_name},
};
use jaco_proto::{secret::SecretBytes, timestamp};
use jaco_raftnode::{StateReader as _, testing::MemoryRaft};
use jaco_supervision::{KillMode, Strategy, SupervisorSpec, Tree};
use prost_types::Timestamp;
use tokio::time::Instant;

use super::*;
use crate::lock::lock;

const DOMAIN: &str = "a-example";

/// An authority that publishes a challenge and issues a self-signed certificate.
struct FakeAuthority {
    clock: Clock,
    raft: MemoryRaft,
    /// Directories that were ordered from.
    orders: Mutex<Vec<String>>,
    /// Chains that orders replaced.
    replaced: Mutex<Vec<String>>,
    accounts: AtomicUsize,
    /// Orders under way, and the most of them at once.
    running: AtomicUsize,
    most: AtomicUsize,
    challenges: AtomicUsize,
    /// Whether it suggests to renew certificates at once.
    renews: AtomicBool,
    /// Failures of the next orders.
    failures: Mutex<VecDeque<OrderError>>,
    /// Time that an order takes.
    takes: Duration,
}

impl FakeAuthority {
    fn orders(&self) -> Vec<String> {
        lock(&self.orders).clone()
    }
}

/// Shares the fake with the test.
struct Shared(Arc<FakeAuthority>);

impl Authority for Shared {
    fn create_account(
        &self,
        _: String,
        _: String,
    ) -> BoxFuture<'static, Result<SecretBytes, OrderError>> {
        let number = self.0.accounts.fetch_add(1, Ordering::Relaxed);
        let account = SecretBytes::new(format!("account {number}").into_bytes());
        Box::pin(async { Ok(account) })
    }

    fn order(
        &self,
        directory: String,
        _: SecretBytes,
        domain: String,
        replaces: Option<String>,
        publish: Publish,
    ) -> BoxFuture<'static, Result<Issued, OrderError>> {
        let fake = Arc::clone(&self.0);
        Box::pin(async move {
            lock(&fake.orders).push(directory_name(&directory));
            lock(&fake.replaced).extend(replaces);
            if let Some(failure) = lock(&fake.failures).pop_front() {
                return Err(failure);
            }
            let token = format!(
                "token-{}",
                fake.challenges.fetch_add(1, Ordering::Relaxed) + 1
            );
            let challenge = Challenge {
                token: token.clone(),
                key_auth: SecretString::new("proof".to_owned()),
            };
            publish(challenge).await.unwrap();
            let state = fake.raft.state();
            assert_eq!(state.challenge_tokens[&token].key_auth, "proof");
            let running = fake.running.fetch_add(1, Ordering::Relaxed) + 1;
            fake.most.fetch_max(running, Ordering::Relaxed);
            tokio::time::sleep(fake.takes).await;
            fake.running.fetch_sub(1, Ordering::Relaxed);
            let cert = BootstrapCert::generate(&domain, &[], fake.clock.now()).unwrap();
            Ok(Issued {
                chain_pem: cert.cert_pem().to_owned(),
                key_pem: cert.key_pem().clone(),
            })
        })
    }

    fn renewal_window(
        &self,
        _: String,
        _: SecretBytes,
        _: String,
    ) -> BoxFuture<'static, Option<(RenewalWindow, Duration)>> {
        let now = self.0.clock.now();
        let window = RenewalWindow {
            start: now,
            end: now,
        };
        let renews = self.0.renews.load(Ordering::Relaxed);
        let answer = renews.then_some((window, Duration::from_secs(3600)));
        Box::pin(async move { answer })
    }
}

struct Lab {
    raft: MemoryRaft,
    lead: watch::Sender<bool>,
    fake: Arc<FakeAuthority>,
    certificates: watch::Receiver<Certificates>,
    imported: watch::Sender<Imported>,
    cache: Cache,
    metrics: Metrics,
    tree: Tree,
}

impl Lab {
    async fn start(leads: bool, dir: &std::path::Path) -> Self {
        Self::start_with(leads, dir, VecDeque::new()).await
    }

    async fn start_with(
        leads: bool,
        dir: &std::path::Path,
        failures: VecDeque<OrderError>,
    ) -> Self {
        let raft = MemoryRaft::with_ready_nodes(&["n1", "n2"]);
        let begin = Instant::now();
        let clock = Clock::from_fn(move || {
            SystemTime::UNIX_EPOCH + Duration::from_secs(1_900_000_000) + begin.elapsed()
        });
        let fake = Arc::new(FakeAuthority {
            clock: clock.clone(),
            raft: raft.clone(),
            orders: Mutex::default(),
            replaced: Mutex::default(),
            accounts: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            challenges: AtomicUsize::new(0),
            renews: AtomicBool::new(false),
            failures: Mutex::new(failures),
            takes: Duration::from_secs(3),
        });
        let (lead, is_leader) = watch::channel(leads);
        let (sender, certificates) = watch::channel(Certificates::default());
        let (imported, imports) = watch::channel(Imported::default());
        let cache = Cache::new(dir);
        let metrics = Metrics::new("n1", clock.clone());
        let args = Args {
            host: "n1".to_owned(),
            raft: Arc::new(raft.clone()),
            is_leader,
            clock,
            directories: Directories::of_config(LETS_ENCRYPT, false),
            contact: String::new(),
            authority: Arc::new(Shared(Arc::clone(&fake))),
            turns: Turns::default(),
            spread: Arc::new(crate::serving::Everywhere),
            preflight: None,
            imported: imports,
            cache: cache.clone(),
            account_lock: Arc::default(),
            metrics: metrics.clone(),
            certificates: sender,
        };
        let spec = SupervisorSpec::new(Strategy::OneForOne).child(child(args));
        let tree = Tree::start("ingress", spec).await.unwrap();
        let lab = Self {
            raft,
            lead,
            fake,
            certificates,
            imported,
            cache,
            metrics,
            tree,
        };
        lab.deploy(true);
        lab
    }

    fn deploy(&self, tls_auto: bool) {
        self.deploy_domains(&[DOMAIN.to_owned()], tls_auto);
    }

    fn deploy_domains(&self, domains: &[String], tls_auto: bool) {
        let routes = domains.iter().map(|domain| v1::Route {
            domain: domain.clone(),
            deployment: "app".to_owned(),
            service: "web".to_owned(),
            port: 80,
            tls_auto,
            ..v1::Route::default()
        });
        let revision = self
            .raft
            .state()
            .deployments
            .get("app")
            .map_or(1, |app| app.applied_revision + 1);
        let apply = Payload::DeploymentApply(v1::DeploymentApply {
            deployment: "app".to_owned(),
            revision,
            services: vec![v1::ServiceSpec {
                name: "web".to_owned(),
                ..v1::ServiceSpec::default()
            }],
            routes: routes.collect(),
            acme_email: "ops@example.org".to_owned(),
            ..v1::DeploymentApply::default()
        });
        let apply = command("test", Timestamp::default(), apply);
        self.raft.apply(apply).unwrap();
    }

    async fn until(&self, holds: impl Fn(&State) -> bool) {
        let mut states = self.raft.subscribe();
        let waited = states.wait_for(|state| holds(state));
        let waited = timeout(Duration::from_secs(7200), waited).await;
        waited.expect("the state changes within two hours").unwrap();
    }

    /// Waits until exactly the production certificate is stored and the lock is released.
    async fn until_issued(&self) {
        let name = directory_name(LETS_ENCRYPT);
        self.until(|state| {
            let stored = store::certificates(state, DOMAIN);
            let stored: Vec<_> = stored.map(|stored| stored.directory.to_owned()).collect();
            let locked = state.certs.values().any(|lock| !lock.lessee.is_empty());
            stored == [name.clone()] && !locked
        })
        .await;
    }

    /// Types of the audit events about certificates.
    fn events(&self) -> Vec<(String, String)> {
        let state = self.raft.state();
        let events = state
            .audit
            .values()
            .filter(|event| event.identity == "ingress");
        events
            .map(|event| {
                let name = event.r#type().as_str_name();
                let name = name.trim_start_matches("AUDIT_EVENT_TYPE_CERTIFICATE_");
                (name.to_owned(), event.payload["acme_environment"].clone())
            })
            .collect()
    }

    async fn until_copied(&self, present: bool) {
        let name = directory_name(LETS_ENCRYPT);
        let keys = store::CertificateKeys::new(DOMAIN, &name);
        let copied = async {
            while self.cache.read(&keys.chain).is_some() != present {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        let copied = timeout(Duration::from_secs(600), copied).await;
        copied.expect("the copy follows");
    }
}

fn event(name: &str, environment: &str) -> (String, String) {
    (name.to_owned(), environment.to_owned())
}

fn failure(account_lost: bool) -> OrderError {
    OrderError {
        failure: OrderFailure {
            class: FailureClass::Validation,
            retry_after: None,
            reason: "no".to_owned(),
        },
        account_lost,
    }
}

#[tokio::test(start_paused = true)]
async fn leader_stages_promotes_and_publishes() {
    let dir = tempfile::tempdir().unwrap();
    let lab = Lab::start(true, dir.path()).await;
    let mut certificates = lab.certificates.clone();
    // The staging certificate is served until the other lands.
    let staged = |all: &Certificates| {
        let served = all.by_domain.get(DOMAIN);
        served.is_some_and(|material| material.slot == Slot::Staging)
    };
    certificates.wait_for(staged).await.unwrap();
    lab.until_issued().await;
    let issued = |all: &Certificates| {
        let served = all.by_domain.get(DOMAIN);
        served.is_some_and(|material| material.slot == Slot::Production)
    };
    let all = certificates.wait_for(issued).await.unwrap().clone();
    let tokens = all.tokens.unwrap();
    assert_eq!(tokens["token-2"].key_auth.expose(), "proof");
    let staging = directory_name(store::LETS_ENCRYPT_STAGING);
    let production = directory_name(LETS_ENCRYPT);
    assert_eq!(lab.fake.orders(), [staging, production.clone()]);
    assert_eq!(
        lab.events(),
        [event("ISSUED", "staging"), event("ISSUED", "prod")]
    );
    let account = account_key(&production, "ops@example.org");
    assert!(lab.raft.state().cert_blobs.contains_key(&account));
    let state = lab.raft.state();
    let routes: Vec<_> = state
        .routes
        .values()
        .map(|route| v1::Route::clone(route))
        .collect();
    let rows = status_rows(&state, &routes, lab.fake.clock.now());
    assert_eq!((rows.len(), rows[0].environment.as_str()), (1, "prod"));
    lab.until_copied(true).await;
}

#[tokio::test(start_paused = true)]
async fn follower_serves_what_the_state_has() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let leader = Lab::start(true, dir.path()).await;
    leader.until_issued().await;
    let follower = Lab::start(false, other.path()).await;
    for blob in leader.raft.state().cert_blobs.values() {
        let blob = Some(v1::CertBlob::clone(blob));
        let upsert = Payload::CertBlobUpsert(v1::CertBlobUpsert { blob });
        let upsert = command("test", Timestamp::default(), upsert);
        follower.raft.apply(upsert).unwrap();
    }
    let mut certificates = follower.certificates.clone();
    let served = |all: &Certificates| all.by_domain.contains_key(DOMAIN);
    certificates.wait_for(served).await.unwrap();
    follower.until_copied(true).await;
    assert_eq!(follower.fake.orders(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn failures_are_audited_and_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let failures = [failure(false), failure(true)].into();
    let lab = Lab::start_with(true, dir.path(), failures).await;
    lab.until_issued().await;
    let failed = event("FAILED", "staging");
    let issued = [event("ISSUED", "staging"), event("ISSUED", "prod")];
    assert_eq!(
        lab.events(),
        [failed.clone(), failed, issued[0].clone(), issued[1].clone()]
    );
    let accounts = lab.fake.accounts.load(Ordering::Relaxed);
    assert_eq!(accounts, 3, "the lost account was replaced");
    let counted = lab.metrics.render();
    for (environment, result, count) in [
        ("staging", "failed", 2),
        ("staging", "ok", 1),
        ("prod", "ok", 1),
    ] {
        let labels = format!("environment=\"{environment}\",result=\"{result}\"}} {count}\n");
        assert!(counted.contains(&labels), "{labels} in\n{counted}");
    }
}

#[tokio::test(start_paused = true)]
async fn killed_actors_issue_one_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let lab = Lab::start(true, dir.path()).await;
    for path in ["ingress/cert:a-example", "ingress/certificates"] {
        let ordered = lab.fake.orders().len();
        while lab.fake.orders().len() == ordered {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        lab.tree.kill(path, KillMode::Kill).unwrap();
    }
    lab.until_issued().await;
    let issued = lab.events();
    let count = |wanted| issued.iter().filter(|event| **event == wanted).count();
    assert_eq!(count(event("ISSUED", "prod")), 1, "{issued:?}");
}

#[tokio::test(start_paused = true)]
async fn removed_route_deletes_everything() {
    let dir = tempfile::tempdir().unwrap();
    let lab = Lab::start(true, dir.path()).await;
    lab.until_issued().await;
    lab.until_copied(true).await;
    lab.deploy(false);
    lab.until(|state| store::keys(state, DOMAIN).next().is_none())
        .await;
    lab.until_copied(false).await;
    let mut certificates = lab.certificates.clone();
    let gone = |all: &Certificates| all.by_domain.is_empty() && all.tokens.is_none();
    certificates.wait_for(gone).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn copy_on_disk_spares_an_order() {
    let dir = tempfile::tempdir().unwrap();
    let first = Lab::start(true, dir.path()).await;
    first.until_issued().await;
    first.until_copied(true).await;
    let restored = Lab::start(true, dir.path()).await;
    restored.until_issued().await;
    assert_eq!(restored.fake.orders(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn lost_leadership_ends_the_order() {
    let dir = tempfile::tempdir().unwrap();
    let lab = Lab::start(true, dir.path()).await;
    while lab.fake.orders().is_empty() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    lab.lead.send_replace(false);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(lab.fake.orders().len(), 1);
    assert_eq!(
        store::domains(&lab.raft.state()).len(),
        0,
        "nothing is stored"
    );
    lab.lead.send_replace(true);
    lab.until_issued().await;
}

#[tokio::test(start_paused = true)]
async fn certificate_of_an_operator_suspends_orders() {
    let dir = tempfile::tempdir().unwrap();
    let mut lab = Lab::start(false, dir.path()).await;
    let not_after = SystemTime::UNIX_EPOCH + Duration::from_secs(1_900_000_000 + 3600);
    let import = v1::ImportedCertUpsert {
        cert: Some(v1::ImportedCert {
            name: DOMAIN.to_owned(),
            chain_pem: b"chain".to_vec(),
            sealed_key: b"sealed".to_vec(),
            not_after: Some(timestamp(not_after)),
            ..v1::ImportedCert::default()
        }),
    };
    let import = command(
        "ops",
        Timestamp::default(),
        Payload::ImportedCertUpsert(import),
    );
    lab.raft.apply(import).unwrap();
    let material = Arc::new(Material {
        directory: "imported".to_owned(),
        slot: Slot::Production,
        chain: jaco_policy::ingress::certificate::Chain {
            fingerprint: [1; 32],
            not_before: SystemTime::UNIX_EPOCH,
            not_after,
            covers: true,
        },
        chain_pem: String::new(),
        key_pem: SecretString::new(String::new()),
    });
    let by_name = BTreeMap::from([(DOMAIN.to_owned(), Arc::clone(&material))]);
    lab.imported.send_replace(Imported {
        by_name: Arc::new(by_name),
    });
    lab.lead.send_replace(true);
    let served = lab
        .certificates
        .wait_for(|served| served.by_domain.contains_key(DOMAIN))
        .await
        .unwrap();
    assert_eq!(served.by_domain[DOMAIN], material);
    drop(served);
    tokio::time::sleep(Duration::from_secs(1800)).await;
    assert_eq!(lab.fake.orders(), [""; 0]);
    // The directory's certificate takes its place once it has expired.
    let ordered = lab.certificates.wait_for(|served| {
        let served = served.by_domain.get(DOMAIN);
        served.is_some_and(|served| *served != material && served.slot == Slot::Production)
    });
    timeout(Duration::from_secs(7200), ordered)
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn renewal_names_the_certificate_it_replaces() {
    let dir = tempfile::tempdir().unwrap();
    let lab = Lab::start(true, dir.path()).await;
    lab.until_issued().await;
    let chain = |state: &State| {
        let stored = store::certificates(state, DOMAIN).next()?;
        Some(stored.chain.value.clone())
    };
    let first = chain(&lab.raft.state());
    assert!(lock(&lab.fake.replaced).is_empty());
    lab.fake.renews.store(true, Ordering::Relaxed);
    let mut states = lab.raft.subscribe();
    let renewed = states.wait_for(|state| chain(state) != first);
    let day = Duration::from_secs(24 * 3600);
    timeout(day, renewed).await.expect("it is renewed").unwrap();
    let replaced = lock(&lab.fake.replaced).clone();
    assert_eq!(replaced, [String::from_utf8(first.unwrap()).unwrap()]);
}

#[tokio::test(start_paused = true)]
async fn many_domains_take_turns() {
    let dir = tempfile::tempdir().unwrap();
    let lab = Lab::start(true, dir.path()).await;
    let domains: Vec<_> = (0..60).map(|number| format!("d{number}-example")).collect();
    lab.deploy_domains(&domains, true);
    let name = directory_name(LETS_ENCRYPT);
    lab.until(|state| {
        let issued = |domain: &String| {
            let mut stored = store::certificates(state, domain);
            stored.any(|stored| stored.directory == name)
        };
        domains.iter().all(issued)
    })
    .await;
    assert_eq!(lab.fake.most.load(Ordering::Relaxed), 8);
}
