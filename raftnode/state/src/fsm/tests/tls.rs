use super::*;

fn route(deployment: &str, domain: &str, path: &str, tls_auto: bool) -> v1::Route {
    v1::Route {
        domain: domain.into(),
        path: path.into(),
        deployment: deployment.into(),
        service: "web".into(),
        tls_auto,
        ..Default::default()
    }
}

fn deploy(revision: u64, routes: Vec<v1::Route>) -> Payload {
    Payload::DeploymentApply(v1::DeploymentApply {
        deployment: "shop".into(),
        revision,
        routes,
        ..Default::default()
    })
}

fn set(domain: &str, tls_auto: bool) -> Payload {
    Payload::RouteTlsOverrideSet(v1::RouteTlsOverrideSet {
        r#override: Some(v1::RouteTlsOverride {
            deployment: "shop".into(),
            domain: domain.into(),
            tls_auto,
            by: "tester".into(),
            at: None,
        }),
    })
}

fn remove(domain: &str) -> Payload {
    Payload::RouteTlsOverrideRemove(v1::RouteTlsOverrideRemove {
        deployment: "shop".into(),
        domain: domain.into(),
    })
}

fn toggled(domain: &str, tls: &str) -> Vec<Audit> {
    let payload = [("deployment", "shop"), ("domain", domain), ("tls", tls)];
    audit(AuditEventType::TlsToggled, &payload)
}

/// Whether each route asks for TLS, by domain and path.
fn tls(state: &State) -> Vec<(&str, &str, bool)> {
    let routes = state.routes.values();
    routes
        .map(|route| (&*route.domain, &*route.path, state.is_tls_auto(route)))
        .collect()
}

#[test]
fn override_decides_for_all_paths_of_its_domain() {
    let mut test = TestState::new();
    test.ok(deploy(
        1,
        vec![
            route("shop", "a.example", "", false),
            route("shop", "a.example", "/x", false),
            route("shop", "b.example", "", true),
        ],
    ));
    let applied = test.ok(set("a.example", true));
    assert_eq!(audits(&applied), toggled("a.example", "auto"));
    assert_eq!(
        kinds(&applied),
        ["added route_tls_overrides", "added audit"]
    );
    assert_eq!(
        tls(&test.state),
        [
            ("a.example", "", true),
            ("a.example", "/x", true),
            ("b.example", "", true)
        ]
    );
    let row = &test.state.route_tls_overrides[&("shop".into(), "a.example".into())];
    assert_eq!(row.at, Some(at(START)));

    test.now += 9;
    test.no_change(set("a.example", true));
    let applied = test.ok(set("b.example", false));
    assert_eq!(audits(&applied), toggled("b.example", "off"));
    let applied = test.ok(remove("b.example"));
    assert_eq!(audits(&applied), toggled("b.example", "auto"));
    test.no_change(remove("b.example"));
    // The routes themselves stay what the manifest says.
    assert!(!test.state.routes[&("a.example".into(), String::new())].tls_auto);
}

