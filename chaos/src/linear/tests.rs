use super::{Action::*, *};
use crate::Rng;

fn op(action: Action, called: u64, answered: u64) -> Operation {
    Operation {
        client: 0,
        action,
        called,
        answered: Some(answered),
    }
}

fn unknown(action: Action, called: u64) -> Operation {
    Operation {
        client: 0,
        action,
        called,
        answered: None,
    }
}

#[test]
fn linearizable_histories_pass() {
    for (what, history) in [
        ("nothing happened", vec![]),
        (
            "nothing is written at first",
            vec![op(Read(None), 0, 1), op(Write(1), 2, 3)],
        ),
        (
            "a write is seen",
            vec![op(Write(1), 0, 1), op(Read(Some(1)), 2, 3)],
        ),
        (
            "a read during a write sees it",
            vec![op(Write(1), 0, 9), op(Read(Some(1)), 1, 2)],
        ),
        (
            "a read during a write does not",
            vec![op(Write(1), 0, 9), op(Read(None), 1, 2)],
        ),
        (
            "reads during a write see it from some moment on",
            vec![
                op(Write(1), 0, 9),
                op(Read(None), 1, 2),
                op(Read(Some(1)), 3, 4),
                op(Read(Some(1)), 5, 6),
            ],
        ),
        (
            "concurrent writes in either order",
            vec![
                op(Write(1), 0, 9),
                op(Write(2), 0, 9),
                op(Read(Some(1)), 10, 11),
            ],
        ),
        (
            "an answer and a call at the same time are concurrent",
            vec![op(Write(1), 0, 5), op(Read(None), 5, 6)],
        ),
        (
            "a write without an answer happens late",
            vec![
                unknown(Write(1), 0),
                op(Write(2), 1, 2),
                op(Read(Some(2)), 3, 4),
                op(Read(Some(1)), 5, 6),
            ],
        ),
        (
            "or never",
            vec![
                unknown(Write(1), 0),
                op(Write(2), 1, 2),
                op(Read(Some(2)), 3, 4),
            ],
        ),
        (
            "a read without an answer says nothing",
            vec![op(Write(1), 0, 1), unknown(Read(Some(7)), 2)],
        ),
    ] {
        let result = check(&history);
        assert!(result.is_ok(), "{what}: {}", result.unwrap_err());
    }
}

#[test]
fn non_linearizable_histories_are_rejected() {
    for (what, history) in [
        ("a value from nowhere", vec![op(Read(Some(1)), 0, 1)]),
        (
            "a read before its write",
            vec![op(Read(Some(1)), 0, 1), op(Write(1), 2, 3)],
        ),
        (
            "an acknowledged write is lost",
            vec![op(Write(1), 0, 1), op(Read(None), 2, 3)],
        ),
        (
            "a stale read",
            vec![
                op(Write(1), 0, 1),
                op(Write(2), 2, 3),
                op(Read(Some(1)), 4, 5),
            ],
        ),
        (
            "two readers see a concurrent write come and go",
            vec![
                op(Write(1), 0, 9),
                op(Read(Some(1)), 1, 2),
                op(Read(None), 3, 4),
            ],
        ),
        (
            "two halves of a cluster go on apart",
            vec![
                op(Write(1), 0, 1),
                op(Write(2), 2, 3),
                op(Read(Some(2)), 4, 5),
                op(Write(3), 4, 5),
                op(Read(Some(3)), 6, 7),
                op(Read(Some(2)), 8, 9),
            ],
        ),
        (
            "two concurrent writes in both orders",
            vec![
                op(Write(1), 0, 9),
                op(Write(2), 0, 9),
                op(Read(Some(1)), 10, 11),
                op(Read(Some(2)), 12, 13),
            ],
        ),
        (
            "a write without an answer happens twice",
            vec![
                unknown(Write(1), 0),
                op(Read(Some(1)), 1, 2),
                op(Write(2), 3, 4),
                op(Read(Some(2)), 5, 6),
                op(Read(Some(1)), 7, 8),
            ],
        ),
        (
            "a write without an answer is seen and then not",
            vec![
                op(Write(1), 0, 1),
                unknown(Write(2), 2),
                op(Read(Some(2)), 3, 4),
                op(Read(Some(1)), 5, 6),
            ],
        ),
        (
            "a write without an answer is seen before its call",
            vec![op(Read(Some(1)), 0, 1), unknown(Write(1), 2)],
        ),
    ] {
        assert!(check(&history).is_err(), "{what}");
    }
}

