//! Placement of replicas whose host is unhealthy, draining, offline or removed.

use super::*;

use HostEligibility::{Cordoned, Down, Eligible, Evacuating, Suspect};

fn members(members: &[(&str, HostEligibility)]) -> Hosts {
    let members = members.iter();
    members.map(|(host, s)| ((*host).to_owned(), *s)).collect()
}

/// Hosts of the plan, with a mark for each stuck replica.
fn plan(
    rows: &[(usize, &str)],
    spec: &v1::ServiceSpec,
    stateful: bool,
    hosts: &[(&str, HostEligibility)],
) -> Result<Vec<String>, String> {
    let placed = Fixture::with(rows).plan_on(spec, stateful, &members(hosts));
    let shown = |placed: Placed| match placed.stuck {
        None => placed.host,
        Some(why) => format!("{}:{}", placed.host, why.as_str()),
    };
    placed
        .map(|placed| placed.into_iter().map(shown).collect())
        .map_err(|why| why.to_string())
}

#[test]
fn every_status_maps_to_an_eligibility() {
    use v1::NodeStatus::{
        DrainTimeout, IsolationUnavailable, Joining, Offline, Ready, Unhealthy, Unspecified,
    };
    let isolation = Evacuating(Some(Stuck::IsolationUnavailable));
    let leaving = Evacuating(None);
    for (status, eligibility, cordoned, draining) in [
        (Ready, Eligible, Cordoned, leaving),
        (Unhealthy, Suspect, Suspect, leaving),
        (Offline, Down, Down, Down),
        (IsolationUnavailable, isolation, isolation, isolation),
        (Joining, leaving, leaving, leaving),
        (DrainTimeout, leaving, leaving, leaving),
        (Unspecified, leaving, leaving, leaving),
    ] {
        for (mark, eligibility) in [
            ((false, false), eligibility),
            ((true, false), cordoned),
            ((false, true), draining),
            ((true, true), draining),
        ] {
            let mut state = State::default();
            let node = v1::Node {
                status: status.into(),
                cordoned: mark.0,
                draining: mark.1,
                ..Default::default()
            };
            state.nodes.insert("n".into(), std::sync::Arc::new(node));
            let hosts = Hosts::of(&state);
            assert_eq!(
                hosts.eligibility("n"),
                Some(eligibility),
                "{status:?} {mark:?}"
            );
            assert_eq!(hosts.serves("n"), eligibility != Down);
        }
    }
    assert_eq!(Hosts::default().eligibility("n"), None);
    assert!(!Hosts::default().serves("n"));
}

#[test]
fn unhealthy_host_keeps_replicas_but_gets_none() {
    for eligibility in [Suspect, Cordoned] {
        keeps_replicas_but_gets_none(&[("a", Eligible), ("b", eligibility)]);
    }
}

fn keeps_replicas_but_gets_none(hosts: &[(&str, HostEligibility)]) {
    for mode in [PlacementMode::Spread, PlacementMode::Pack] {
        let spec = spec(mode, 4, &[]);
        let placed = plan(&[(0, "b"), (1, "a"), (2, "b")], &spec, false, hosts);
        assert_eq!(placed.unwrap(), ["b", "a", "b", "a"], "{mode:?}");
    }
    let pinned = spec(PlacementMode::Hosts, 2, &["a", "b"]);
    let placed = plan(&[(0, "a"), (1, "b")], &pinned, false, hosts);
    assert_eq!(placed.unwrap(), ["a", "b"]);
    assert_eq!(
        plan(&[(0, "a")], &pinned, false, hosts).unwrap_err(),
        "service \"web\": only 1 eligible host(s) but 2 replicas requested"
    );
    // If no host is eligible, the placement still succeeds while all replicas keep their hosts.
    let spec = spec(PlacementMode::Spread, 1, &[]);
    let all_silent = [("b", Suspect)];
    assert_eq!(plan(&[(0, "b")], &spec, false, &all_silent).unwrap(), ["b"]);
}

#[test]
fn only_stateless_replicas_leave_an_offline_host() {
    for lost in [Down, Evacuating(Some(Stuck::IsolationUnavailable))] {
        let hosts = [("a", Eligible), ("b", lost)];
        for mode in [PlacementMode::Spread, PlacementMode::Pack] {
            let spec = spec(mode, 2, &[]);
            let rows = [(0, "b"), (1, "a")];
            assert_eq!(plan(&rows, &spec, false, &hosts).unwrap(), ["a", "a"]);
            let stuck = format!("b:{}", lost.stuck().unwrap().as_str());
            assert_eq!(plan(&rows, &spec, true, &hosts).unwrap(), [&stuck, "a"]);
        }
    }
    // A draining host does not count as stuck: the drain itself reports replicas that cannot move.
    let spec = spec(PlacementMode::Spread, 1, &[]);
    let hosts = [("a", Eligible), ("b", Evacuating(None))];
    assert_eq!(plan(&[(0, "b")], &spec, true, &hosts).unwrap(), ["b"]);
    assert_eq!(plan(&[(0, "b")], &spec, false, &hosts).unwrap(), ["a"]);
}

