//! `jaco domain`: whether the addresses of a domain lead to the cluster.

use std::time::Duration;

use jaco_proto::v1::{self, certs_client::CertsClient};
use serde::Serialize;

use super::{
    args::ReadArgs,
    connection::Client,
    failure::{Failure, Stop},
    output::{
        Format, Ui, View,
        table::{self, col, free},
        text::or_dash,
    },
};

const DEADLINE: Duration = Duration::from_secs(60);
/// Pause between two checks with `--watch`.
const INTERVAL: Duration = Duration::from_secs(10);

/// Subcommands of `domain`.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Show where the records of a domain have to lead, and what answers where they do
    Check(CheckArgs),
}

/// Arguments of `domain check`.
#[derive(clap::Args)]
pub(crate) struct CheckArgs {
    /// The domain
    #[arg(value_name = "DOMAIN")]
    domain: String,

    /// Check again until the domain leads to the cluster; shows every change
    #[arg(short, long)]
    pub(crate) watch: bool,

    #[command(flatten)]
    pub(crate) read: ReadArgs,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct CheckView {
    domain: String,
    ok: bool,
    point_at: Vec<String>,
    addresses: Vec<AddressRow>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct AddressRow {
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    verdict: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    detail: String,
}

impl CheckView {
    fn new(domain: &str, response: v1::CheckDomainResponse) -> Self {
        let addresses = response.addresses.into_iter().map(|check| AddressRow {
            address: Some(check.address).filter(|address| !address.is_empty()),
            verdict: check.verdict,
            detail: check.detail,
        });
        Self {
            domain: domain.to_owned(),
            ok: response.ok,
            point_at: response.point_at,
            addresses: addresses.collect(),
        }
    }
}

impl View for CheckView {
    fn text(&self) -> String {
        let columns = [col("ADDRESS"), col("VERDICT"), free("DETAIL")];
        let rows = self.addresses.iter().map(|row| {
            vec![
                or_dash(row.address.as_ref()),
                row.verdict.to_uppercase(),
                row.detail.clone(),
            ]
        });
        let leads = if self.ok { "leads" } else { "does not lead" };
        format!(
            "Domain: {}\nPoint A, AAAA or CNAME at: {}\n{}{} {leads} to this cluster\n",
            self.domain,
            self.point_at.join(", "),
            table::render(&columns, rows),
            self.domain,
        )
    }
}

/// Runs a subcommand.
pub(crate) async fn run(command: &Command, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let Command::Check(args) = command;
    let interval = args.watch.then_some(INTERVAL);
    show(&args.domain, interval, client, ui).await
}

/// Shows a check, and with an interval every change until the domain leads to the cluster.
async fn show(
    domain: &str,
    interval: Option<Duration>,
    client: &Client,
    ui: &mut Ui<'_>,
) -> Result<(), Stop> {
    let mut last = check(domain, client).await?;
    ui.data(&last)?;
    while let Some(interval) = interval
        && !last.ok
    {
        tokio::time::sleep(interval).await;
        let next = check(domain, client).await?;
        if next != last {
            match ui.format {
                Format::Table | Format::Yaml => ui.write("---\n")?,
                Format::Json => {}
            }
            ui.data(&next)?;
        }
        last = next;
    }
    Ok(())
}

async fn check(domain: &str, client: &Client) -> Result<CheckView, Failure> {
    let call = async |connection| {
        let request = v1::CheckDomainRequest {
            domain: domain.to_owned(),
        };
        CertsClient::new(connection).check_domain(request).await
    };
    let response = client.unary(DEADLINE, call).await?;
    Ok(CheckView::new(domain, response))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::fake::{self, Fake};

    #[tokio::test]
    async fn watch_shows_changes_until_the_domain_leads_here() {
        let answer = |verdict: &str| v1::CheckDomainResponse {
            addresses: vec![v1::AddressCheck {
                address: "192.0.2.1".to_owned(),
                verdict: verdict.to_owned(),
                ..v1::AddressCheck::default()
            }],
            ok: verdict == "ok",
            ..v1::CheckDomainResponse::default()
        };
        let server = Fake::start().await;
        let answers = ["unreachable", "unreachable", "not_ours", "ok"].map(answer);
        server.script(|script| script.checks = answers.into());
        let (result, output) = fake::capture(Format::Json, async |ui| {
            show("a.example", Some(Duration::ZERO), &server.client(), ui).await
        })
        .await;
        assert_eq!(result, Ok(()));
        let shown = serde_json::Deserializer::from_str(&output.out).into_iter();
        let verdicts: Vec<String> = shown
            .map(|view: Result<serde_json::Value, _>| view.unwrap())
            .map(|view| view["addresses"][0]["verdict"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(verdicts, ["unreachable", "not_ours", "ok"]);
    }
}
