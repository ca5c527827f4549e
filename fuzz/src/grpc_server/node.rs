//! Runs each input against a new, identical node.

use std::{
    cell::OnceCell,
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use jaco_actors::{
    api::admission,
    clock::Clock,
    testing::{Api, Lab},
};
use jaco_proto::v1::{self, command::Payload};
use jaco_raftnode::{RaftHandle, Storage, command, storage, testing::MemoryRaft};
use prost_types::Timestamp;
use tokio::runtime::Runtime;

/// Timeout of all calls of one input; a digest of a future index waits.
const CALLS_TIMEOUT: Duration = Duration::from_secs(60);

/// A node with a cluster, or one without.
pub(super) struct TestNode {
    pub(super) api: Api,
    /// Handle of the cluster; `None` before there is one.
    pub(super) raft: Option<RaftHandle>,
}

/// Fixtures that are created once per thread.
struct Fixtures {
    runtime: Runtime,
    lab: Lab,
    storage: Arc<Storage>,
    cluster: MemoryRaft,
    /// Deleted with its files when the thread ends.
    _dir: tempfile::TempDir,
}

thread_local! {
    static FIXTURES: OnceCell<Fixtures> = const { OnceCell::new() };
}

/// Runs `calls` against a new node.
pub(super) fn run(uninitialized: bool, calls: impl AsyncFnOnce(&TestNode)) {
    FIXTURES.with(|fixtures| {
        let fixtures = fixtures.get_or_init(Fixtures::new);
        fixtures.runtime.block_on(async {
            let (node, actor) = if uninitialized {
                let api = fixtures.lab.uninitialized();
                (TestNode { api, raft: None }, None)
            } else {
                let (raft, actor) = fixtures.cluster.handle().await.unwrap();
                let api = fixtures.lab.member(raft.clone(), fixtures.storage.clone());
                (
                    TestNode {
                        api,
                        raft: Some(raft),
                    },
                    Some(actor),
                )
            };
            let answered = tokio::time::timeout(CALLS_TIMEOUT, calls(&node)).await;
            if let Some(actor) = actor {
                actor.stop_and_wait(None, None).await.unwrap();
            }
            answered.expect("every call is answered");
        });
    });
}

impl Fixtures {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let clock = Clock::from_fn(|| UNIX_EPOCH + Duration::from_secs(1_700_000_000));
        let lab = Lab::new(clock).unwrap();
        let dir = tempfile::tempdir().unwrap();
        storage::bootstrap(dir.path(), 1, &[1]).unwrap();
        let storage = Storage::open(dir.path()).unwrap();
        Self {
            runtime,
            lab,
            storage,
            cluster: cluster(),
            _dir: dir,
        }
    }
}

/// Creates a cluster with two members, an operator, a former operator, a credential and a running
/// deployment.
fn cluster() -> MemoryRaft {
    let raft = MemoryRaft::with_ready_nodes(&["lab", "other"]);
    let token = |identity: &str, secret: &str| {
        Payload::TokenIssue(v1::TokenIssue {
            identity: identity.to_owned(),
            hashed_secret: admission::hash(secret.as_bytes()).to_vec(),
            allows_privileged: false,
        })
    };
    let revoke = Payload::TokenRevoke(v1::TokenRevoke {
        identity: "former".to_owned(),
    });
    for payload in [
        token("operator", "secret"),
        token("former", "old"),
        revoke,
        Payload::RegistryCredentialUpsert(v1::RegistryCredentialUpsert {
            credential: Some(v1::RegistryCredential {
                registry: "ghcr.io/acme".to_owned(),
                username: "user".to_owned(),
                secret: b"password".to_vec(),
                updated_at: None,
            }),
        }),
        shop(),
        Payload::ReplicaDesiredUpsert(v1::ReplicaDesiredUpsert {
            replica: Some(v1::ReplicaDesired {
                id: "shop-web-0".to_owned(),
                deployment: "shop".to_owned(),
                service: "web".to_owned(),
                host: "lab".to_owned(),
                ..Default::default()
            }),
        }),
    ] {
        let command = command("bootstrap", Timestamp::default(), payload);
        raft.apply(command).expect("the fixture is valid");
    }
    raft
}

fn shop() -> Payload {
    let jaco = "deployment: shop\nroutes: [{domain: a.io, service: web, port: 80, tls: off}]\n";
    let compose = "services: {web: {image: nginx, ports: ['8080:80']}}\n";
    let resolved = jaco_proto::manifest::resolve(
        jaco.as_bytes(),
        compose.as_bytes(),
        &crate::cluster::Permissive,
    );
    let resolved = resolved.expect("the fixture is valid");
    Payload::DeploymentApply(v1::DeploymentApply {
        deployment: resolved.deployment,
        revision: 1,
        jaco_yaml: jaco.into(),
        compose_yaml: compose.into(),
        services: resolved.services,
        routes: resolved.routes,
        tcp_routes: resolved.tcp_routes,
        acme_email: resolved.acme_email,
        contents: Vec::new(),
        networks: resolved.networks,
    })
}
