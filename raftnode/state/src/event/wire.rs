//! Wire format of events: whole entities without their secrets.

use std::sync::Arc;

use jaco_proto::v1::{self, subscribe_event::Payload};

use super::{Change, Delta, EntityType, Event};

/// Removes secrets and internal fields from an entity.
trait Redact: Clone {
    fn redact(&mut self) {}

    fn redacted(entity: Option<&Arc<Self>>) -> Option<Self> {
        let mut entity = entity.map(|entity| Self::clone(entity))?;
        entity.redact();
        Some(entity)
    }
}

impl Redact for v1::Node {}
impl Redact for v1::ReplicaDesired {}
impl Redact for v1::ReplicaObserved {}
impl Redact for v1::Route {}
impl Redact for v1::TcpRoute {}
impl Redact for v1::AuditEvent {}
impl Redact for v1::Subnet {}
impl Redact for v1::RolloutPlan {}
impl Redact for v1::ReplicaCounter {}
impl Redact for v1::RestartCounter {}
impl Redact for v1::ClusterConfig {}
impl Redact for v1::RouteTlsOverride {}

impl Redact for v1::Deployment {
    fn redact(&mut self) {
        self.previous = None;
    }
}

impl Redact for v1::Cert {
    fn redact(&mut self) {
        self.private_key.clear();
    }
}

impl Redact for v1::ImportedCert {
    fn redact(&mut self) {
        self.sealed_key.clear();
    }
}

impl Redact for v1::ChallengeToken {
    fn redact(&mut self) {
        self.key_auth.clear();
    }
}

impl Redact for v1::Token {
    fn redact(&mut self) {
        self.hashed_secret.clear();
    }
}

impl Redact for v1::JoinToken {
    fn redact(&mut self) {
        self.hashed_secret.clear();
    }
}

/// Content of one message of the stream.
struct EventParts<T> {
    kind: v1::EventKind,
    raft_index: u64,
    delta: Delta<T>,
}

macro_rules! payloads {
    ($($variant:ident => $message:ident,)*) => {
        $(impl From<EventParts<<v1::$message as Message>::Entity>> for Payload {
            fn from(parts: EventParts<<v1::$message as Message>::Entity>) -> Self {
                Self::$variant(v1::$message {
                    kind: parts.kind.into(),
                    before: Redact::redacted(parts.delta.before.as_ref()),
                    after: Redact::redacted(parts.delta.after.as_ref()),
                    raft_index: parts.raft_index,
                })
            }
        })*

        fn payload(kind: v1::EventKind, raft_index: u64, change: Change) -> Payload {
            match change {
                $(Change::$variant(delta) => EventParts { kind, raft_index, delta }.into(),)*
            }
        }

        fn nothing(entity: EntityType) -> Change {
            match entity {
                $(EntityType::$variant => Change::$variant(Delta { before: None, after: None }),)*
            }
        }
    };
}

/// Maps an event message to its entity type.
trait Message {
    type Entity;
}

macro_rules! messages {
    ($($message:ident of $entity:ident,)*) => {
        $(impl Message for v1::$message { type Entity = v1::$entity; })*
    };
}

messages! {
    NodeEvent of Node,
    DeploymentEvent of Deployment,
    ReplicaDesiredEvent of ReplicaDesired,
    ReplicaObservedEvent of ReplicaObserved,
    RouteEvent of Route,
    TcpRouteEvent of TcpRoute,
    CertEvent of Cert,
    ChallengeTokenEvent of ChallengeToken,
    TokenEvent of Token,
    JoinTokenEvent of JoinToken,
    AuditLogEvent of AuditEvent,
    SubnetEvent of Subnet,
    RolloutPlanEvent of RolloutPlan,
    ReplicaCounterEvent of ReplicaCounter,
    RestartCounterEvent of RestartCounter,
    ClusterConfigEvent of ClusterConfig,
    RouteTlsOverrideEvent of RouteTlsOverride,
    ImportedCertEvent of ImportedCert,
}

payloads! {
    Node => NodeEvent,
    Deployment => DeploymentEvent,
    ReplicaDesired => ReplicaDesiredEvent,
    ReplicaObserved => ReplicaObservedEvent,
    Route => RouteEvent,
    TcpRoute => TcpRouteEvent,
    Cert => CertEvent,
    ChallengeToken => ChallengeTokenEvent,
    Token => TokenEvent,
    JoinToken => JoinTokenEvent,
    Audit => AuditLogEvent,
    Subnet => SubnetEvent,
    RolloutPlan => RolloutPlanEvent,
    ReplicaCounter => ReplicaCounterEvent,
    RestartCounter => RestartCounterEvent,
    ClusterConfig => ClusterConfigEvent,
    RouteTlsOverride => RouteTlsOverrideEvent,
    ImportedCert => ImportedCertEvent,
}

impl Event {
    /// Converts the event to its wire format, without secrets.
    #[must_use]
    pub fn to_wire(&self) -> v1::SubscribeEvent {
        v1::SubscribeEvent {
            payload: Some(payload(
                self.change.kind(),
                self.raft_index,
                self.change.clone(),
            )),
        }
    }
}

/// Creates the event that tells a client to reload `entity`, because events up to `raft_index` are
/// missing.
#[must_use]
pub fn resync(entity: EntityType, raft_index: u64) -> v1::SubscribeEvent {
    v1::SubscribeEvent {
        payload: Some(payload(v1::EventKind::Resync, raft_index, nothing(entity))),
    }
}
