//! States of the fake daemons that the cases use.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::{Arc, LazyLock},
    time::SystemTime,
};

use jaco_net::{pki::ClusterCa, secrets::SecretsKey};
use jaco_proto::{
    Error, ErrorCode,
    secret::SecretBytes,
    v1::{
        self, AuditEventType, DeploymentStatus, NodeStatus, ReplicaState, RolloutState,
        node_suffrage, service_spec::PlacementMode,
    },
};
use jaco_raftnode::{
    State,
    archive::{self, Meta},
};
use prost_types::Timestamp;

use super::{Captured, Script};
use crate::client::{
    fake::{self, AtEnd, Fake},
    output::Format,
    registry,
};

/// A time with a fraction of a second.
const AT: Timestamp = Timestamp {
    seconds: 1_795_174_813,
    nanos: 9,
};
const IMAGE: &str = "registry.example:5000/a-team-with-a-long-name/web:1.2.3";

pub(super) fn write_manifests(dir: &Path) {
    let compose =
        format!("services:\n  web:\n    image: {IMAGE}\n    environment:\n      MODE: ${{MODE}}\n");
    for (name, text) in [
        ("jaco.yaml", "deployment: app\n"),
        ("compose.yml", compose.as_str()),
        ("bad.yaml", "deployment: app\nreplcas: 2\n"),
    ] {
        fs::write(dir.join(name), text).unwrap();
    }
    fs::write(dir.join("archive.tgz"), &ARCHIVE.0).unwrap();
    let key = SecretsKey::new([1; 32]);
    fs::write(dir.join("secrets.key"), key.to_text().expose()).unwrap();
    let config = format!(
        "data_dir: {0}/data\nunix_socket: {0}/none\nlisten_addr: 127.0.0.1:7000\n\
         cluster_addr: 127.0.0.1:7001\n",
        dir.display()
    );
    fs::write(dir.join("jacod.yaml"), config).unwrap();
    // The output must not depend on the user that runs the test, so nothing here belongs to root.
    fs::create_dir(dir.join("data")).unwrap();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(dir.join("data"), Some(4242), Some(4242)).unwrap();
    }
}

/// Digest of the state in the archive; it differs in each run.
pub(super) fn archive_digest() -> &'static str {
    &ARCHIVE.1
}

/// A backup of a cluster of two nodes, and the digest of its state.
static ARCHIVE: LazyLock<(Vec<u8>, String)> = LazyLock::new(|| {
    let mut made = std::iter::repeat_with(saved);
    // A digest that begins with a digit would be quoted in YAML.
    made.find(|(_, digest)| !digest.starts_with(|c: char| c.is_ascii_digit()))
        .unwrap()
});

/// Creates a new backup.
pub(in crate::client) fn saved() -> (Vec<u8>, String) {
    let ca = ClusterCa::generate(SystemTime::now()).unwrap();
    let cluster = v1::ClusterMeta {
        cluster_id: "1f0c9a52-6a3e-4c0e-9d55-2f4f3f2b7a01".to_owned(),
        ca_cert: ca.cert_pem().into(),
        ca_key: ca.key_pem().expose().into(),
        ..Default::default()
    };
    let node = |hostname: &str| v1::Node {
        hostname: hostname.to_owned(),
        ..Default::default()
    };
    let state = State {
        applied_index: 42,
        cluster: Some(cluster.into()),
        nodes: ["new", "old"]
            .map(|name| (name.to_owned(), Arc::new(node(name))))
            .into_iter()
            .collect(),
        ..State::default()
    };
    // Without a version the archive is accepted by every version.
    let meta = Meta::new(&state, 3, "", "old:7001", AT).unwrap();
    let mut bytes = Vec::new();
    archive::write(&meta, &state, &mut bytes).unwrap();
    (bytes, hex::encode(state.digest()))
}

fn texts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = pairs.iter().map(|&(k, v)| (k.to_owned(), v.to_owned()));
    owned.collect()
}

