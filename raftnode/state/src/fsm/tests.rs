//! Tests of the state machine, one module per family of commands.
//!
//! [`TestState`] checks the invariants of every entry: the rows match the state, each event
//! continues the previous one of its row, and a rejection changes nothing but the applied index.

mod batches;
mod certs;
mod config;
mod deployment_secrets;
mod deployments;
mod files;
mod members;
mod observations;
mod properties;
mod replicas;
mod rollouts;
mod secrets;
mod secrets_key;
mod subnets;
mod tls;

use std::collections::{BTreeMap, BTreeSet};

use jaco_proto::{
    Error, ErrorCode,
    v1::{self, AuditEventType, command::Payload},
};
use prost_types::Timestamp;

use super::{Applied, apply, decode, reject};
use crate::{Change, Event, State, batch, command, state};
use prost::Message;

const START: i64 = 1_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanos: 0 }
}

struct TestState {
    state: State,
    rows: BTreeMap<Vec<u8>, Vec<u8>>,
    now: i64,
}

impl TestState {
    fn new() -> Self {
        Self {
            state: State::default(),
            rows: BTreeMap::new(),
            now: START,
        }
    }

    fn command(&self, payload: Payload) -> v1::Command {
        command("tester", at(self.now), payload)
    }

    fn run(&mut self, command: &v1::Command) -> Applied {
        let command = decode(&command.encode_to_vec()).unwrap();
        let index = self.state.applied_index + 1;
        let applied = apply(&self.state, index, &command).unwrap();
        assert_eq!(applied.state.applied_index, index);
        if applied.result.is_err() {
            let unchanged = State {
                applied_index: index,
                ..self.state.clone()
            };
            assert_eq!(applied.state, unchanged);
            assert_eq!((applied.mutations.len(), applied.events.len()), (0, 0));
        }
        for mutation in &applied.mutations {
            assert_eq!(mutation.key[0], mutation.table.tag());
            match &mutation.value {
                Some(value) => self.rows.insert(mutation.key.clone(), value.clone()),
                None => self.rows.remove(&mutation.key),
            };
        }
        assert!(applied.state.rows().eq(self.rows.clone()));
        check_chain(&self.state, &applied);
        check_contents(&applied.state);
        self.state = applied.state.clone();
        applied
    }

    /// Applies the command and expects that it is accepted.
    fn ok(&mut self, payload: Payload) -> Applied {
        let applied = self.run(&self.command(payload));
        assert_eq!(applied.result, Ok(()));
        applied
    }

    /// Applies the command and expects a rejection with this code.
    fn rejected(&mut self, payload: Payload, code: ErrorCode) -> Error {
        let error = self.run(&self.command(payload)).result.unwrap_err();
        assert_eq!(error.code, code, "{error}");
        error
    }

    /// Applies the command and expects no change.
    fn no_change(&mut self, payload: Payload) {
        let applied = self.ok(payload);
        assert_eq!((applied.mutations.len(), applied.events.len()), (0, 0));
    }

    fn cluster(&mut self) {
        self.ok(Payload::ClusterInit(v1::ClusterInit {
            cluster_id: "c-1".into(),
            self_hostname: "a".into(),
            self_address: "a:7947".into(),
            ..Default::default()
        }));
    }

    fn desired(&mut self, id: &str, host: &str, previous_host: &str) -> u64 {
        self.ok(Payload::ReplicaDesiredUpsert(v1::ReplicaDesiredUpsert {
            replica: Some(v1::ReplicaDesired {
                id: id.into(),
                deployment: "shop".into(),
                service: "web".into(),
                index: 1,
                host: host.into(),
                previous_host: previous_host.into(),
                ..Default::default()
            }),
        }));
        self.state.applied_index
    }
}

/// Checks that no revision lacks a content, and that every content has a use.
fn check_contents(state: &State) {
    let mut used: BTreeSet<(&str, &str)> = BTreeSet::new();
    for deployment in state.deployments.values() {
        let previous = deployment.previous.iter().flat_map(|one| &one.services);
        for service in deployment.services.iter().chain(previous) {
            for file in &service.files {
                used.insert((&deployment.name, &file.content_id));
                let key = (deployment.name.clone(), file.content_id.clone());
                assert!(state.file_contents.contains_key(&key), "{key:?} is gone");
            }
        }
    }
    for row in state.replicas_desired.values() {
        let files = row.files.iter();
        used.extend(files.map(|file| (&*row.deployment, &*file.content_id)));
    }
    for (deployment, id) in state.file_contents.keys() {
        assert!(
            used.contains(&(deployment, id)),
            "{deployment} {id} is unused"
        );
    }
}

