use jaco_net::secrets::SecretsKey;
use jaco_proto::{
    error::DecodedError,
    v1::{cluster_files_client::ClusterFilesClient, deploy_client::DeployClient},
};
use prost::Message as _;

use super::*;
use crate::{
    api::admission::Transport,
    secrets::Secrets,
    testing::cluster::{Cluster, MemberApi},
};

const COMPOSE: &str = "\
services:
  web: {image: nginx, configs: [site], secrets: [key, shared]}
configs:
  site: {file: /site.conf}
secrets:
  key: {file: /key}
  shared: {external: true}
";

/// Three members, of which `n1` leads; all have the secrets key.
pub(in crate::api) async fn cluster(key: &SecretsKey) -> Cluster {
    let cluster = Cluster::start(3).await;
    for id in 1..=3 {
        let node = cluster.node(id).try_running().unwrap();
        node.secrets.set(Secrets::fixed(Some(key.clone()))).unwrap();
    }
    let node = cluster.node(1).try_running().unwrap();
    let set = Payload::SecretsKeySet(v1::SecretsKeySet {
        key_id: key.id(),
        replaces: String::new(),
    });
    propose(&node.raft, node.command("test", set))
        .await
        .unwrap();
    cluster
}

fn cluster_files(cluster: &Cluster, id: u64) -> ClusterFilesClient<MemberApi> {
    ClusterFilesClient::new(cluster.member_api(id, Transport::Local))
}

async fn create(
    cluster: &Cluster,
    kind: FileKind,
    name: &str,
    content: &[u8],
) -> Result<(), DecodedError> {
    let request = v1::ClusterFileCreateRequest {
        kind: kind.into(),
        name: name.into(),
        content: content.into(),
    };
    cluster_files(cluster, 2).create(request).await?;
    Ok(())
}

async fn apply(
    cluster: &Cluster,
    values: &[(FileKind, &str, &[u8])],
) -> Result<v1::ApplyResponse, DecodedError> {
    let request = v1::ApplyRequest {
        jaco_yaml: b"deployment: shop".to_vec(),
        compose_yaml: COMPOSE.into(),
        dry_run: false,
        files: values
            .iter()
            .map(|(kind, name, content)| v1::FileValue {
                kind: (*kind).into(),
                name: (*name).into(),
                content: content.to_vec(),
                ..Default::default()
            })
            .collect(),
        secret_values: Default::default(),
    };
    let mut client = DeployClient::new(cluster.member_api(2, Transport::Local));
    Ok(client.apply(request).await?.into_inner())
}

pub(in crate::api) fn state(cluster: &Cluster) -> std::sync::Arc<State> {
    cluster.node(1).try_running().unwrap().raft.state()
}

/// Whether the whole state, as in the log, a snapshot or a backup, has this text.
pub(in crate::api) fn holds(state: &State, text: &str) -> bool {
    let bytes = state.encode_snapshot();
    bytes
        .windows(text.len())
        .any(|part| part == text.as_bytes())
}

#[tokio::test(start_paused = true)]
async fn applied_secrets_are_sealed_and_keep_their_ids() {
    let key = SecretsKey::new([1; 32]);
    let cluster = cluster(&key).await;
    create(&cluster, FileKind::Secret, "shared", b"swordfish")
        .await
        .unwrap();
    let values: [(FileKind, &str, &[u8]); 2] = [
        (FileKind::Config, "site", b"server {}"),
        (FileKind::Secret, "key", b"hunter2"),
    ];
    let first = apply(&cluster, &values).await.unwrap();
    assert_eq!(first.applied_revision, 1);
    let before = state(&cluster);
    assert_eq!(before.file_contents.len(), 3);
    assert!(holds(&before, "server {}"));
    assert!(!holds(&before, "hunter2") && !holds(&before, "swordfish"));
    let sealer = KeySealer(Arc::new(key));
    let secrets = before.file_contents.values();
    let secrets = secrets.filter_map(|content| sealer.open(content));
    let secrets: Vec<_> = secrets.map(|value| value.expose().to_vec()).collect();
    assert!(secrets.contains(&b"hunter2".to_vec()) && secrets.contains(&b"swordfish".to_vec()));
    let files = |state: &State| state.deployments["shop"].services[0].files.clone();

    apply(&cluster, &values).await.unwrap();
    assert_eq!(files(&state(&cluster)), files(&before));
    let mut changed = values;
    changed[1].2 = b"hunter3";
    let response = apply(&cluster, &changed).await.unwrap();
    assert_eq!(response.diff.unwrap().updates.len(), 1);
    assert_ne!(files(&state(&cluster)), files(&before));
    let missing = apply(&cluster, &values[..1]).await.unwrap_err();
    assert_eq!(missing.code, "secret_missing");
}

