use jaco_policy::api::secrets::SecretSealer as _;
use jaco_proto::{
    error::DecodedError,
    v1::{
        deploy_client::DeployClient, internal_client::InternalClient, secrets_client::SecretsClient,
    },
};

use super::*;
use crate::{
    api::{
        admission::Transport,
        files::tests::{cluster, holds, state},
    },
    testing::cluster::{Cluster, with},
};

const BEARER: (&str, &str) = ("authorization", "Bearer secret");

fn code<T>(result: Result<T, Status>) -> String {
    DecodedError::from(result.err().unwrap()).code
}

#[tokio::test(start_paused = true)]
async fn only_members_give_and_get_the_key() {
    let cluster = Cluster::start(2).await;
    for transport in [Transport::Local, Transport::Api] {
        let mut client = InternalClient::new(cluster.member_api(2, transport));
        let message = to_message(&SecretsKey::new([1; 32]));
        let stored = client.store_secrets_key(with(message, &[BEARER])).await;
        assert_eq!(code(stored), "peer_only");
        let request = v1::SecretsKeyId::default();
        let fetched = client.fetch_secrets_key(with(request, &[BEARER])).await;
        assert_eq!(code(fetched), "peer_only");
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_leader_gives_a_valid_key() {
    let cluster = Cluster::start(3).await;
    let message = to_message(&SecretsKey::new([1; 32]));
    let mut follower = InternalClient::new(cluster.peer_api(2, 3));
    let stored = follower.store_secrets_key(message.clone()).await;
    assert_eq!(code(stored), "no_leader");
    let mut leader = InternalClient::new(cluster.peer_api(2, 1));
    for (id, key) in [
        ("other", &message.key[..]),
        (message.id.as_str(), &message.key[1..]),
    ] {
        let message = v1::SecretsKey {
            id: id.to_owned(),
            key: key.to_vec(),
        };
        let stored = leader.store_secrets_key(message).await;
        assert_eq!(code(stored), "validation_failed", "{id}");
    }
}

#[tokio::test(start_paused = true)]
async fn key_is_exported_on_the_control_socket_only() {
    let cluster = Cluster::start(1).await;
    let mut client = SecretsClient::new(cluster.member_api(1, Transport::Api));
    let exported = client.export_key(with(v1::ExportKeyRequest {}, &[BEARER]));
    assert_eq!(code(exported.await), "privilege_denied");
    let import = v1::ImportKeyRequest { key: vec![1; 31] };
    let imported = client.import_key(with(import, &[BEARER])).await;
    assert_eq!(code(imported), "validation_failed");
}

/// Applies `jaco` with these values, on a member that does not lead.
async fn apply(cluster: &Cluster, jaco: &str, values: &[(&str, &str)]) -> Result<(), DecodedError> {
    let compose = "services: {web: {image: nginx}, db: {image: pg, environment: {MODE: a}}}";
    let request = v1::ApplyRequest {
        jaco_yaml: format!("deployment: shop\n{jaco}").into_bytes(),
        compose_yaml: compose.into(),
        secret_values: values
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec()))
            .collect(),
        ..Default::default()
    };
    let mut client = DeployClient::new(cluster.member_api(2, Transport::Local));
    client.apply(request).await?;
    Ok(())
}

async fn set(cluster: &Cluster, name: &str, value: &[u8]) -> Result<v1::SecretInfo, DecodedError> {
    let request = v1::SecretSetRequest {
        deployment: "shop".into(),
        name: name.into(),
        value: value.to_vec(),
    };
    let mut client = SecretsClient::new(cluster.member_api(2, Transport::Local));
    Ok(client.set(request).await?.into_inner())
}

fn versions(state: &State) -> Vec<(String, u64)> {
    let secrets = state.secrets_of("shop");
    secrets
        .map(|secret| (secret.name.clone(), secret.version))
        .collect()
}

const JACO: &str = "secrets: {A: \"${A}\", B: \"${B}\"}\nservices: [{name: db, secrets: [B]}]\n";

