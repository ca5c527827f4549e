use jaco_proto::v1::{DeploymentStatus, RolloutState};

use super::*;

fn route(domain: &str, path: &str, deployment: &str) -> v1::Route {
    v1::Route {
        domain: domain.into(),
        path: path.into(),
        deployment: deployment.into(),
        service: "web".into(),
        port: 80,
        ..Default::default()
    }
}

fn port(published_port: i32, deployment: &str) -> v1::TcpRoute {
    v1::TcpRoute {
        published_port,
        deployment: deployment.into(),
        service: "db".into(),
        container_port: 5432,
        ..Default::default()
    }
}

fn revision(name: &str, revision: u64, services: &[&str]) -> v1::DeploymentApply {
    v1::DeploymentApply {
        deployment: name.into(),
        revision,
        jaco_yaml: format!("jaco {revision}").into_bytes(),
        compose_yaml: format!("compose {revision}").into_bytes(),
        services: services
            .iter()
            .map(|name| v1::ServiceSpec {
                name: (*name).into(),
                replicas: 1,
                ..Default::default()
            })
            .collect(),
        acme_email: format!("r{revision}@example"),
        networks: vec![v1::NetworkSpec {
            name: format!("r{revision}"),
            internal: true,
        }],
        ..Default::default()
    }
}

fn plan(deployment: &str, service: &str) -> Payload {
    Payload::RolloutPlanUpdate(v1::RolloutPlanUpdate {
        plan: Some(v1::RolloutPlan {
            deployment: deployment.into(),
            service: service.into(),
            state: RolloutState::InProgress.into(),
            ..Default::default()
        }),
    })
}

fn rollback(deployment: &str, revision: u64) -> Payload {
    Payload::DeploymentRollback(v1::DeploymentRollback {
        deployment: deployment.into(),
        revision,
        ..Default::default()
    })
}

fn delete(deployment: &str) -> Payload {
    Payload::DeploymentDelete(v1::DeploymentDelete {
        deployment: deployment.into(),
    })
}

fn routes(state: &State) -> Vec<(&str, &str)> {
    state
        .routes
        .keys()
        .map(|(domain, path)| (domain.as_str(), path.as_str()))
        .collect()
}

#[test]
fn apply_replaces_content_and_keeps_the_previous() {
    let mut test = TestState::new();
    let mut first = revision("shop", 1, &["web", "db"]);
    first.routes = vec![
        route("a.example", "", "shop"),
        route("a.example", "/x", "shop"),
    ];
    first.tcp_routes = vec![port(5432, "shop"), port(5433, "shop")];
    let applied = test.ok(Payload::DeploymentApply(first));
    let wanted = [("deployment", "shop"), ("revision", "1")];
    assert_eq!(audits(&applied), audit(AuditEventType::Apply, &wanted));
    let d = applied.state.deployments["shop"].clone();
    assert_eq!(
        (d.applied_revision, d.previous_revision, d.highest_revision),
        (1, 0, 1)
    );
    assert_eq!(
        (d.status(), d.previous.clone()),
        (DeploymentStatus::Active, None)
    );

    test.ok(plan("shop", "web"));
    test.ok(plan("shop", "db"));
    test.ok(Payload::DeploymentStatusUpdate(
        v1::DeploymentStatusUpdate {
            deployment: "shop".into(),
            status: DeploymentStatus::Pending.into(),
            details: [("reason".to_owned(), "no host".to_owned())].into(),
        },
    ));
    let mut second = revision("shop", 2, &["web"]);
    second.routes = vec![
        route("a.example", "/x", "shop"),
        route("b.example", "", "shop"),
    ];
    second.tcp_routes = vec![port(5433, "shop")];
    let applied = test.ok(Payload::DeploymentApply(second));
    assert_eq!(
        kinds(&applied),
        [
            "removed rollout_plans",
            "updated deployments",
            "removed routes",
            "added routes",
            "removed tcp_routes",
            "added audit"
        ]
    );
    let d = applied.state.deployments["shop"].clone();
    assert_eq!(
        (d.applied_revision, d.previous_revision, d.highest_revision),
        (2, 1, 2)
    );
    assert_eq!(
        (d.status(), d.status_details.len()),
        (DeploymentStatus::Active, 0)
    );
    let previous = d.previous.clone().unwrap();
    assert_eq!(
        (previous.revision, previous.jaco_yaml.as_slice()),
        (1, &b"jaco 1"[..])
    );
    assert_eq!((previous.routes.len(), previous.tcp_routes.len()), (2, 2));
    assert_eq!(
        routes(&applied.state),
        [("a.example", "/x"), ("b.example", "")]
    );
    assert!(applied.state.tcp_routes.keys().eq([&(5433, 0)]));
}

