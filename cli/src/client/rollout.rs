//! `jaco rollout`: the replacement of a service's replicas, step by step.

use jaco_proto::v1;
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

/// Subcommands of `rollout`.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Show the last rollout of each service, and the revisions that were rolled back
    Status(StatusArgs),
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
    let Command::Status(args) = command;
    let (deployment, service) = status::split(args.what.as_deref().unwrap_or_default());
    let response = status::fetch(client, deployment, service).await?;
    ui.data(&StatusView::from(response))
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct StatusView {
    rollouts: Vec<RolloutRow>,
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

impl From<v1::DeployStatusResponse> for StatusView {
    fn from(response: v1::DeployStatusResponse) -> Self {
        let mut rollouts: Vec<_> = { response.rollouts.into_iter() }
            .map(RolloutRow::from)
            .collect();
        rollouts.sort_by(|a, b| (&a.deployment, &a.service).cmp(&(&b.deployment, &b.service)));
        let failed = response.deployments.into_iter();
        let failed = failed.filter(|deployment| deployment.failed_revision > 0);
        Self {
            rollouts,
            rolled_back: failed.map(RolledBackRow::from).collect(),
        }
    }
}

impl From<v1::RolloutPlan> for RolloutRow {
    fn from(plan: v1::RolloutPlan) -> Self {
        let in_progress = plan.state() == v1::RolloutState::InProgress;
        Self {
            state: match in_progress && plan.paused {
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
        for (state, paused, expected) in [
            (v1::RolloutState::InProgress, false, "in_progress"),
            (v1::RolloutState::InProgress, true, "paused"),
            (v1::RolloutState::Aborted, true, "aborted"),
            (v1::RolloutState::Completed, false, "completed"),
        ] {
            let plan = v1::RolloutPlan {
                state: state.into(),
                paused,
                ..Default::default()
            };
            assert_eq!(RolloutRow::from(plan).state, expected);
        }
    }
}