#[tokio::test(start_paused = true)]
async fn applied_values_are_sealed_and_versioned() {
    let key = SecretsKey::new([1; 32]);
    let cluster = cluster(&key).await;
    let version = |name: &str, version| (name.to_owned(), version);
    let missing = apply(&cluster, JACO, &[("A", "hunter2")])
        .await
        .unwrap_err();
    assert_eq!(missing.code, "secret_missing");
    assert_eq!(missing.details["names"], "B");
    assert_eq!(versions(&state(&cluster)), [], "all or nothing");

    let values = [("A", "hunter2"), ("B", "swordfish")];
    apply(&cluster, JACO, &values).await.unwrap();
    let first = state(&cluster);
    assert_eq!(versions(&first), [version("A", 1), version("B", 1)]);
    assert!(!holds(&first, "hunter2") && !holds(&first, "swordfish"));
    let services = &first.deployments["shop"].services;
    assert_eq!(services[0].secrets, ["B"], "db");
    assert_eq!(services[1].secrets, ["A", "B"], "web");

    apply(&cluster, JACO, &values).await.unwrap();
    assert_eq!(state(&cluster).secrets, first.secrets);
    // A client that sends none keeps what is stored.
    apply(&cluster, JACO, &[]).await.unwrap();
    apply(&cluster, JACO, &[("A", "hunter3")]).await.unwrap();
    let second = state(&cluster);
    assert_eq!(versions(&second), [version("A", 2), version("B", 1)]);
    let secret = second.secret("shop", "A").unwrap();
    assert_eq!(
        ValueSealer(Arc::new(key)).open(secret).unwrap().expose(),
        b"hunter3"
    );
}

#[tokio::test(start_paused = true)]
async fn invalid_values_change_nothing() {
    let cluster = cluster(&SecretsKey::new([1; 32])).await;
    let long = "x".repeat((64 << 10) + 1);
    for (jaco, values, code) in [
        (JACO, [("C", "x"), ("A", "x")], "validation_failed"),
        (JACO, [("A", "a\0b"), ("B", "x")], "validation_failed"),
        (JACO, [("A", &*long), ("B", "x")], "validation_failed"),
        (
            "secrets: {MODE: \"${M}\"}\n",
            [("MODE", "x"), ("A", "x")],
            "secret_conflict",
        ),
    ] {
        let error = apply(&cluster, jaco, &values).await.unwrap_err();
        assert_eq!(error.code, code, "{}", error.message);
        assert!(!format!("{error:?}").contains(&long));
    }
    for (name, value) in [
        ("a", &b"x"[..]),
        ("", b"x"),
        ("A", b"\xff"),
        ("A", long.as_bytes()),
    ] {
        let error = set(&cluster, name, value).await.unwrap_err();
        assert_eq!(error.code, "validation_failed", "{name}");
    }
    assert_eq!(versions(&state(&cluster)), []);
}

#[tokio::test(start_paused = true)]
async fn secrets_are_set_listed_and_removed() {
    let cluster = cluster(&SecretsKey::new([1; 32])).await;
    let first = set(&cluster, "A", b"x").await.unwrap();
    assert_eq!(
        (first.version, first.services.len()),
        (1, 0),
        "before its deployment"
    );
    set(&cluster, "B", b"y").await.unwrap();
    apply(&cluster, JACO, &[]).await.unwrap();
    let same = set(&cluster, "B", b"y").await.unwrap();
    assert_eq!(
        (same.version, same.services),
        (1, vec!["db".into(), "web".into()])
    );
    assert_eq!(set(&cluster, "B", b"z").await.unwrap().version, 2);
    set(&cluster, "UNUSED", b"z").await.unwrap();

    let mut client = SecretsClient::new(cluster.member_api(3, Transport::Local));
    for (filter, expected) in [("", 3), ("shop", 3), ("other", 0)] {
        let request = v1::SecretListRequest {
            deployment_filter: filter.into(),
        };
        let listed = client.list(request).await.unwrap().into_inner();
        assert_eq!(listed.secrets.len(), expected, "{filter}");
    }
    for (deployment, name, expected) in [
        ("shop", "UNUSED", None),
        ("shop", "UNUSED", Some("secret_not_found")),
        ("shop", "A", Some("validation_failed")),
        ("", "A", Some("validation_failed")),
    ] {
        let request = v1::SecretRemoveRequest {
            deployment: deployment.into(),
            name: name.into(),
        };
        let removed = client.remove(request).await;
        assert_eq!(
            removed
                .err()
                .map(|error| DecodedError::from(error).code)
                .as_deref(),
            expected
        );
    }
}
