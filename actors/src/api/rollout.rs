//! `Deploy.Rollback` and `Deploy.ControlRollout`: the revision that a deployment returns to, and the
//! rollouts that lead to another one.

use jaco_proto::{
    Error, ErrorCode,
    v1::{self, RolloutAction, RolloutState, command::Payload},
};
use jaco_raftnode::{State, StateReader};

use super::{caller::Caller, names};
use crate::node::MemberContext;

/// Serves `Deploy.Rollback`.
pub(super) async fn rollback(
    node: &MemberContext,
    caller: &Caller,
    request: v1::RollbackRequest,
) -> Result<v1::RollbackResponse, Error> {
    names::require("deployment", &request.deployment)?;
    let guard = node.apply_lock.lock(&node.raft).await?;
    let state = node.raft.state();
    let deployment = existing(&state, &request.deployment)?;
    let rollback = to_previous(&state, deployment, String::new())?;
    let revision = rollback.revision;
    let command = node.command(&caller.identity, Payload::DeploymentRollback(rollback));
    guard.propose(&node.raft, command).await?;
    Ok(v1::RollbackResponse { revision })
}

/// Serves `Deploy.ControlRollout`.
pub(super) async fn control(
    node: &MemberContext,
    caller: &Caller,
    request: v1::ControlRolloutRequest,
) -> Result<v1::ControlRolloutResponse, Error> {
    names::require("deployment", &request.deployment)?;
    let guard = node.apply_lock.lock(&node.raft).await?;
    let state = node.raft.state();
    let (payload, revision) = plan(&state, &request, &caller.identity)?;
    let command = node.command(&caller.identity, payload);
    guard.propose(&node.raft, command).await?;
    Ok(v1::ControlRolloutResponse { revision })
}

/// Change that was asked for, and the revision that is applied after it.
fn plan(
    state: &State,
    request: &v1::ControlRolloutRequest,
    by: &str,
) -> Result<(Payload, u64), Error> {
    let deployment = existing(state, &request.deployment)?;
    let revision = deployment.applied_revision;
    let hold = |held| {
        let deployment = deployment.name.clone();
        Payload::RolloutHoldSet(v1::RolloutHoldSet {
            deployment,
            revision,
            held,
        })
    };
    match request.action() {
        RolloutAction::Pause => Ok((hold(true), revision)),
        RolloutAction::Resume => Ok((hold(false), revision)),
        RolloutAction::Abort => {
            let rollback = abort(state, deployment, by)?;
            let revision = rollback.revision;
            Ok((Payload::DeploymentRollback(rollback), revision))
        }
        RolloutAction::Unspecified => Err(Error::new(
            ErrorCode::ValidationFailed,
            "action is none of pause, resume and abort",
        )
        .with("field", "action")),
    }
}

/// Rollback that ends the rollouts in progress as a failure does.
fn abort(
    state: &State,
    deployment: &v1::Deployment,
    by: &str,
) -> Result<v1::DeploymentRollback, Error> {
    let (name, revision) = (&deployment.name, deployment.applied_revision);
    let plans = state.rollout_plans.values();
    let mut plans = plans
        .filter(|plan| plan.deployment == *name && plan.target_revision == revision)
        .filter(|plan| plan.state() == RolloutState::InProgress)
        .peekable();
    if plans.peek().is_none() {
        return Err(Error::new(
            ErrorCode::RolloutNotFound,
            format!("deployment {name:?} has no rollout in progress"),
        )
        .with("deployment", name));
    }
    let kept = |why: &str| {
        Error::new(ErrorCode::NoPreviousRevision, why)
            .with("deployment", name)
            .with("revision", revision)
    };
    if plans.all(|plan| plan.secrets_only) {
        return Err(kept(
            "only values of secrets change, and former values are not kept",
        ));
    }
    if deployment.previous_revision > revision {
        return Err(kept(
            "the rollout restores a revision, and what it replaces is not tried again",
        ));
    }
    to_previous(state, deployment, format!("aborted by {by}"))
}

/// Rollback of `deployment`, with the reason if it counts as a failure.
fn to_previous(
    state: &State,
    deployment: &v1::Deployment,
    failure_reason: String,
) -> Result<v1::DeploymentRollback, Error> {
    let (name, revision) = (&deployment.name, deployment.previous_revision);
    if revision == 0 {
        return Err(Error::new(
            ErrorCode::NoPreviousRevision,
            format!("deployment {name:?} has no previous revision"),
        )
        .with("deployment", name));
    }
    let previous = deployment.previous.iter();
    for route in previous.flat_map(|previous| &previous.routes) {
        let key = (route.domain.clone(), route.path.clone());
        let owner = state.routes.get(&key);
        // Another deployment may have taken the route since.
        if let Some(owner) = owner.filter(|owner| owner.deployment != *name) {
            return Err(Error::new(
                ErrorCode::RouteConflict,
                format!(
                    "route {}{} of the previous revision belongs to deployment {:?} by now",
                    route.domain, route.path, owner.deployment
                ),
            )
            .with("domain", &route.domain)
            .with("path", &route.path)
            .with("deployment", &owner.deployment));
        }
    }
    Ok(v1::DeploymentRollback {
        deployment: name.clone(),
        revision,
        failure_reason,
    })
}

