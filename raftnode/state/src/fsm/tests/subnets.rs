use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::QUARANTINE;

fn allocate(deployment: &str, network: &str, host: &str, cidr: &str) -> Payload {
    Payload::SubnetAllocate(v1::SubnetAllocate {
        deployment: deployment.into(),
        network: network.into(),
        cidr: cidr.into(),
        host: host.into(),
    })
}

fn free(deployment: &str, network: &str, host: &str) -> Payload {
    Payload::SubnetFree(v1::SubnetFree {
        deployment: deployment.into(),
        network: network.into(),
        host: host.into(),
    })
}

/// Blocks in quarantine at the time of the next command.
fn quarantined(test: &TestState) -> Vec<String> {
    let now = at(test.now);
    let freed = test.state.quarantined(&now);
    freed.map(|freed| freed.cidr.clone()).collect()
}

fn quarantine_seconds() -> i64 {
    QUARANTINE.as_secs().cast_signed()
}

#[test]
fn subnet_has_one_holder_and_is_freed_selectively() {
    let mut test = TestState::new();
    test.ok(allocate("shop", "front", "a", "10.0.0.0/24"));
    test.ok(allocate("shop", "front", "a", "10.0.0.0/24"));
    let error = test.rejected(
        allocate("shop", "front", "b", "10.0.0.0/24"),
        ErrorCode::RaftApplyFailed,
    );
    assert_eq!(error.details["reason"], super::super::reject::CIDR_TAKEN);
    assert_eq!(error.details["host"], "a");
    for overlapping in ["10.0.0.0/16", "10.0.0.128/25", "10.0.0.7/24", "0.0.0.0/0"] {
        test.rejected(
            allocate("shop", "front", "b", overlapping),
            ErrorCode::RaftApplyFailed,
        );
    }
    test.rejected(
        allocate("shop", "front", "b", ""),
        ErrorCode::ValidationFailed,
    );
    test.rejected(allocate("shop", "", "b", "x"), ErrorCode::ValidationFailed);
    test.ok(allocate("shop", "front", "b", "10.0.1.0/24"));
    test.ok(allocate("shop", "back", "a", "10.0.2.0/24"));
    test.ok(allocate("blog", "front", "a", "10.0.3.0/24"));

    test.rejected(free("", "", ""), ErrorCode::ValidationFailed);
    test.no_change(free("shop", "front", "c"));
    test.ok(free("shop", "front", "b"));
    assert_eq!(test.state.subnets.len(), 3);
    test.ok(free("shop", "", ""));
    assert!(test.state.subnets.values().all(|s| s.deployment == "blog"));
    test.ok(free("", "", "a"));
    assert!(test.state.subnets.is_empty());
}

#[test]
fn block_in_use_again_is_not_freed() {
    let mut test = TestState::new();
    test.cluster();
    test.ok(allocate("shop", "front", "a", "10.0.0.0/24"));
    test.ok(allocate("shop", "front", "left", "10.0.1.0/24"));
    // The command was decided before this apply.
    test.ok(Payload::DeploymentApply(v1::DeploymentApply {
        deployment: "shop".into(),
        revision: 1,
        ..Default::default()
    }));
    test.no_change(free("shop", "front", "a"));
    test.ok(free("shop", "front", "left"));
    let hosts: Vec<_> = test.state.subnets.values().map(|s| &*s.host).collect();
    assert_eq!(hosts, ["a"]);
}

