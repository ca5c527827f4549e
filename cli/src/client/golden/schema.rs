//! The documented JSON schema of every command's output, in the notation of the documentation.
//!
//! `{a, b?, c: [{d}]}`: objects have exactly these keys in this order; a key with `?` is omitted
//! when it is empty. A key alone holds a scalar, `{*}` is a map of texts, `[.]` a list of them.

use jaco_proto::yaml::{self, Node, Resolved};
use serde_json::Value;

use super::Document;
use crate::client::output::yaml::Tree;

const SCHEMAS: &[(&str, &str)] = &[
    ("cluster-init", "{cluster_id, operator_token, systemd}"),
    (
        "cluster-status",
        "{initialized, leader, raft_index, nodes: [{hostname, address, status, cordoned?, suffrage}]}",
    ),
    (
        "cluster-digest",
        "{index, equal, compared, members, nodes: [{hostname, index?, digest?, error?}]}",
    ),
    ("cluster-config-list", "{settings: [SETTING]}"),
    ("cluster-config-get", "SETTING"),
    ("cluster-config-set", "SETTING"),
    ("cluster-config-unset", "SETTING"),
    ("cluster-secrets-key-export", "{path, key_id}"),
    ("cluster-secrets-key-import", "{key_id}"),
    ("cluster-secrets-key-rotate", "{key_id}"),
    (
        "node-list",
        "{nodes: [{hostname, address, status, cordoned?}]}",
    ),
    (
        "node-issue-join-token",
        "{token, peer, expires_in_seconds, join_command, ca_cert?}",
    ),
    ("node-join", "{joined, peer, systemd}"),
    ("node-remove", "{hostname, removed, forced}"),
    ("node-cordon", "{hostname, cordoned}"),
    ("node-uncordon", "{hostname, cordoned}"),
    (
        "token-issue",
        "{identity, token, issued_at, allows_privileged}",
    ),
    ("token-revoke", "{identity, revoked}"),
    (
        "token-list",
        "{tokens: [{identity, issued_at, revoked_at?, allows_privileged}]}",
    ),
    ("registry-login", "{registry, username, updated_at}"),
    ("registry-logout", "{registry, removed}"),
    (
        "registry-list",
        "{credentials: [{registry, username, updated_at}]}",
    ),
    (
        "apply",
        "{deployment, applied_revision, dry_run, diff: {adds: [.], updates: [.], removes: [.]}}",
    ),
    (
        "apply-wait",
        "{deployment, applied_revision, dry_run, diff: {adds: [.], updates: [.], removes: [.]}, \
         converged, replicas: [{id, state, host, code?}]}",
    ),
    (
        "status",
        "{deployments: [{name, applied_revision, previous_revision, status, \
         status_details?: {*}, failed_revision?, failure_reason?, rollouts_paused_by?}], \
         replicas: [{id, state, host, container_id, last_health_at?, code?, message?, \
         details?: {*}}], \
         routes: [{domain, path, deployment, service, port, tls, strip_path}], \
         certs?: [{domain, environment, not_after?, last_renewal_at?, source?, state?, reason?}], errors?: [FAULT]}",
    ),
    (
        "net",
        "{nodes: [{hostname, reported, age_ms?, mesh: {state, reason?, address?, port, \
         rx_bytes_per_second, tx_bytes_per_second}, \
         peers: [{hostname, endpoint?, handshake_age_ms?, rtt_us?, loss, rx_bytes, tx_bytes, \
         rx_bytes_per_second, tx_bytes_per_second}], \
         networks: [{deployment, network, block, bridge, state, allowed: PATH, \
         forbidden: PATH}], drops?: [{reason, packets}]}], faults?: [FAULT]}",
    ),
    (
        "get-deployments",
        "[{name, applied_revision, previous_revision, status, services: [.]}]",
    ),
    (
        "get-deployment",
        "{name, applied_revision, previous_revision, status, acme_email?, \
         services: [{name, replicas, placement, hosts?: [.], networks?: [.]}], jaco_yaml?, \
         compose_yaml?}",
    ),
    ("get-replicas", "[REPLICA]"),
    ("get-replica", "REPLICA"),
    (
        "get-routes",
        "[{domain, path, deployment, service, port, tls, strip_path}]",
    ),
    (
        "get-route",
        "{domain, routes: [{path, catch_all, deployment, service, port, tls, strip_path, \
         ready_replicas, total_replicas, limits?: {rps, burst, connections, exempt?: [.]}, \
         affinity?: {cookie, ttl_seconds, same_site}, upstream_h2c?, \
         upstreams: [{replica, host, address}]}]}",
    ),
    ("logs", "{replica_id, host, stream, ts?, line}"),
    (
        "rollout-status",
        "{rollouts: [{deployment, service, revision, step, steps, state, started_at?, last_step_at?, \
         reason?}], paused: [{deployment, by, at?}], rolled_back: [{deployment, revision, reason}]}",
    ),
    ("rollout-pause", "{deployment, revision, rollouts}"),
    ("rollout-resume", "{deployment, revision, rollouts}"),
    ("rollout-abort", "{deployment, revision, rollouts}"),
    ("rollback", "{deployment, revision}"),
    ("delete", "{deployment, deleted}"),
    (
        "domain-check",
        "{domain, ok, point_at: [.], addresses: [{address?, verdict, detail?}]}",
    ),
    ("tls-enable", "{deployment, tls, urls: [.]}"),
    ("tls-disable", "{deployment, tls, urls: [.]}"),
    (
        "tls-status",
        "{domains: [{domain, deployment, tls, source?, state?, reason?, not_after?}]}",
    ),
    ("config-create", "{name, kind, action}"),
    (
        "config-list",
        "{files: [{name, size, created_at?, created_by, deployments: [.]}]}",
    ),
    ("config-rm", "{name, kind, action}"),
    ("secret-create", "{name, kind, action}"),
    (
        "secret-list",
        "{files: [{name, size, created_at?, created_by, deployments: [.]}]}",
    ),
    (
        "secret-list-all",
        "{secrets: [{deployment, name, version, updated_at?, updated_by, services: [.]}]}",
    ),
    (
        "secret-list-one",
        "{secrets: [{deployment, name, version, updated_at?, updated_by, services: [.]}]}",
    ),
    ("secret-rm", "{name, kind, action}"),
    ("secret-rm-one", "{deployment, name, removed}"),
    (
        "secret-set",
        "{deployment, name, version, updated_at?, updated_by, services: [.]}",
    ),
    (
        "cert-import",
        "{name, source, state, reason?, not_after?, fingerprint?}",
    ),
    (
        "cert-list",
        "{certs: [{name, source, state, reason?, not_after?, fingerprint?}]}",
    ),
    ("cert-rm", "{name, removed}"),
    (
        "audit",
        "[{type, identity?, ts?, raft_index, payload?: {*}}]",
    ),
    (
        "audit-follow",
        "{type, identity?, ts?, raft_index, payload?: {*}}",
    ),
    (
        "actors",
        "{actors: [{path, kind, state, restarts, uptime_ms, mailbox_depth, last_failure?}]}",
    ),
    ("actors-kill", "{path, killed}"),
    ("backup", "{path, bytes}"),
    (
        "restore",
        "{data_dir, node, cluster_id, snapshot_index, state_digest, taken_at}",
    ),
    ("validate", "{valid, files: [.], warnings: [.]}"),
    ("config", "{deployment, jaco_yaml, compose_yaml}"),
    ("version", "{version}"),
];

