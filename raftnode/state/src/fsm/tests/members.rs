use jaco_proto::{mark, v1::NodeStatus};

use super::*;

fn join(hostname: &str, raft_id: u64) -> Payload {
    Payload::NodeJoin(v1::NodeJoin {
        hostname: hostname.into(),
        address: format!("{hostname}:7947"),
        raft_id,
        ..Default::default()
    })
}

fn status(hostname: &str, status: NodeStatus, reason: &str) -> v1::NodeStatusUpdate {
    v1::NodeStatusUpdate {
        hostname: hostname.into(),
        status: status.into(),
        details: [("reason".to_owned(), reason.to_owned())].into(),
        ..Default::default()
    }
}

#[test]
fn init_creates_cluster_token_and_member_once() {
    let mut test = TestState::new();
    let init = v1::ClusterInit {
        cluster_id: "c-1".into(),
        ca_cert: b"cert".to_vec(),
        ca_key: b"key".to_vec(),
        operator_token_hashed_secret: b"hash".to_vec(),
        self_hostname: "a".into(),
        self_address: "a:7947".into(),
        cluster_name: "home".into(),
        self_raft_id: 1,
        self_server_cert_fingerprint: b"fp".to_vec(),
        self_grpc_address: "a:7946".into(),
        ipam_pool: "10.128.0.0/12".into(),
        ipam_block: 26,
    };
    let applied = test.ok(Payload::ClusterInit(init.clone()));

    let meta = applied.state.cluster.clone().unwrap();
    assert_eq!(
        (meta.cluster_id.as_str(), meta.cluster_name.as_str()),
        ("c-1", "home")
    );
    assert_eq!(
        (meta.ipam_pool.as_str(), meta.ipam_block),
        ("10.128.0.0/12", 26)
    );
    assert_eq!((meta.next_raft_id, meta.created_at), (2, Some(at(START))));
    let node = &applied.state.nodes["a"];
    assert_eq!((node.status(), node.raft_id), (NodeStatus::Ready, 1));
    assert_eq!(
        (node.address.as_str(), node.grpc_address.as_str()),
        ("a:7947", "a:7946")
    );
    assert_eq!(node.server_cert_fingerprint, b"fp");
    let token = &applied.state.tokens["bootstrap"];
    assert_eq!(
        (token.hashed_secret.as_slice(), token.allows_privileged),
        (&b"hash"[..], false)
    );
    let wanted = [("cluster_id", "c-1"), ("hostname", "a")];
    assert_eq!(audits(&applied), audit(AuditEventType::NodeJoin, &wanted));

    let error = test.rejected(
        Payload::ClusterInit(init),
        ErrorCode::ClusterAlreadyInitialized,
    );
    assert_eq!(error.details["cluster_id"], "c-1");
}

#[test]
fn init_without_a_hash_issues_no_token() {
    let mut test = TestState::new();
    test.cluster();
    assert!(test.state.tokens.is_empty());
}

#[test]
fn join_needs_unused_hostname_and_raft_id() {
    let mut test = TestState::new();
    test.cluster();
    let applied = test.ok(join("b", 2));
    let node = &applied.state.nodes["b"];
    assert_eq!(
        (node.status(), node.joined_at),
        (NodeStatus::Joining, Some(at(START)))
    );
    assert_eq!(applied.state.cluster.as_ref().unwrap().next_raft_id, 3);
    assert_eq!(
        audits(&applied),
        audit(AuditEventType::NodeJoin, &[("hostname", "b")])
    );

    test.rejected(join("b", 3), ErrorCode::NodeAlreadyMember);
    test.rejected(join("c", 0), ErrorCode::ValidationFailed);
    test.rejected(join("c\0d", 3), ErrorCode::ValidationFailed);
    test.rejected(join("", 3), ErrorCode::ValidationFailed);
    let error = test.rejected(join("c", 2), ErrorCode::RaftApplyFailed);
    assert_eq!(error.details["reason"], super::super::reject::RAFT_ID_TAKEN);
}

#[test]
fn raft_ids_of_removed_members_are_not_reused() {
    let mut test = TestState::new();
    test.cluster();
    test.ok(join("b", 2));
    test.ok(Payload::NodeRemove(v1::NodeRemove {
        hostname: "b".into(),
    }));
    test.rejected(join("b", 2), ErrorCode::RaftApplyFailed);
    test.ok(join("b", 3));
}