/// Checks that the events lead from the old rows to the new ones.
fn check_chain(before: &State, applied: &Applied) {
    let mut seen: BTreeMap<String, Option<Vec<u8>>> = BTreeMap::new();
    for event in &applied.events {
        assert_eq!(event.raft_index, applied.state.applied_index);
        assert_ne!(event.change.kind(), v1::EventKind::Unspecified);
        let (name, old, new) = sides(&event.change);
        let known = seen
            .get(&name)
            .cloned()
            .unwrap_or_else(|| row(before, &name));
        assert_eq!(known, old, "{name} does not start from the stored row");
        assert_ne!(old, new, "{name} did not change");
        seen.insert(name, new);
    }
    for (name, last) in seen {
        assert_eq!(
            row(&applied.state, &name),
            last,
            "{name} differs from its last event"
        );
    }
}

/// Returns the row with this name, in the format of [`sides`].
fn row(state: &State, name: &str) -> Option<Vec<u8>> {
    state
        .rows()
        .find(|(key, _)| key.escape_ascii().to_string() == name)
        .map(|(_, value)| value)
}

fn sides(change: &Change) -> (String, Option<Vec<u8>>, Option<Vec<u8>>) {
    fn of<E: crate::state::Entity>(
        delta: &crate::Delta<E>,
    ) -> (String, Option<Vec<u8>>, Option<Vec<u8>>) {
        let some = delta.after.as_ref().or(delta.before.as_ref()).unwrap();
        let key = crate::state::row_key::<E>(&some.key());
        (
            key.escape_ascii().to_string(),
            delta.before.as_ref().map(|e| e.encode_to_vec()),
            delta.after.as_ref().map(|e| e.encode_to_vec()),
        )
    }
    match change {
        Change::Node(d) => of(d),
        Change::Deployment(d) => of(d),
        Change::ReplicaDesired(d) => of(d),
        Change::ReplicaObserved(d) => of(d),
        Change::Route(d) => of(d),
        Change::TcpRoute(d) => of(d),
        Change::Cert(d) => of(d),
        Change::ChallengeToken(d) => of(d),
        Change::Token(d) => of(d),
        Change::JoinToken(d) => of(d),
        Change::Audit(d) => of(d),
        Change::Subnet(d) => of(d),
        Change::RolloutPlan(d) => of(d),
        Change::ReplicaCounter(d) => of(d),
        Change::RestartCounter(d) => of(d),
        Change::ClusterConfig(d) => of(d),
        Change::RouteTlsOverride(d) => of(d),
        Change::ImportedCert(d) => of(d),
    }
}

/// Kind, identity and payload of an audit event.
type Audit = (AuditEventType, String, Vec<(String, String)>);

/// Returns the audit events of one entry, by ordinal.
fn audits(applied: &Applied) -> Vec<Audit> {
    let index = applied.state.applied_index;
    let events: Vec<_> = applied
        .state
        .audit
        .range((index, 0)..)
        .map(|(_, event)| event)
        .collect();
    for (ordinal, event) in events.iter().enumerate() {
        assert_eq!((event.raft_index, event.ordinal), (index, ordinal as u32));
    }
    events
        .iter()
        .map(|e| {
            (
                e.r#type(),
                e.identity.clone(),
                e.payload.clone().into_iter().collect(),
            )
        })
        .collect()
}

fn audit(kind: AuditEventType, payload: &[(&str, &str)]) -> Vec<Audit> {
    let payload = payload.iter().map(|(k, v)| ((*k).into(), (*v).into()));
    vec![(kind, "tester".into(), payload.collect())]
}

fn kinds(applied: &Applied) -> Vec<String> {
    applied
        .events
        .iter()
        .map(|e| format!("{} {}", e.change.kind().as_str_name(), e.change.entity()))
        .map(|text| text.replace("EVENT_KIND_", "").to_lowercase())
        .collect()
}

fn deployments_of(events: &[Event]) -> Vec<Option<&str>> {
    events.iter().map(|e| e.deployment.as_deref()).collect()
}
