use super::*;

const TIMEOUT: Duration = Duration::from_secs(2);

fn ask(server: usize, tcp: bool) -> Option<Action> {
    let attempt = Attempt { tcp, edns: true };
    Some(Action::Ask { server, attempt })
}

fn relay(server: usize) -> Option<Action> {
    Some(Action::Relay { server })
}

fn gave_up(server: usize, asked: Instant) -> Option<Action> {
    let asked = Some(asked);
    Some(Action::GiveUp { server, asked })
}

#[test]
fn first_answer_ends_the_chain() {
    let now = Instant::now();
    let mut chain = Chain::new(now, &[1, 0], TIMEOUT);
    assert_eq!(chain.poll_action(now), ask(1, false));
    assert_eq!(chain.poll_action(now), None);
    chain.handle_answer(1, Verdict::Final);
    assert_eq!(chain.poll_action(now), relay(1));
    assert_eq!(chain.poll_action(now), None);
    assert_eq!(chain.poll_timeout(), None);
}

#[test]
fn failing_servers_lead_to_the_next_at_once() {
    let now = Instant::now();
    let mut chain = Chain::new(now, &[0, 1, 2], TIMEOUT);
    assert_eq!(chain.poll_action(now), ask(0, false));
    chain.handle_answer(0, Verdict::Failed);
    assert_eq!(chain.poll_action(now), ask(1, false));
    chain.handle_error(1);
    assert_eq!(chain.poll_action(now), ask(2, false));
    let due = chain.poll_timeout().unwrap();
    assert_eq!(due, now + TIMEOUT);
    chain.handle_timeout(due - Duration::from_nanos(1));
    assert_eq!(chain.poll_action(now), None);
    chain.handle_timeout(due);
    assert_eq!(chain.poll_action(due), gave_up(2, now));
    assert_eq!(chain.poll_action(due), Some(Action::Fail));
}

#[test]
fn silent_server_takes_no_time_of_the_next() {
    let start = Instant::now();
    let mut chain = Chain::new(start, &[0, 1], TIMEOUT);
    assert_eq!(chain.poll_action(start), ask(0, false));
    let second = chain.poll_timeout().unwrap();
    assert_eq!(second, start + BUDGET - TIMEOUT);
    chain.handle_timeout(second);
    assert_eq!(chain.poll_action(second), ask(1, false));
    // Its answer counts once the first server has had its time.
    chain.handle_answer(1, Verdict::Final);
    assert_eq!(chain.poll_action(second), None);
    let due = chain.poll_timeout().unwrap();
    assert_eq!(due, start + TIMEOUT);
    chain.handle_timeout(due);
    assert_eq!(chain.poll_action(due), gave_up(0, start));
    assert_eq!(chain.poll_action(due), relay(1));
}

#[test]
fn late_answer_of_an_earlier_server_wins() {
    let start = Instant::now();
    let mut chain = Chain::new(start, &[0, 1, 2], TIMEOUT);
    assert_eq!(chain.poll_action(start), ask(0, false));
    let second = chain.poll_timeout().unwrap();
    chain.handle_timeout(second);
    assert_eq!(chain.poll_action(second), ask(1, false));
    chain.handle_answer(1, Verdict::Final);
    chain.handle_answer(0, Verdict::Final);
    chain.handle_answer(2, Verdict::Final);
    assert_eq!(chain.poll_action(second), relay(0));
}

#[test]
fn truncated_answer_is_repeated_over_tcp() {
    let now = Instant::now();
    let mut chain = Chain::new(now, &[0, 1], TIMEOUT);
    assert_eq!(chain.poll_action(now), ask(0, false));
    chain.handle_answer(0, Verdict::Truncated);
    assert_eq!(chain.poll_action(now), ask(0, true));
    // The time limit covers both transports.
    let later = now + BUDGET - TIMEOUT;
    chain.handle_timeout(later);
    assert_eq!(chain.poll_action(later), ask(1, false));
    assert_eq!(chain.poll_timeout(), Some(now + TIMEOUT));
    chain.handle_answer(0, Verdict::Truncated);
    chain.handle_answer(1, Verdict::Final);
    assert_eq!(chain.poll_action(now), relay(1));
}

#[test]
fn server_without_edns_is_asked_without_it_once() {
    let now = Instant::now();
    let mut chain = Chain::new(now, &[0], TIMEOUT);
    assert_eq!(chain.poll_action(now), ask(0, false));
    chain.handle_answer(0, Verdict::NoEdns);
    let attempt = Attempt {
        tcp: false,
        edns: false,
    };
    let server = 0;
    assert_eq!(
        chain.poll_action(now),
        Some(Action::Ask { server, attempt })
    );
    chain.handle_answer(0, Verdict::NoEdns);
    assert_eq!(chain.poll_action(now), Some(Action::Fail));
}

#[test]
fn chain_without_servers_fails() {
    let now = Instant::now();
    let mut chain = Chain::new(now, &[], TIMEOUT);
    assert_eq!(chain.poll_action(now), Some(Action::Fail));
}

#[test]
fn every_dead_server_is_asked_within_the_budget() {
    for (count, timeout) in [(20, 2), (1, 3600), (3, 3600), (2, 2), (3, 0)] {
        let start = Instant::now();
        let (mut now, mut asked) = (start, Vec::new());
        let servers: Vec<_> = (0..count).collect();
        let mut chain = Chain::new(now, &servers, Duration::from_secs(timeout));
        let end = loop {
            match chain.poll_action(now) {
                Some(Action::Ask { server, .. }) => asked.push(server),
                Some(Action::GiveUp { .. }) => {}
                None => {
                    let due = chain.poll_timeout().unwrap();
                    assert!(due > now || timeout == 0);
                    now = due;
                    chain.handle_timeout(now);
                }
                other @ Some(Action::Relay { .. } | Action::Fail) => break other,
            }
        };
        assert_eq!(end, Some(Action::Fail));
        assert_eq!(asked, servers, "timeout {timeout} s");
        assert!(now - start <= BUDGET);
    }
}