/// Returns the deployment, or `deployment_not_found`.
pub(super) fn existing<'a>(state: &'a State, name: &str) -> Result<&'a v1::Deployment, Error> {
    state
        .deployments
        .get(name)
        .map(AsRef::as_ref)
        .ok_or_else(|| {
            Error::new(
                ErrorCode::DeploymentNotFound,
                format!("no deployment {name:?}"),
            )
            .with("deployment", name)
        })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// A deployment at a revision, with plans of its services.
    fn state(applied_revision: u64, previous_revision: u64, plans: &[v1::RolloutPlan]) -> State {
        let mut state = State::default();
        let deployment = v1::Deployment {
            name: "shop".to_owned(),
            applied_revision,
            previous_revision,
            previous: Some(v1::DeploymentRevision::default()),
            ..v1::Deployment::default()
        };
        state
            .deployments
            .insert("shop".to_owned(), Arc::new(deployment));
        for (index, plan) in plans.iter().enumerate() {
            let service = format!("s{index}");
            let plan = v1::RolloutPlan {
                deployment: "shop".to_owned(),
                service: service.clone(),
                ..plan.clone()
            };
            let key = ("shop".to_owned(), service);
            state.rollout_plans.insert(key, Arc::new(plan));
        }
        state
    }

    fn in_progress(target_revision: u64) -> v1::RolloutPlan {
        v1::RolloutPlan {
            target_revision,
            state: RolloutState::InProgress.into(),
            ..v1::RolloutPlan::default()
        }
    }

    fn ask(state: &State, deployment: &str, action: RolloutAction) -> Result<Payload, ErrorCode> {
        let request = v1::ControlRolloutRequest {
            deployment: deployment.to_owned(),
            action: action.into(),
        };
        match plan(state, &request, "tester") {
            Ok((payload, _)) => Ok(payload),
            Err(error) => Err(error.code),
        }
    }

    #[test]
    fn hold_names_the_applied_revision() {
        let state = state(4, 3, &[]);
        for (action, held) in [(RolloutAction::Pause, true), (RolloutAction::Resume, false)] {
            let hold = v1::RolloutHoldSet {
                deployment: "shop".to_owned(),
                revision: 4,
                held,
            };
            let expected = Payload::RolloutHoldSet(hold);
            assert_eq!(ask(&state, "shop", action), Ok(expected));
        }
    }

    #[test]
    fn abort_rolls_back_with_a_reason() {
        let values = v1::RolloutPlan {
            secrets_only: true,
            ..in_progress(4)
        };
        let paused = v1::RolloutPlan {
            paused: true,
            ..in_progress(4)
        };
        for plans in [&[values, in_progress(4)][..], &[paused]] {
            let rollback = v1::DeploymentRollback {
                deployment: "shop".to_owned(),
                revision: 3,
                failure_reason: "aborted by tester".to_owned(),
            };
            let expected = Payload::DeploymentRollback(rollback);
            assert_eq!(
                ask(&state(4, 3, plans), "shop", RolloutAction::Abort),
                Ok(expected)
            );
        }
    }

    #[test]
    fn impossible_action_is_refused_with_its_reason() {
        let values = v1::RolloutPlan {
            secrets_only: true,
            ..in_progress(4)
        };
        let ended = v1::RolloutPlan {
            state: RolloutState::Completed.into(),
            ..in_progress(4)
        };
        let missing = ErrorCode::NoPreviousRevision;
        let none = ErrorCode::RolloutNotFound;
        for (applied, previous, plan, code) in [
            (4, 3, &values, missing),
            (4, 3, &ended, none),
            (4, 3, &in_progress(3), none),
            (4, 0, &in_progress(4), missing),
            (3, 4, &in_progress(3), missing),
        ] {
            let state = state(applied, previous, std::slice::from_ref(plan));
            assert_eq!(ask(&state, "shop", RolloutAction::Abort), Err(code));
        }
        let state = state(1, 0, &[]);
        let gone = ErrorCode::DeploymentNotFound;
        assert_eq!(ask(&state, "gone", RolloutAction::Pause), Err(gone));
        let invalid = ErrorCode::ValidationFailed;
        assert_eq!(
            ask(&state, "shop", RolloutAction::Unspecified),
            Err(invalid)
        );
    }
}
