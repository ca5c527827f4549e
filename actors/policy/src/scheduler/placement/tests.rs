use proptest::prelude::*;

use super::*;

fn spec(mode: PlacementMode, replicas: i32, hosts: &[&str]) -> v1::ServiceSpec {
    v1::ServiceSpec {
        name: "web".into(),
        replicas,
        placement: mode.into(),
        hosts: hosts.iter().map(|&host| host.to_owned()).collect(),
        ..Default::default()
    }
}

fn hosts(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn ready(names: &[String]) -> Hosts {
    let names = names.iter().cloned();
    names
        .map(|name| (name, HostEligibility::Eligible))
        .collect()
}

/// Rows of one service and the load of the others; repeated placements update both.
#[derive(Clone, Default)]
struct Fixture {
    rows: BTreeMap<String, v1::ReplicaDesired>,
    others: ReplicaCounts,
}

impl Fixture {
    fn with(rows: &[(usize, &str)]) -> Self {
        let mut fixture = Self::default();
        for &(index, host) in rows {
            let placed = Placed {
                id: positional_id("app", "web", index),
                index: index as i32,
                host: host.to_owned(),
                stuck: None,
            };
            fixture.put(&placed);
        }
        fixture
    }

    fn put(&mut self, placed: &Placed) {
        let row = v1::ReplicaDesired {
            id: placed.id.clone(),
            host: placed.host.clone(),
            index: placed.index,
            ..Default::default()
        };
        self.rows.insert(placed.id.clone(), row);
    }

    fn plan(
        &self,
        spec: &v1::ServiceSpec,
        eligible: &[String],
    ) -> Result<Vec<Placed>, Unplaceable> {
        self.plan_on(spec, false, &ready(eligible))
    }

    fn place_on(
        &self,
        spec: &v1::ServiceSpec,
        stateful: bool,
        hosts: &Hosts,
    ) -> Result<Placement, Unplaceable> {
        let subject = ServiceToPlace {
            deployment: "app",
            spec,
            stateful,
            finished: &BTreeSet::new(),
        };
        let rows = self
            .rows
            .iter()
            .map(|(id, row)| (id.as_str(), row))
            .collect();
        let mut load = self.others.clone();
        for row in self.rows.values() {
            load.add(&row.host);
        }
        place(subject, &rows, hosts, &mut load)
    }

    fn plan_on(
        &self,
        spec: &v1::ServiceSpec,
        stateful: bool,
        hosts: &Hosts,
    ) -> Result<Vec<Placed>, Unplaceable> {
        let placed = self.place_on(spec, stateful, hosts)?;
        match placed.shortage {
            None => Ok(placed.replicas),
            Some(why) => panic!("{why}"),
        }
    }

    fn apply(&mut self, spec: &v1::ServiceSpec, eligible: &[String]) -> Vec<Placed> {
        let placed = self.plan(spec, eligible).unwrap();
        self.rows.clear();
        placed.iter().for_each(|placed| self.put(placed));
        placed
    }
}

fn on(placed: &[Placed]) -> Vec<&str> {
    placed.iter().map(|placed| placed.host.as_str()).collect()
}

#[test]
fn hash_matches_test_vectors() {
    assert_eq!(fnv1a32("web-api-0"), 925_508_153);
    assert_eq!(fnv1a32("web-api-1"), 908_730_534);
    assert_eq!(fnv1a32("hello-web-0"), 1_583_290_785);
    assert_eq!(fnv1a32(""), 2_166_136_261);
}

#[test]
fn only_ready_members_not_draining_are_eligible() {
    let mut state = State::default();
    for (name, status, draining) in [
        ("d", v1::NodeStatus::Ready, false),
        ("c", v1::NodeStatus::Ready, true),
        ("b", v1::NodeStatus::IsolationUnavailable, false),
        ("a", v1::NodeStatus::Ready, false),
        ("e", v1::NodeStatus::Joining, false),
        ("f", v1::NodeStatus::Offline, false),
    ] {
        let node = v1::Node {
            status: status.into(),
            draining,
            ..Default::default()
        };
        state.nodes.insert(name.into(), std::sync::Arc::new(node));
    }
    assert_eq!(Hosts::of(&state).eligible(), ["a", "d"]);
}

#[test]
fn global_ids_replace_invalid_characters() {
    assert_eq!(
        global_id("app", "agent", "n1.example_x-2"),
        "app-agent-n1.example_x-2"
    );
    assert_eq!(global_id("app", "agent", "n:1/ü"), "app-agent-n-1---");
}

#[test]
fn spread_prefers_lower_load_over_higher_weight() {
    let eligible = hosts(&["a", "b"]);
    let weight = |host: &str| fnv1a32(&format!("{host}/app-web-0"));
    let heavier = if weight("a") > weight("b") { "a" } else { "b" };
    let lighter = if heavier == "a" { "b" } else { "a" };
    let spec = spec(PlacementMode::Unspecified, 1, &[]);

    let empty = Fixture::default();
    assert_eq!(on(&empty.plan(&spec, &eligible).unwrap()), [heavier]);

    let mut busy = Fixture::default();
    busy.others.add(heavier);
    assert_eq!(on(&busy.plan(&spec, &eligible).unwrap()), [lighter]);
}

#[test]
fn pack_places_new_replicas_on_one_host() {
    let fixture = Fixture::with(&[(0, "a")]);
    let placed = fixture.plan(&spec(PlacementMode::Pack, 4, &[]), &hosts(&["a", "b", "c"]));
    assert_eq!(on(&placed.unwrap()), ["a", "b", "b", "b"]);
}

#[test]
fn pinned_replicas_take_listed_hosts_in_order() {
    let spec = spec(PlacementMode::Hosts, 2, &["c", "a", "gone"]);
    let placed = Fixture::default().plan(&spec, &hosts(&["a", "b", "c"]));
    assert_eq!(on(&placed.unwrap()), ["a", "c"]);
}

#[test]
fn pinned_replica_skips_hosts_already_used() {
    let spec = spec(PlacementMode::Hosts, 3, &["b", "c", "d"]);
    let fixture = Fixture::with(&[(0, "a"), (1, "b"), (2, "c")]);
    let placed = fixture.plan(&spec, &hosts(&["a", "b", "c", "d"]));
    assert_eq!(on(&placed.unwrap()), ["d", "b", "c"]);
}

#[test]
fn too_few_listed_hosts_error_has_both_counts() {
    let spec = spec(PlacementMode::Hosts, 3, &["a", "b"]);
    let error = Fixture::default()
        .plan(&spec, &hosts(&["a", "b", "c"]))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "service \"web\": only 2 eligible host(s) but 3 replicas requested"
    );
}