#[test]
fn shared_block_is_kept_while_it_is_named() {
    let mut test = TestState::new();
    test.cluster();
    let apply = |name: &str, revision: u64, networks: &[&str]| {
        let service = v1::ServiceSpec {
            name: "web".into(),
            networks: networks.iter().map(|name| (*name).to_owned()).collect(),
            ..Default::default()
        };
        Payload::DeploymentApply(v1::DeploymentApply {
            deployment: name.into(),
            revision,
            services: vec![service],
            ..Default::default()
        })
    };
    let delete = |name: &str| {
        Payload::DeploymentDelete(v1::DeploymentDelete {
            deployment: name.into(),
        })
    };
    test.ok(apply("shop", 1, &["_default", "shared/proxy"]));
    test.ok(apply("blog", 1, &["shared/proxy"]));
    test.ok(allocate("shared", "proxy", "a", "10.0.0.0/24"));
    test.no_change(free("shared", "proxy", "a"));
    // No deployment has this name, but clients may ask for anything.
    test.ok(delete("shared"));
    test.ok(delete("shop"));
    test.no_change(free("shared", "proxy", "a"));
    assert_eq!(test.state.subnets.len(), 1);

    let error = test.rejected(
        apply("shared", 1, &["_default"]),
        ErrorCode::ValidationFailed,
    );
    assert_eq!(error.details["deployment"], "shared");
    let issue = || {
        let row = v1::ReplicaDesired {
            id: "blog-web-0".into(),
            deployment: "blog".into(),
            service: "web".into(),
            host: "a".into(),
            ..Default::default()
        };
        Payload::ReplicaDesiredUpsert(v1::ReplicaDesiredUpsert { replica: Some(row) })
    };
    test.ok(issue());
    test.ok(apply("blog", 2, &["_default"]));
    // The row of the revision before may have a container that is not reported yet.
    test.no_change(free("shared", "proxy", "a"));
    test.ok(issue());
    let index = test.state.replicas_desired["blog-web-0"].raft_index;
    let mut report = v1::ReplicaObserved {
        id: "blog-web-0".into(),
        host: "a".into(),
        state: v1::ReplicaState::Running.into(),
        desired_raft_index: index,
        details: [("ip.jaco_shared_proxy".to_owned(), "10.0.0.2".to_owned())].into(),
        ..Default::default()
    };
    let reported = |report: &v1::ReplicaObserved| {
        Payload::ReplicaObservedUpdate(v1::ReplicaObservedUpdate {
            replica: Some(report.clone()),
        })
    };
    test.ok(reported(&report));
    test.no_change(free("shared", "proxy", "a"));
    report.details.clear();
    test.ok(reported(&report));
    test.ok(free("shared", "proxy", "a"));
    assert!(test.state.subnets.is_empty());

    test.ok(apply("shared", 1, &["_default"]));
    for name in ["shared", "shop"] {
        let error = test.rejected(
            apply(name, 2, &["shared/proxy"]),
            ErrorCode::ValidationFailed,
        );
        assert_eq!(error.details["network"], "proxy");
    }
}

#[test]
fn freed_block_is_assigned_again_after_its_quarantine() {
    let mut test = TestState::new();
    test.ok(allocate("shop", "front", "a", "10.0.0.0/24"));
    test.ok(allocate("shop", "front", "b", "10.0.1.0/24"));
    test.now += 60;
    test.ok(free("shop", "front", "a"));
    let record = v1::FreedSubnet {
        cidr: "10.0.0.0/24".into(),
        deployment: "shop".into(),
        network: "front".into(),
        host: "a".into(),
        freed_at: Some(at(test.now)),
        raft_index: test.state.applied_index,
    };
    assert_eq!(*test.state.freed_subnets["10.0.0.0/24"], record);
    for (later, cidr) in [
        (0, "10.0.0.0/24"),
        (0, "10.0.0.9/24"),
        (0, "10.0.0.128/25"),
        (0, "10.0.0.0/23"),
        (quarantine_seconds() - 1, "10.0.0.0/24"),
        // The clock of another leader is behind.
        (-3600, "10.0.0.0/24"),
    ] {
        let start = test.now;
        test.now += later;
        assert_eq!(quarantined(&test), ["10.0.0.0/24"]);
        // Not even to the network that had it.
        for host in ["a", "c"] {
            let payload = allocate("shop", "front", host, cidr);
            let error = test.rejected(payload, ErrorCode::RaftApplyFailed);
            // A wider block overlaps the one of another host as well.
            let reason = error.details["reason"].as_str();
            let taken = cidr == "10.0.0.0/23";
            assert_eq!(reason == super::super::reject::CIDR_TAKEN, taken, "{cidr}");
            assert!(taken || reason == super::super::reject::CIDR_QUARANTINED);
        }
        test.now = start;
    }
    test.now += quarantine_seconds();
    assert_eq!(quarantined(&test), [""; 0]);
    test.ok(allocate("blog", "front", "c", "10.0.0.0/24"));
    assert!(test.state.freed_subnets.is_empty());
}

