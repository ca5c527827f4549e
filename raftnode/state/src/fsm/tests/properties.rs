use proptest::prelude::*;

use super::*;
use crate::testing::{commands, logs};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn random_log_keeps_rows_state_and_snapshot_equal(
        log in logs()
    ) {
        let log = commands(&log);
        let mut test = TestState::new();
        let mut writes = Vec::new();
        for command in &log {
            // `TestState` checks the invariants of every entry.
            writes.push(test.run(command).mutations);
        }
        let state = &test.state;

        let mut loaded = state::load(test.rows.clone()).unwrap();
        prop_assert_eq!(loaded.digest(), state.digest());
        loaded.applied_index = state.applied_index;
        prop_assert_eq!(&loaded, state);

        let snapshot = state.encode_snapshot();
        let rules = &state::Rules::MEMBER;
        let restored = State::read_snapshot(state.applied_index, &*snapshot, rules).unwrap();
        prop_assert_eq!(&restored.state, state);
        prop_assert!(restored.unknown_fields.is_empty());

        let mut replay = TestState::new();
        let again: Vec<_> = log.iter().map(|command| replay.run(command).mutations).collect();
        prop_assert_eq!(again, writes);
    }
}

/// The generator must reach every table, or the property above proves little.
#[test]
fn generated_logs_fill_every_table() {
    use proptest::{strategy::ValueTree, test_runner::TestRunner};

    let mut runner = TestRunner::deterministic();
    let mut filled = std::collections::BTreeSet::new();
    let mut outcomes = [0, 0];
    for _ in 0..120 {
        let bytes = prop::collection::vec(prop::collection::vec(any::<u8>(), 40), 60);
        let log = bytes.new_tree(&mut runner).unwrap().current();
        let mut test = TestState::new();
        for command in commands(&log) {
            outcomes[usize::from(test.run(&command).result.is_ok())] += 1;
        }
        filled.extend(test.rows.keys().map(|key| key[0]));
    }
    let all: std::collections::BTreeSet<u8> = state::Table::ALL.iter().map(|t| t.tag()).collect();
    assert_eq!(filled, all);
    assert!(outcomes.iter().all(|count| *count > 500), "{outcomes:?}");
}
