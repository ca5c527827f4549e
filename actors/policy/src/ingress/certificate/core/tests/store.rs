//! Contents of the state and of the disk.

use super::*;

#[test]
fn certificate_of_an_operator_suspends_orders() {
    let mut lab = Lab::leading(settings(), wanted());
    assert_eq!(lab.actions(), ["order Staging"]);
    lab.facts.imported = true;
    lab.share();
    assert_eq!(lab.actions(), ["discard"]);
    assert_eq!(lab.core.status(lab.now.wall).phase, Phase::Valid);
    assert_eq!(lab.pass(DAY), [""; 0]);
    lab.facts.imported = false;
    lab.share();
    assert_eq!(lab.actions(), ["order Staging"]);
}

#[test]
fn removed_route_cancels_and_deletes() {
    let mut lab = Lab::leading(settings(), wanted());
    lab.actions();
    lab.issue(Slot::Staging);
    lab.facts.wanted = false;
    lab.share();
    assert_eq!(lab.actions(), ["discard", "delete all"]);
    assert_eq!(lab.facts.lock, None);
    assert_eq!(
        lab.pass(2 * WRITE_RETRY),
        ["delete all"; 2],
        "until it is gone"
    );
    lab.facts = Facts::default();
    lab.share();
    assert_eq!(lab.pass(DAY), [""; 0]);
}

#[test]
fn copy_on_disk_replaces_a_lost_certificate() {
    let mut lab = Lab::new(settings(), wanted());
    let chain = lab.chain();
    lab.facts.local.production = Some(chain);
    lab.share();
    lab.core.handle_leadership(lab.now, true);
    assert_eq!(lab.actions(), ["reseed Production"]);
    lab.store(Slot::Production, chain);
    assert_eq!(lab.pass(3600 * Duration::from_secs(1)), [""; 0]);
    // An expired copy is of no use.
    let mut lab = Lab::new(settings(), wanted());
    let mut expired = lab.chain();
    expired.not_after = lab.now.wall;
    lab.facts.local.production = Some(expired);
    lab.share();
    lab.core.handle_leadership(lab.now, true);
    assert_eq!(lab.actions(), ["order Staging"]);
}

#[test]
fn write_missing_from_the_state_is_repeated() {
    let mut lab = Lab::leading(settings(), wanted());
    lab.actions();
    let chain = lab.chain();
    lab.order(Ok(chain));
    assert_eq!(lab.actions().len(), 1);
    let seen = lab.pass(3 * WRITE_RETRY);
    assert_eq!(seen, ["store Staging ISSUED"; 3]);
}