#[test]
fn violation_shows_longest_order_and_next_operation() {
    let history = [
        op(Write(1), 0, 1),
        op(Write(2), 2, 3),
        op(Read(Some(1)), 4, 5),
    ];
    let violation = check(&history).unwrap_err();
    assert_eq!(violation.order, history[..2]);
    assert_eq!(violation.stuck, Some(history[2]));
    let text = violation.to_string();
    assert!(
        text.contains("read 1 within 4..5") && text.contains("wrote 2"),
        "{text}"
    );
}

#[test]
fn registers_are_checked_independently() {
    let good = vec![op(Write(1), 0, 1), op(Read(Some(1)), 2, 3)];
    let bad = vec![op(Read(Some(1)), 0, 1)];
    let mut histories = BTreeMap::from([("a", good.clone()), ("b", good)]);
    check_all(&histories).unwrap();
    histories.insert("c", bad);
    assert_eq!(check_all(&histories).unwrap_err().0, "c");
}

/// The definition itself: some subset of the unanswered writes took effect, in some order of all.
fn by_definition(history: &[Operation]) -> bool {
    fn search(history: &[Operation], done: &mut Vec<bool>, value: Option<u64>) -> bool {
        let over = |id: usize| history[id].answered.is_none() || done[id];
        if (0..history.len()).all(over) {
            return true;
        }
        for id in 0..history.len() {
            let first = (0..history.len()).all(|other| {
                done[other] || history[other].answered.unwrap_or(u64::MAX) >= history[id].called
            });
            if done[id] || !first {
                continue;
            }
            let next = match history[id].action {
                Write(written) => Some(written),
                Read(read) if read == value => value,
                Read(_) => continue,
            };
            done[id] = true;
            let found = search(history, done, next);
            done[id] = false;
            if found {
                return true;
            }
        }
        false
    }
    search(history, &mut vec![false; history.len()], None)
}

#[test]
fn search_agrees_with_definition() {
    let mut verdicts = [0_u32; 2];
    for seed in 0..5_000 {
        let mut rng = Rng::new(seed);
        let count = rng.within(1..7);
        let history: Vec<Operation> = (1..=count)
            .map(|id| {
                let action = match rng.within(0..2) {
                    0 => Write(id),
                    _ => Read(Some(rng.within(0..count + 1)).filter(|value| *value > 0)),
                };
                let called = rng.within(0..12);
                let answered = called + rng.within(0..6);
                let is_answered = matches!(action, Read(_)) || rng.within(0..4) > 0;
                Operation {
                    client: 0,
                    action,
                    called,
                    answered: is_answered.then_some(answered),
                }
            })
            .collect();
        let expected = by_definition(&history);
        verdicts[usize::from(expected)] += 1;
        assert_eq!(
            check(&history).is_ok(),
            expected,
            "seed {seed}: {history:#?}"
        );
    }
    // Neither verdict is rare.
    assert!(verdicts.iter().all(|count| *count > 500), "{verdicts:?}");
}

/// History of eight clients of a correct register, with random times.
fn real(seed: u64, count: u64) -> Vec<Operation> {
    let mut rng = Rng::new(seed);
    let mut moments = Vec::new();
    let mut free = [0; 8];
    for id in 1..=count {
        let client = (0..8).min_by_key(|client| free[*client as usize]).unwrap();
        let called = free[client as usize] + rng.within(1..50);
        let moment = called + rng.within(0..100);
        let answered = moment + rng.within(0..100);
        free[client as usize] = answered + 1;
        moments.push((moment, id, client, called, answered));
    }
    moments.sort_unstable();
    let mut value = None;
    let of = |(_, id, client, called, answered)| {
        let (action, answered) = match rng.within(0..4) {
            0 => {
                value = Some(id);
                (Write(id), (rng.within(0..20) > 0).then_some(answered))
            }
            _ => (Read(value), Some(answered)),
        };
        Operation {
            client,
            action,
            called,
            answered,
        }
    };
    moments.into_iter().map(of).collect()
}

#[test]
fn one_stale_read_in_long_history_is_found() {
    let history = real(1, 5_000);
    check(&history).unwrap();
    // Late enough for the first write to be overwritten.
    let mut spoiled = history.clone();
    let late = spoiled
        .iter()
        .rposition(|op| matches!(op.action, Read(_)))
        .unwrap();
    let first = history.iter().find_map(|op| match op.action {
        Write(value) => Some(value),
        Read(_) => None,
    });
    spoiled[late].action = Read(first);
    let violation = check(&spoiled).unwrap_err();
    assert_eq!(violation.stuck, Some(spoiled[late]));
}
