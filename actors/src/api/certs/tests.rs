use std::time::Duration;

use jaco_net::pki::BootstrapCert;
use jaco_proto::{
    error::DecodedError,
    v1::{certs_client::CertsClient, deploy_client::DeployClient},
};

use super::*;
use crate::{
    api::admission::Transport,
    commit::propose,
    secrets::Secrets,
    testing::cluster::{Cluster, MemberApi},
};

const NOW: Duration = Duration::from_secs(1_700_000_000);

/// Three members, of which `n1` leads; all have the secrets key.
async fn cluster(key: Option<&SecretsKey>) -> Cluster {
    let cluster = Cluster::start(3).await;
    for id in 1..=3 {
        let node = cluster.node(id).try_running().unwrap();
        node.secrets.set(Secrets::fixed(key.cloned())).unwrap();
    }
    if let Some(key) = key {
        name_key(&cluster, key).await;
    }
    cluster
}

/// Has the state name a key.
async fn name_key(cluster: &Cluster, key: &SecretsKey) {
    let node = cluster.node(1).try_running().unwrap();
    let named = node.raft.state().cluster.clone();
    let set = Payload::SecretsKeySet(v1::SecretsKeySet {
        key_id: key.id(),
        replaces: named.map_or_else(String::new, |named| named.secrets_key_id.clone()),
    });
    let command = node.command("test", set);
    propose(&node.raft, command).await.unwrap();
}

fn certs(cluster: &Cluster, id: u64) -> CertsClient<MemberApi> {
    CertsClient::new(cluster.member_api(id, Transport::Local))
}

fn request(name: &str, cert: &BootstrapCert) -> v1::CertImportRequest {
    v1::CertImportRequest {
        name: name.to_owned(),
        chain_pem: cert.cert_pem().as_bytes().to_vec(),
        key_pem: cert.key_pem().expose().as_bytes().to_vec(),
    }
}

fn issue(name: &str) -> BootstrapCert {
    BootstrapCert::generate(name, &[], SystemTime::UNIX_EPOCH + NOW).unwrap()
}

fn code(status: &Status) -> (String, BTreeMap<String, String>) {
    let decoded = DecodedError::from_status(status);
    (decoded.code, decoded.details.into_iter().collect())
}

#[tokio::test(start_paused = true)]
async fn imported_certificate_is_sealed_listed_and_removed() {
    let key = SecretsKey::new([1; 32]);
    let cluster = cluster(Some(&key)).await;
    let cert = issue("a-example");
    // A follower forwards to the leader.
    let info = certs(&cluster, 2)
        .import(request("A-Example.", &cert))
        .await;
    let info = info.unwrap().into_inner();
    assert_eq!(
        (&*info.name, &*info.source, &*info.state, &*info.reason),
        ("a-example", "imported", "valid", "")
    );
    let state = cluster.node(1).try_running().unwrap().raft.state();
    let row = &state.imported_certs["a-example"];
    assert_eq!(row.imported_by, "local");
    let secret = cert.key_pem().expose();
    let sealed = String::from_utf8_lossy(&row.sealed_key).into_owned();
    assert!(!sealed.contains("PRIVATE") && !sealed.contains(secret));
    let opened = certificate::open(&key, row).unwrap();
    assert_eq!(opened.key_pem.expose(), secret);
    let listed = certs(&cluster, 2).list(v1::CertListRequest {}).await;
    assert_eq!(listed.unwrap().into_inner().certs, [info]);

    let remove = |name: &str| v1::CertRemoveRequest {
        name: name.to_owned(),
    };
    certs(&cluster, 1)
        .remove(remove("a-example"))
        .await
        .unwrap();
    let error = certs(&cluster, 1).remove(remove("a-example")).await;
    assert_eq!(code(&error.unwrap_err()).0, "cert_not_found");
}

#[tokio::test(start_paused = true)]
async fn unfit_certificate_is_refused_with_its_reason() {
    let key = SecretsKey::new([1; 32]);
    let cluster = cluster(Some(&key)).await;
    let (cert, other) = (issue("a-example"), issue("a-example"));
    let crossed = v1::CertImportRequest {
        key_pem: request("", &other).key_pem,
        ..request("a-example", &cert)
    };
    let binary = v1::CertImportRequest {
        chain_pem: vec![0xff],
        ..request("a-example", &cert)
    };
    for (request, reason) in [
        (crossed, "key_mismatch"),
        (binary, "chain_unreadable"),
        (request("b-example", &cert), "name_mismatch"),
        (request("*.example", &cert), "name_mismatch"),
    ] {
        let error = certs(&cluster, 1).import(request).await.unwrap_err();
        let (code, details) = code(&error);
        assert_eq!((&*code, &*details["reason"]), ("cert_invalid", reason));
    }
    let error = certs(&cluster, 1).import(request("a b", &cert)).await;
    assert_eq!(code(&error.unwrap_err()).0, "validation_failed");
}