#[test]
fn revision_must_exceed_all_earlier_ones() {
    let mut test = TestState::new();
    test.rejected(
        Payload::DeploymentApply(revision("shop", 0, &[])),
        ErrorCode::RaftApplyFailed,
    );
    test.ok(Payload::DeploymentApply(revision("shop", 1, &[])));
    test.ok(Payload::DeploymentApply(revision("shop", 2, &[])));
    test.ok(rollback("shop", 1));
    let stale = Payload::DeploymentApply(revision("shop", 2, &[]));
    let error = test.rejected(stale, ErrorCode::RaftApplyFailed);
    assert_eq!(
        error.details["reason"],
        super::super::reject::STALE_REVISION
    );
    assert_eq!(error.details["outcome"], "rejected");
    test.ok(Payload::DeploymentApply(revision("shop", 3, &[])));
}

#[test]
fn ports_and_routes_have_one_owner() {
    let mut test = TestState::new();
    let mut shop = revision("shop", 1, &[]);
    shop.tcp_routes = vec![port(5432, "shop")];
    shop.routes = vec![route("a.example", "", "shop")];
    test.ok(Payload::DeploymentApply(shop));

    let mut blog = revision("blog", 1, &[]);
    blog.tcp_routes = vec![port(5432, "blog")];
    let error = test.rejected(
        Payload::DeploymentApply(blog.clone()),
        ErrorCode::PortConflict,
    );
    assert_eq!(
        (
            error.details["port"].as_str(),
            error.details["owner"].as_str()
        ),
        ("5432", "shop")
    );
    blog.tcp_routes = vec![port(1, "blog"), port(1, "blog")];
    test.rejected(
        Payload::DeploymentApply(blog.clone()),
        ErrorCode::PortConflict,
    );
    blog.tcp_routes = vec![port(70_000, "blog")];
    test.rejected(
        Payload::DeploymentApply(blog.clone()),
        ErrorCode::ValidationFailed,
    );
    blog.tcp_routes = vec![port(1, "shop")];
    test.rejected(
        Payload::DeploymentApply(blog.clone()),
        ErrorCode::ValidationFailed,
    );
    let of_protocol = |protocol| v1::TcpRoute {
        protocol,
        ..port(5432, "blog")
    };
    blog.tcp_routes = vec![of_protocol(2)];
    test.rejected(
        Payload::DeploymentApply(blog.clone()),
        ErrorCode::ValidationFailed,
    );
    let udp = v1::TransportProtocol::Udp.into();
    blog.tcp_routes = vec![of_protocol(udp), of_protocol(udp)];
    test.rejected(
        Payload::DeploymentApply(blog.clone()),
        ErrorCode::PortConflict,
    );

    blog.tcp_routes.clear();
    blog.routes = vec![
        route("a.example", "/blog", "blog"),
        route("a.example", "", "blog"),
    ];
    let error = test.rejected(
        Payload::DeploymentApply(blog.clone()),
        ErrorCode::RouteConflict,
    );
    let details = ["domain", "path", "deployment"].map(|key| error.details[key].as_str());
    assert_eq!(details, ["a.example", "", "shop"]);
    let upsert = |deployment: &str| {
        Payload::RouteUpsert(v1::RouteUpsert {
            route: Some(route("a.example", "", deployment)),
        })
    };
    test.rejected(upsert("blog"), ErrorCode::RouteConflict);
    test.ok(upsert("shop"));
    blog.routes.truncate(1);
    test.ok(Payload::DeploymentApply(blog));
    let owners = test.state.routes.values().map(|route| &*route.deployment);
    assert!(owners.eq(["shop", "blog"]));
}

#[test]
fn rollback_to_a_taken_route_is_rejected() {
    let mut test = TestState::new();
    let mut first = revision("shop", 1, &[]);
    first.routes = vec![route("a.example", "", "shop")];
    test.ok(Payload::DeploymentApply(first));
    test.ok(Payload::DeploymentApply(revision("shop", 2, &[])));
    let mut blog = revision("blog", 1, &[]);
    blog.routes = vec![route("a.example", "", "blog")];
    test.ok(Payload::DeploymentApply(blog));
    let error = test.rejected(rollback("shop", 1), ErrorCode::RouteConflict);
    assert_eq!(error.details["deployment"], "blog");
    assert_eq!(test.state.deployments["shop"].applied_revision, 2);
}

