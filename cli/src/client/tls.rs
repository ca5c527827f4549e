//! `jaco tls`: the TLS of a deployment's domains, switched without an apply.

use std::{collections::BTreeSet, time::Duration};

use jaco_proto::v1::{self, deploy_client::DeployClient};
use serde::Serialize;
use tokio::time::{Instant, timeout_at};

use super::{
    args::{ReadArgs, parse_duration},
    connection::Client,
    failure::{Failure, Local, Stop},
    output::{
        Ui, View,
        table::{self, col, free},
        text::{or_dash, time},
    },
    replica, status,
};

const DEADLINE: Duration = Duration::from_secs(60);

/// Subcommands of `tls`.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Obtain certificates and redirect to HTTPS
    Enable(EnableArgs),
    /// Serve plain HTTP
    Disable(Target),
    /// Show the TLS of each domain and its certificate
    Status(StatusArgs),
}

/// Domains to switch.
#[derive(clap::Args)]
pub(crate) struct Target {
    /// Name of the deployment
    #[arg(value_name = "DEPLOYMENT")]
    deployment: String,

    /// Only this domain
    #[arg(long, value_name = "DOMAIN")]
    domain: Option<String>,
}

/// Arguments of `tls enable`.
#[derive(clap::Args)]
pub(crate) struct EnableArgs {
    #[command(flatten)]
    target: Target,

    /// Wait until the certificates are valid, at most this long
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    wait: Option<Duration>,
}

/// Arguments of `tls status`.
#[derive(clap::Args)]
pub(crate) struct StatusArgs {
    /// Show only this deployment
    #[arg(value_name = "DEPLOYMENT")]
    deployment: Option<String>,

    #[command(flatten)]
    pub(crate) read: ReadArgs,
}

/// Runs a subcommand.
pub(crate) async fn run(command: &Command, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    match command {
        Command::Enable(EnableArgs { target, wait }) => {
            let urls = set(target, true, client).await?;
            let domains = domains(&urls);
            if let Some(wait) = wait {
                valid(target, &domains, *wait, client).await?;
            }
            ui.outcome(&ToggledView::new(target, "auto", urls))
        }
        Command::Disable(target) => {
            let urls = set(target, false, client).await?;
            ui.outcome(&ToggledView::new(target, "off", urls))
        }
        Command::Status(args) => {
            let deployment = args.deployment.as_deref().unwrap_or_default();
            let response = status::fetch(client, deployment, "").await?;
            ui.data(&StatusView::from(response))
        }
    }
}

#[derive(Serialize)]
struct ToggledView<'a> {
    deployment: &'a str,
    tls: &'static str,
    urls: Vec<String>,
}

impl<'a> ToggledView<'a> {
    fn new(target: &'a Target, tls: &'static str, urls: Vec<String>) -> Self {
        let deployment = &target.deployment;
        Self {
            deployment,
            tls,
            urls,
        }
    }
}

impl View for ToggledView<'_> {
    fn text(&self) -> String {
        let urls = self.urls.join(" ");
        format!("TLS of {}: {} ({urls})\n", self.deployment, self.tls)
    }
}

async fn set(target: &Target, enable: bool, client: &Client) -> Result<Vec<String>, Failure> {
    let call = async |connection| {
        let request = v1::SetTlsRequest {
            deployment: target.deployment.clone(),
            domain: target.domain.clone().unwrap_or_default(),
            enable,
        };
        DeployClient::new(connection).set_tls(request).await
    };
    Ok(client.unary(DEADLINE, call).await?.urls)
}

/// Domains of the addresses that were switched.
fn domains(urls: &[String]) -> BTreeSet<String> {
    let domains = urls.iter().filter_map(|url| url.split_once("://"));
    domains.map(|(_, domain)| domain.to_owned()).collect()
}

/// Waits until each domain has a valid certificate.
///
/// # Errors
/// `not_converged` with the state of the domains without one.
async fn valid(
    target: &Target,
    domains: &BTreeSet<String>,
    wait: Duration,
    client: &Client,
) -> Result<(), Failure> {
    let end = Instant::now() + wait;
    // Each step of a certificate writes an event, so the state follows from what was fetched after it.
    let kinds = ["audit", "certs", "imported_certs"];
    let mut events = status::subscribe(client, &kinds, "").await?;
    loop {
        let missing = missing(target, domains, client).await?;
        if missing.is_empty() {
            return Ok(());
        }
        match timeout_at(end, events.next()).await {
            Ok(Ok(Some(_))) => {}
            Ok(Err(error)) => return Err(error),
            Ok(Ok(None)) | Err(_) => {
                let failure = Failure::new(
                    Local::NotConverged,
                    "not every domain has a valid certificate",
                );
                let details = missing.into_iter();
                return Err(details.fold(failure, |failure, (domain, state)| {
                    failure.with(domain, state)
                }));
            }
        }
    }
}

