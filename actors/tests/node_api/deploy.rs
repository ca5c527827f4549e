//! Workloads through the API: results and effects of applies.

use std::collections::BTreeSet;

use jaco_proto::{error::DecodedError, v1};
use tonic::Request;

use super::lab::{Lab, state, until};

const WEB: &str = "services: {web: {image: 'nginx:1'}}";
const ROUTED: &str = "{deployment: shop, services: [{name: web, replicas: 2}], \
                      routes: [{domain: shop.test, service: web, port: 80, tls: off}]}";

#[tokio::test]
async fn revision_is_previewed_applied_rolled_back_deleted() {
    let lab = Lab::new();
    let (node, _) = lab.bootstrapped().await;
    let local = lab.local();

    let preview = local.dry_run(ROUTED, WEB).await.unwrap();
    assert_eq!(preview.applied_revision, 0);
    let preview = preview.diff.unwrap();
    assert!(!preview.adds.is_empty(), "{preview:?}");
    assert!(
        preview.updates.is_empty() && preview.removes.is_empty(),
        "{preview:?}"
    );
    assert!(
        state(&node).deployments.is_empty(),
        "a dry run wrote something"
    );

    let first = local.apply(ROUTED, WEB).await.unwrap();
    assert_eq!(first.applied_revision, 1);
    assert_eq!(first.diff.unwrap(), preview);
    let placed = |state: &jaco_state::State| state.replicas_desired.len() == 2;
    until(&node, "two replicas are placed", placed).await;

    let route = v1::GetRouteRequest {
        domain: "shop.test".to_owned(),
    };
    let route = local.deploy().get_route(route).await.unwrap().into_inner();
    assert_eq!(route.routes.len(), 1);
    assert_eq!(
        (
            route.routes[0].ready_replicas,
            route.routes[0].total_replicas
        ),
        (0, 2)
    );

    let again = local.dry_run(ROUTED, WEB).await.unwrap();
    assert_eq!(again.applied_revision, 1);
    let nothing = v1::Diff::default();
    assert_eq!(again.diff.unwrap(), nothing);

    let newer = WEB.replace("nginx:1", "nginx:2");
    let second = local.apply(ROUTED, &newer).await.unwrap();
    assert_eq!(second.applied_revision, 2);
    assert!(!second.diff.unwrap().updates.is_empty());

    let name = || "shop".to_owned();
    let back = v1::RollbackRequest { deployment: name() };
    let back = local.deploy().rollback(back).await.unwrap().into_inner();
    assert_eq!(back.revision, 1);
    let shop = state(&node).deployments["shop"].clone();
    assert_eq!(shop.compose_yaml, WEB.as_bytes());
    assert_eq!(
        local.apply(ROUTED, &newer).await.unwrap().applied_revision,
        3
    );

    let delete = v1::DeleteRequest { deployment: name() };
    local.deploy().delete(delete.clone()).await.unwrap();
    let state = state(&node);
    assert!(state.deployments.is_empty() && state.routes.is_empty());
    assert!(state.replicas_desired.is_empty());
    local.deploy().delete(delete).await.unwrap(); // a second delete succeeds
    let gone = v1::RollbackRequest { deployment: name() };
    let gone = local.deploy().rollback(gone).await.unwrap_err();
    assert_eq!(gone.message(), "deployment_not_found");
    node.stop().await;
}

#[tokio::test]
async fn bad_manifest_is_refused_and_changes_nothing() {
    let lab = Lab::new();
    let (node, _) = lab.bootstrapped().await;
    let before = state(&node);
    let table = [
        ("deployment: [", WEB, "parse_failed", None),
        (
            "{}",
            WEB,
            "validation_failed",
            Some(("field", "deployment")),
        ),
        (
            "{deployment: d, services: [{name: nope}]}",
            WEB,
            "unknown_service",
            Some(("service", "nope")),
        ),
        (
            "{deployment: d, services: [{name: web, placement: hosts, hosts: [mars]}]}",
            WEB,
            "unknown_host",
            Some(("host", "mars")),
        ),
        (
            "deployment: d",
            "services: {web: {image: a, networks: [x]}}",
            "unknown_network",
            Some(("network", "x")),
        ),
        (
            "deployment: d",
            "services: {web: {image: a, ports: ['80:80']}}",
            "reserved_port",
            Some(("service", "web")),
        ),
    ];
    for (jaco, compose, code, detail) in table {
        for refused in [
            lab.local().apply(jaco, compose).await,
            lab.local().dry_run(jaco, compose).await,
        ] {
            let refused = refused.expect_err(&format!("{jaco} {compose}"));
            assert_eq!(refused.code, code, "{jaco} {refused:?}");
            if let Some((key, value)) = detail {
                assert_eq!(
                    refused.details.get(key).map(String::as_str),
                    Some(value),
                    "{refused:?}"
                );
            }
        }
    }
    let after = state(&node);
    assert_eq!(after.deployments, before.deployments);
    assert_eq!(after.audit, before.audit);
    node.stop().await;
}

#[tokio::test]
async fn route_of_another_deployment_is_refused() {
    let lab = Lab::new();
    let (node, _) = lab.bootstrapped().await;
    lab.local().apply(ROUTED, WEB).await.unwrap();
    let thief = ROUTED.replace("deployment: shop", "deployment: thief");
    let refused = lab.local().apply(&thief, WEB).await.unwrap_err();
    assert_eq!(refused.code, "route_conflict");
    assert_eq!(refused.details["deployment"], "shop");
    node.stop().await;
}