#[test]
fn rollback_of_a_failed_rollout_is_recorded() {
    let mut test = TestState::new();
    test.ok(Payload::DeploymentApply(revision("shop", 1, &[])));
    test.ok(Payload::DeploymentApply(revision("shop", 2, &[])));
    let failed = v1::DeploymentRollback {
        deployment: "shop".into(),
        revision: 1,
        failure_reason: "web-0: no such image".into(),
    };
    let failure = |test: &TestState| {
        let shop = &test.state.deployments["shop"];
        (shop.failed_revision, shop.failure_reason.clone())
    };
    test.ok(Payload::DeploymentRollback(failed));
    assert_eq!(failure(&test), (2, "web-0: no such image".to_owned()));
    // Neither an operator's rollback nor another revision has failed.
    test.ok(rollback("shop", 2));
    assert_eq!(failure(&test), (0, String::new()));
    test.ok(Payload::DeploymentApply(revision("shop", 3, &[])));
    assert_eq!(failure(&test), (0, String::new()));
}

#[test]
fn rollback_swaps_both_revisions() {
    let mut test = TestState::new();
    let mut first = revision("shop", 1, &["web"]);
    first.routes = vec![route("a.example", "", "shop")];
    first.tcp_routes = vec![port(5432, "shop")];
    test.ok(Payload::DeploymentApply(first));
    let old = test.state.clone();
    let mut second = revision("shop", 2, &["api"]);
    second.routes = vec![route("b.example", "", "shop")];
    test.ok(Payload::DeploymentApply(second));
    let new = test.state.clone();
    test.ok(plan("shop", "api"));

    test.now += 60;
    let applied = test.ok(rollback("shop", 1));
    let d = applied.state.deployments["shop"].clone();
    let was = old.deployments["shop"].clone();
    assert_eq!(
        (d.applied_revision, d.previous_revision, d.highest_revision),
        (1, 2, 2)
    );
    assert_eq!(
        (&d.jaco_yaml, &d.compose_yaml),
        (&was.jaco_yaml, &was.compose_yaml)
    );
    assert_eq!(
        (&d.services, &d.acme_email, &d.networks),
        (&was.services, &was.acme_email, &was.networks)
    );
    assert_eq!(d.updated_at, Some(at(START + 60)));
    assert_eq!(d.applied_raft_index, applied.state.applied_index);
    assert!(was.applied_raft_index > 0 && was.applied_raft_index < d.applied_raft_index);
    assert_eq!(
        (&applied.state.routes, &applied.state.tcp_routes),
        (&old.routes, &old.tcp_routes)
    );
    assert!(applied.state.rollout_plans.is_empty());
    let wanted = [("deployment", "shop"), ("revision", "1")];
    assert_eq!(audits(&applied), audit(AuditEventType::Rollback, &wanted));

    let back = test.ok(rollback("shop", 0));
    let wanted = [("deployment", "shop"), ("revision", "2")];
    assert_eq!(audits(&back), audit(AuditEventType::Rollback, &wanted));
    assert_eq!(
        back.state.deployments["shop"].jaco_yaml,
        new.deployments["shop"].jaco_yaml
    );
    assert_eq!(
        (&back.state.routes, &back.state.tcp_routes),
        (&new.routes, &new.tcp_routes)
    );
}

#[test]
fn rollback_needs_previous_revision_and_free_ports() {
    let mut test = TestState::new();
    test.rejected(rollback("shop", 0), ErrorCode::DeploymentNotFound);
    let mut first = revision("shop", 1, &[]);
    first.tcp_routes = vec![port(5432, "shop")];
    test.ok(Payload::DeploymentApply(first));
    test.rejected(rollback("shop", 0), ErrorCode::NoPreviousRevision);
    test.ok(Payload::DeploymentApply(revision("shop", 2, &[])));
    test.rejected(rollback("shop", 7), ErrorCode::RaftApplyFailed);

    let mut blog = revision("blog", 1, &[]);
    blog.tcp_routes = vec![port(5432, "blog")];
    test.ok(Payload::DeploymentApply(blog));
    test.rejected(rollback("shop", 1), ErrorCode::PortConflict);
}

