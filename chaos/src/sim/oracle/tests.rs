use jaco_state::{batch, command};
use prost::Message as _;
use prost_types::Timestamp;

use super::*;

/// An oracle whose leaders committed up to these indexes: (index, term of the leader, term of
/// the entry).
fn oracle(commits: &[(u64, u64, u64)]) -> Oracle {
    let founded = State {
        applied_index: 1,
        ..State::default()
    };
    let mut oracle = Oracle::new(founded, None);
    for &(index, leader_term, term) in commits {
        oracle.record_commit(leader_term, index);
        for index in oracle.last() + 1..=index {
            let entry = Committed {
                index,
                term,
                payload: Payload::Noop,
                ticket: None,
            };
            oracle.check_applied(1, leader_term, &[entry]);
        }
    }
    assert_eq!(oracle.violation(), None);
    oracle
}

/// Violated property if the leader of `term` has a log of these terms, from index 1 on.
fn leads(commits: &[(u64, u64, u64)], term: u64, log: &[u64]) -> Option<&'static str> {
    let mut oracle = oracle(commits);
    let last = oracle.last_before(term);
    let at = usize::try_from(last).unwrap() - 1;
    oracle.check_leader(4, term, log.get(at).copied());
    oracle.violation().map(|violation| violation.invariant)
}

#[test]
fn late_votes_may_elect_leader_without_later_commits() {
    // Member 4 was paused with the votes of term 8 in its mailbox. Member 2 was elected in
    // term 9 meanwhile, and committed entry 3, of term 6, together with its own first entry.
    let commits = [(2, 6, 6), (3, 9, 6), (4, 9, 9)];
    assert_eq!(leads(&commits, 8, &[1, 6]), None);
    assert_eq!(leads(&commits, 8, &[1, 6, 7]), None, "a tail of its own");
    assert_eq!(
        leads(&commits, 8, &[1]),
        Some("leader completeness"),
        "entry 2 was committed in term 6"
    );
    assert_eq!(leads(&commits, 10, &[1, 6, 6, 9]), None);
    for log in [&[1, 6, 6][..], &[1, 6], &[1, 6, 6, 8]] {
        assert_eq!(
            leads(&commits, 10, log),
            Some("leader completeness"),
            "{log:?}"
        );
    }
}

#[test]
fn entry_counts_from_term_of_its_commit() {
    // Term 6 commits entry 2 itself; entry 3 of term 6 waits for the leader of term 7.
    let commits = [(2, 6, 6), (3, 7, 6)];
    assert_eq!(leads(&commits, 7, &[1, 6]), None);
    assert_eq!(leads(&commits, 8, &[1, 6]), Some("leader completeness"));
    assert_eq!(leads(&commits, 8, &[1, 6, 6]), None);
}

#[test]
fn earliest_term_of_commit_counts() {
    let mut oracle = oracle(&[(3, 6, 6)]);
    oracle.record_commit(9, 3);
    assert_eq!((oracle.last_before(6), oracle.last_before(7)), (1, 3));
    oracle.record_commit(5, 2);
    assert_eq!((oracle.last_before(6), oracle.last_before(7)), (2, 3));
}

#[test]
fn unapplied_commits_are_not_judged() {
    let mut oracle = oracle(&[(3, 6, 6)]);
    oracle.record_commit(6, 9);
    assert_eq!(oracle.last_before(7), 3);
}

/// Applies one revision after the other, of a deployment that wants these domains; returns the
/// violated property.
fn apply_routes(applies: &[(&str, u64, &[&str])]) -> Option<&'static str> {
    let mut oracle = oracle(&[]);
    for (deployment, revision, domains) in applies {
        let route = |domain: &&str| v1::Route {
            domain: (*domain).to_owned(),
            deployment: (*deployment).to_owned(),
            service: "web".to_owned(),
            port: 80,
            ..v1::Route::default()
        };
        let web = v1::ServiceSpec {
            name: "web".to_owned(),
            replicas: 1,
            ..v1::ServiceSpec::default()
        };
        let apply = v1::DeploymentApply {
            deployment: (*deployment).to_owned(),
            revision: *revision,
            services: vec![web],
            routes: domains.iter().map(route).collect(),
            ..v1::DeploymentApply::default()
        };
        let op = command("tester", Timestamp::default(), Op::DeploymentApply(apply));
        let entry = Committed {
            index: oracle.last() + 1,
            term: 1,
            payload: Payload::Command(op.encode_to_vec()),
            ticket: None,
        };
        oracle.check_applied(1, 1, &[entry]);
    }
    oracle.violation().map(|violation| violation.invariant)
}