const REPLICA: &str = "{id, deployment, service, index, state, host, image, revision, \
    container_id?, restart_count, code?, message?, details?: {*}, started_at?, last_health_at?, \
    last_attempt_at?, depends_on?: [{service, condition?, state, satisfied}]}";

const SETTING: &str = "{key, value, default, set, type, updated_at?, updated_by?}";

const PATH: &str = "{verdict, probe_age_ms?, rtt_us?, target?: END, violations?: [END]}";

const FAULT: &str = "{severity, code, hostname, deployment, network, target: END}";

const END: &str = "{hostname, deployment, network, address}";

/// Allowed values of keys that hold an enum; an empty list allows any word.
const WORDS: &[(&str, &[&str])] = &[
    ("tls", &["auto", "off"]),
    ("environment", &["staging", "prod", "unknown"]),
    ("suffrage", &["voter", "nonvoter", "unknown"]),
    ("systemd", &["enabled", "unavailable", "failed", "skipped"]),
    (
        "verdict",
        &[
            "ok",
            "violated",
            "untested",
            "not_ours",
            "unreachable",
            "no_dns",
        ],
    ),
    ("source", &["acme", "imported"]),
    ("severity", &["warning", "error"]),
    ("placement", &["spread", "pack", "hosts", "global"]),
    ("status", &[]),
    ("state", &[]),
    ("type", &[]),
    ("condition", &[]),
    ("code", &[]),
];

