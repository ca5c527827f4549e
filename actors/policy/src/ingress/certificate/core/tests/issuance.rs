//! The way to a first certificate.

use super::*;

#[test]
fn first_certificate_is_staged_then_promoted() {
    let mut lab = Lab::leading(settings(), wanted());
    assert_eq!(lab.actions(), ["order Staging"]);
    let staged = lab.issue(Slot::Staging);
    assert_eq!(
        staged,
        ["store Staging ISSUED", "discard", "order Production"]
    );
    assert_eq!(lab.core.status(lab.now.wall).phase, Phase::Ordering);
    let issued = lab.issue(Slot::Production);
    assert_eq!(
        issued,
        ["store Production ISSUED", "delete staging", "discard"]
    );
    assert_eq!(lab.facts.lock, None, "released");
    assert_eq!(lab.core.status(lab.now.wall).phase, Phase::Valid);
    lab.facts.staging = None;
    lab.share();
    let quiet = lab.pass(3 * 3600 * Duration::from_secs(1));
    assert!(!quiet.iter().any(|action| action != "query"), "{quiet:?}");
}

#[test]
fn other_directories_are_ordered_from_directly() {
    let direct = Settings {
        stage_first: false,
        ..settings()
    };
    let mut lab = Lab::leading(direct, wanted());
    assert_eq!(lab.actions(), ["order Production"]);
    lab.order(Err(failure(FailureClass::Validation)));
    assert_eq!(lab.actions(), ["discard", "prod validation 1m0s"]);
}

#[test]
fn staging_certificate_of_other_names_is_refused() {
    let mut lab = Lab::leading(settings(), wanted());
    lab.actions();
    let covers = false;
    let chain = Chain {
        covers,
        ..lab.chain()
    };
    lab.order(Ok(chain));
    assert_eq!(lab.actions(), ["discard", "staging unknown"]);
    assert_eq!(lab.until_order(2 * 60 * MINUTE), Some(60 * MINUTE));
}

#[test]
fn new_leader_promotes_a_stored_staging_certificate() {
    let mut lab = Lab::new(settings(), wanted());
    let chain = lab.chain();
    lab.store(Slot::Staging, chain);
    lab.core.handle_leadership(lab.now, true);
    assert_eq!(lab.actions(), ["order Production"]);
}

#[test]
fn domain_that_points_elsewhere_costs_no_order() {
    let checked = Settings {
        preflight: true,
        ..settings()
    };
    let mut lab = Lab::leading(checked, wanted());
    for (round, seconds) in [60, 120, 240, 480, 600, 600].into_iter().enumerate() {
        assert_eq!(lab.actions(), ["preflight"]);
        let attempt = lab.core.attempt;
        let verdict = Err("192.0.2.1: not ours".to_owned());
        lab.core.handle_preflight(lab.now, attempt, verdict);
        // The same reason is recorded once.
        let recorded = (round == 0).then_some("waiting 192.0.2.1: not ours");
        assert_eq!(lab.actions(), Vec::from_iter(recorded));
        let status = lab.core.status(lab.now.wall);
        assert_eq!(status.phase, Phase::WaitingDns);
        assert_eq!(status.reason, "192.0.2.1: not ours");
        let wait = Duration::from_secs(seconds);
        assert_eq!(lab.pass(wait - Duration::from_secs(1)), [""; 0]);
        lab.advance(Duration::from_secs(1));
        lab.core.handle_timeout(lab.now);
    }
    assert_eq!(lab.actions(), ["preflight"]);
    let attempt = lab.core.attempt;
    lab.core.handle_preflight(lab.now, attempt, Ok(()));
    assert_eq!(lab.actions(), ["order Staging"]);
    assert_eq!(
        lab.issue(Slot::Staging)[2],
        "order Production",
        "checked once"
    );
}