/// A daemon without state and without a cluster.
pub(super) fn empty(_: &mut Script) {}

/// A daemon that answers every call with an error.
pub(super) fn refusing(script: &mut Script) {
    script.refuse = Some(
        Error::new(ErrorCode::ReservedPort, "port 80 is for the ingress")
            .with("service", "web")
            .with("port", 80)
            .with("entry", "80:80\nError: fake"),
    );
}

/// A daemon with data for every output.
pub(super) fn full(script: &mut Script) {
    script.status = vec![status()];
    script.replicas = vec![replicas()];
    script.routes = realized_routes();
    script.cluster = cluster();
    script.tokens = tokens();
    script.credentials = vec![v1::RegistryCredentialSummary {
        registry: "ghcr.io/own".to_owned(),
        username: "u".to_owned(),
        updated_at: Some(AT),
    }];
    script.config = config();
    script.checks = vec![checked()];
    script.certs = certs();
    script.files = files();
    script.secrets = secrets();
    script.urls = vec!["https://shop.example".to_owned()];
    script.actors = actors();
    script.digest = digest(&[1; 32]);
    script.network = network();
    script.audit = audit();
    script.logs = logs();
    script.backup = vec![Ok(b"the archive".to_vec())];
    script.apply = Some(Ok(applied()));
}

fn config() -> Vec<v1::ConfigEntry> {
    let limits = v1::ConfigEntry {
        key: "ingress.limits".to_owned(),
        value: "20,5,20".to_owned(),
        default_value: "off".to_owned(),
        is_set: true,
        r#type: "limits".to_owned(),
        updated_at: Some(AT),
        updated_by: "ops".to_owned(),
    };
    let proxies = v1::ConfigEntry {
        key: "ingress.trusted_proxies".to_owned(),
        r#type: "cidrs".to_owned(),
        ..Default::default()
    };
    vec![limits, proxies]
}

/// A daemon whose state changes once during a watch.
pub(super) fn watched(script: &mut Script) {
    script.status = vec![status(), v1::DeployStatusResponse::default()];
}

/// A daemon on which an apply converges in two steps.
pub(super) fn converging(script: &mut Script) {
    wait(
        script,
        &[
            (ReplicaState::Pulling, "pulling"),
            (ReplicaState::Running, ""),
        ],
    );
}

/// A daemon on which an apply fails.
pub(super) fn failing(script: &mut Script) {
    wait(script, &[(ReplicaState::Failed, "restart_exhausted")]);
}

/// A daemon that cannot place the replicas of an apply.
pub(super) fn pending(script: &mut Script) {
    wait(script, &[(ReplicaState::Pending, "")]);
    let deployment = &mut script.status[0].deployments[0];
    deployment.set_status(DeploymentStatus::Pending);
    deployment.status_details = texts(&[("reason", "no_host")]);
}

fn wait(script: &mut Script, states: &[(ReplicaState, &str)]) {
    let look = v1::DeployStatusResponse {
        deployments: vec![v1::Deployment {
            name: "app".to_owned(),
            applied_revision: 3,
            status: DeploymentStatus::Active.into(),
            services: vec![service("web", PlacementMode::Spread)],
            ..Default::default()
        }],
        ..Default::default()
    };
    let seen = |&(state, code): &(ReplicaState, &str)| {
        vec![v1::ReplicaDetail {
            state: state.into(),
            code: code.to_owned(),
            ..web()
        }]
    };
    script.apply = Some(Ok(applied()));
    script.status = vec![look; states.len()];
    script.replicas = vec![vec![]];
    script.replicas.extend(states.iter().map(seen));
    script.at_end = AtEnd::Silence;
}

fn applied() -> v1::ApplyResponse {
    let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    v1::ApplyResponse {
        applied_revision: 3,
        diff: Some(v1::Diff {
            adds: owned(&["replica app-web-0", "route shop.example/api"]),
            updates: owned(&["deployment app (rev 2→3)"]),
            removes: owned(&["tcp_route 5432"]),
        }),
    }
}

