//! Plans of rollouts, and their pause by an operator.

use jaco_proto::{
    Error,
    v1::{self, AuditEventType, RolloutState},
};

use super::{Origin, Tx, audit, deployment, reject, replica};

/// Stores the plan, unless its service has gone since it was made.
pub(super) fn update_plan(tx: &mut Tx, command: &v1::RolloutPlanUpdate) -> Result<(), Error> {
    let plan = reject::required("plan", command.plan.as_ref())?;
    if plan.service.is_empty() {
        return Err(reject::invalid("service", "empty"));
    }
    let deployment = tx.get::<v1::Deployment>(&plan.deployment);
    let exists = |deployment: &v1::Deployment| {
        let mut services = deployment.services.iter();
        services.any(|service| service.name == plan.service)
    };
    if !deployment.is_some_and(|deployment| exists(&deployment)) {
        return Ok(());
    }
    tx.put(plan.clone())
}

/// Pauses or resumes the rollouts of a deployment; rejected if another revision is applied by now.
///
/// Resumed, rollouts that a failure paused go on, and their replicas that do not run are tried again.
pub(super) fn set_hold(
    tx: &mut Tx,
    origin: &Origin<'_>,
    command: &v1::RolloutHoldSet,
) -> Result<(), Error> {
    let before = deployment::existing(tx, &command.deployment)?;
    if command.revision != before.applied_revision {
        return Err(deployment::stale_revision(command.revision)
            .with("applied_revision", before.applied_revision));
    }
    let resumed = match command.held {
        true => Vec::new(),
        false => paused_plans(tx, &before),
    };
    if before.rollout_hold.is_some() == command.held && resumed.is_empty() {
        return Ok(());
    }
    let hold = v1::RolloutHold {
        by: origin.identity.to_owned(),
        at: Some(origin.ts),
    };
    tx.put(v1::Deployment {
        rollout_hold: command.held.then_some(hold),
        ..v1::Deployment::clone(&before)
    })?;
    for plan in resumed {
        replica::retry_down(tx, &plan.deployment, &plan.service)?;
        tx.put(v1::RolloutPlan {
            paused: false,
            failure_reason: String::new(),
            ..plan
        })?;
    }
    let event = match command.held {
        true => AuditEventType::RolloutPaused,
        false => AuditEventType::RolloutResumed,
    };
    let payload = deployment::revision_payload(&before.name, before.applied_revision);
    audit::record(tx, origin, event, payload)
}

/// Plans of the applied revision of `deployment` that a failure paused.
fn paused_plans(tx: &Tx, deployment: &v1::Deployment) -> Vec<v1::RolloutPlan> {
    let plans = tx.state().rollout_plans.values();
    plans
        .filter(|plan| plan.deployment == deployment.name)
        .filter(|plan| plan.target_revision == deployment.applied_revision)
        .filter(|plan| plan.state() == RolloutState::InProgress && plan.paused)
        .map(|plan| v1::RolloutPlan::clone(plan))
        .collect()
}