#[test]
fn node_removal_frees_its_subnets_and_locks() {
    let mut test = TestState::new();
    test.cluster();
    test.ok(join("b", 2));
    for (host, cidr) in [("a", "10.1.0.0/24"), ("b", "10.1.1.0/24")] {
        test.ok(Payload::SubnetAllocate(v1::SubnetAllocate {
            deployment: "shop".into(),
            network: "default".into(),
            cidr: cidr.into(),
            host: host.into(),
        }));
        test.ok(Payload::CertLock(v1::CertLock {
            name: format!("issue_cert_{host}.example"),
            lessee: host.into(),
            until: Some(at(START + 300)),
        }));
    }
    test.desired("shop-web-1", "b", "");
    let applied = test.ok(Payload::NodeRemove(v1::NodeRemove {
        hostname: "b".into(),
    }));
    assert_eq!(
        kinds(&applied),
        [
            "removed nodes",
            "removed subnets",
            "updated certs",
            "added audit"
        ]
    );
    assert_eq!(
        deployments_of(&applied.events),
        [None, Some("shop"), None, None]
    );
    assert_eq!(applied.state.certs["issue_cert_b.example"].lessee, "");
    assert_eq!(applied.state.certs["issue_cert_a.example"].lessee, "a");
    assert!(applied.state.replicas_desired.contains_key("shop-web-1"));
    assert_eq!(
        audits(&applied),
        audit(AuditEventType::NodeRemove, &[("hostname", "b")])
    );

    let again = Payload::NodeRemove(v1::NodeRemove {
        hostname: "b".into(),
    });
    let error = test.rejected(again, ErrorCode::NodeNotFound);
    assert_eq!(error.details["hostname"], "b");
}

#[test]
fn status_update_replaces_status_and_details_only() {
    let mut test = TestState::new();
    test.cluster();
    test.ok(Payload::NodeStatusUpdate(status(
        "a",
        NodeStatus::Unhealthy,
        "late",
    )));
    let node = test.state.nodes["a"].clone();
    assert_eq!(
        (node.status(), node.status_details["reason"].as_str()),
        (NodeStatus::Unhealthy, "late")
    );

    test.now += 5;
    test.ok(Payload::NodeStatusUpdate(v1::NodeStatusUpdate {
        hostname: "a".into(),
        cpu_pressure: 0.5,
        memory_pressure: 0.25,
        include_pressure: true,
        drain_mark: 1,
        ..Default::default()
    }));
    let node = test.state.nodes["a"].clone();
    assert_eq!(
        (node.status(), node.status_details["reason"].as_str()),
        (NodeStatus::Unhealthy, "late")
    );
    assert_eq!((node.cpu_pressure, node.memory_pressure), (0.5, 0.25));
    assert_eq!(
        (node.last_pressure_at, node.draining),
        (Some(at(START + 5)), true)
    );

    let mut clear = status("a", NodeStatus::Ready, "ok");
    clear.drain_mark = 2;
    clear.cpu_pressure = 0.9;
    test.ok(Payload::NodeStatusUpdate(clear));
    let node = test.state.nodes["a"].clone();
    assert_eq!(
        (node.status(), node.draining, node.cpu_pressure),
        (NodeStatus::Ready, false, 0.5)
    );
}

#[test]
fn cordon_stays_until_it_is_lifted() {
    let mut test = TestState::new();
    test.cluster();
    let cordon = |cordon_mark| v1::NodeStatusUpdate {
        hostname: "a".into(),
        cordon_mark,
        ..Default::default()
    };
    test.no_change(Payload::NodeStatusUpdate(cordon(mark::CLEAR)));
    for (given, cordoned) in [(mark::SET, true), (mark::CLEAR, false)] {
        let applied = test.ok(Payload::NodeStatusUpdate(cordon(given)));
        let payload = [("cordoned", &*cordoned.to_string()), ("hostname", "a")];
        assert_eq!(
            audits(&applied),
            audit(AuditEventType::NodeCordoned, &payload)
        );
        assert_eq!(test.state.nodes["a"].cordoned, cordoned);
        test.no_change(Payload::NodeStatusUpdate(cordon(given)));
        // Reports of the node leave it as it is.
        for reported in [NodeStatus::Unhealthy, NodeStatus::Ready] {
            test.ok(Payload::NodeStatusUpdate(status("a", reported, "health")));
        }
        assert_eq!(test.state.nodes["a"].cordoned, cordoned);
    }
    let unknown = Payload::NodeStatusUpdate(cordon(3));
    test.rejected(unknown, ErrorCode::ValidationFailed);
}

