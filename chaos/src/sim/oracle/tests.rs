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