#[test]
fn override_needs_a_route_of_the_deployment() {
    let mut test = TestState::new();
    test.ok(deploy(1, vec![route("shop", "a.example", "", false)]));
    test.ok(Payload::DeploymentApply(v1::DeploymentApply {
        deployment: "other".into(),
        revision: 1,
        routes: vec![route("other", "b.example", "", false)],
        ..Default::default()
    }));
    for domain in ["b.example", "c.example", ""] {
        let error = test.rejected(set(domain, true), ErrorCode::RouteNotFound);
        assert_eq!(error.details["domain"], domain);
    }
    let none = v1::RouteTlsOverrideSet { r#override: None };
    test.rejected(
        Payload::RouteTlsOverrideSet(none),
        ErrorCode::ValidationFailed,
    );
}

#[test]
fn override_ends_with_the_routes_of_its_domain() {
    let mut test = TestState::new();
    let routes = |domains: &[&str]| {
        let routes = domains.iter().map(|name| route("shop", name, "", false));
        routes.collect::<Vec<_>>()
    };
    test.ok(deploy(1, routes(&["a.example", "b.example"])));
    test.ok(set("a.example", true));
    test.ok(set("b.example", true));
    test.ok(deploy(2, routes(&["b.example"])));
    let keys: Vec<_> = test.state.route_tls_overrides.keys().collect();
    assert_eq!(keys, [&("shop".to_owned(), "b.example".to_owned())]);
    // The domain begins again as its manifest says.
    test.ok(deploy(3, routes(&["a.example", "b.example"])));
    assert_eq!(
        tls(&test.state),
        [("a.example", "", false), ("b.example", "", true)]
    );
    test.ok(Payload::DeploymentDelete(v1::DeploymentDelete {
        deployment: "shop".into(),
    }));
    assert!(test.state.route_tls_overrides.is_empty());
}

#[test]
fn apply_with_the_same_tls_drops_the_override() {
    let mut test = TestState::new();
    test.ok(deploy(1, vec![route("shop", "a.example", "", false)]));
    test.ok(set("a.example", true));
    let children = [
        deploy(2, vec![route("shop", "a.example", "", true)]),
        remove("a.example"),
    ];
    let children = children.map(|payload| test.command(payload));
    let command = batch("tester", at(test.now), children.into());
    let applied = test.run(&command);
    assert_eq!(applied.result, Ok(()));
    let kinds: Vec<_> = audits(&applied).into_iter().map(|audit| audit.0).collect();
    assert_eq!(kinds, [AuditEventType::Apply]);
    assert_eq!(tls(&test.state), [("a.example", "", true)]);
    assert!(test.state.route_tls_overrides.is_empty());
}

fn import(name: &str, sealed_key: &[u8], not_after: Option<i64>) -> Payload {
    Payload::ImportedCertUpsert(v1::ImportedCertUpsert {
        cert: Some(v1::ImportedCert {
            name: name.into(),
            chain_pem: b"chain".to_vec(),
            sealed_key: sealed_key.to_vec(),
            not_after: not_after.map(at),
            ..Default::default()
        }),
    })
}

#[test]
fn imported_certificate_is_replaced_and_removed_by_name() {
    let mut test = TestState::new();
    let applied = test.ok(import("*.example", b"one", Some(86_400)));
    let payload = [
        ("domain", "*.example"),
        ("not_after", "1970-01-02T00:00:00Z"),
    ];
    let wanted = audit(AuditEventType::CertificateImported, &payload);
    assert_eq!(audits(&applied), wanted);
    // Sealed anew, it is not imported again.
    let applied = test.ok(import("*.example", b"two", Some(86_400)));
    assert_eq!(audits(&applied), []);
    assert_eq!(kinds(&applied), ["updated imported_certs"]);
    let row = test.state.imported_certs["*.example"].clone();
    assert_eq!(row.sealed_key, b"two");
    assert_eq!(row.imported_at, Some(at(START)));

    for (name, key, not_after) in [
        ("", &b"key"[..], Some(1)),
        ("a.example", b"", Some(1)),
        ("a.example", b"key", None),
    ] {
        test.rejected(import(name, key, not_after), ErrorCode::ValidationFailed);
    }
    let remove =
        |name: &str| Payload::ImportedCertRemove(v1::ImportedCertRemove { name: name.into() });
    let applied = test.ok(remove("*.example"));
    let wanted = audit(
        AuditEventType::CertificateRemoved,
        &[("domain", "*.example")],
    );
    assert_eq!(audits(&applied), wanted);
    let error = test.rejected(remove("*.example"), ErrorCode::CertNotFound);
    assert_eq!(error.details["name"], "*.example");
}

#[test]
fn events_of_imported_certificates_have_no_key() {
    let mut test = TestState::new();
    let applied = test.ok(import("a.example", b"sealed", Some(86_400)));
    let wire = applied.events[0].to_wire();
    let Some(v1::subscribe_event::Payload::ImportedCert(event)) = wire.payload else {
        panic!("{wire:?}");
    };
    let after = event.after.unwrap();
    assert_eq!((&*after.name, after.sealed_key.len()), ("a.example", 0));
    assert_eq!(after.chain_pem, b"chain");
}