fn service(name: &str, placement: PlacementMode) -> v1::ServiceSpec {
    v1::ServiceSpec {
        name: name.to_owned(),
        replicas: 1,
        placement: placement.into(),
        ..Default::default()
    }
}

fn status() -> v1::DeployStatusResponse {
    let hosts = v1::ServiceSpec {
        hosts: vec!["one".to_owned(), "two".to_owned()],
        networks: vec!["_default".to_owned()],
        ..service("web", PlacementMode::Hosts)
    };
    v1::DeployStatusResponse {
        // Not sorted: `status` keeps the order of the server, `get deployments` sorts by name.
        deployments: vec![
            v1::Deployment {
                name: "db".to_owned(),
                applied_revision: 1,
                status: DeploymentStatus::Pending.into(),
                status_details: texts(&[("service", "db"), ("missing", "three")]),
                ..Default::default()
            },
            v1::Deployment {
                name: "blog".to_owned(),
                applied_revision: 7,
                status: DeploymentStatus::Active.into(),
                failed_revision: 8,
                failure_reason: "blog-web-0: 4 failures in a row".to_owned(),
                ..Default::default()
            },
            v1::Deployment {
                name: "app".to_owned(),
                applied_revision: 3,
                previous_revision: 2,
                status: DeploymentStatus::Active.into(),
                acme_email: "ops@shop.example".to_owned(),
                rollout_hold: Some(v1::RolloutHold {
                    by: "ci".to_owned(),
                    at: Some(AT),
                }),
                services: vec![service("db", PlacementMode::Spread), hosts],
                jaco_yaml: b"deployment: app\n".to_vec(),
                compose_yaml: b"services:\n  web:\n    image: \"i\"\n\n  db: {image: <&>}\n"
                    .to_vec(),
                ..Default::default()
            },
        ],
        replicas: vec![
            v1::ReplicaObserved {
                id: "app-web-0".to_owned(),
                state: ReplicaState::Running.into(),
                host: "one".to_owned(),
                container_id: "0123456789abcdef".repeat(4),
                last_health_at: Some(AT),
                ..Default::default()
            },
            v1::ReplicaObserved {
                id: "app-web-1".to_owned(),
                state: ReplicaState::Failed.into(),
                host: "two".to_owned(),
                code: "container_exited".to_owned(),
                message: "the container ended".to_owned(),
                details: texts(&[("exit_code", "1")]),
                ..Default::default()
            },
        ],
        routes: vec![
            route("shop.example", "/api", true),
            route("shop.example", "", true),
            route("api.example", "", false),
        ],
        network_faults: vec![],
        rollouts: vec![
            v1::RolloutPlan {
                deployment: "app".to_owned(),
                service: "web".to_owned(),
                target_revision: 3,
                total_steps: 2,
                current_step: 2,
                state: RolloutState::Completed.into(),
                started_at: Some(AT),
                last_step_at: Some(AT),
                ..Default::default()
            },
            v1::RolloutPlan {
                deployment: "app".to_owned(),
                service: "db".to_owned(),
                target_revision: 3,
                total_steps: 1,
                state: RolloutState::InProgress.into(),
                paused: true,
                failure_reason: "app-db-0: no such image".to_owned(),
                ..Default::default()
            },
        ],
        certs: vec![
            v1::CertState {
                domain: "shop.example".to_owned(),
                environment: "prod".to_owned(),
                not_after: Some(AT),
                last_renewal_at: Some(AT),
                source: "acme".to_owned(),
                state: "failed".to_owned(),
                reason: "rate limited".to_owned(),
            },
            v1::CertState {
                domain: "api.example".to_owned(),
                ..Default::default()
            },
        ],
    }
}