#[tokio::test(start_paused = true)]
async fn cluster_files_are_listed_and_removed() {
    let key = SecretsKey::new([1; 32]);
    let cluster = cluster(&key).await;
    for _ in 0..2 {
        create(&cluster, FileKind::Secret, "shared", b"swordfish")
            .await
            .unwrap();
    }
    let taken = create(&cluster, FileKind::Secret, "shared", b"other").await;
    assert_eq!(taken.unwrap_err().code, "file_exists");
    create(&cluster, FileKind::Config, "shared", b"plain")
        .await
        .unwrap();
    for (name, content) in [("a b", &b"x"[..]), ("", b"x"), ("big", &[0; (1 << 20) + 1])] {
        let refused = create(&cluster, FileKind::Config, name, content).await;
        assert_eq!(refused.unwrap_err().code, "validation_failed", "{name}");
    }
    let values: [(FileKind, &str, &[u8]); 2] = [
        (FileKind::Config, "site", b""),
        (FileKind::Secret, "key", b""),
    ];
    apply(&cluster, &values).await.unwrap();
    let request = v1::ClusterFileListRequest {
        kind: FileKind::Secret.into(),
    };
    let listed = cluster_files(&cluster, 1).list(request).await.unwrap();
    let [file] = &listed.into_inner().files[..] else {
        panic!("one secret");
    };
    assert_eq!((&*file.name, file.size), ("shared", 9));
    assert_eq!(file.deployments, ["shop"]);
    let removal = v1::ClusterFileRemoveRequest {
        kind: FileKind::Secret.into(),
        name: "shared".into(),
    };
    let mut client = cluster_files(&cluster, 1);
    client.remove(removal.clone()).await.unwrap();
    // The deployment keeps what it was applied with.
    assert_eq!(state(&cluster).file_contents.len(), 3);
    let gone = client.remove(removal).await.unwrap_err();
    assert_eq!(DecodedError::from_status(&gone).code, "secret_not_found");
}

#[tokio::test(start_paused = true)]
async fn rotation_seals_every_secret_anew() {
    let key = SecretsKey::new([1; 32]);
    let cluster = cluster(&key).await;
    create(&cluster, FileKind::Secret, "shared", b"swordfish")
        .await
        .unwrap();
    let values: [(FileKind, &str, &[u8]); 2] = [
        (FileKind::Config, "site", b"x"),
        (FileKind::Secret, "key", b"hunter2"),
    ];
    apply(&cluster, &values).await.unwrap();
    let new = SecretsKey::new([2; 32]);
    let before = state(&cluster);
    let payloads = crate::secrets::reseal_files(&before, Some(&key), &new).unwrap();
    assert_eq!(payloads.len(), 3);
    let node = cluster.node(1).try_running().unwrap();
    for payload in payloads {
        let command = node.command("test", payload);
        assert!(command.encoded_len() > 0);
        propose(&node.raft, command).await.unwrap();
    }
    let after = state(&cluster);
    let sealer = KeySealer(Arc::new(new));
    let secrets = after.file_contents.values();
    let secrets: Vec<_> = secrets.filter(|one| !one.sealed.is_empty()).collect();
    assert_eq!(secrets.len(), 2);
    assert!(secrets.iter().all(|content| sealer.open(content).is_some()));
    let error = crate::secrets::reseal_files(&before, None, &sealer.0).unwrap_err();
    assert_eq!(error.code, ErrorCode::SecretsKeyMissing);
}
