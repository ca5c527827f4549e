//! Waits after failures.

use super::*;

#[test]
fn failed_orders_wait_as_the_table_says() {
    use FailureClass::{RateLimit, Transient, Unknown, Validation};
    let mut lab = Lab::leading(settings(), wanted());
    lab.pass(NEW_LEADER);
    for (class, minutes) in [
        (Validation, 1),
        (Transient, 2),
        (Unknown, 4),
        (RateLimit, 60),
    ] {
        lab.order(Err(failure(class)));
        let waited = lab.until_order(2 * 60 * MINUTE);
        assert_eq!(waited, Some(minutes * MINUTE), "{class:?}");
    }
}

#[test]
fn failed_promotion_stages_again_after_its_own_wait() {
    let mut lab = Lab::leading(settings(), wanted());
    lab.actions();
    lab.issue(Slot::Staging);
    for minutes in [15, 30, 60, 60] {
        lab.order(Err(failure(FailureClass::Unknown)));
        let expected = format!(
            "prod unknown {}",
            match minutes {
                60 => "1h0m0s".to_owned(),
                minutes => format!("{minutes}m0s"),
            }
        );
        assert_eq!(lab.actions(), ["discard".to_owned(), expected]);
        let waited = lab.until_order(2 * 60 * MINUTE);
        assert_eq!(waited, Some(minutes * MINUTE));
        assert!(lab.facts.staging.is_some(), "still served");
        assert_eq!(lab.issue(Slot::Staging)[2], "order Production");
    }
}

#[test]
fn order_is_cancelled_after_its_window() {
    let mut lab = Lab::leading(settings(), wanted());
    lab.actions();
    lab.issue(Slot::Staging);
    let seen = lab.pass(WINDOW);
    assert_eq!(seen, ["discard", "prod transient 15m0s"]);
    // The outcome of the cancelled order comes too late.
    let chain = lab.chain();
    lab.order(Ok(chain));
    assert_eq!(lab.actions(), [""; 0]);
}