#[test]
fn no_eligible_host_fails_all_modes_except_global() {
    for mode in [
        PlacementMode::Unspecified,
        PlacementMode::Spread,
        PlacementMode::Pack,
        PlacementMode::Hosts,
    ] {
        let error = Fixture::default()
            .plan(&spec(mode, 1, &["x"]), &[])
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "service \"web\": no eligible hosts",
            "{mode:?}"
        );
        assert_eq!(
            Fixture::default().plan(&spec(mode, 0, &["x"]), &[]),
            Ok(Vec::new())
        );
    }
    let global = Fixture::default().plan(&spec(PlacementMode::Global, 1, &[]), &[]);
    assert_eq!(global, Ok(Vec::new()));
}

#[test]
fn global_runs_one_replica_on_each_eligible_host() {
    let placed = Fixture::default()
        .plan(&spec(PlacementMode::Global, 0, &[]), &hosts(&["a", "b"]))
        .unwrap();
    let found: Vec<_> = placed.iter().map(|p| (p.id.as_str(), p.index)).collect();
    assert_eq!(found, [("app-web-a", 0), ("app-web-b", 1)]);
    assert_eq!(on(&placed), ["a", "b"]);
}

#[test]
fn colliding_global_ids_are_an_error() {
    let clash = Fixture::default().plan(
        &spec(PlacementMode::Global, 0, &[]),
        &hosts(&["a-b", "a:b"]),
    );
    assert_eq!(
        clash,
        Err(Unplaceable::IdConflict {
            id: "app-web-a-b".into()
        })
    );
}

#[test]
fn placed_replica_keeps_host_when_nodes_join() {
    for mode in [PlacementMode::Spread, PlacementMode::Pack] {
        let fixture = Fixture::with(&[(0, "c"), (1, "c")]);
        let placed = fixture.plan(&spec(mode, 2, &[]), &hosts(&["a", "b", "c"]));
        assert_eq!(on(&placed.unwrap()), ["c", "c"], "{mode:?}");
    }
}