fn checked() -> v1::CheckDomainResponse {
    let check = |address: &str, verdict: &str, detail: &str| v1::AddressCheck {
        address: address.to_owned(),
        verdict: verdict.to_owned(),
        detail: detail.to_owned(),
    };
    v1::CheckDomainResponse {
        addresses: vec![
            check("192.0.2.1", "ok", ""),
            check("198.51.100.7", "unreachable", "timed out"),
        ],
        point_at: vec!["192.0.2.1".to_owned(), "lb.example".to_owned()],
        ok: false,
    }
}

fn secrets() -> Vec<v1::SecretInfo> {
    let secret = |deployment: &str, name: &str, version, services: &[&str]| v1::SecretInfo {
        deployment: deployment.to_owned(),
        name: name.to_owned(),
        version,
        updated_at: Some(prost_types::Timestamp {
            seconds: 1_700_000_000,
            nanos: 0,
        }),
        updated_by: "local".to_owned(),
        services: services.iter().map(|&name| name.to_owned()).collect(),
    };
    vec![
        secret("blog", "KEY", 1, &[]),
        secret("shop", "API_KEY", 12, &["api", "web"]),
        secret("shop", "DB_PASSWORD", 1, &["web"]),
    ]
}

fn files() -> Vec<v1::ClusterFileInfo> {
    let file = |kind: v1::FileKind, name: &str, deployments: &[&str]| v1::ClusterFileInfo {
        kind: kind.into(),
        name: name.to_owned(),
        size: 42,
        created_at: Some(prost_types::Timestamp {
            seconds: 1_700_000_000,
            nanos: 0,
        }),
        created_by: "local".to_owned(),
        deployments: deployments.iter().map(|&name| name.to_owned()).collect(),
    };
    vec![
        file(v1::FileKind::Config, "motd", &["blog", "shop"]),
        file(v1::FileKind::Config, "unused", &[]),
        file(v1::FileKind::Secret, "key", &["shop"]),
    ]
}

fn certs() -> Vec<v1::CertInfo> {
    let imported = v1::CertInfo {
        name: "*.shop.example".to_owned(),
        source: "imported".to_owned(),
        state: "valid".to_owned(),
        not_after: Some(AT),
        fingerprint: vec![0xab; 32],
        ..Default::default()
    };
    let waiting = v1::CertInfo {
        name: "api.example".to_owned(),
        source: "acme".to_owned(),
        state: "waiting_dns".to_owned(),
        reason: "no_dns: the domain has no address".to_owned(),
        ..Default::default()
    };
    vec![imported, waiting]
}

fn route(domain: &str, path: &str, tls_auto: bool) -> v1::Route {
    v1::Route {
        domain: domain.to_owned(),
        path: path.to_owned(),
        deployment: "app".to_owned(),
        service: "web".to_owned(),
        port: 8080,
        tls_auto,
        strip_path: !path.is_empty(),
        ..Default::default()
    }
}

fn realized_routes() -> Vec<v1::RealizedRoute> {
    let realized = |path: &str, ready_replicas| v1::RealizedRoute {
        path: path.to_owned(),
        catch_all: path.is_empty(),
        deployment: "app".to_owned(),
        service: "web".to_owned(),
        port: 8080,
        tls_auto: true,
        strip_path: !path.is_empty(),
        ready_replicas,
        total_replicas: 2,
        ..Default::default()
    };
    let protected = v1::RealizedRoute {
        limits: Some(v1::RouteLimits {
            rps: 20.0,
            burst: 100,
            connections: 20,
            exempt: vec!["/health".to_owned()],
            ..Default::default()
        }),
        affinity: Some(v1::RouteAffinity {
            cookie: "route".to_owned(),
            ttl_s: 86_400,
            same_site: "lax".to_owned(),
        }),
        ..realized("", 0)
    };
    let upstream = |replica: &str, host: &str, address: &str| v1::RouteUpstream {
        replica_id: replica.to_owned(),
        host: host.to_owned(),
        address: address.to_owned(),
    };
    let (first, second) = (
        upstream("app-web-0", "one", "10.244.3.2:8080"),
        upstream("app-web-1", "two", "10.244.7.2:8080"),
    );
    let http2 = v1::RealizedRoute {
        upstreams: vec![first.clone(), second],
        upstream_h2c: true,
        ..realized("/api/v2", 2)
    };
    let one = v1::RealizedRoute {
        upstreams: vec![first],
        ..realized("/api", 1)
    };
    vec![http2, one, protected]
}