#[tokio::test(start_paused = true)]
async fn no_key_is_sealed_while_secrets_key_changes() {
    let key = SecretsKey::new([1; 32]);
    let cluster = cluster(Some(&key)).await;
    // The actor of the secrets key has not followed yet.
    name_key(&cluster, &SecretsKey::new([2; 32])).await;
    let request = request("a-example", &issue("a-example"));
    let error = certs(&cluster, 1).import(request).await.unwrap_err();
    assert_eq!(code(&error).0, "state_unavailable");
    let state = cluster.node(1).try_running().unwrap().raft.state();
    assert!(state.imported_certs.is_empty());
}

#[tokio::test(start_paused = true)]
async fn import_and_check_need_the_secrets_key() {
    let cluster = cluster(None).await;
    let error = certs(&cluster, 1)
        .import(request("a-example", &issue("a-example")))
        .await;
    assert_eq!(code(&error.unwrap_err()).0, "secrets_key_missing");
    let request = v1::CheckDomainRequest {
        domain: "a-example".to_owned(),
    };
    let error = certs(&cluster, 1).check_domain(request).await;
    assert_eq!(code(&error.unwrap_err()).0, "secrets_key_missing");
    let wildcard = v1::CheckDomainRequest {
        domain: "*.example".to_owned(),
    };
    let error = certs(&cluster, 1).check_domain(wildcard).await;
    assert_eq!(code(&error.unwrap_err()).0, "validation_failed");
}

#[tokio::test(start_paused = true)]
async fn tls_is_switched_without_a_revision() {
    let cluster = cluster(None).await;
    let node = cluster.node(1).try_running().unwrap();
    let route = v1::Route {
        domain: "a-example".to_owned(),
        deployment: "app".to_owned(),
        service: "web".to_owned(),
        port: 80,
        ..v1::Route::default()
    };
    let upsert = Payload::RouteUpsert(v1::RouteUpsert { route: Some(route) });
    propose(&node.raft, node.command("test", upsert))
        .await
        .unwrap();
    let mut deploy = DeployClient::new(cluster.member_api(2, Transport::Local));
    let request = |enable| v1::SetTlsRequest {
        deployment: "app".to_owned(),
        domain: String::new(),
        enable,
    };
    for (enable, url) in [(true, "https://a-example"), (false, "http://a-example")] {
        let before = node.raft.state().deployments["app"].applied_revision;
        let response = deploy.set_tls(request(enable)).await.unwrap().into_inner();
        assert_eq!(response.urls, [url]);
        let status = deploy.status(v1::DeployStatusRequest::default()).await;
        assert_eq!(status.unwrap().into_inner().routes[0].tls_auto, enable);
        let state = node.raft.state();
        assert_eq!(state.deployments["app"].applied_revision, before);
    }
    assert!(node.raft.state().route_tls_overrides.is_empty());
}

#[test]
fn records_lead_to_public_addresses_else_nodes() {
    let mut state = State::default();
    for (host, grpc_address, address) in [
        ("n1", "192.0.2.1:7000", "10.0.0.1:7001"),
        ("n2", "", "192.0.2.2:7001"),
        ("n3", "[2001:db8::3]:7000", ""),
        ("n4", "node.example:7000", ""),
        ("n5", "", ""),
    ] {
        let node = v1::Node {
            hostname: host.to_owned(),
            grpc_address: grpc_address.to_owned(),
            address: address.to_owned(),
            ..v1::Node::default()
        };
        state.nodes.insert(host.to_owned(), Arc::new(node));
    }
    let nodes = ["192.0.2.1", "192.0.2.2", "2001:db8::3", "node.example"];
    assert_eq!(point_at(&state), nodes);
    let config = v1::ClusterConfig {
        key: "ingress.public_addresses".to_owned(),
        value: "198.51.100.1,lb.example".to_owned(),
        ..v1::ClusterConfig::default()
    };
    state
        .cluster_config
        .insert(config.key.clone(), Arc::new(config));
    assert_eq!(point_at(&state), ["198.51.100.1", "lb.example"]);
}

#[test]
fn unresolved_domain_is_one_row() {
    for (checked, detail) in [
        (Err("no such name".to_owned()), "no such name"),
        (Ok(Vec::new()), "the domain has no address"),
    ] {
        let rows = addresses(checked);
        assert_eq!((rows.len(), &*rows[0].verdict), (1, "no_dns"));
        assert_eq!((&*rows[0].address, &*rows[0].detail), ("", detail));
    }
}

#[test]
fn unusable_certificate_has_a_reason() {
    let key = SecretsKey::new([1; 32]);
    let cert = v1::ImportedCert {
        name: "a-example".to_owned(),
        not_after: Some(timestamp(SystemTime::UNIX_EPOCH + NOW)),
        ..v1::ImportedCert::default()
    };
    let before = SystemTime::UNIX_EPOCH;
    for (key, now, reason) in [
        (None, before, "secrets_key_missing"),
        (Some(&key), before, "secrets_key_mismatch"),
        (None, before + NOW, "expired"),
    ] {
        let info = imported(&cert, key, now);
        assert_eq!((&*info.state, &*info.reason), ("failed", reason));
    }
}
