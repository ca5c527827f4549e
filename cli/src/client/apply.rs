//! `jaco apply`: submits manifests and waits for the deployment to run.

mod draw;
mod goal;
mod progress;
mod wait;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    time::{Duration, Instant},
};

use jaco_proto::v1::{self, deploy_client::DeployClient};
use serde::Serialize;

use self::{
    goal::Goal,
    progress::{Convergence, Tracker},
};
use super::{
    args::parse_duration,
    blocking,
    connection::{Client, MAX_MESSAGE_BYTES},
    failure::{Failure, Stop},
    get::replicas,
    manifests::{Manifests, Sources, manifests},
    output::{Format, Ui, View},
    replica,
};

const DEADLINE: Duration = Duration::from_secs(30);

/// Arguments of `apply`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Deployment manifest [default without -f: jaco.yaml of the directory, if there is one]
    #[arg(value_name = "JACO")]
    jaco: Option<PathBuf>,

    #[command(flatten)]
    sources: Sources,

    /// Same as --file
    #[arg(long, value_name = "FILE", conflicts_with = "files")]
    compose: Option<PathBuf>,

    /// Show the changes without applying them
    #[arg(long)]
    dry_run: bool,

    /// Fail if there are warnings, before anything is applied
    #[arg(long)]
    strict: bool,

    /// Return without waiting until all replicas run
    #[arg(long)]
    detach: bool,

    /// How long to wait until all replicas run
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "5m",
        value_parser = parse_duration,
        allow_hyphen_values = true
    )]
    timeout: Duration,
}

#[derive(Serialize)]
struct AppliedView {
    deployment: String,
    applied_revision: u64,
    dry_run: bool,
    diff: DiffView,
    #[serde(skip_serializing_if = "Option::is_none")]
    converged: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replicas: Option<Vec<ReplicaRow>>,
}

#[derive(Serialize)]
struct DiffView {
    adds: Vec<String>,
    updates: Vec<String>,
    removes: Vec<String>,
}

#[derive(Serialize)]
struct ReplicaRow {
    id: String,
    state: String,
    host: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    code: String,
}

impl View for AppliedView {
    fn text(&self) -> String {
        if !self.dry_run {
            return format!("Applied revision: {}\n", self.applied_revision);
        }
        let diff = &self.diff;
        let lines = [
            ("+", &diff.adds),
            ("~", &diff.updates),
            ("-", &diff.removes),
        ];
        let lines: String = lines
            .into_iter()
            .flat_map(|(mark, names)| names.iter().map(move |name| format!("{mark} {name}\n")))
            .collect();
        if lines.is_empty() {
            "No changes\n".to_owned()
        } else {
            lines
        }
    }
}

impl AppliedView {
    fn new(deployment: &str, response: v1::ApplyResponse, dry_run: bool) -> Self {
        let diff = response.diff.unwrap_or_default();
        Self {
            deployment: deployment.to_owned(),
            applied_revision: response.applied_revision,
            dry_run,
            diff: DiffView {
                adds: diff.adds,
                updates: diff.updates,
                removes: diff.removes,
            },
            converged: None,
            replicas: None,
        }
    }
}

/// Applies and, without `--detach`, waits; calls `connect` only after the files were validated.
pub(crate) async fn run(
    args: &Args,
    connect: impl Fn() -> Result<Client, Failure>,
    ui: &mut Ui<'_>,
) -> Result<(), Stop> {
    let (jaco, mut sources) = (args.jaco.clone(), args.sources.clone());
    sources.files.extend(args.compose.clone());
    let manifests = blocking(move || manifests(jaco.as_deref(), &sources)).await??;
    manifests.warn(args.strict, ui)?;
    let files = manifests.files()?;
    let secrets = manifests.secret_values(&|name| std::env::var(name).ok())?;
    let client = connect()?;
    // The earlier replicas, to tell which ones the revision has replaced.
    let waits = !args.dry_run && !args.detach;
    let before = if waits {
        current(&client, &manifests.deployment).await?
    } else {
        Vec::new()
    };
    let response = submit(&client, &manifests, &files, &secrets, args.dry_run).await?;

    let diff = response.diff.clone().unwrap_or_default();
    let goal = Goal::new(&manifests, response.applied_revision, &diff, &before);
    let mut view = AppliedView::new(&manifests.deployment, response, args.dry_run);
    if !waits {
        return if args.dry_run {
            ui.data(&view)
        } else {
            ui.outcome(&view)
        };
    }
    if ui.format == Format::Table {
        ui.outcome(&view)?;
    }
    let mut tracker = Tracker::new(goal);
    let result =
        wait::until_converged(&client, &mut tracker, Instant::now(), args.timeout, ui).await;
    if ui.format != Format::Table && matches!(result, Ok(_) | Err(Stop::Failed(_))) {
        view.converged = Some(matches!(result, Ok(Convergence::Converged)));
        view.replicas = Some(rows(&tracker));
        ui.data(&view)?;
    }
    result.map(|_| ())
}

fn rows(tracker: &Tracker) -> Vec<ReplicaRow> {
    let rows = tracker.replicas().iter().map(|seen| ReplicaRow {
        id: seen.id.clone(),
        state: replica::state(seen.state),
        host: seen.host.clone(),
        code: seen.reason.code.clone(),
    });
    rows.collect()
}

async fn current(client: &Client, deployment: &str) -> Result<Vec<v1::ReplicaDetail>, Failure> {
    let request = v1::GetReplicasRequest {
        deployment_filter: deployment.to_owned(),
        ..Default::default()
    };
    replicas::fetch(client, request).await
}

async fn submit(
    client: &Client,
    manifests: &Manifests,
    files: &[v1::FileValue],
    secrets: &BTreeMap<String, Vec<u8>>,
    dry_run: bool,
) -> Result<v1::ApplyResponse, Failure> {
    let call = async |connection| {
        let request = v1::ApplyRequest {
            jaco_yaml: manifests.jaco.clone(),
            compose_yaml: manifests.compose.clone(),
            dry_run,
            files: files.to_vec(),
            secret_values: secrets.clone(),
        };
        let mut deploy = DeployClient::new(connection).max_decoding_message_size(MAX_MESSAGE_BYTES);
        deploy.apply(request).await
    };
    let answer = client.unary(DEADLINE, call).await;
    answer.map_err(|failure| manifests.attach(failure))
}

#[cfg(test)]
mod tests;