/// The schema of a command's output.
pub(super) fn of(command: &str) -> Option<Schema> {
    let (_, text) = SCHEMAS.iter().find(|(name, _)| *name == command)?;
    let names = [
        ("REPLICA", REPLICA),
        ("SETTING", SETTING),
        ("PATH", PATH),
        ("FAULT", FAULT),
        ("END", END),
    ];
    let text = names.iter().fold(text.to_string(), |text, (name, schema)| {
        text.replace(name, schema)
    });
    Some(Schema::parse(&text))
}

/// The schema of a document.
#[derive(Debug, PartialEq)]
pub(super) enum Schema {
    Scalar,
    Texts,
    List(Box<Schema>),
    Object(Vec<Field>),
}

#[derive(Debug, PartialEq)]
pub(super) struct Field {
    name: String,
    optional: bool,
    schema: Schema,
}

impl Schema {
    fn parse(text: &str) -> Self {
        let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let mut rest = text.as_str();
        let schema = Self::read(&mut rest);
        assert_eq!(rest, "", "{text}");
        schema
    }

    fn read(rest: &mut &str) -> Self {
        if take(rest, "{*}") {
            return Self::Texts;
        }
        if take(rest, "[") {
            let item = Self::read(rest);
            assert!(take(rest, "]"), "{rest}");
            return Self::List(Box::new(item));
        }
        if take(rest, ".") || !take(rest, "{") {
            return Self::Scalar;
        }
        let mut fields = Vec::new();
        loop {
            let end = rest
                .find(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit() && c != '_')
                .unwrap();
            let name = rest[..end].to_owned();
            *rest = &rest[end..];
            let optional = take(rest, "?");
            let schema = match take(rest, ":") {
                true => Self::read(rest),
                false => Self::Scalar,
            };
            fields.push(Field {
                name,
                optional,
                schema,
            });
            if !take(rest, ",") {
                assert!(take(rest, "}"), "{rest}");
                return Self::Object(fields);
            }
        }
    }

    /// Checks a document; the error describes the first deviation.
    pub(super) fn check(&self, document: &Document) -> Result<(), String> {
        match (self, document) {
            (Self::Scalar, Document::Scalar(Value::Null)) => Err("null".to_owned()),
            (Self::Scalar, Document::Scalar(_)) => Ok(()),
            (Self::Texts, Document::Object(entries)) => {
                let sorted = entries.is_sorted_by_key(|(key, _)| key);
                let texts = entries
                    .iter()
                    .all(|(_, value)| matches!(value, Document::Scalar(Value::String(_))));
                let fits = sorted && texts;
                fits.then_some(())
                    .ok_or("not a sorted map of texts".to_owned())
            }
            (Self::List(schema), Document::List(items)) => {
                items.iter().try_for_each(|item| schema.check(item))
            }
            (Self::Object(fields), Document::Object(entries)) => {
                let mut entries = entries.iter().peekable();
                for field in fields {
                    match entries.next_if(|(key, _)| *key == field.name) {
                        Some((_, value)) => field.check(value)?,
                        None if field.optional => {}
                        None => return Err(format!("{} is missing or misplaced", field.name)),
                    }
                }
                match entries.next() {
                    None => Ok(()),
                    Some((key, _)) => Err(format!("{key} is unknown or misplaced")),
                }
            }
            _ => Err(format!("want {self:?}, found {document:?}")),
        }
    }
}