/// Domains without a valid certificate, and their state.
async fn missing(
    target: &Target,
    domains: &BTreeSet<String>,
    client: &Client,
) -> Result<Vec<(String, String)>, Failure> {
    let response = status::fetch(client, &target.deployment, "").await?;
    let missing = domains.iter().filter_map(|domain| {
        let row = response.certs.iter().find(|cert| cert.domain == *domain);
        let state = match row {
            Some(row) if row.state == "valid" => return None,
            Some(row) if row.reason.is_empty() => row.state.clone(),
            Some(row) => format!("{} ({})", row.state, row.reason),
            None => "ordering".to_owned(),
        };
        Some((domain.clone(), state))
    });
    Ok(missing.collect())
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct StatusView {
    domains: Vec<DomainRow>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct DomainRow {
    domain: String,
    deployment: String,
    tls: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    source: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    state: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_after: Option<String>,
}

impl From<v1::DeployStatusResponse> for StatusView {
    fn from(response: v1::DeployStatusResponse) -> Self {
        let v1::DeployStatusResponse { routes, certs, .. } = response;
        let keys: BTreeSet<_> = routes
            .into_iter()
            .filter(|route| !route.domain.is_empty())
            .map(|route| (route.domain, route.deployment, route.tls_auto))
            .collect();
        let rows = keys.into_iter().map(|(domain, deployment, tls_auto)| {
            let cert = certs.iter().find(|cert| tls_auto && cert.domain == domain);
            let cert = cert.cloned().unwrap_or_default();
            DomainRow {
                domain,
                deployment,
                tls: replica::tls(tls_auto),
                source: cert.source,
                state: cert.state,
                reason: cert.reason,
                not_after: cert.not_after.as_ref().map(time),
            }
        });
        Self {
            domains: rows.collect(),
        }
    }
}

impl View for StatusView {
    fn text(&self) -> String {
        let columns = [
            col("DOMAIN"),
            col("DEPLOYMENT"),
            col("TLS"),
            col("SOURCE"),
            col("STATE"),
            col("NOT_AFTER"),
            free("REASON"),
        ];
        let dash = |text: &str| if text.is_empty() { "-" } else { text }.to_owned();
        let rows = self.domains.iter().map(|row| {
            vec![
                row.domain.clone(),
                row.deployment.clone(),
                row.tls.to_owned(),
                dash(&row.source),
                dash(&row.state.to_uppercase()),
                or_dash(row.not_after.as_ref()),
                row.reason.clone(),
            ]
        });
        table::render(&columns, rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{
        fake::{self, AtEnd, Fake},
        output::Format,
    };

    fn certs(state: &str) -> v1::DeployStatusResponse {
        v1::DeployStatusResponse {
            certs: vec![v1::CertState {
                domain: "shop.example".to_owned(),
                state: state.to_owned(),
                reason: "no_dns: gone".to_owned(),
                ..v1::CertState::default()
            }],
            ..v1::DeployStatusResponse::default()
        }
    }

    async fn enabled(states: &[&str], at_end: AtEnd) -> Result<(), Stop> {
        let server = Fake::start().await;
        server.script(|script| {
            script.status = states.iter().map(|state| certs(state)).collect();
            script.at_end = at_end;
        });
        let args = EnableArgs {
            target: Target {
                deployment: "app".to_owned(),
                domain: Some("shop.example".to_owned()),
            },
            wait: Some(Duration::from_millis(200)),
        };
        let command = Command::Enable(args);
        let (result, _) = fake::capture(Format::Table, async |ui| {
            run(&command, &server.client(), ui).await
        })
        .await;
        result
    }

    #[tokio::test]
    async fn wait_ends_with_a_valid_certificate() {
        let result = enabled(&["waiting_dns", "ordering", "valid"], AtEnd::Silence).await;
        assert_eq!(result, Ok(()));
    }

    #[tokio::test]
    async fn wait_that_is_too_short_names_the_state() {
        for at_end in [AtEnd::Silence, AtEnd::Close] {
            let failure = fake::failure(enabled(&["waiting_dns"], at_end).await);
            assert_eq!(failure.code, "not_converged");
            let state = &failure.details["shop.example"];
            assert_eq!(state, "waiting_dns (no_dns: gone)");
        }
    }
}
