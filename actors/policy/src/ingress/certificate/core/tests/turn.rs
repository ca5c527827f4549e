//! Turns among the domains.

use super::*;

/// A leader of a domain whose turn has not come.
fn queued(settings: Settings) -> Lab {
    let mut lab = Lab::new(settings, wanted());
    lab.turns = false;
    lab.core.handle_leadership(lab.now, true);
    assert_eq!(lab.actions(), ["queue since 0 s"]);
    lab
}

#[test]
fn nothing_begins_before_the_turn() {
    for preflight in [false, true] {
        let mut lab = queued(Settings {
            preflight,
            ..settings()
        });
        assert_eq!(lab.pass(DAY), [""; 0]);
        assert_eq!(lab.core.status(lab.now.wall).phase, Phase::Ordering);
        assert!(lab.core.handle_turn(lab.now));
        let first = if preflight {
            "preflight"
        } else {
            "order Staging"
        };
        assert_eq!(lab.actions(), [first]);
        assert!(!lab.core.handle_turn(lab.now), "it has one");
    }
}

#[test]
fn turn_lasts_from_staging_to_production() {
    let mut lab = queued(settings());
    lab.core.handle_turn(lab.now);
    assert_eq!(lab.actions(), ["order Staging"]);
    let staged = lab.issue(Slot::Staging);
    assert_eq!(
        staged,
        ["store Staging ISSUED", "discard", "order Production"]
    );
    let issued = lab.issue(Slot::Production);
    assert_eq!(issued.last().unwrap(), "end turn");
}

#[test]
fn failed_attempt_queues_again_after_its_wait() {
    let mut lab = queued(settings());
    lab.core.handle_turn(lab.now);
    lab.actions();
    lab.order(Err(failure(FailureClass::Validation)));
    let ended = lab.actions();
    assert_eq!(
        ended,
        ["discard", "staging validation", "end turn"],
        "others go on meanwhile"
    );
    assert_eq!(lab.pass(NEW_LEADER), ["queue since 0 s"]);
}

#[test]
fn renewal_is_due_since_its_time() {
    let mut lab = Lab::new(settings(), wanted());
    lab.turns = false;
    let chain = lab.chain();
    lab.store(Slot::Production, chain);
    lab.advance(70 * DAY);
    lab.core.handle_leadership(lab.now, true);
    let [queue] = &lab.actions()[..] else {
        panic!("one action");
    };
    let since: u64 = queue
        .strip_prefix("queue since ")
        .and_then(|text| text.strip_suffix(" s"))
        .unwrap()
        .parse()
        .unwrap();
    let ten_days = 10 * DAY.as_secs();
    assert!((ten_days - 600..=ten_days).contains(&since), "{since}");
}

#[test]
fn domain_leaves_the_queue_when_it_needs_nothing() {
    let gone = |change: fn(&mut Lab)| {
        let mut lab = queued(settings());
        change(&mut lab);
        let seen = lab.actions();
        assert!(!lab.core.handle_turn(lab.now), "it comes too late");
        assert_eq!(lab.actions(), [""; 0]);
        seen
    };
    let unwanted = gone(|lab| {
        lab.facts.wanted = false;
        lab.share();
    });
    assert_eq!(unwanted, ["end turn"]);
    let imported = gone(|lab| {
        lab.facts.imported = true;
        lab.share();
    });
    assert_eq!(imported, ["end turn"]);
    let issued = gone(|lab| {
        let chain = lab.chain();
        lab.store(Slot::Production, chain);
    });
    assert_eq!(issued, ["end turn"]);
    let follower = gone(|lab| lab.core.handle_leadership(lab.now, false));
    assert_eq!(follower, ["end turn"]);
}

#[test]
fn lease_of_another_node_uses_up_no_turn() {
    let mut facts = wanted();
    facts.lock = Some(Lock {
        ours: false,
        until: start().wall + 3 * MINUTE,
    });
    let mut lab = Lab::new(settings(), facts);
    lab.turns = false;
    lab.core.handle_leadership(lab.now, true);
    assert_eq!(lab.actions(), [""; 0]);
    assert_eq!(lab.pass(3 * MINUTE), ["queue since 0 s"]);
}