fn host_set() -> impl Strategy<Value = Vec<String>> {
    proptest::collection::btree_set("[a-z]{1,6}", 1..7).prop_map(|set| set.into_iter().collect())
}

fn others() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(0_usize..7, 0..12)
}

fn fixture(eligible: &[String], others: &[usize]) -> Fixture {
    let mut fixture = Fixture::default();
    for at in others {
        fixture.others.add(&eligible[at % eligible.len()]);
    }
    fixture
}

fn counts(placed: &[Placed], eligible: &[String]) -> Vec<usize> {
    eligible
        .iter()
        .map(|host| placed.iter().filter(|placed| placed.host == *host).count())
        .collect()
}

proptest! {
    #[test]
    fn spread_counts_differ_by_at_most_one(
        eligible in host_set(), others in others(), replicas in 0..30,
    ) {
        let placed = fixture(&eligible, &others)
            .plan(&spec(PlacementMode::Spread, replicas, &[]), &eligible)
            .unwrap();
        let counts = counts(&placed, &eligible);
        prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
    }

    #[test]
    fn spread_result_is_independent_of_intermediate_passes(
        eligible in host_set(), others in others(),
        steps in proptest::collection::vec(0..12, 1..6), last in 0..12,
    ) {
        let once = fixture(&eligible, &others)
            .apply(&spec(PlacementMode::Spread, last, &[]), &eligible);
        let mut stepwise = fixture(&eligible, &others);
        for replicas in steps {
            stepwise.apply(&spec(PlacementMode::Spread, replicas, &[]), &eligible);
        }
        prop_assert_eq!(
            stepwise.apply(&spec(PlacementMode::Spread, last, &[]), &eligible),
            once
        );
    }

    #[test]
    fn placement_is_idempotent(
        eligible in host_set(), others in others(), replicas in 0..12_i32, mode in 0..5_i32,
    ) {
        let mode = PlacementMode::try_from(mode).unwrap();
        let pins: Vec<&str> = eligible.iter().map(String::as_str).collect();
        let replicas = if mode == PlacementMode::Hosts {
            replicas.min(i32::try_from(eligible.len()).unwrap())
        } else {
            replicas
        };
        let spec = spec(mode, replicas, &pins);
        let mut fixture = fixture(&eligible, &others);
        let first = fixture.apply(&spec, &eligible);
        prop_assert_eq!(fixture.plan(&spec, &eligible).unwrap(), first);
    }

    #[test]
    fn host_changes_move_only_affected_replicas(
        eligible in host_set(), others in others(), replicas in 0..20, lost in 0_usize..7,
    ) {
        let spec = spec(PlacementMode::Spread, replicas, &[]);
        let mut fixture = fixture(&eligible, &others);
        let before = fixture.apply(&spec, &eligible);
        let mut fewer = eligible.clone();
        let lost = fewer.remove(lost % eligible.len());
        if !fewer.is_empty() {
            let after = fixture.apply(&spec, &fewer);
            for (old, new) in before.iter().zip(&after) {
                prop_assert!(old.host == lost || old.host == new.host);
                prop_assert!(new.host != lost);
            }
            let counts = counts(&after, &fewer);
            prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
            prop_assert_eq!(fixture.plan(&spec, &eligible).unwrap(), after);
        }
    }

    #[test]
    fn pinned_replicas_never_share_a_host(
        all in host_set(), first in 0_usize..64, second in 0_usize..64,
    ) {
        let pick = |mask: usize| -> Vec<&str> {
            let picked = all.iter().enumerate().filter(|(at, _)| mask & (1 << at) != 0);
            picked.map(|(_, host)| host.as_str()).collect()
        };
        let mut fixture = Fixture::default();
        for pins in [pick(first), pick(second)] {
            let replicas = i32::try_from(pins.len()).unwrap();
            let placed = fixture.apply(&spec(PlacementMode::Hosts, replicas, &pins), &all);
            prop_assert!(counts(&placed, &all).iter().all(|&count| count <= 1));
            prop_assert!(placed.iter().all(|placed| pins.contains(&placed.host.as_str())));
        }
    }
}

mod eligibility;
mod requirements;
