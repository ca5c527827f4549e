use std::collections::BTreeMap;

use prost::{
    Message,
    encoding::{WireType, encode_key, encode_varint},
};
use prost_types::{FileDescriptorSet, field_descriptor_proto::Type};

use super::*;

const SECRET: &str = "s3cr3t";

fn secret() -> Vec<u8> {
    SECRET.into()
}

#[track_caller]
fn assert_hidden(shown: &str, message: impl fmt::Debug) {
    let text = format!("{message:?} {message:#?}");
    let bytes = format!("{:?}", secret());
    assert!(text.contains(shown), "{text}");
    assert!(!text.contains(SECRET), "{text}");
    assert!(!text.contains(bytes.trim_matches(['[', ']'])), "{text}");
}

#[test]
fn stored_secrets_are_redacted() {
    let snapshot = FsmSnapshot {
        cluster: Some(ClusterMeta {
            cluster_id: "c-1".into(),
            ca_key: secret(),
            ..Default::default()
        }),
        deployments: vec![Deployment {
            jaco_yaml: secret(),
            compose_yaml: secret(),
            previous: Some(DeploymentRevision {
                jaco_yaml: secret(),
                compose_yaml: secret(),
                ..Default::default()
            }),
            ..Default::default()
        }],
        certs: vec![Cert {
            private_key: secret(),
            ..Default::default()
        }],
        challenge_tokens: vec![ChallengeToken {
            key_auth: SECRET.into(),
            ..Default::default()
        }],
        tokens: vec![Token {
            hashed_secret: secret(),
            ..Default::default()
        }],
        join_tokens: vec![JoinToken {
            hashed_secret: secret(),
            ..Default::default()
        }],
        audit_events: vec![AuditEvent {
            payload: [("key".into(), SECRET.into())].into(),
            ..Default::default()
        }],
        cert_blobs: vec![CertBlob {
            value: secret(),
            ..Default::default()
        }],
        registry_credentials: vec![RegistryCredential {
            secret: secret(),
            ..Default::default()
        }],
        ..Default::default()
    };
    assert_hidden("c-1", snapshot);
}

#[test]
fn request_and_response_secrets_are_redacted() {
    assert_hidden(
        "dry_run: true",
        ApplyRequest {
            jaco_yaml: secret(),
            compose_yaml: secret(),
            dry_run: true,
            files: Vec::new(),
            secret_values: [("DB_PASSWORD".to_owned(), secret())].into(),
        },
    );
    assert_hidden(
        "DB_PASSWORD",
        SecretSetRequest {
            deployment: "shop".into(),
            name: "DB_PASSWORD".into(),
            value: secret(),
        },
    );
    assert_hidden(
        "<redacted>",
        ClusterInitResponse {
            operator_token: SECRET.into(),
            ..Default::default()
        },
    );
    assert_hidden(
        "<redacted>",
        BootstrapResponse {
            operator_token: SECRET.into(),
            ..Default::default()
        },
    );
    assert_hidden(
        "peer:7000",
        ClusterJoinRequest {
            peer_addr: "peer:7000".into(),
            join_token: SECRET.into(),
        },
    );
    assert_hidden(
        "n-1",
        NodeJoinRequest {
            name: "n-1".into(),
            join_token: SECRET.into(),
            ..Default::default()
        },
    );
    assert_hidden(
        "<redacted>",
        IssueJoinTokenResponse {
            token: SECRET.into(),
            ..Default::default()
        },
    );
    assert_hidden(
        "alice",
        TokenIssueResponse {
            identity: "alice".into(),
            token: SECRET.into(),
            ..Default::default()
        },
    );
    assert_hidden(
        "ghcr.io",
        RegistryCredentialAddRequest {
            registry: "ghcr.io".into(),
            secret: secret(),
            ..Default::default()
        },
    );
    assert_hidden(
        "stdout",
        LogLine {
            stream: "stdout".into(),
            line: SECRET.into(),
            ..Default::default()
        },
    );
    assert_hidden("<redacted>", BackupChunk { data: secret() });
    assert_hidden("<redacted>", ImportKeyRequest { key: secret() });
    assert_hidden(
        "k-1",
        SecretsKey {
            id: "k-1".into(),
            key: secret(),
        },
    );
    assert_hidden(
        "<redacted>",
        SubmitRequest {
            command_bytes: secret(),
        },
    );
}

#[test]
fn commands_print_their_operation_only() {
    let apply = DeploymentApply {
        deployment: "shop".into(),
        jaco_yaml: secret(),
        compose_yaml: secret(),
        ..Default::default()
    };
    let init = ClusterInit {
        ca_key: secret(),
        operator_token_hashed_secret: secret(),
        ..Default::default()
    };
    let command = |payload| Command {
        payload: Some(payload),
        ..Default::default()
    };
    let remove = command::Payload::NodeRemove(NodeRemove {
        hostname: SECRET.into(),
    });

    assert_hidden("shop", &apply);
    assert_hidden("ClusterInit", &init);
    let apply = command(command::Payload::DeploymentApply(apply));
    assert_hidden("Some(deployment_apply)", &apply);
    assert!(!format!("{apply:?}").contains("shop"));
    assert_hidden(
        "Some(cluster_init)",
        command(command::Payload::ClusterInit(init)),
    );
    assert_hidden("Some(node_remove)", command(remove));
}

