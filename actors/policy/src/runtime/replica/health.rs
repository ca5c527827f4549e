//! Derives the replica state from an inspected container.

use jaco_engine::{EngineError, Health, Inspected, Status};
use jaco_proto::{manifest::compose::Restart, v1::ReplicaState};

use super::report::{Report, code};

/// Consecutive polls in which a container without a health check must be up to count as running.
pub const POLLS_UNTIL_RUNNING: u8 = 5;

/// Derives a report from one inspection.
///
/// `up_polls` counts consecutive polls that found the container up: a `timed` poll increments it,
/// any other inspection that finds it up leaves it unchanged, and anything else resets it.
/// `has_healthcheck` means that the service declares a health check; one declared only by the image
/// does not count. A container that `restart` leaves as it is after its end has stopped, and has not
/// failed.
#[must_use]
pub fn assess(
    seen: &Inspected,
    has_healthcheck: bool,
    restart: &Restart,
    timed: bool,
    up_polls: &mut u8,
) -> Report {
    let report = |state| Report::new(state, 0);
    let running = match seen.status {
        None => {
            *up_polls = 0;
            return report(ReplicaState::Failed)
                .because(code::NO_STATE, "the engine sent no state");
        }
        Some(Status::Exited | Status::Dead) => {
            *up_polls = 0;
            return exited(seen, restart);
        }
        Some(Status::Running) => true,
        Some(Status::Created | Status::Other) => false,
    };
    if has_healthcheck {
        match seen.health {
            Some(Health::Starting) => return report(ReplicaState::Pending),
            Some(Health::Healthy) => return report(ReplicaState::Running),
            Some(Health::Unhealthy) => {
                return report(ReplicaState::Degraded)
                    .because("", "the health check reports unhealthy");
            }
            None => {}
        }
    }
    if !running {
        *up_polls = 0;
        return report(ReplicaState::Pending);
    }
    if timed {
        *up_polls = up_polls.saturating_add(1).min(POLLS_UNTIL_RUNNING);
    }
    report(if *up_polls >= POLLS_UNTIL_RUNNING {
        ReplicaState::Running
    } else {
        ReplicaState::Pending
    })
}

/// Derives a report from a failed inspection, unless the engine was unreachable.
#[must_use]
pub fn assess_failure(error: &EngineError) -> Report {
    Report::new(ReplicaState::Failed, 0).because(code::INSPECT_FAILED, error.to_string())
}

fn exited(seen: &Inspected, restart: &Restart) -> Report {
    let text = if seen.oom_killed {
        "the container ran out of memory".to_owned()
    } else {
        format!("the container exited with code {}", seen.exit_code)
    };
    let report = |state| Report::new(state, 0).because(code::CONTAINER_EXITED, text);
    if !restart.restarts_after(seen.exit_code) {
        report(ReplicaState::Stopped).with(code::EXIT_CODE, seen.exit_code)
    } else if seen.exit_code == 0 {
        report(ReplicaState::Failed)
    } else {
        report(ReplicaState::Failed).with(code::EXIT_CODE, seen.exit_code)
    }
}

#[cfg(test)]
mod tests {
    use jaco_proto::manifest::compose::RestartCondition;

    use super::*;
    use ReplicaState::{Degraded, Failed, Pending, Running, Stopped};

    fn seen(status: Option<Status>, health: Option<Health>) -> Inspected {
        Inspected {
            id: "c1".into(),
            status,
            started_at: String::new(),
            exit_code: 0,
            oom_killed: false,
            health,
            namespace: Default::default(),
            addresses: Default::default(),
        }
    }

    #[test]
    fn every_row_of_health_table_holds() {
        let up = Some(Status::Running);
        for (status, health, has_healthcheck, before, state, code, after) in [
            (None, None, false, 3, Failed, "no_state", 0),
            (
                Some(Status::Exited),
                None,
                false,
                5,
                Failed,
                "container_exited",
                0,
            ),
            (
                Some(Status::Dead),
                None,
                false,
                5,
                Failed,
                "container_exited",
                0,
            ),
            (up, Some(Health::Starting), true, 0, Pending, "", 0),
            (up, Some(Health::Healthy), true, 0, Running, "", 0),
            (up, Some(Health::Unhealthy), true, 0, Degraded, "", 0),
            (up, Some(Health::Unhealthy), false, 0, Pending, "", 1),
            (up, None, true, 3, Pending, "", 4),
            (up, None, false, 3, Pending, "", 4),
            (up, None, false, 4, Running, "", 5),
            (up, None, false, 5, Running, "", 5),
            (Some(Status::Other), None, false, 4, Pending, "", 0),
            (Some(Status::Created), None, false, 4, Pending, "", 0),
        ] {
            let mut polls = before;
            let report = assess(
                &seen(status, health),
                has_healthcheck,
                &Restart::default(),
                true,
                &mut polls,
            );
            let what = format!("{status:?} {health:?} checked={has_healthcheck} after {before}");
            assert_eq!(
                (report.state, report.code.as_str()),
                (state, code),
                "{what}"
            );
            assert_eq!(polls, after, "{what}");
        }
    }

    #[test]
    fn only_timed_polls_count() {
        let mut polls = 4;
        let up = seen(Some(Status::Running), None);
        let report = assess(&up, false, &Restart::default(), false, &mut polls);
        assert_eq!((report.state, polls), (Pending, 4));
    }

    #[test]
    fn clean_exit_has_no_exit_code_detail() {
        let exited = |code| {
            let mut inspected = seen(Some(Status::Exited), None);
            inspected.exit_code = code;
            assess(&inspected, false, &Restart::default(), true, &mut 0)
        };
        assert!(exited(0).details.is_empty());
        assert_eq!(exited(137).details["exit_code"], "137");
    }

    #[test]
    fn policy_decides_about_ended_container() {
        use RestartCondition::{Always, Never, OnFailure};
        for (condition, exit_code, state) in [
            (Always, 0, Failed),
            (Always, 3, Failed),
            (OnFailure, 0, Stopped),
            (OnFailure, 3, Failed),
            (Never, 0, Stopped),
            (Never, 3, Stopped),
        ] {
            let restart = Restart {
                condition,
                ..Restart::default()
            };
            for status in [Status::Exited, Status::Dead] {
                let mut inspected = seen(Some(status), None);
                inspected.exit_code = exit_code;
                let report = assess(&inspected, false, &restart, true, &mut 0);
                let what = format!("{condition:?} after {exit_code}");
                assert_eq!(report.state, state, "{what}");
                let finished = (state == Stopped).then_some(exit_code);
                assert_eq!(report.finished(), finished, "{what}");
            }
        }
    }
}
