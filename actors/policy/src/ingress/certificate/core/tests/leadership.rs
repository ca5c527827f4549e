//! Leaders, and the lock of the domain.

use super::*;

#[test]
fn follower_does_nothing() {
    let mut lab = Lab::new(settings(), wanted());
    assert_eq!(lab.pass(DAY), [""; 0]);
    assert_eq!(lab.core.poll_timeout(), None);
}

#[test]
fn new_leader_makes_one_attempt_in_five_minutes() {
    let mut lab = Lab::leading(settings(), wanted());
    lab.actions();
    lab.order(Err(failure(FailureClass::Validation)));
    assert_eq!(lab.until_order(60 * MINUTE), Some(NEW_LEADER));
    lab.order(Err(failure(FailureClass::Validation)));
    assert_eq!(lab.until_order(60 * MINUTE), Some(2 * MINUTE));
    // Its backoff ends with its leadership.
    lab.order(Err(failure(FailureClass::RateLimit)));
    lab.core.handle_leadership(lab.now, false);
    lab.core.handle_leadership(lab.now, true);
    assert_eq!(lab.until_order(60 * MINUTE), Some(Duration::ZERO));
}

#[test]
fn new_leader_waits_for_the_lock() {
    let mut facts = wanted();
    facts.lock = Some(Lock {
        ours: false,
        until: start().wall + 3 * MINUTE,
    });
    let mut lab = Lab::leading(settings(), facts);
    let waited = lab.until_order(10 * MINUTE).unwrap();
    assert_eq!(waited.as_secs(), 180);
    lab.order(Err(failure(FailureClass::Unknown)));
    lab.actions();
    assert_eq!(lab.facts.lock, None, "released");
}

#[test]
fn lease_of_earlier_leadership_is_renewed_first() {
    let mut lab = Lab::new(settings(), wanted());
    lab.facts.lock = Some(Lock {
        ours: true,
        until: lab.now.wall + LEASE - MINUTE,
    });
    lab.share();
    lab.core.handle_leadership(lab.now, true);
    assert!(matches!(lab.core.poll_action(), Some(Action::Queue { .. })));
    assert!(lab.core.handle_turn(lab.now));
    // These facts may be older than the certificate of a leader in between.
    assert!(matches!(lab.core.poll_action(), Some(Action::Lock { .. })));
    assert_eq!(lab.core.poll_action(), None);
    lab.share();
    assert_eq!(lab.core.poll_action(), None, "the lease is the old one");
    lab.facts.production = Some(lab.chain());
    lab.share();
    assert_eq!(lab.actions(), [""; 0]);
    assert_eq!(lab.facts.lock, None, "released");
}

#[test]
fn lock_is_renewed_while_an_order_runs() {
    let mut lab = Lab::leading(settings(), wanted());
    lab.actions();
    lab.pass(4 * MINUTE);
    let until = lab.facts.lock.unwrap().until;
    let left = until.duration_since(lab.now.wall).unwrap();
    assert!(left > LEASE - LEASE_RENEWAL, "{left:?}");
}

#[test]
fn lost_lock_ends_the_order() {
    let mut lab = Lab::leading(settings(), wanted());
    lab.actions();
    let until = lab.now.wall + LEASE;
    lab.facts.lock = Some(Lock { ours: false, until });
    lab.share();
    assert_eq!(lab.actions(), ["discard", "staging transient"]);
}

#[test]
fn certificate_in_hand_survives_a_change_of_leadership() {
    let mut lab = Lab::leading(settings(), wanted());
    lab.actions();
    let chain = lab.chain();
    lab.order(Ok(chain));
    assert_eq!(lab.actions(), ["store Staging ISSUED"]);
    lab.core.handle_leadership(lab.now, false);
    lab.pass(MINUTE);
    lab.core.handle_leadership(lab.now, true);
    assert_eq!(lab.actions(), ["store Staging ISSUED"]);
    // Unless another leader was faster.
    lab.core.handle_leadership(lab.now, false);
    lab.store(Slot::Production, chain);
    lab.core.handle_leadership(lab.now, true);
    assert_eq!(lab.actions(), ["discard"]);
}