#[test]
fn hashes_in_commands_are_redacted() {
    assert_hidden(
        "alice",
        TokenIssue {
            identity: "alice".into(),
            hashed_secret: secret(),
            ..Default::default()
        },
    );
    assert_hidden(
        "<redacted>",
        JoinTokenIssue {
            hashed_secret: secret(),
            ..Default::default()
        },
    );
    assert_hidden(
        "<redacted>",
        JoinTokenConsume {
            hashed_secret: secret(),
        },
    );
    assert_hidden(
        "<redacted>",
        CertStore {
            value: secret(),
            ..Default::default()
        },
    );
}

/// Decodes a message and returns its `Debug` output.
type Show = fn(&[u8]) -> String;

// One entry per message: its name and `shown` for it.
include!(concat!(env!("OUT_DIR"), "/messages.rs"));

fn shown<M: Message + Default + fmt::Debug>(encoded: &[u8]) -> String {
    let message = M::decode(encoded).expect("a field has the type of its descriptor");
    format!("{message:?}")
}

/// A field that may hold a secret, to be classified in `fields.tsv`.
struct TextField {
    message: String,
    field: String,
    number: i32,
    is_map: bool,
}

fn texts() -> Vec<TextField> {
    let set = FileDescriptorSet::decode(crate::FILE_DESCRIPTOR_SET).unwrap();
    let files = set.file.iter().filter(|file| file.package() == "jaco.v1");
    let mut found = Vec::new();
    for message in files.flat_map(|file| &file.message_type) {
        for nested in &message.nested_type {
            let is_map = nested.options.as_ref().is_some_and(|o| o.map_entry());
            assert!(
                is_map,
                "{}: its fields would not be looked at",
                nested.name()
            );
        }
        for field in &message.field {
            let is_map = message
                .nested_type
                .iter()
                .any(|entry| field.type_name().ends_with(&format!(".{}", entry.name())));
            if is_map || matches!(field.r#type(), Type::String | Type::Bytes) {
                found.push(TextField {
                    message: message.name().to_owned(),
                    field: field.name().to_owned(),
                    number: field.number(),
                    is_map,
                });
            }
        }
    }
    found
}

fn classified() -> BTreeMap<(String, String), bool> {
    let table = include_str!("fields.tsv");
    let rows = table.lines().filter(|line| !line.starts_with('#'));
    rows.map(|line| {
        let columns: Vec<&str> = line.split('\t').collect();
        let [message, field, verdict] = columns[..] else {
            panic!("{line}: not three columns");
        };
        assert!(matches!(verdict, "shown" | "hidden"), "{line}");
        ((message.to_owned(), field.to_owned()), verdict == "hidden")
    })
    .collect()
}

/// Encodes `value` as field `number`.
fn encoded(number: i32, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_key(
        number.try_into().unwrap(),
        WireType::LengthDelimited,
        &mut bytes,
    );
    encode_varint(value.len() as u64, &mut bytes);
    bytes.extend(value);
    bytes
}

#[test]
fn every_field_is_classified_and_printed_accordingly() {
    let mut classified = classified();
    for text in texts() {
        let name = format!("{}.{}", text.message, text.field);
        let hidden = classified
            .remove(&(text.message.clone(), text.field.clone()))
            .unwrap_or_else(|| panic!("{name} is not classified: add it to fields.tsv"));
        let (_, show) = MESSAGES
            .iter()
            .find(|(rust, _)| rust.eq_ignore_ascii_case(&text.message))
            .unwrap_or_else(|| panic!("{name}: no such message"));
        let marker = format!("marked {name}");
        let value = if text.is_map {
            let entry = [encoded(1, b"key"), encoded(2, marker.as_bytes())].concat();
            encoded(text.number, &entry)
        } else {
            encoded(text.number, marker.as_bytes())
        };
        let shown = show(&value);
        let numbers = format!("{:?}", marker.as_bytes());
        let visible = shown.contains(&marker) || shown.contains(&numbers);
        assert_eq!(visible, !hidden, "{name}: {shown}");
    }
    assert!(
        classified.is_empty(),
        "classified, but missing: {classified:?}"
    );
}

#[test]
fn fields_with_secret_names_are_hidden() {
    // Substrings in the names of fields with secret content.
    const SECRET: [&str; 8] = [
        "secret",
        "private",
        "_key",
        "password",
        "key_auth",
        "yaml",
        "payload",
        "command_bytes",
    ];
    for ((message, field), hidden) in classified() {
        // The id of a key is public, and a service has names of secrets alone.
        let is_public = field.ends_with("key_id") || message == "ServiceSpec";
        let is_secret_name = !is_public && SECRET.iter().any(|word| field.contains(word))
            || (field.ends_with("token") && message != "ChallengeToken");
        assert!(!is_secret_name || hidden, "{message}.{field} is shown");
    }
}