#[test]
fn stateful_replica_leaves_a_removed_member() {
    let spec = spec(PlacementMode::Spread, 1, &[]);
    let hosts = [("a", Eligible)];
    assert_eq!(plan(&[(0, "gone")], &spec, true, &hosts).unwrap(), ["a"]);
}

#[test]
fn pinned_replicas_take_another_listed_host_or_stay() {
    let hosts = [
        ("a", Eligible),
        ("b", Down),
        ("c", Eligible),
        ("d", Eligible),
    ];
    let rows = [(0, "a"), (1, "b")];
    let three = spec(PlacementMode::Hosts, 2, &["a", "b", "c"]);
    assert_eq!(plan(&rows, &three, false, &hosts).unwrap(), ["a", "c"]);
    assert_eq!(
        plan(&rows, &three, true, &hosts).unwrap(),
        ["a", "b:node_offline"]
    );
    let two = spec(PlacementMode::Hosts, 2, &["a", "b"]);
    assert_eq!(
        plan(&rows, &two, false, &hosts).unwrap(),
        ["a", "b:node_offline"]
    );
    // A host that the service no longer lists cannot keep the replica, whatever data is there.
    let other = spec(PlacementMode::Hosts, 2, &["a", "d"]);
    assert_eq!(plan(&rows, &other, true, &hosts).unwrap(), ["a", "d"]);
    let only = spec(PlacementMode::Hosts, 1, &["a"]);
    let gone = [("a", Down)];
    assert_eq!(
        plan(&[(0, "a")], &only, false, &gone).unwrap(),
        ["a:node_offline"]
    );
}

#[test]
fn global_rows_stay_on_hosts_that_get_none() {
    let hosts = [
        ("a", Eligible),
        ("b", Suspect),
        ("c", Down),
        ("d", Evacuating(Some(Stuck::IsolationUnavailable))),
        ("e", Evacuating(None)),
        ("f", Cordoned),
    ];
    let spec = spec(PlacementMode::Global, 0, &[]);
    let mut fixture = Fixture::default();
    for host in ["a", "b", "c", "d", "e", "f"] {
        let id = global_id("app", "web", host);
        let (host, stuck) = (host.to_owned(), None);
        let index = 0;
        fixture.put(&Placed {
            id,
            index,
            host,
            stuck,
        });
    }
    let placed = fixture.plan_on(&spec, false, &members(&hosts)).unwrap();
    assert_eq!(on(&placed), ["a", "b", "c", "f"]);
    let fresh = Fixture::default().plan_on(&spec, false, &members(&hosts));
    assert_eq!(on(&fresh.unwrap()), ["a"]);
}

fn standings() -> impl Strategy<Value = Vec<HostEligibility>> {
    let eligibility = prop_oneof![
        3 => Just(Eligible),
        1 => Just(Suspect),
        1 => Just(Cordoned),
        1 => Just(Down),
        1 => Just(Evacuating(None)),
        1 => Just(Evacuating(Some(Stuck::IsolationUnavailable))),
    ];
    proptest::collection::vec(eligibility, 5)
}

proptest! {
    #[test]
    fn only_affected_replicas_move_and_placement_is_idempotent(
        replicas in 0..12_i32, stateful: bool, mode in 1..4_i32,
        rounds in proptest::collection::vec(standings(), 1..5),
    ) {
        let names = ["a", "b", "c", "d", "e"];
        let mode = PlacementMode::try_from(mode).unwrap();
        let replicas = if mode == PlacementMode::Hosts { replicas.min(5) } else { replicas };
        let spec = spec(mode, replicas, &names);
        let mut fixture = Fixture::default();
        for round in rounds {
            let hosts: Hosts = names.map(str::to_owned).into_iter().zip(round).collect();
            let Ok(placed) = fixture.plan_on(&spec, stateful, &hosts) else {
                continue;
            };
            for placed in &placed {
                let before = fixture.rows.get(&placed.id).map(|row| row.host.clone());
                let stays = before.as_ref() == Some(&placed.host);
                prop_assert!(stays || hosts.eligibility(&placed.host) == Some(Eligible));
                let must_stay = before.is_some_and(|before| {
                    stateful || matches!(
                        hosts.eligibility(&before),
                        Some(Eligible | Cordoned | Suspect)
                    )
                });
                prop_assert!(stays || !must_stay);
                prop_assert_eq!(
                    placed.stuck,
                    hosts.eligibility(&placed.host).and_then(HostEligibility::stuck)
                );
            }
            if mode == PlacementMode::Hosts {
                let distinct: BTreeSet<&str> = on(&placed).into_iter().collect();
                prop_assert_eq!(distinct.len(), placed.len());
            }
            fixture.rows.clear();
            placed.iter().for_each(|placed| fixture.put(placed));
            prop_assert_eq!(fixture.plan_on(&spec, stateful, &hosts).unwrap(), placed);
        }
    }
}