#[test]
fn route_refused_at_its_entry_is_violation() {
    let (a, b) = (["a.example"].as_slice(), ["b.example"].as_slice());
    assert_eq!(apply_routes(&[("one", 1, a), ("two", 1, b)]), None);
    assert_eq!(apply_routes(&[("one", 1, a), ("one", 2, a)]), None);
    let freed = [("one", 1, a), ("one", 2, b), ("two", 1, a)];
    assert_eq!(apply_routes(&freed), None);
    // The state machine refuses the second one: its proposer was to know of the first.
    let taken = apply_routes(&[("one", 1, a), ("two", 1, a)]);
    assert_eq!(taken, Some("one owner per route"));
}

#[test]
fn route_with_another_owner_is_violation() {
    let owned = |owner: &str| {
        let mut state = State::default();
        let route = v1::Route {
            domain: "a.example".to_owned(),
            deployment: owner.to_owned(),
            ..v1::Route::default()
        };
        let key = (route.domain.clone(), route.path.clone());
        state.routes.insert(key, Arc::new(route));
        state
    };
    let nothing = batch("tester", Timestamp::default(), Vec::new());
    for (after, violated) in [("one", None), ("two", Some("one owner per route"))] {
        let mut oracle = oracle(&[]);
        oracle.check_routes(&owned("one"), &owned(after), &nothing, true);
        let found = oracle.violation().map(|violation| violation.invariant);
        assert_eq!(found, violated);
    }
}

/// Moves a replica from `n1` to `n2` within the revision that it was placed for, which lists these
/// hosts; returns the violated property.
fn move_within_revision(placement: PlacementMode, hosts: &[&str]) -> Option<&'static str> {
    let mut oracle = oracle(&[]);
    oracle.nothing_moves = true;
    let service = v1::ServiceSpec {
        name: "web".to_owned(),
        placement: placement.into(),
        hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
        ..v1::ServiceSpec::default()
    };
    let deployment = v1::Deployment {
        name: "app".to_owned(),
        applied_revision: 2,
        services: vec![service],
        ..v1::Deployment::default()
    };
    let placed = |host: &str, raft_index| {
        let mut state = State::default();
        let name = deployment.name.clone();
        state.deployments.insert(name, Arc::new(deployment.clone()));
        let row = v1::ReplicaDesired {
            id: "app-web-0".to_owned(),
            deployment: "app".to_owned(),
            service: "web".to_owned(),
            host: host.to_owned(),
            raft_index,
            ..v1::ReplicaDesired::default()
        };
        state.replicas_desired.insert(row.id.clone(), Arc::new(row));
        state
    };
    let (first, changed, moved) = (placed("n1", 1), placed("n1", 2), placed("n2", 3));
    oracle.check_moves(&first, &changed, &[]);
    assert_eq!(oracle.violation(), None);
    oracle.check_moves(&changed, &moved, &[]);
    oracle.violation().map(|violation| violation.invariant)
}

#[test]
fn waiting_replica_may_leave_unlisted_host() {
    use PlacementMode::{Hosts, Pack, Spread};
    let moved = Some("nuisances move nothing");
    let table = [
        (Hosts, &["n2", "n3"][..], None),
        (Hosts, &["n1", "n2"], moved),
        (Spread, &["n2"], moved),
        (Spread, &[], moved),
        (Pack, &[], moved),
    ];
    for (placement, hosts, expected) in table {
        let found = move_within_revision(placement, hosts);
        assert_eq!(found, expected, "{placement:?} {hosts:?}");
    }
}
