use super::*;

fn limited(replicas: i32, limit: i32) -> v1::ServiceSpec {
    v1::ServiceSpec {
        max_replicas_per_node: limit,
        ..spec(PlacementMode::Spread, replicas, &[])
    }
}

fn zone(value: &str) -> v1::PlacementConstraint {
    v1::PlacementConstraint {
        attribute: "node.labels.zone".into(),
        excludes: false,
        value: value.into(),
    }
}

/// Members that are ready, each with its zone.
fn zones(members: &[(&str, &str)]) -> Hosts {
    let mut state = State::default();
    for (host, zone) in members {
        let node = v1::Node {
            hostname: (*host).to_owned(),
            status: v1::NodeStatus::Ready.into(),
            traits: Some(v1::NodeTraits {
                platforms: vec!["linux/amd64".into()],
                labels: [("zone".to_owned(), (*zone).to_owned())].into(),
            }),
            ..Default::default()
        };
        state.nodes.insert((*host).to_owned(), node.into());
    }
    Hosts::of(&state)
}

fn short(eligible: usize, replicas: usize, wants: &str) -> Option<Unplaceable> {
    Some(Unplaceable::TooFewHosts {
        service: "web".into(),
        eligible,
        replicas,
        wants: wants.into(),
    })
}

#[test]
fn replicas_beyond_the_limit_wait() {
    let hosts = ready(&hosts(&["a", "b"]));
    for mode in [PlacementMode::Spread, PlacementMode::Pack] {
        let five = v1::ServiceSpec {
            placement: mode.into(),
            ..limited(5, 2)
        };
        let placed = Fixture::default().place_on(&five, false, &hosts).unwrap();
        let counts = count(on(&placed.replicas).into_iter());
        assert_eq!(counts, [("a", 2), ("b", 2)].into(), "{mode:?}");
        let wants = " (wants at most 2 replica(s) per node)";
        assert_eq!(placed.shortage, short(2, 5, wants));
    }
    let listed = v1::ServiceSpec {
        max_replicas_per_node: 1,
        ..spec(PlacementMode::Hosts, 2, &["a", "b"])
    };
    let placed = Fixture::default().plan_on(&listed, false, &hosts).unwrap();
    assert_eq!(on(&placed), ["a", "b"], "listed hosts have one each anyway");
}

#[test]
fn surplus_moves_where_there_is_room() {
    let fixture = Fixture::with(&[(0, "a"), (1, "a"), (2, "a")]);
    let three = ready(&hosts(&["a", "b", "c"]));
    let placed = fixture.plan_on(&limited(3, 1), false, &three).unwrap();
    let mut moved = on(&placed);
    moved.sort_unstable();
    assert_eq!((placed[0].host.as_str(), moved), ("a", vec!["a", "b", "c"]));
    let stateful = fixture.plan_on(&limited(3, 1), true, &three).unwrap();
    assert_eq!(on(&stateful), ["a", "a", "a"], "their data is there");
    let two = ready(&hosts(&["a", "b"]));
    let placed = fixture.place_on(&limited(3, 1), false, &two).unwrap();
    assert_eq!(on(&placed.replicas), ["a", "b", "a"], "it runs on");
    assert!(placed.shortage.is_some());
    let gone = Fixture::with(&[(0, "a"), (1, "gone")]);
    let one = ready(&hosts(&["a"]));
    let placed = gone.place_on(&limited(2, 1), false, &one).unwrap();
    assert_eq!(on(&placed.replicas), ["a"]);
}

#[test]
fn offline_host_keeps_its_replica_without_room() {
    let members = [
        ("a", HostEligibility::Down),
        ("b", HostEligibility::Eligible),
    ];
    let members: Hosts = members
        .map(|(host, eligibility)| (host.to_owned(), eligibility))
        .into_iter()
        .collect();
    let fixture = Fixture::with(&[(0, "a"), (1, "b")]);
    let placed = fixture.place_on(&limited(2, 1), false, &members).unwrap();
    assert_eq!(on(&placed.replicas), ["a", "b"]);
    assert_eq!(placed.replicas[0].stuck, Some(Stuck::NodeOffline));
    let roomy = fixture.plan_on(&limited(2, 2), false, &members).unwrap();
    assert_eq!(on(&roomy), ["b", "b"]);
}

#[test]
fn constraints_select_hosts_in_every_mode() {
    let hosts = zones(&[("a", "eu"), ("b", "us"), ("c", "eu")]);
    for mode in [
        PlacementMode::Spread,
        PlacementMode::Pack,
        PlacementMode::Hosts,
        PlacementMode::Global,
    ] {
        let mut spec = v1::ServiceSpec {
            constraints: vec![zone("eu")],
            ..spec(mode, 2, &["a", "b", "c"])
        };
        let placed = Fixture::with(&[(0, "b")]).plan_on(&spec, true, &hosts);
        let placed = placed.unwrap();
        assert_eq!(placed.len(), 2);
        assert!(placed.iter().all(|placed| placed.host != "b"), "{mode:?}");
        spec.platform = "linux/arm64".into();
        let nowhere = Fixture::default().place_on(&spec, false, &hosts);
        let why: Result<(), Unplaceable> = nowhere.and_then(|placed| {
            assert_eq!(placed.replicas, [], "{mode:?}");
            Err(placed.shortage.unwrap())
        });
        let wants = " (wants platform linux/arm64, node.labels.zone == eu)";
        let expected = Unplaceable::NoEligibleHosts {
            service: "web".into(),
            wants: wants.into(),
        };
        assert_eq!(why, Err(expected));
    }
}

proptest! {
    #[test]
    fn no_host_gets_more_than_its_limit(
        replicas in 0..9_i32, limit in 1..4_i32, pack: bool,
        before in proptest::collection::vec(0..4_usize, 0..9),
        ready in proptest::collection::vec(any::<bool>(), 4),
    ) {
        let names = ["a", "b", "c", "d"];
        let rows: Vec<(usize, &str)> = before.iter().map(|at| names[*at]).enumerate().collect();
        let mut fixture = Fixture::with(&rows);
        let mut spec = limited(replicas, limit);
        if pack {
            spec.placement = PlacementMode::Pack.into();
        }
        let eligibility = |is_ready: bool| match is_ready {
            true => HostEligibility::Eligible,
            false => HostEligibility::Down,
        };
        let members = names.map(str::to_owned).into_iter();
        let hosts: Hosts = members.zip(ready.iter().copied().map(eligibility)).collect();
        let Ok(placed) = fixture.place_on(&spec, false, &hosts) else {
            prop_assert!(!ready.contains(&true));
            return Ok(());
        };
        let counts = count(on(&placed.replicas).into_iter());
        let room = ready.iter().filter(|ready| **ready).count() * limit as usize;
        for placed in &placed.replicas {
            let stays = fixture.rows.get(&placed.id).is_some_and(|row| row.host == placed.host);
            prop_assert!(stays || counts[placed.host.as_str()] <= limit as usize);
        }
        prop_assert_eq!(placed.shortage.is_some(), replicas as usize > room);
        fixture.rows.clear();
        placed.replicas.iter().for_each(|placed| fixture.put(placed));
        prop_assert_eq!(fixture.place_on(&spec, false, &hosts).unwrap(), placed);
    }
}
