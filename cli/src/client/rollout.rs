//! `jaco rollout`: the replacement of a service's replicas, step by step.

use std::time::Duration;

use jaco_proto::v1::{self, RolloutAction, deploy_client::DeployClient};
use serde::Serialize;

use super::{
    args::ReadArgs,
    connection::Client,
    failure::Stop,
    output::{
        Ui, View,
        table::{self, col, free},
        text::{enum_name, or_dash, time},
    },
    status,
};

const DEADLINE: Duration = Duration::from_secs(30);

/// Subcommands of `rollout`.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Show the last rollout of each service, and the revisions that were rolled back
    Status(StatusArgs),
    /// Replace no further replica of a deployment until its rollouts are resumed
    Pause(Target),
    /// Go on with paused rollouts, and try replicas that were given up again
    Resume(Target),
    /// End the rollouts in progress and restore the revision before
    Abort(Target),
}

/// Deployment whose rollouts are meant.
#[derive(clap::Args)]
pub(crate) struct Target {
    /// Name of the deployment
    #[arg(value_name = "DEPLOYMENT")]
    deployment: String,
}

/// Arguments of `rollout status`.
#[derive(clap::Args)]
pub(crate) struct StatusArgs {
    /// Show only this deployment or service
    #[arg(value_name = "DEPLOYMENT[/SERVICE]")]
    what: Option<String>,

    #[command(flatten)]
    pub(crate) read: ReadArgs,
}

/// Runs a subcommand.
pub(crate) async fn run(command: &Command, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    match command {
        Command::Status(args) => {
            let (deployment, service) = status::split(args.what.as_deref().unwrap_or_default());
            let response = status::fetch(client, deployment, service).await?;
            ui.data(&StatusView::from(response))
        }
        Command::Pause(target) => control(target, RolloutAction::Pause, client, ui).await,
        Command::Resume(target) => control(target, RolloutAction::Resume, client, ui).await,
        Command::Abort(target) => control(target, RolloutAction::Abort, client, ui).await,
    }
}

async fn control(
    target: &Target,
    action: RolloutAction,
    client: &Client,
    ui: &mut Ui<'_>,
) -> Result<(), Stop> {
    let call = async |connection| {
        let request = v1::ControlRolloutRequest {
            deployment: target.deployment.clone(),
            action: action.into(),
        };
        DeployClient::new(connection).control_rollout(request).await
    };
    let v1::ControlRolloutResponse { revision } = client.unary(DEADLINE, call).await?;
    let deployment = &target.deployment;
    ui.outcome(&ControlledView {
        deployment,
        revision,
        rollouts: match action {
            RolloutAction::Pause => "paused",
            RolloutAction::Resume => "resumed",
            RolloutAction::Abort | RolloutAction::Unspecified => "aborted",
        },
    })
}

#[derive(Serialize)]
struct ControlledView<'a> {
    deployment: &'a str,
    /// Revision that is applied from now on.
    revision: u64,
    rollouts: &'static str,
}

