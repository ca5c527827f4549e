//! Random logs, and the states they lead to.

use std::collections::BTreeMap;

use jaco_proto::v1::{self, command::Payload, restart_counter_update::Action};
use proptest::prelude::*;
use prost_types::Timestamp;

use crate::{State, fsm};

/// Derives choices from bytes, so that commands collide on few names and shrink well.
struct Choices<'a>(std::slice::Iter<'a, u8>);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        self.0.next().copied().unwrap_or_default()
    }

    fn of<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.byte()) % from.len()]
    }

    fn name(&mut self) -> String {
        self.of(&["a", "b", "a", "b", "a\0b", ""]).to_owned()
    }

    fn small(&mut self) -> u64 {
        u64::from(self.byte() % 6)
    }

    fn ts(&mut self) -> Option<Timestamp> {
        let seconds = self.of(&[-1, 0, 5, 9, 10, 11, 20, 700_000]);
        (seconds >= 0).then_some(Timestamp { seconds, nanos: 0 })
    }

    fn details(&mut self) -> BTreeMap<String, String> {
        (0..self.byte() % 3)
            .map(|i| (format!("k{i}"), self.name()))
            .collect()
    }

    fn routes(&mut self, deployment: &str) -> Vec<v1::Route> {
        (0..self.byte() % 3)
            .map(|_| v1::Route {
                domain: self.name(),
                path: self.of(&["", "/", "/x"]).to_owned(),
                deployment: deployment.to_owned(),
                ..Default::default()
            })
            .collect()
    }

    fn ports(&mut self, deployment: &str) -> Vec<v1::TcpRoute> {
        (0..self.byte() % 3)
            .map(|_| v1::TcpRoute {
                published_port: self.of(&[1, 2, 255, 256, 65_535, 0]),
                protocol: self.of(&[0, 0, 1, 2]),
                deployment: deployment.to_owned(),
                ..Default::default()
            })
            .collect()
    }

    fn services(&mut self) -> Vec<v1::ServiceSpec> {
        (0..self.byte() % 3)
            .map(|_| v1::ServiceSpec {
                name: self.name(),
                files: self.files(),
                ..Default::default()
            })
            .collect()
    }

    fn files(&mut self) -> Vec<v1::MountedFile> {
        (0..self.byte() % 2)
            .map(|_| v1::MountedFile {
                kind: self.of(&[1, 2, 3]),
                content_id: self.of(&["a", "b"]).to_owned(),
                ..Default::default()
            })
            .collect()
    }

    fn content(&mut self, deployment: &str) -> v1::FileContent {
        v1::FileContent {
            deployment: deployment.to_owned(),
            id: self.of(&["a", "b"]).to_owned(),
            sealed: vec![self.byte() % 3],
            ..Default::default()
        }
    }

    fn command(&mut self, depth: usize) -> v1::Command {
        v1::Command {
            ts: self.ts(),
            identity: self.name(),
            payload: Some(self.payload(depth)),
            ..Default::default()
        }
    }

    fn payload(&mut self, depth: usize) -> Payload {
        match self.byte() % 40 {
            0 => Payload::ClusterInit(v1::ClusterInit {
                cluster_id: self.name(),
                self_hostname: self.name(),
                self_raft_id: self.small(),
                operator_token_hashed_secret: self.name().into_bytes(),
                ..Default::default()
            }),
            1 => Payload::NodeJoin(v1::NodeJoin {
                hostname: self.name(),
                raft_id: self.small(),
                ..Default::default()
            }),
            2 => Payload::NodeRemove(v1::NodeRemove {
                hostname: self.name(),
            }),
            3 => Payload::NodeStatusUpdate(v1::NodeStatusUpdate {
                hostname: self.name(),
                status: self.of(&[0, 1, 2, 3, 4, 1000, 7]),
                details: self.details(),
                cpu_pressure: f64::from(self.byte()),
                memory_pressure: f64::from(self.byte()),
                include_pressure: self.small() > 2,
                drain_mark: self.of(&[0, 1, 2, 3]),
                cordon_mark: self.of(&[0, 0, 0, 0, 0, 1, 2, 3]),
                drain: (self.small() > 2).then(|| v1::NodeDrain {
                    skip_moves: self.small() > 2,
                    timed_out: self.small() > 2,
                }),
            }),
            4 => Payload::NodeUpdateSelf(v1::NodeUpdateSelf {
                hostname: self.name(),
                version: self.name(),
                wg_port: u32::from(self.byte()),
                traits: (self.small() > 2).then(|| v1::NodeTraits {
                    platforms: vec![self.name()],
                    labels: self.details(),
                }),
                ..Default::default()
            }),
            5 | 6 => {
                let deployment = self.name();
                Payload::DeploymentApply(v1::DeploymentApply {
                    revision: u64::from(self.byte()),
                    services: self.services(),
                    routes: self.routes(&deployment),
                    tcp_routes: self.ports(&deployment),
                    contents: (0..self.byte() % 3)
                        .map(|_| self.content(&deployment))
                        .collect(),
                    deployment,
                    ..Default::default()
                })
            }
            7 => Payload::DeploymentRollback(v1::DeploymentRollback {
                deployment: self.name(),
                revision: self.of(&[0, 0, 1]),
                failure_reason: self.of(&["", "bad"]).to_owned(),
            }),
            8 => Payload::DeploymentDelete(v1::DeploymentDelete {
                deployment: self.name(),
            }),
            9 => Payload::DeploymentStatusUpdate(v1::DeploymentStatusUpdate {
                deployment: self.name(),
                status: self.of(&[0, 1, 2]),
                details: self.details(),
            }),
            10 | 11 => Payload::ReplicaDesiredUpsert(v1::ReplicaDesiredUpsert {
                replica: Some(v1::ReplicaDesired {
                    id: self.name(),
                    deployment: self.name(),
                    service: self.name(),
                    host: self.name(),
                    previous_host: self.name(),
                    files: self.files(),
                    ..Default::default()
                }),
            }),
            12 => Payload::ReplicaDesiredRemove(v1::ReplicaDesiredRemove { id: self.name() }),
            13 | 14 => Payload::ReplicaObservedUpdate(v1::ReplicaObservedUpdate {
                replica: Some(v1::ReplicaObserved {
                    id: self.name(),
                    state: self.of(&[1, 3, 3, 6, 6, 0]),
                    code: self.of(&["", "restart_exhausted"]).to_owned(),
                    details: self.details(),
                    host: self.name(),
                    last_health_at: self.ts(),
                    desired_raft_index: self.of(&[0, 3, 1000]),
                    ..Default::default()
                }),
            }),
            15 => Payload::ReplicaCommandIssue(v1::ReplicaCommandIssue::default()),
            16 => Payload::RolloutPlanUpdate(v1::RolloutPlanUpdate {
                plan: Some(v1::RolloutPlan {
                    deployment: self.name(),
                    service: self.name(),
                    current_step: i32::from(self.byte()),
                    ..Default::default()
                }),
            }),
            17 => Payload::ReplicaCounterIncrement(v1::ReplicaCounterIncrement {
                deployment: self.name(),
                service: self.name(),
            }),
            18 => Payload::RestartCounterUpdate(v1::RestartCounterUpdate {
                replica_id: self.name(),
                action: self
                    .of(&[Action::Increment, Action::Reset, Action::Unspecified])
                    .into(),
            }),
            19 => {
                let deployment = self.name();
                Payload::RouteUpsert(v1::RouteUpsert {
                    route: self.routes(&deployment).pop(),
                })
            }
            20 => Payload::RouteRemove(v1::RouteRemove {
                domain: self.name(),
            }),
            21 => Payload::CertStore(v1::CertStore::default()),
            22 => Payload::CertLock(v1::CertLock {
                name: self.name(),
                lessee: self.name(),
                until: self.ts(),
            }),
            23 => Payload::CertUnlock(v1::CertUnlock { name: self.name() }),
            24 => Payload::ChallengeTokenStore(v1::ChallengeTokenStore {
                token: Some(v1::ChallengeToken {
                    token: self.name(),
                    expires_at: self.ts(),
                    ..Default::default()
                }),
            }),
            25 => Payload::CertBlobUpsert(v1::CertBlobUpsert {
                blob: Some(v1::CertBlob {
                    key: self.name(),
                    ..Default::default()
                }),
            }),
            26 => Payload::CertBlobRemove(v1::CertBlobRemove { key: self.name() }),
            27 => Payload::SubnetAllocate(v1::SubnetAllocate {
                deployment: self.name(),
                network: self.name(),
                cidr: self
                    .of(&["10.0.0.0/24", "10.0.1.0/24", "10.0.0.9/23", "a", "a", ""])
                    .to_owned(),
                host: self.name(),
            }),
            28 => Payload::SubnetFree(v1::SubnetFree {
                deployment: self.name(),
                network: self.name(),
                host: self.name(),
            }),
            29 => Payload::TokenIssue(v1::TokenIssue {
                identity: self.name(),
                hashed_secret: self.name().into_bytes(),
                allows_privileged: false,
            }),
            30 => Payload::TokenRevoke(v1::TokenRevoke {
                identity: self.name(),
            }),
            31 => match self.small() {
                0..3 => Payload::JoinTokenIssue(v1::JoinTokenIssue {
                    hashed_secret: self.name().into_bytes(),
                    expires_at: self.ts(),
                }),
                _ => Payload::JoinTokenConsume(v1::JoinTokenConsume {
                    hashed_secret: self.name().into_bytes(),
                }),
            },
            32 => match self.small() {
                0..1 => Payload::RolloutHoldSet(v1::RolloutHoldSet {
                    deployment: self.of(&["a", "b"]).to_owned(),
                    revision: self.small(),
                    held: self.small() > 2,
                }),
                1..2 => Payload::AuditAppend(v1::AuditAppend {
                    event: Some(v1::AuditEvent {
                        r#type: self.of(&[0, 1, 22]),
                        payload: self.details(),
                        ..Default::default()
                    }),
                }),
                2..4 => Payload::RegistryCredentialUpsert(v1::RegistryCredentialUpsert {
                    credential: Some(v1::RegistryCredential {
                        registry: self.of(&["docker.io", "x/y", ""]).to_owned(),
                        ..Default::default()
                    }),
                }),
                _ => Payload::RegistryCredentialRemove(v1::RegistryCredentialRemove {
                    registry: self.of(&["docker.io", "x/y", ""]).to_owned(),
                }),
            },
            33 => Payload::ClusterConfigSet(v1::ClusterConfigSet {
                key: self.name(),
                value: self.name(),
                unset: self.small() > 3,
            }),
            34 => Payload::SecretsKeySet(v1::SecretsKeySet {
                key_id: self.name(),
                replaces: self.of(&["", "", "a", "b"]).to_owned(),
            }),
            35 => match self.small() {
                0..4 => Payload::RouteTlsOverrideSet(v1::RouteTlsOverrideSet {
                    r#override: Some(v1::RouteTlsOverride {
                        deployment: self.of(&["a", "b"]).to_owned(),
                        domain: self.of(&["a", "b"]).to_owned(),
                        tls_auto: self.small() > 2,
                        by: self.name(),
                        at: self.ts(),
                    }),
                }),
                _ => Payload::RouteTlsOverrideRemove(v1::RouteTlsOverrideRemove {
                    deployment: self.name(),
                    domain: self.name(),
                }),
            },
            36 => match self.small() {
                0..4 => Payload::ImportedCertUpsert(v1::ImportedCertUpsert {
                    cert: Some(v1::ImportedCert {
                        name: self.name(),
                        chain_pem: b"chain".to_vec(),
                        sealed_key: self.name().into_bytes(),
                        not_after: self.ts(),
                        imported_by: self.name(),
                        ..Default::default()
                    }),
                }),
                _ => Payload::ImportedCertRemove(v1::ImportedCertRemove { name: self.name() }),
            },
            38 => match self.small() {
                0..4 => Payload::SecretUpsert(v1::SecretUpsert {
                    secret: Some(v1::Secret {
                        deployment: self.of(&["a", "b"]).to_owned(),
                        name: self.name(),
                        version: self.small(),
                        sealed: self.name().into_bytes(),
                        ..Default::default()
                    }),
                }),
                _ => Payload::SecretRemove(v1::SecretRemove {
                    deployment: self.of(&["a", "b"]).to_owned(),
                    name: self.name(),
                }),
            },
            37 => match self.small() {
                0..4 => Payload::ClusterFilePut(v1::ClusterFilePut {
                    file: Some(v1::ClusterFile {
                        kind: self.of(&[1, 2, 3]),
                        name: self.name(),
                        content: Some(self.content("")),
                        ..Default::default()
                    }),
                }),
                4..6 => Payload::FileContentReseal(v1::FileContentReseal {
                    content: Some(self.content("a")),
                }),
                _ => Payload::ClusterFileRemove(v1::ClusterFileRemove {
                    kind: self.of(&[1, 2, 3]),
                    name: self.name(),
                }),
            },
            _ => Payload::Batch(v1::Batch {
                children: match depth {
                    0..6 => (0..self.byte() % 4)
                        .map(|_| self.command(depth + 1))
                        .collect(),
                    _ => Vec::new(),
                },
            }),
        }
    }
}

pub(crate) fn commands(log: &[Vec<u8>]) -> Vec<v1::Command> {
    log.iter()
        .map(|bytes| Choices(bytes.iter()).command(0))
        .collect()
}

/// Returns the state after a random log.
///
/// # Panics
/// If the state machine does not know one of its commands.
#[must_use]
pub fn state_of(log: &[Vec<u8>]) -> State {
    let mut state = State::default();
    for (index, command) in (1..).zip(commands(log)) {
        let applied = fsm::apply_in_place(&mut state, index, &command);
        assert!(applied.is_ok(), "entry {index}: {applied:?}");
    }
    state
}

/// Random logs for [`state_of`].
pub fn logs() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 8..64), 1..60)
}