fn web() -> v1::ReplicaDetail {
    v1::ReplicaDetail {
        id: "app-web-0".to_owned(),
        deployment: "app".to_owned(),
        service: "web".to_owned(),
        host: "one".to_owned(),
        state: ReplicaState::Running.into(),
        image: IMAGE.to_owned(),
        revision: 41,
        ..Default::default()
    }
}

fn replicas() -> Vec<v1::ReplicaDetail> {
    let dependency = |service: &str, condition: &str, state: ReplicaState| v1::DependencyState {
        service: service.to_owned(),
        condition: condition.to_owned(),
        state: state.into(),
        satisfied: state == ReplicaState::Running,
    };
    let failed = v1::ReplicaDetail {
        id: "app-web-1".to_owned(),
        index: 1,
        host: "two".to_owned(),
        state: ReplicaState::Failed.into(),
        container_id: "c0ffee".to_owned(),
        restart_count: 3,
        code: "container_exited".to_owned(),
        details: texts(&[("exit_code", "1"), ("reason", "out of memory")]),
        started_at: Some(AT),
        last_health_at: Some(AT),
        last_attempt_at: Some(AT),
        depends_on: vec![
            dependency("db", "service_healthy", ReplicaState::Degraded),
            dependency("cache", "", ReplicaState::Running),
        ],
        ..web()
    };
    vec![web(), failed]
}

fn cluster() -> v1::ClusterStatusResponse {
    let node = |hostname: &str, status: NodeStatus| v1::Node {
        hostname: hostname.to_owned(),
        address: format!("{hostname}.example:7001"),
        status: status.into(),
        ..Default::default()
    };
    let suffrage = |hostname: &str, kind: node_suffrage::Kind| v1::NodeSuffrage {
        hostname: hostname.to_owned(),
        kind: kind.into(),
    };
    v1::ClusterStatusResponse {
        nodes: vec![
            v1::Node {
                cordoned: true,
                ..node("one", NodeStatus::Ready)
            },
            node("two", NodeStatus::IsolationUnavailable),
            node("three", NodeStatus::Unspecified),
        ],
        leader: "one.example:7001".to_owned(),
        raft_index: 97,
        initialized: true,
        suffrages: vec![
            suffrage("one", node_suffrage::Kind::Voter),
            suffrage("two", node_suffrage::Kind::Nonvoter),
        ],
        ..Default::default()
    }
}

/// A daemon of upstream, whose join tokens come with raft addresses.
pub(super) fn upstream(script: &mut Script) {
    full(script);
    script.raft_leader_addrs = true;
    for node in &mut script.cluster.nodes {
        node.grpc_address = format!("{}.example:7000", node.hostname);
    }
}

/// A cluster in which the state of one member has diverged.
pub(super) fn diverged(script: &mut Script) {
    full(script);
    script.digest = digest(&[2; 32]);
}

/// A cluster in which too few members answer.
pub(super) fn alone(script: &mut Script) {
    full(script);
    script.digest.nodes.pop();
}

