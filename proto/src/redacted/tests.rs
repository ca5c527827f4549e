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
fn stored_secrets_do_not_show() {
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
fn secrets_of_calls_do_not_show() {
    assert_hidden(
        "dry_run: true",
        ApplyRequest {
            jaco_yaml: secret(),
            compose_yaml: secret(),
            dry_run: true,
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
    assert_hidden(
        "<redacted>",
        SubmitRequest {
            command_bytes: secret(),
        },
    );
}

#[test]
fn commands_show_their_operation_only() {
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
fn hashes_in_commands_do_not_show() {
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