#[test]
fn drain_settings_live_as_long_as_the_mark() {
    let mut test = TestState::new();
    test.cluster();
    let drain = Some(v1::NodeDrain {
        skip_moves: true,
        ..Default::default()
    });
    let mark = |drain_mark, drain| {
        Payload::NodeStatusUpdate(v1::NodeStatusUpdate {
            hostname: "a".into(),
            drain_mark,
            drain,
            ..Default::default()
        })
    };
    test.no_change(mark(0, drain));
    for (drain_mark, given, expected) in [
        (1, None, None),
        // A forced removal takes over one that waits; a plain one is only a mark again.
        (1, drain, drain),
        (0, None, drain),
        (2, None, None),
        (1, drain, drain),
        (1, None, None),
    ] {
        test.ok(mark(drain_mark, given));
        let node = &test.state.nodes["a"];
        assert_eq!(node.drain, expected, "{drain_mark} {given:?}");
        assert_eq!(node.draining, drain_mark != 2);
    }
}

/// Gives up the drain of `a`, as the leader does; a cluster of several versions does not record it.
fn give_up(recorded: bool) -> Payload {
    let mut update = status("a", NodeStatus::DrainTimeout, "drain_timeout");
    if recorded {
        update.drain = Some(v1::NodeDrain {
            timed_out: true,
            ..Default::default()
        });
    }
    Payload::NodeStatusUpdate(update)
}

fn mark(drain_mark: i32, skip_moves: bool) -> Payload {
    let drain = skip_moves.then_some(v1::NodeDrain {
        skip_moves,
        timed_out: false,
    });
    Payload::NodeStatusUpdate(v1::NodeStatusUpdate {
        hostname: "a".into(),
        drain_mark,
        drain,
        ..Default::default()
    })
}

#[test]
fn status_after_drain_timeout_follows_liveness() {
    use NodeStatus::{DrainTimeout, Offline, Ready, Unhealthy};
    let mut test = TestState::new();
    test.cluster();
    let set = |status| Payload::NodeStatusUpdate(self::status("a", status, "health"));
    let shown = |test: &TestState| {
        let node = &test.state.nodes["a"];
        let timed_out = node.drain.is_some_and(|drain| drain.timed_out);
        (node.status(), node.draining && timed_out)
    };
    test.ok(set(Ready));
    test.ok(mark(mark::SET, false));
    test.ok(give_up(true));
    assert_eq!(shown(&test), (DrainTimeout, true));
    for (written, expected) in [
        (Unhealthy, Unhealthy),
        (Offline, Offline),
        // The node is back.
        (Ready, DrainTimeout),
    ] {
        test.ok(set(written));
        assert_eq!(shown(&test), (expected, true), "{written:?}");
    }
    let node = &test.state.nodes["a"];
    assert_eq!(node.status_details["reason"], "drain_timeout");
    // A repeated request, and a drain that is given up while the node is down.
    test.ok(mark(mark::SET, false));
    test.ok(set(Ready));
    assert_eq!(shown(&test), (Ready, false));
    test.ok(set(Offline));
    test.ok(give_up(true));
    assert_eq!(shown(&test), (Offline, true));
    let node = &test.state.nodes["a"];
    assert_eq!(node.status_details["reason"], "health");
    // A restart of its daemon.
    let mut clear = status("a", Ready, "");
    clear.drain_mark = mark::CLEAR;
    test.ok(Payload::NodeStatusUpdate(clear));
    assert_eq!(shown(&test), (Ready, false));
}

#[test]
fn timeout_of_an_ended_drain_is_ignored() {
    for recorded in [false, true] {
        let mut test = TestState::new();
        test.cluster();
        test.no_change(give_up(recorded));
        test.ok(mark(mark::SET, true));
        test.no_change(give_up(recorded));
        test.ok(mark(mark::CLEAR, false));
        test.no_change(give_up(recorded));
        test.ok(mark(mark::SET, false));
        test.ok(give_up(recorded));
    }
}

#[test]
fn invalid_status_is_rejected_and_unknown_host_ignored() {
    let mut test = TestState::new();
    test.cluster();
    test.no_change(Payload::NodeStatusUpdate(status(
        "z",
        NodeStatus::Ready,
        "",
    )));
    let mut unknown = status("a", NodeStatus::Ready, "");
    unknown.status = 77;
    test.rejected(
        Payload::NodeStatusUpdate(unknown),
        ErrorCode::ValidationFailed,
    );
    let mut mark = status("a", NodeStatus::Ready, "");
    mark.drain_mark = 3;
    test.rejected(Payload::NodeStatusUpdate(mark), ErrorCode::ValidationFailed);
    let mut pressure = status("a", NodeStatus::Ready, "");
    pressure.include_pressure = true;
    pressure.cpu_pressure = f64::NAN;
    test.rejected(
        Payload::NodeStatusUpdate(pressure),
        ErrorCode::ValidationFailed,
    );
}

