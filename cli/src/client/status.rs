//! `jaco status`: deployments with their replicas, routes and certificates, and network faults.

use std::{collections::BTreeMap, time::Duration};

use futures::FutureExt;
use jaco_proto::v1::{self, deploy_client::DeployClient, watch_client::WatchClient};
use serde::Serialize;

use super::{
    args::ReadArgs,
    connection::{Client, Feed, MAX_MESSAGE_BYTES},
    failure::{Failure, Stop},
    net::FaultRow,
    output::{
        Format, Ui, View,
        table::{self, col, free},
        text::{enum_name, or_dash, pairs, time},
    },
    replica::{self, DeploymentHead, Reason, RouteRow},
};

const DEADLINE: Duration = Duration::from_secs(30);

/// Arguments of `status`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Show only this deployment or service
    #[arg(value_name = "DEPLOYMENT[/SERVICE]")]
    what: Option<String>,

    /// Show the status again after every change
    #[arg(short, long)]
    pub(crate) watch: bool,

    #[command(flatten)]
    pub(crate) read: ReadArgs,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct StatusView {
    deployments: Vec<DeploymentRow>,
    replicas: Vec<ReplicaRow>,
    routes: Vec<RouteRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    certs: Vec<CertRow>,
    /// Faults of the container networks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<FaultRow>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct DeploymentRow {
    #[serde(flatten)]
    head: DeploymentHead,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    status_details: BTreeMap<String, String>,
    /// The revision that was rolled back, if the deployment has not been applied since.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed_revision: Option<u64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    failure_reason: String,
    /// Operator that has paused its rollouts.
    #[serde(skip_serializing_if = "Option::is_none")]
    rollouts_paused_by: Option<String>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct ReplicaRow {
    id: String,
    state: String,
    host: String,
    container_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_health_at: Option<String>,
    #[serde(flatten)]
    reason: Reason,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct CertRow {
    domain: String,
    environment: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_after: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_renewal_at: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    source: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    state: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
}

impl From<v1::DeployStatusResponse> for StatusView {
    fn from(response: v1::DeployStatusResponse) -> Self {
        Self {
            deployments: response
                .deployments
                .into_iter()
                .map(DeploymentRow::from)
                .collect(),
            replicas: response
                .replicas
                .into_iter()
                .map(ReplicaRow::from)
                .collect(),
            routes: response.routes.into_iter().map(RouteRow::from).collect(),
            certs: response.certs.into_iter().map(CertRow::from).collect(),
            errors: (response.network_faults.into_iter())
                .map(FaultRow::from)
                .collect(),
        }
    }
}

impl From<v1::Deployment> for DeploymentRow {
    fn from(deployment: v1::Deployment) -> Self {
        Self {
            head: DeploymentHead::from(&deployment),
            status_details: deployment.status_details,
            failed_revision: (deployment.failed_revision > 0).then_some(deployment.failed_revision),
            failure_reason: deployment.failure_reason,
            rollouts_paused_by: deployment.rollout_hold.map(|hold| hold.by),
        }
    }
}

impl From<v1::ReplicaObserved> for ReplicaRow {
    fn from(seen: v1::ReplicaObserved) -> Self {
        Self {
            state: replica::state(seen.state()),
            id: seen.id,
            host: seen.host,
            container_id: seen.container_id,
            last_health_at: seen.last_health_at.as_ref().map(time),
            reason: Reason {
                code: seen.code,
                message: seen.message,
                details: seen.details,
            },
        }
    }
}

impl From<v1::CertState> for CertRow {
    fn from(cert: v1::CertState) -> Self {
        let environment = match cert.environment.as_str() {
            known @ ("staging" | "prod") => known.to_owned(),
            "" => "unknown".to_owned(),
            other => enum_name(other, ""),
        };
        Self {
            domain: cert.domain,
            environment,
            not_after: cert.not_after.as_ref().map(time),
            last_renewal_at: cert.last_renewal_at.as_ref().map(time),
            source: cert.source,
            state: cert.state,
            reason: cert.reason,
        }
    }
}

impl View for StatusView {
    fn text(&self) -> String {
        let mut text = String::from("Deployments:\n");
        text += &table::render(
            &DeploymentHead::columns(free("DETAILS")),
            self.deployments.iter().map(DeploymentRow::cells),
        );
        text += "\nReplicas:\n";
        text += &table::render(
            &[
                col("REPLICA_ID"),
                col("STATE"),
                col("HOST"),
                col("CONTAINER_ID"),
                col("LAST_HEALTH_AT"),
                free("REASON"),
            ],
            self.replicas.iter().map(ReplicaRow::cells),
        );
        text += "\nRoutes:\n";
        let columns = ["DOMAIN", "PATH", "DEPLOYMENT", "SERVICE", "PORT", "TLS"].map(col);
        text += &table::render(&columns, self.routes.iter().map(route_cells));
        if !self.certs.is_empty() {
            text += "\nCerts:\n";
            let columns = ["DOMAIN", "ENVIRONMENT", "NOT_AFTER", "LAST_RENEWAL_AT"].map(col);
            text += &table::render(&columns, self.certs.iter().map(CertRow::cells));
        }
        text + &FaultRow::table(&self.errors)
    }
}

impl DeploymentRow {
    fn cells(&self) -> Vec<String> {
        let reason = self.status_details.get("reason").cloned();
        let paused = self.rollouts_paused_by.as_ref();
        let details = match (reason, paused, self.failed_revision) {
            (Some(reason), ..) => reason,
            (None, ..) if !self.status_details.is_empty() => pairs(&self.status_details),
            (None, Some(by), _) => format!("rollouts are paused: {by}"),
            (None, None, Some(failed)) => {
                format!("revision {failed} was rolled back: {}", self.failure_reason)
            }
            (None, None, None) => String::new(),
        };
        self.head.cells(details)
    }
}

impl ReplicaRow {
    fn cells(&self) -> Vec<String> {
        vec![
            self.id.clone(),
            self.state.to_uppercase(),
            self.host.clone(),
            self.container_id.clone(),
            or_dash(self.last_health_at.as_ref()),
            self.reason.text(),
        ]
    }
}

fn route_cells(route: &RouteRow) -> Vec<String> {
    vec![
        route.domain.clone(),
        route.path.clone(),
        route.deployment.clone(),
        route.service.clone(),
        route.port.to_string(),
        route.tls.to_owned(),
    ]
}

impl CertRow {
    fn cells(&self) -> Vec<String> {
        vec![
            self.domain.clone(),
            self.environment.clone(),
            or_dash(self.not_after.as_ref()),
            or_dash(self.last_renewal_at.as_ref()),
        ]
    }
}

/// Prints the status once, or after every change with `--watch`.
pub(crate) async fn run(args: &Args, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let (deployment, service) = split(args.what.as_deref().unwrap_or_default());
    if !args.watch {
        let response = fetch(client, deployment, service).await?;
        return ui.data(&StatusView::from(response));
    }
    // Subscribed before the first fetch, so that no change in between is missed.
    let kinds = ["deployments", "replicas_observed", "routes"];
    let mut events = subscribe(client, &kinds, deployment).await?;
    let mut first = true;
    loop {
        let response = fetch(client, deployment, service).await?;
        match ui.format {
            Format::Table | Format::Yaml if !first => ui.write("---\n")?,
            Format::Table | Format::Yaml | Format::Json => {}
        }
        first = false;
        ui.data(&StatusView::from(response))?;
        if !changed(&mut events).await? {
            return Ok(());
        }
    }
}

/// Splits `deployment/service` at the first slash.
pub(crate) fn split(what: &str) -> (&str, &str) {
    what.split_once('/').unwrap_or((what, ""))
}

/// Calls `Deploy.Status`.
pub(crate) async fn fetch(
    client: &Client,
    deployment: &str,
    service: &str,
) -> Result<v1::DeployStatusResponse, Failure> {
    let call = async |connection| {
        let mut deploy = DeployClient::new(connection).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let request = v1::DeployStatusRequest {
            deployment_filter: deployment.to_owned(),
            service_filter: service.to_owned(),
        };
        deploy.status(request).await
    };
    client.unary(DEADLINE, call).await
}

/// Calls `Watch.Subscribe` for changes from now on.
pub(crate) async fn subscribe(
    client: &Client,
    entity_types: &[&str],
    deployment: &str,
) -> Result<Feed<v1::SubscribeEvent>, Failure> {
    let call = async |connection| {
        let mut watch = WatchClient::new(connection).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let request = v1::SubscribeRequest {
            entity_types: entity_types.iter().map(|&kind| kind.to_owned()).collect(),
            since_revision: 0,
            deployment_filter: deployment.to_owned(),
        };
        watch.subscribe(request).await
    };
    client.stream(call).await
}

/// Waits for an event and discards further pending ones, because one fetch covers them all. Returns
/// false when the stream has ended.
async fn changed(events: &mut Feed<v1::SubscribeEvent>) -> Result<bool, Failure> {
    if events.next().await?.is_none() {
        return Ok(false);
    }
    while let Some(ready) = events.next().now_or_never() {
        if ready?.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