impl Field {
    fn check(&self, value: &Document) -> Result<(), String> {
        let named = |problem: String| format!("{}: {problem}", self.name);
        self.schema.check(value).map_err(named)?;
        let empty = match value {
            Document::Scalar(value) => value == "",
            Document::List(items) => items.is_empty(),
            Document::Object(entries) => entries.is_empty(),
        };
        if self.optional && empty {
            return Err(named("is empty, so it should be left out".to_owned()));
        }
        let Document::Scalar(Value::String(text)) = value else {
            return Ok(());
        };
        if let Some((_, words)) = WORDS.iter().find(|(name, _)| *name == self.name) {
            let word = text.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            if !word || !words.is_empty() && !words.contains(&text.as_str()) {
                return Err(named(format!("{text} is not one of its words")));
            }
        }
        let is_time =
            self.name.ends_with("_at") || self.name.ends_with("_after") || self.name == "ts";
        if is_time && !(text.len() == "2026-11-20T11:40:13Z".len() && text.ends_with('Z')) {
            return Err(named(format!("{text} is not a time in whole seconds")));
        }
        Ok(())
    }
}

fn take(rest: &mut &str, prefix: &str) -> bool {
    match rest.strip_prefix(prefix) {
        Some(after) => {
            *rest = after;
            true
        }
        None => false,
    }
}

/// All JSON documents of a text.
pub(super) fn documents(text: &str) -> Vec<Document> {
    let trees = serde_json::Deserializer::from_str(text).into_iter::<Tree>();
    trees.map(|tree| tree.unwrap().into()).collect()
}

impl From<Tree> for Document {
    fn from(tree: Tree) -> Self {
        match tree {
            Tree::Plain(text) => Self::Scalar(serde_json::from_str(&text).unwrap()),
            Tree::Text(text) => Self::Scalar(text.into()),
            Tree::Seq(items) => Self::List(items.into_iter().map(Self::from).collect()),
            Tree::Map(entries) => Self::Object(
                entries
                    .into_iter()
                    .map(|(key, value)| (key, value.into()))
                    .collect(),
            ),
        }
    }
}

/// One YAML document, parsed as a manifest is.
pub(super) fn yaml(text: &str) -> Document {
    let document = yaml::parse(text.as_bytes()).unwrap();
    document.root.as_ref().map(Document::from).unwrap()
}

impl From<&Node> for Document {
    fn from(node: &Node) -> Self {
        match &node.value {
            yaml::Value::Map(map) => Self::Object(
                map.iter()
                    .map(|(key, node)| (key.text.clone(), node.into()))
                    .collect(),
            ),
            yaml::Value::Seq(items) => Self::List(items.iter().map(Self::from).collect()),
            yaml::Value::Scalar(scalar) if !scalar.plain => {
                Self::Scalar(scalar.text.clone().into())
            }
            yaml::Value::Scalar(scalar) => Self::Scalar(match scalar.resolve() {
                Resolved::Str(text) => text.into(),
                _ => serde_json::from_str(&scalar.text).unwrap(),
            }),
        }
    }
}

#[test]
fn deviating_document_is_refused() {
    let schema = Schema::parse("{state, at?, list: [{n}], map?: {*}}");
    let sound = r#"{"state": "ok", "at": "x", "list": [{"n": 1}], "map": {"a": "b"}}"#;
    for (text, sound) in [
        (sound, true),
        (r#"{"state": "ok", "list": []}"#, true),
        (r#"{"list": [], "state": "ok"}"#, false),
        (r#"{"state": "ok"}"#, false),
        (r#"{"state": "OK", "list": []}"#, false),
        (r#"{"state": null, "list": []}"#, false),
        (r#"{"state": "ok", "list": null}"#, false),
        (r#"{"state": "ok", "at": "", "list": []}"#, false),
        (r#"{"state": "ok", "list": [{}]}"#, false),
        (r#"{"state": "ok", "list": [], "map": {}}"#, false),
        (r#"{"state": "ok", "list": [], "more": 1}"#, false),
    ] {
        let documents = documents(text);
        assert_eq!(schema.check(&documents[0]).is_ok(), sound, "{text}");
    }
}
