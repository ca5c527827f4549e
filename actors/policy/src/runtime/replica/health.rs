//! Derives the replica state from an inspected container.

use std::{collections::BTreeSet, time::Instant};

use jaco_engine::{EngineError, Health, Inspected, Status};
use jaco_proto::{manifest::compose::Restart, v1::ReplicaState};

use super::{
    readiness::{Readiness, Startup, Verdict},
    report::{Report, code},
};

/// Expectations of a service of its container.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected<'a> {
    /// Evidence that it is ready. A health check that only the image declares does not count.
    pub(super) readiness: &'a Readiness,
    /// Treatment after its end.
    pub(super) restart: &'a Restart,
}

/// Derives a report from one inspection, and the time at which a container that is up and not ready
/// is to be checked again. `accepted` are the ports that accepted a connection, if any was made.
///
/// A container that its policy leaves as it is after its end has stopped, and has not failed.
pub(super) fn assess(
    now: Instant,
    seen: &Inspected,
    expected: Expected<'_>,
    startup: &mut Startup,
    accepted: Option<BTreeSet<u16>>,
) -> (Report, Option<Instant>) {
    let report = |state| Report::new(state, 0);
    let done = |report| (report, None);
    if seen.status == Some(Status::Running) {
        startup.see(now, &seen.started_at);
    } else {
        startup.reset();
    }
    let running = match seen.status {
        None => {
            let report = report(ReplicaState::Failed);
            return done(report.because(code::NO_STATE, "the engine sent no state"));
        }
        Some(Status::Exited | Status::Dead) => return done(exited(seen, expected.restart)),
        Some(Status::Running) => true,
        Some(Status::Created | Status::Other) => false,
    };
    if *expected.readiness == Readiness::Healthcheck {
        match seen.health {
            Some(Health::Starting) => return done(report(ReplicaState::Pending)),
            Some(Health::Healthy) => return done(report(ReplicaState::Running)),
            Some(Health::Unhealthy) => {
                let report = report(ReplicaState::Degraded);
                return done(report.because("", "the health check reports unhealthy"));
            }
            None => {}
        }
    }
    if !running {
        return done(report(ReplicaState::Pending));
    }
    let has_address = !seen.addresses.is_empty();
    match startup.check(now, expected.readiness, has_address, accepted) {
        Verdict::Ready => done(report(ReplicaState::Running)),
        Verdict::NotYet(next, closed) => {
            let report = report(ReplicaState::Pending);
            let report = match closed {
                Some(port) => report.because("", format!("port {port} accepts no connection yet")),
                None => report,
            };
            (report, Some(next))
        }
    }
}

/// Derives a report from a failed inspection, unless the engine was unreachable.
pub(super) fn assess_failure(error: &EngineError) -> Report {
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

    use super::{super::readiness::UPTIME, *};
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

    fn assess_now(seen: &Inspected, readiness: &Readiness, restart: &Restart) -> Report {
        let now = Instant::now();
        let expected = Expected { readiness, restart };
        assess(now, seen, expected, &mut Startup::started(now), None).0
    }

    #[test]
    fn every_row_of_health_table_holds() {
        use Readiness::{Healthcheck, Uptime};
        let up = Some(Status::Running);
        let has_ended = (Failed, "container_exited", false);
        let waits = (Pending, "", false);
        let checks = (Pending, "", true);
        for (status, health, readiness, is_old, (state, code, checks)) in [
            (None, None, Uptime, true, (Failed, "no_state", false)),
            (Some(Status::Exited), None, Uptime, true, has_ended),
            (Some(Status::Dead), None, Uptime, true, has_ended),
            (up, Some(Health::Starting), Healthcheck, true, waits),
            (
                up,
                Some(Health::Healthy),
                Healthcheck,
                false,
                (Running, "", false),
            ),
            (
                up,
                Some(Health::Unhealthy),
                Healthcheck,
                true,
                (Degraded, "", false),
            ),
            (up, Some(Health::Unhealthy), Uptime, false, checks),
            (up, None, Healthcheck, false, checks),
            (up, None, Healthcheck, true, (Running, "", false)),
            (up, None, Uptime, false, checks),
            (up, None, Uptime, true, (Running, "", false)),
            (Some(Status::Other), None, Uptime, true, waits),
            (Some(Status::Created), None, Uptime, true, waits),
        ] {
            let start = Instant::now();
            let mut startup = Startup::started(start);
            let restart = Restart::default();
            let expected = Expected {
                readiness: &readiness,
                restart: &restart,
            };
            let now = start + if is_old { UPTIME } else { UPTIME / 2 };
            let (report, next) = assess(now, &seen(status, health), expected, &mut startup, None);
            let what = format!("{status:?} {health:?} {readiness:?} old={is_old}");
            assert_eq!(
                (report.state, report.code.as_str()),
                (state, code),
                "{what}"
            );
            assert_eq!(next, checks.then_some(start + UPTIME), "{what}");
        }
    }

    #[test]
    fn closed_port_is_named() {
        let readiness = Readiness::of_ports([80, 443].into());
        let mut up = seen(Some(Status::Running), None);
        up.addresses = [("net".to_owned(), "10.0.0.2".to_owned())].into();
        let report = assess_now(&up, &readiness, &Restart::default());
        assert_eq!(
            (report.state, report.message.as_str()),
            (Pending, "port 80 accepts no connection yet")
        );
    }

    #[test]
    fn clean_exit_has_no_exit_code_detail() {
        let exited = |code| {
            let mut inspected = seen(Some(Status::Exited), None);
            inspected.exit_code = code;
            assess_now(&inspected, &Readiness::Uptime, &Restart::default())
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
                let report = assess_now(&inspected, &Readiness::Uptime, &restart);
                let what = format!("{condition:?} after {exit_code}");
                assert_eq!(report.state, state, "{what}");
                let finished = (state == Stopped).then_some(exit_code);
                assert_eq!(report.finished(), finished, "{what}");
            }
        }
    }
}