#[test]
fn delete_removes_dependent_rows_and_keeps_counters() {
    let mut test = TestState::new();
    for name in ["shop", "blog"] {
        let mut apply = revision(name, 1, &["web"]);
        apply.routes = vec![route(&format!("{name}.example"), "", name)];
        apply.tcp_routes = vec![port(if name == "shop" { 1 } else { 2 }, name)];
        test.ok(Payload::DeploymentApply(apply));
        test.ok(plan(name, "web"));
        test.ok(Payload::SubnetAllocate(v1::SubnetAllocate {
            deployment: name.into(),
            network: "default".into(),
            cidr: format!("{name}/24"),
            host: "a".into(),
        }));
        test.ok(Payload::ReplicaCounterIncrement(
            v1::ReplicaCounterIncrement {
                deployment: name.into(),
                service: "web".into(),
            },
        ));
    }
    let raft_index = test.desired("shop-web-1", "a", "");
    test.ok(Payload::ReplicaObservedUpdate(v1::ReplicaObservedUpdate {
        replica: Some(v1::ReplicaObserved {
            id: "shop-web-1".into(),
            host: "a".into(),
            state: v1::ReplicaState::Running.into(),
            desired_raft_index: raft_index,
            ..Default::default()
        }),
    }));
    test.ok(Payload::RestartCounterUpdate(v1::RestartCounterUpdate {
        replica_id: "shop-web-1".into(),
        action: v1::restart_counter_update::Action::Increment.into(),
    }));

    let applied = test.ok(delete("shop"));
    assert_eq!(
        kinds(&applied),
        [
            "removed routes",
            "removed tcp_routes",
            "removed replicas_desired",
            "removed replicas_observed",
            "removed restart_counters",
            "removed rollout_plans",
            "removed subnets",
            "removed deployments",
            "added audit"
        ]
    );
    let (audit_event, rest) = applied.events.split_last().unwrap();
    assert_eq!(audit_event.deployment, None);
    assert!(rest.iter().all(|e| e.deployment.as_deref() == Some("shop")));
    assert_eq!(
        audits(&applied),
        audit(AuditEventType::Delete, &[("deployment", "shop")])
    );
    assert_eq!(applied.state.replica_counters.len(), 2);
    assert!(applied.state.deployments.keys().eq(["blog"]));
    assert_eq!(
        (applied.state.routes.len(), applied.state.subnets.len()),
        (1, 1)
    );

    let again = test.ok(delete("shop"));
    assert_eq!(
        audits(&again),
        audit(AuditEventType::Delete, &[("deployment", "shop")])
    );
}

#[test]
fn repeated_deployment_status_makes_no_event() {
    let mut test = TestState::new();
    let pending = Payload::DeploymentStatusUpdate(v1::DeploymentStatusUpdate {
        deployment: "shop".into(),
        status: DeploymentStatus::Pending.into(),
        details: [("reason".to_owned(), "no host".to_owned())].into(),
    });
    test.no_change(pending.clone());
    test.ok(Payload::DeploymentApply(revision("shop", 1, &[])));
    test.ok(pending.clone());
    assert_eq!(
        test.state.deployments["shop"].status(),
        DeploymentStatus::Pending
    );
    assert_eq!(
        test.state.deployments["shop"].status_details["reason"],
        "no host"
    );
    test.no_change(pending);
    test.rejected(
        Payload::DeploymentStatusUpdate(v1::DeploymentStatusUpdate {
            deployment: "shop".into(),
            ..Default::default()
        }),
        ErrorCode::ValidationFailed,
    );
}

#[test]
fn single_routes_are_removed_by_domain() {
    let mut test = TestState::new();
    for (domain, path) in [("a.example", ""), ("a.example", "/x"), ("b.example", "")] {
        test.ok(Payload::RouteUpsert(v1::RouteUpsert {
            route: Some(route(domain, path, "shop")),
        }));
    }
    let remove = Payload::RouteRemove(v1::RouteRemove {
        domain: "a.example".into(),
    });
    let applied = test.ok(remove.clone());
    assert_eq!(kinds(&applied), ["removed routes", "removed routes"]);
    assert_eq!(routes(&applied.state), [("b.example", "")]);
    test.no_change(remove);
    test.rejected(
        Payload::RouteUpsert(v1::RouteUpsert { route: None }),
        ErrorCode::ValidationFailed,
    );
    test.rejected(
        Payload::RouteUpsert(v1::RouteUpsert {
            route: Some(route("", "/", "shop")),
        }),
        ErrorCode::ValidationFailed,
    );
}