/// A cluster in which a network of `two` reaches a foreign one, and not its own.
pub(super) fn breached(script: &mut Script) {
    full(script);
    script.network = network();
    let two = script.network.nodes.last_mut().unwrap();
    for path in &mut two.paths {
        path.judgement = v1::PathJudgement::Violated.into();
        path.violations = path.target.clone().into_iter().collect();
    }
    let faults = two.paths.iter().rev().map(|path| {
        let (severity, code) = match path.expectation() {
            v1::PathExpectation::Forbidden => (v1::FaultSeverity::Error, "isolation_breach"),
            _ => (v1::FaultSeverity::Warning, "path_unreachable"),
        };
        v1::NetworkFault {
            severity: severity.into(),
            code: code.to_owned(),
            hostname: "two".to_owned(),
            deployment: path.deployment.clone(),
            network: path.network.clone(),
            target: path.target.clone(),
        }
    });
    script.network.faults = faults.collect();
    for status in &mut script.status {
        status.network_faults = script.network.faults.clone();
    }
}

/// Reports of two of three members.
fn network() -> v1::NetworkStatusResponse {
    let elapsed = |micros| Some(v1::Elapsed { micros });
    let bridge = |up, deployment: &str, block: &str| v1::BridgeStatus {
        deployment: deployment.to_owned(),
        network: "_default".to_owned(),
        block: block.to_owned(),
        bridge: "jaco-ca84-9e74".to_owned(),
        up,
        ..Default::default()
    };
    let path =
        |expectation: v1::PathExpectation, deployment: &str, address: &str, rtt| v1::PathVerdict {
            deployment: "app".to_owned(),
            network: "_default".to_owned(),
            expectation: expectation.into(),
            judgement: v1::PathJudgement::Ok.into(),
            target: Some(v1::PathEnd {
                hostname: "one".to_owned(),
                deployment: deployment.to_owned(),
                network: "_default".to_owned(),
                address: address.to_owned(),
            }),
            probe_age: elapsed(3_000_000),
            rtt,
            violations: vec![],
        };
    let mesh = |state: v1::MeshState, address: &str| {
        let reason = match state {
            v1::MeshState::Down => {
                "routes of other programs take packets of the container networks: \
                 10.244.0.0/24 dev flannel.1"
            }
            _ => "",
        };
        Some(v1::MeshDevice {
            state: state.into(),
            address: address.to_owned(),
            port: 51820,
            reason: reason.to_owned(),
        })
    };
    let one = v1::NodeNetwork {
        hostname: "one".to_owned(),
        mesh: mesh(v1::MeshState::Up, "10.99.0.53"),
        peers: vec![
            v1::MeshPeer {
                hostname: "three".to_owned(),
                endpoint: "10.0.0.3:51820".to_owned(),
                loss: 1.0,
                ..Default::default()
            },
            v1::MeshPeer {
                hostname: "two".to_owned(),
                endpoint: "10.0.0.2:51820".to_owned(),
                handshake_age: elapsed(62_000_000),
                rtt: elapsed(1_240),
                loss: 0.031_25,
                rx_bytes: 5 << 20,
                tx_bytes: 1_700,
                rx_bytes_per_second: 2_048,
                tx_bytes_per_second: 12,
            },
        ],
        bridges: vec![
            bridge(true, "app", "10.244.0.0/24"),
            bridge(false, "db", "10.244.1.0/24"),
        ],
        paths: vec![
            path(
                v1::PathExpectation::Allowed,
                "app",
                "10.244.2.254",
                elapsed(1_240),
            ),
            path(v1::PathExpectation::Forbidden, "db", "10.244.1.254", None),
        ],
        age: elapsed(0),
        ..Default::default()
    };
    let three = v1::NodeNetwork {
        hostname: "three".to_owned(),
        mesh: mesh(v1::MeshState::Unspecified, ""),
        bridges: vec![bridge(false, "app", "10.244.3.0/24")],
        ..Default::default()
    };
    let two = v1::NodeNetwork {
        hostname: "two".to_owned(),
        mesh: mesh(v1::MeshState::Down, "10.99.0.23"),
        bridges: vec![bridge(true, "app", "10.244.2.0/24")],
        paths: vec![
            path(
                v1::PathExpectation::Allowed,
                "app",
                "10.244.0.254",
                elapsed(990),
            ),
            path(v1::PathExpectation::Forbidden, "db", "10.244.1.254", None),
        ],
        age: elapsed(4_500_000),
        drops: vec![
            v1::DroppedPackets {
                reason: "forged_source".to_owned(),
                packets: 12,
            },
            v1::DroppedPackets {
                reason: "mesh_invalid".to_owned(),
                packets: 3,
            },
        ],
        ..Default::default()
    };
    v1::NetworkStatusResponse {
        nodes: vec![one, three, two],
        faults: vec![],
    }
}

