use super::*;

const TIMEOUT: Duration = Duration::from_secs(2);

fn ask(server: usize, tcp: bool) -> Option<Action> {
    Some(Action::Ask { server, tcp })
}

#[test]
fn first_answer_ends_the_chain() {
    let now = Instant::now();
    let mut chain = Chain::new(now, vec![1, 0], TIMEOUT);
    assert_eq!(chain.poll_action(now), ask(1, false));
    assert_eq!(chain.poll_action(now), None);
    chain.handle_answer(Verdict::Final, false);
    assert_eq!(chain.poll_action(now), Some(Action::Relay));
    assert_eq!(chain.poll_action(now), None);
    assert_eq!(chain.poll_timeout(), None);
}

#[test]
fn failing_servers_lead_to_the_next() {
    let now = Instant::now();
    let mut chain = Chain::new(now, vec![0, 1, 2], TIMEOUT);
    assert_eq!(chain.poll_action(now), ask(0, false));
    chain.handle_answer(Verdict::Failed, false);
    assert_eq!(chain.poll_action(now), ask(1, false));
    chain.handle_error();
    assert_eq!(chain.poll_action(now), ask(2, false));
    let due = chain.poll_timeout().unwrap();
    assert_eq!(due, now + TIMEOUT);
    chain.handle_timeout(due - Duration::from_nanos(1));
    assert_eq!(chain.poll_action(now), None);
    chain.handle_timeout(due);
    assert_eq!(chain.poll_action(due), Some(Action::Fail));
}

#[test]
fn truncated_answer_is_repeated_over_tcp() {
    let now = Instant::now();
    let mut chain = Chain::new(now, vec![0, 1], TIMEOUT);
    assert_eq!(chain.poll_action(now), ask(0, false));
    chain.handle_answer(Verdict::Truncated, false);
    assert_eq!(chain.poll_action(now), ask(0, true));
    // The time limit covers both transports.
    assert_eq!(chain.poll_timeout(), Some(now + TIMEOUT));
    chain.handle_answer(Verdict::Truncated, true);
    assert_eq!(chain.poll_action(now), ask(1, false));
}

#[test]
fn chain_without_servers_fails() {
    let now = Instant::now();
    let mut chain = Chain::new(now, Vec::new(), TIMEOUT);
    assert_eq!(chain.poll_action(now), Some(Action::Fail));
}

#[test]
fn dead_servers_fail_within_the_budget() {
    for (servers, timeout) in [(20, 2), (1, 3600), (3, 0)] {
        let start = Instant::now();
        let mut now = start;
        let mut chain = Chain::new(now, (0..servers).collect(), Duration::from_secs(timeout));
        let end = loop {
            match chain.poll_action(now) {
                Some(Action::Ask { .. }) => {
                    now = chain.poll_timeout().unwrap();
                    chain.handle_timeout(now);
                }
                other => break other,
            }
        };
        assert_eq!(end, Some(Action::Fail));
        assert!(now - start <= BUDGET);
    }
}

#[test]
fn silent_server_is_asked_last_until_retried() {
    let now = Instant::now();
    let mut servers = Servers::new(3);
    assert_eq!(servers.order(now), [0, 1, 2]);
    servers.handle_failure(now, 0);
    assert_eq!(servers.order(now), [1, 2, 0]);
    let later = now + SUSPENSION;
    assert_eq!(servers.order(later), [0, 1, 2], "one query tries it");
    assert_eq!(servers.order(later), [1, 2, 0]);
    servers.handle_answer(0);
    assert_eq!(servers.order(later), [0, 1, 2]);
}
