//! Renewals.

use super::*;

#[test]
fn renewal_begins_at_a_third_of_the_life() {
    let mut lab = Lab::new(settings(), wanted());
    let chain = lab.chain();
    lab.store(Slot::Production, chain);
    lab.core.handle_leadership(lab.now, true);
    let waited = lab.until_order(90 * DAY).unwrap();
    assert!(
        waited > 60 * DAY && waited <= 60 * DAY + 10 * MINUTE,
        "{waited:?}"
    );
    let seen = lab.issue(Slot::Production);
    assert_eq!(seen, ["store Production RENEWED", "discard"]);
}

#[test]
fn authority_may_only_advance_a_renewal() {
    for (days, expected) in [(10, 10), (-5, 0), (80, 60)] {
        let mut lab = Lab::new(settings(), wanted());
        let chain = lab.chain();
        lab.store(Slot::Production, chain);
        lab.core.handle_leadership(lab.now, true);
        let at = |days: i64| {
            let start = lab.now.wall - 10 * DAY;
            start + u32::try_from(days + 10).unwrap() * DAY
        };
        let window = RenewalWindow {
            start: at(days),
            end: at(days),
        };
        let week = Some(7 * DAY);
        lab.core.handle_renewal_window(lab.now, Some(window), week);
        let waited = lab.until_order(90 * DAY).unwrap();
        assert_eq!(waited.as_secs() / DAY.as_secs(), expected, "{days}");
    }
}

#[test]
fn renewals_are_an_hour_apart() {
    let mut lab = Lab::new(settings(), wanted());
    let chain = lab.chain();
    lab.store(Slot::Production, chain);
    lab.core.handle_leadership(lab.now, true);
    let past = lab.now.wall - DAY;
    let window = RenewalWindow {
        start: past,
        end: past,
    };
    let mut orders = 0;
    let begin = lab.now.instant;
    while lab.now.instant < begin + DAY {
        lab.core.handle_renewal_window(lab.now, Some(window), None);
        if lab.until_order(DAY).is_some() {
            orders += 1;
            lab.advance(Duration::from_secs(1));
            lab.issue(Slot::Production);
        }
    }
    assert!((20..=26).contains(&orders), "{orders}");
}

#[test]
fn renewal_that_expires_earlier_is_not_stored() {
    let mut lab = Lab::new(settings(), wanted());
    let chain = lab.chain();
    lab.store(Slot::Production, chain);
    lab.core.handle_leadership(lab.now, true);
    lab.until_order(90 * DAY).unwrap();
    let shorter = lab.chain_for(DAY);
    lab.order(Ok(shorter));
    assert_eq!(lab.actions(), ["discard", "prod unknown 1m0s"]);
}