#[test]
fn every_lost_block_starts_a_quarantine() {
    let mut test = TestState::new();
    test.cluster();
    test.ok(Payload::NodeJoin(v1::NodeJoin {
        hostname: "b".into(),
        raft_id: 2,
        ..Default::default()
    }));
    test.ok(allocate("shop", "front", "a", "10.0.0.0/24"));
    test.ok(allocate("shop", "front", "b", "10.0.1.0/24"));
    test.ok(allocate("blog", "front", "a", "10.0.2.0/24"));
    test.ok(allocate("blog", "back", "a", "10.0.3.7/24"));
    test.ok(Payload::NodeRemove(v1::NodeRemove {
        hostname: "b".into(),
    }));
    assert_eq!(quarantined(&test), ["10.0.1.0/24"]);
    // Another block instead of one that the host cannot use.
    test.ok(allocate("blog", "front", "a", "10.0.4.0/24"));
    assert_eq!(quarantined(&test), ["10.0.1.0/24", "10.0.2.0/24"]);
    test.ok(allocate("blog", "front", "a", "10.0.4.0/24"));
    assert_eq!(quarantined(&test).len(), 2, "the same block again");
    test.ok(Payload::DeploymentDelete(v1::DeploymentDelete {
        deployment: "shop".into(),
    }));
    test.ok(free("blog", "back", "a"));
    let all = ["10.0.0.0/24", "10.0.1.0/24", "10.0.2.0/24", "10.0.3.0/24"];
    assert_eq!(quarantined(&test), all);
}

#[test]
fn unparsable_block_has_no_quarantine() {
    let mut test = TestState::new();
    test.ok(allocate("shop", "front", "a", "fd00::/64"));
    test.ok(free("shop", "front", "a"));
    assert!(test.state.freed_subnets.is_empty());
}

#[test]
fn freed_blocks_do_not_pile_up() {
    let mut test = TestState::new();
    for round in 0..20_i64 {
        let cidr = format!("10.0.{round}.0/24");
        test.ok(allocate("shop", "front", "a", &cidr));
        test.ok(free("shop", "front", "a"));
        test.now += 60;
        let expected = usize::try_from(round + 1).unwrap().min(5);
        assert_eq!(test.state.freed_subnets.len(), expected, "round {round}");
    }
}

#[test]
fn batch_may_not_move_a_block() {
    let mut test = TestState::new();
    test.ok(allocate("shop", "front", "a", "10.0.0.0/24"));
    let payloads = [
        free("shop", "front", "a"),
        allocate("blog", "front", "a", "10.0.0.0/24"),
    ];
    let children = payloads.map(|payload| test.command(payload)).into();
    let applied = test.run(&batch("tester", at(test.now), children));
    let error = applied.result.unwrap_err();
    assert_eq!(
        error.details["reason"],
        super::super::reject::CIDR_QUARANTINED
    );
    assert!(test.state.freed_subnets.is_empty(), "nothing was freed");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Against a model that remembers the time at which each address was last in use.
    #[test]
    fn no_address_changes_hands_within_the_quarantine(
        steps in prop::collection::vec((0..4_usize, 0..6_u8, 24..=26_u8, 0..200_i64), 1..60)
    ) {
        let mut test = TestState::new();
        let mut released = BTreeMap::<u8, i64>::new();
        let mut held = BTreeMap::<usize, std::ops::Range<u8>>::new();
        for (owner, block, bits, wait) in steps {
            test.now += wait;
            let network = format!("n{owner}");
            // Quarters of a /24; a wider block has two or four of them.
            let size = 1_u8 << (26 - bits);
            let first = block / size * size;
            if wait % 2 == 0 {
                test.run(&test.command(free("shop", &network, "a")));
                for quarter in held.remove(&owner).into_iter().flatten() {
                    released.insert(quarter, test.now);
                }
                continue;
            }
            let wanted = first..first + size;
            let (third, fourth) = (first / 4, first % 4 * 64);
            let cidr = format!("10.0.{third}.{fourth}/{bits}");
            let same = held.get(&owner) == Some(&wanted);
            let rested = |quarter: u8| {
                let age = released.get(&quarter).map(|at| test.now - at);
                age.is_none_or(|age| Duration::from_secs(age.cast_unsigned()) >= QUARANTINE)
            };
            let taken = held.iter().any(|(other, range)| {
                *other != owner && wanted.clone().any(|quarter| range.contains(&quarter))
            });
            let expected = !taken && (same || wanted.clone().all(rested));
            let applied = test.run(&test.command(allocate("shop", &network, "a", &cidr)));
            prop_assert_eq!(applied.result.is_ok(), expected, "{} for {}", cidr, network);
            if expected && !same {
                for quarter in held.insert(owner, wanted).into_iter().flatten() {
                    released.insert(quarter, test.now);
                }
            }
        }
    }
}