#[tokio::test]
async fn each_concurrent_apply_gets_its_own_revision() {
    let lab = Lab::new();
    let (node, token) = lab.bootstrapped().await;
    let clients = [lab.local(), lab.pinned(Some(&token))];
    let applies = (0..24).map(|i| {
        let client = clients[i % 2].clone();
        async move {
            let compose = WEB.replace("nginx:1", &format!("nginx:{i}"));
            let applied = client.apply("deployment: d", &compose).await.unwrap();
            (applied.applied_revision, compose)
        }
    });
    let applied = futures::future::join_all(applies).await;
    let revisions: BTreeSet<u64> = applied.iter().map(|(revision, _)| *revision).collect();
    assert_eq!(revisions, (1..=24).collect());
    let (_, last) = applied.into_iter().max().unwrap();
    let stored = state(&node).deployments["d"].clone();
    assert_eq!(
        (stored.applied_revision, stored.compose_yaml.clone()),
        (24, last.into_bytes())
    );
    node.stop().await;
}

#[tokio::test]
async fn reads_carry_their_index_and_can_be_linearizable() {
    let lab = Lab::new();
    let (node, token) = lab.bootstrapped().await;
    for client in [lab.local(), lab.pinned(Some(&token))] {
        client.apply("deployment: d", WEB).await.unwrap();
        let written = state(&node).deployments["d"].applied_revision;
        let mut request = Request::new(v1::DeployStatusRequest::default());
        let value = "linearizable".parse().unwrap();
        request.metadata_mut().insert("jaco-read", value);
        let index_before = state(&node).applied_index;
        let response = client.deploy().status(request).await.unwrap();
        let index = response.metadata().get("jaco-applied-index").unwrap();
        let index: u64 = index.to_str().unwrap().parse().unwrap();
        assert!(index >= index_before);
        assert_eq!(
            response.into_inner().deployments[0].applied_revision,
            written
        );

        let mut request = Request::new(v1::DeployStatusRequest::default());
        let value = "roughly".parse().unwrap();
        request.metadata_mut().insert("jaco-read", value);
        let refused = client.deploy().status(request).await.unwrap_err();
        let refused = DecodedError::from(refused);
        assert_eq!(refused.code, "validation_failed");
        assert_eq!(refused.details["field"], "jaco-read");
    }
    node.stop().await;
}

#[tokio::test]
async fn logs_fail_for_unknown_names_or_missing_engine() {
    let lab = Lab::new();
    let (node, _) = lab.bootstrapped().await;
    lab.local().apply(ROUTED, WEB).await.unwrap();
    let logs = |deployment: &str, service: &str| {
        let request = v1::LogsRequest {
            deployment: deployment.to_owned(),
            service: service.to_owned(),
            ..Default::default()
        };
        let client = lab.local();
        async move {
            let mut lines = client.deploy().logs(request).await?.into_inner();
            while lines.message().await?.is_some() {}
            Ok::<(), DecodedError>(())
        }
    };
    let unknown = logs("nope", "").await.unwrap_err();
    assert_eq!(unknown.code, "deployment_not_found");
    assert_eq!(unknown.details["deployment"], "nope");
    let unknown = logs("shop", "nope").await.unwrap_err();
    assert_eq!(unknown.code, "unknown_service");
    assert_eq!(unknown.details["service"], "nope");
    let unavailable = logs("shop", "web").await.unwrap_err();
    assert_eq!(unavailable.code, "logs_unavailable");
    assert_eq!(unavailable.details["host"], "one");
    node.stop().await;
}

#[tokio::test]
async fn empty_names_are_refused_as_invalid() {
    let lab = Lab::new();
    let (_node, _) = lab.bootstrapped().await;
    let (deploy, cluster, tokens) = {
        let local = lab.local();
        (local.deploy(), local.cluster(), local.tokens())
    };
    let refusals = [
        (
            "deployment",
            deploy
                .clone()
                .rollback(v1::RollbackRequest::default())
                .await
                .err(),
        ),
        (
            "deployment",
            deploy
                .clone()
                .delete(v1::DeleteRequest::default())
                .await
                .err(),
        ),
        (
            "deployment",
            deploy.clone().logs(v1::LogsRequest::default()).await.err(),
        ),
        (
            "domain",
            deploy
                .clone()
                .get_route(v1::GetRouteRequest::default())
                .await
                .err(),
        ),
        (
            "hostname",
            cluster
                .clone()
                .node_remove(v1::NodeRemoveRequest::default())
                .await
                .err(),
        ),
        (
            "path",
            cluster
                .clone()
                .kill_actor(v1::KillActorRequest::default())
                .await
                .err(),
        ),
        (
            "identity",
            tokens
                .clone()
                .revoke(v1::TokenRevokeRequest::default())
                .await
                .err(),
        ),
        (
            "identity",
            tokens
                .clone()
                .issue(v1::TokenIssueRequest::default())
                .await
                .err(),
        ),
    ];
    for (field, status) in refusals {
        let error = DecodedError::from_status(&status.expect("it is refused"));
        assert_eq!(error.code, "validation_failed", "{error}");
        assert_eq!(error.details["field"], field, "{error}");
    }
}