impl View for ControlledView<'_> {
    fn text(&self) -> String {
        let Self {
            deployment,
            revision,
            rollouts,
        } = self;
        match *rollouts {
            "aborted" => format!("Rolled back to revision: {revision}\n"),
            done => format!("Rollouts of {deployment} (revision {revision}): {done}\n"),
        }
    }
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct StatusView {
    rollouts: Vec<RolloutRow>,
    /// Deployments of which an operator has paused the rollouts.
    paused: Vec<PausedRow>,
    /// Revisions that failed, one for each deployment that has not been applied since.
    rolled_back: Vec<RolledBackRow>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct RolloutRow {
    deployment: String,
    service: String,
    revision: u64,
    /// Number of replicas that were replaced.
    step: i32,
    steps: i32,
    /// `in_progress`, `paused`, `completed` or `aborted`.
    state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_step_at: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct RolledBackRow {
    deployment: String,
    revision: u64,
    reason: String,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct PausedRow {
    deployment: String,
    by: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
}

impl From<v1::DeployStatusResponse> for StatusView {
    fn from(response: v1::DeployStatusResponse) -> Self {
        let v1::DeployStatusResponse {
            deployments,
            rollouts,
            ..
        } = response;
        let holds = { deployments.iter() }.filter_map(PausedRow::of);
        let paused: Vec<_> = holds.collect();
        let is_held = |plan: &v1::RolloutPlan| {
            let mut paused = paused.iter();
            paused.any(|hold| hold.deployment == plan.deployment)
        };
        let rows = { rollouts.into_iter() }.map(|plan| RolloutRow::new(is_held(&plan), plan));
        let mut rollouts: Vec<_> = rows.collect();
        rollouts.sort_by(|a, b| (&a.deployment, &a.service).cmp(&(&b.deployment, &b.service)));
        let failed = deployments.into_iter();
        let failed = failed.filter(|deployment| deployment.failed_revision > 0);
        Self {
            rollouts,
            rolled_back: failed.map(RolledBackRow::from).collect(),
            paused,
        }
    }
}

impl PausedRow {
    fn of(deployment: &v1::Deployment) -> Option<Self> {
        let hold = deployment.rollout_hold.as_ref()?;
        Some(Self {
            deployment: deployment.name.clone(),
            by: hold.by.clone(),
            at: hold.at.as_ref().map(time),
        })
    }
}

impl RolloutRow {
    fn new(is_held: bool, plan: v1::RolloutPlan) -> Self {
        let in_progress = plan.state() == v1::RolloutState::InProgress;
        Self {
            state: match in_progress && (plan.paused || is_held) {
                true => "paused".to_owned(),
                false => enum_name(plan.state().as_str_name(), "ROLLOUT_STATE_"),
            },
            deployment: plan.deployment,
            service: plan.service,
            revision: plan.target_revision,
            step: plan.current_step,
            steps: plan.total_steps,
            started_at: plan.started_at.as_ref().map(time),
            last_step_at: plan.last_step_at.as_ref().map(time),
            reason: plan.failure_reason,
        }
    }
}

impl From<v1::Deployment> for RolledBackRow {
    fn from(deployment: v1::Deployment) -> Self {
        Self {
            deployment: deployment.name,
            revision: deployment.failed_revision,
            reason: deployment.failure_reason,
        }
    }
}

impl View for StatusView {
    fn text(&self) -> String {
        let columns = [
            col("DEPLOYMENT"),
            col("SERVICE"),
            col("REVISION"),
            col("STEP"),
            col("STATE"),
            col("LAST_STEP_AT"),
            free("REASON"),
        ];
        let rows = self.rollouts.iter().map(RolloutRow::cells);
        let mut text = table::render(&columns, rows);
        for PausedRow { deployment, by, at } in &self.paused {
            let since = or_dash(at.as_ref());
            text += &format!("\nRollouts of {deployment} are paused: {by}, {since}\n");
        }
        for failed in &self.rolled_back {
            text += &format!(
                "\nRevision {} of {} was rolled back: {}\n",
                failed.revision, failed.deployment, failed.reason
            );
        }
        text
    }
}

impl RolloutRow {
    fn cells(&self) -> Vec<String> {
        vec![
            self.deployment.clone(),
            self.service.clone(),
            self.revision.to_string(),
            format!("{}/{}", self.step, self.steps),
            self.state.to_uppercase(),
            or_dash(self.last_step_at.as_ref()),
            self.reason.clone(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paused_is_a_state_of_one_in_progress() {
        for (state, paused, is_held, expected) in [
            (v1::RolloutState::InProgress, false, false, "in_progress"),
            (v1::RolloutState::InProgress, true, false, "paused"),
            (v1::RolloutState::InProgress, false, true, "paused"),
            (v1::RolloutState::Aborted, true, true, "aborted"),
            (v1::RolloutState::Completed, false, true, "completed"),
        ] {
            let plan = v1::RolloutPlan {
                state: state.into(),
                paused,
                ..Default::default()
            };
            assert_eq!(RolloutRow::new(is_held, plan).state, expected);
        }
    }
}