/// Digests of two members, the second with digest `other`, and of one unreachable member.
fn digest(other: &[u8]) -> v1::DigestResponse {
    let node = |hostname: &str, digest: &[u8], error: &str| v1::NodeDigest {
        hostname: hostname.to_owned(),
        index: if error.is_empty() { 97 } else { 0 },
        digest: digest.to_vec(),
        error: error.to_owned(),
    };
    v1::DigestResponse {
        index: 97,
        nodes: vec![
            node("one", &[1; 32], ""),
            node("three", &[], "peer_unreachable: the member does not answer"),
            node("two", other, ""),
        ],
    }
}

fn tokens() -> Vec<v1::TokenInfo> {
    let token = |identity: &str, revoked, allows_privileged| v1::TokenInfo {
        identity: identity.to_owned(),
        issued_at: Some(AT),
        revoked_at: revoked,
        allows_privileged,
    };
    vec![token("bootstrap", None, false), token("ci", Some(AT), true)]
}

fn actors() -> Vec<v1::ActorInfo> {
    let actor = |path: &str, kind: &str| v1::ActorInfo {
        path: path.to_owned(),
        kind: kind.to_owned(),
        state: "running".to_owned(),
        uptime_ms: 61_000,
        ..Default::default()
    };
    let broken = v1::ActorInfo {
        state: "backoff".to_owned(),
        restarts: 2,
        uptime_ms: 0,
        mailbox_depth: 4,
        last_failure: "panicked: x".to_owned(),
        ..actor("node/runtime/replica:app-web-0", "ReplicaActor")
    };
    vec![
        actor("node", "one_for_one"),
        actor("node/raft", "RaftActor"),
        actor("node/runtime", "one_for_one"),
        broken,
    ]
}

fn audit() -> Vec<v1::AuditEvent> {
    let event = |kind: i32, payload: &[(&str, &str)]| v1::AuditEvent {
        r#type: kind,
        identity: "local".to_owned(),
        ts: Some(AT),
        raft_index: 12,
        payload: texts(payload),
        ..Default::default()
    };
    let apply = [("revision", "3"), ("deployment", "app")];
    let nobody = v1::AuditEvent {
        r#type: AuditEventType::BackupTaken.into(),
        raft_index: 14,
        ..Default::default()
    };
    vec![
        event(AuditEventType::Apply.into(), &apply),
        event(AuditEventType::NodeJoin.into(), &[]),
        nobody,
    ]
}

fn logs() -> Vec<Result<v1::LogLine, Error>> {
    let line = |stream: &str, ts, text: &str| {
        Ok(v1::LogLine {
            replica_id: "app-web-0".to_owned(),
            host: "one".to_owned(),
            stream: stream.to_owned(),
            ts,
            line: text.to_owned(),
        })
    };
    vec![
        line("stdout", Some(AT), "GET /?a=<b>&c \"200\""),
        line("warning", None, "connection refused"),
        line("stderr", None, ""),
    ]
}

/// Runs `registry login` after the password was read.
pub(super) async fn logged_in(format: Format) -> Captured {
    let server = Fake::start().await;
    let password = SecretBytes::new(b"secret".to_vec());
    let (result, output) = fake::capture(format, async |ui| {
        registry::login("GHCR.io/Own", "u", &password, &server.client(), ui).await
    })
    .await;
    assert_eq!(result, Ok(()));
    output
}