#[test]
fn isolation_loss_is_audited_once() {
    let mut test = TestState::new();
    test.cluster();
    let lost = status("a", NodeStatus::IsolationUnavailable, "ruleset");
    let applied = test.ok(Payload::NodeStatusUpdate(lost.clone()));
    let wanted = audit(AuditEventType::IsolationUnavailable, &[("hostname", "a")]);
    assert_eq!(audits(&applied), wanted);
    test.no_change(Payload::NodeStatusUpdate(lost));
    let other = status("a", NodeStatus::IsolationUnavailable, "self test");
    assert_eq!(audits(&test.ok(Payload::NodeStatusUpdate(other))), []);
}

#[test]
fn certificate_of_another_member_is_rejected() {
    let mut test = TestState::new();
    test.cluster();
    test.ok(join("b", 2));
    let print = |hostname: &str| {
        Payload::NodeUpdateSelf(v1::NodeUpdateSelf {
            hostname: hostname.into(),
            server_cert_fingerprint: b"fp".to_vec(),
            ..Default::default()
        })
    };
    test.ok(print("a"));
    let error = test.rejected(print("b"), ErrorCode::ValidationFailed);
    assert_eq!(error.details["field"], "server_cert_fingerprint");
    test.ok(print("a"));
}

#[test]
fn self_update_changes_only_set_fields() {
    let mut test = TestState::new();
    test.cluster();
    let before = test.state.nodes["a"].clone();
    test.ok(Payload::NodeUpdateSelf(v1::NodeUpdateSelf {
        hostname: "a".into(),
        version: "0.2.0".into(),
        wg_port: 51820,
        ..Default::default()
    }));
    let wanted = v1::Node {
        version: "0.2.0".into(),
        wg_port: 51820,
        ..v1::Node::clone(&before)
    };
    assert_eq!(*test.state.nodes["a"], wanted);
    test.ok(Payload::NodeUpdateSelf(v1::NodeUpdateSelf {
        hostname: "a".into(),
        wireguard_pubkey: b"wg".to_vec(),
        server_cert_fingerprint: b"fp2".to_vec(),
        grpc_address: "a:1".into(),
        address: "a:2".into(),
        ..Default::default()
    }));
    let wanted = v1::Node {
        wireguard_pubkey: b"wg".to_vec(),
        server_cert_fingerprint: b"fp2".to_vec(),
        grpc_address: "a:1".into(),
        address: "a:2".into(),
        ..wanted
    };
    assert_eq!(*test.state.nodes["a"], wanted);
    let traits = v1::NodeTraits {
        platforms: vec!["linux/amd64".into()],
        ..Default::default()
    };
    test.ok(Payload::NodeUpdateSelf(v1::NodeUpdateSelf {
        hostname: "a".into(),
        traits: Some(traits.clone()),
        ..Default::default()
    }));
    let wanted = v1::Node {
        traits: Some(traits),
        ..wanted
    };
    assert_eq!(*test.state.nodes["a"], wanted);
    test.no_change(Payload::NodeUpdateSelf(v1::NodeUpdateSelf {
        hostname: "z".into(),
        version: "0.2.0".into(),
        ..Default::default()
    }));
}

#[test]
fn join_needs_free_name_and_free_address() {
    let mut test = TestState::new();
    test.cluster();
    test.ok(join("b", 2));
    let taken = |hostname: &str, address: &str| {
        Payload::NodeJoin(v1::NodeJoin {
            hostname: hostname.into(),
            address: address.into(),
            raft_id: 3,
            ..Default::default()
        })
    };
    test.rejected(taken("B", "c:7947"), ErrorCode::NodeAlreadyMember);
    let error = test.rejected(taken("c", "b:7947"), ErrorCode::ValidationFailed);
    assert_eq!(error.details["reason"], "b has it");
    test.ok(taken("c", "c:7947"));
    // Two members that exchange their addresses announce them one after the other.
    for (hostname, address) in [("b", "c:7947"), ("c", "b:7947")] {
        test.ok(Payload::NodeUpdateSelf(v1::NodeUpdateSelf {
            hostname: hostname.into(),
            address: address.into(),
            ..Default::default()
        }));
    }
}
