//! `jaco logs`: output of a service's containers.

use std::{str::FromStr, time::Duration};

use jaco_proto::v1::{self, deploy_client::DeployClient};
use serde::Serialize;

use super::{
    args::parse_duration,
    connection::{Client, within},
    failure::Stop,
    output::{Ui, View, text::time},
};

const DEADLINE: Duration = Duration::from_secs(60);

/// Arguments of `logs`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Service to show
    #[arg(value_name = "DEPLOYMENT/SERVICE")]
    service: Service,

    /// Keep printing new lines
    #[arg(short, long)]
    pub(crate) follow: bool,

    /// Show lines since this long ago; 0 for all
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "5m",
        value_parser = parse_duration,
        allow_hyphen_values = true
    )]
    since: Duration,
}

/// `deployment/service`.
#[derive(Clone)]
struct Service {
    deployment: String,
    service: String,
}

impl FromStr for Service {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((deployment, service)) if !deployment.is_empty() && !service.is_empty() => {
                Ok(Self {
                    deployment: deployment.to_owned(),
                    service: service.to_owned(),
                })
            }
            Some(_) | None => Err("expected <deployment>/<service>".to_owned()),
        }
    }
}

#[derive(Serialize)]
struct LineView {
    replica_id: String,
    host: String,
    stream: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<String>,
    line: String,
}

impl View for LineView {
    fn text(&self) -> String {
        format!("[{}@{}] {}\n", self.replica_id, self.host, self.line)
    }
}

impl From<v1::LogLine> for LineView {
    fn from(line: v1::LogLine) -> Self {
        Self {
            replica_id: line.replica_id,
            host: line.host,
            stream: line.stream,
            ts: line.ts.as_ref().map(time),
            line: line.line,
        }
    }
}

/// Prints lines until the server ends the stream.
pub(crate) async fn run(args: &Args, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let deadline = (!args.follow).then_some(DEADLINE);
    within(deadline, stream(args, client, ui)).await
}

async fn stream(args: &Args, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let call = async |connection| {
        let request = v1::LogsRequest {
            deployment: args.service.deployment.clone(),
            service: args.service.service.clone(),
            follow: args.follow,
            since_seconds: i64::try_from(args.since.as_secs()).unwrap_or(i64::MAX),
            replica_id: String::new(),
        };
        DeployClient::new(connection).logs(request).await
    };
    let mut lines = client.stream(call).await?;
    while let Some(line) = lines.next().await? {
        match line.stream.as_str() {
            // An unreachable node is reported as a warning, not as a log line.
            "warning" => ui.warn(&format!("{}: {}", line.host, line.line)),
            _ => ui.item(&LineView::from(line))?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use prost_types::Timestamp;

    use super::*;
    use crate::client::{
        fake::{self, Fake},
        output::Format,
    };

    fn line(stream: &str, text: &str) -> v1::LogLine {
        v1::LogLine {
            replica_id: "app-web-0".to_owned(),
            host: "one".to_owned(),
            stream: stream.to_owned(),
            ts: Some(Timestamp {
                seconds: 0,
                nanos: 7,
            }),
            line: text.to_owned(),
        }
    }

    fn args(follow: bool, since: u64) -> Args {
        Args {
            service: "app/web".parse().unwrap(),
            follow,
            since: Duration::from_millis(since),
        }
    }

    #[tokio::test]
    async fn lines_are_printed_in_every_format() {
        for (format, expected) in [
            (
                Format::Table,
                "[app-web-0@one] hello <&>\n[app-web-0@one] \n",
            ),
            (
                Format::Json,
                "{\"replica_id\":\"app-web-0\",\"host\":\"one\",\"stream\":\"stdout\",\"ts\":\"1970-01-01T00:00:00Z\",\"line\":\"hello <&>\"}\n{\"replica_id\":\"app-web-0\",\"host\":\"one\",\"stream\":\"stderr\",\"ts\":\"1970-01-01T00:00:00Z\",\"line\":\"\"}\n",
            ),
            (
                Format::Yaml,
                "---\nreplica_id: app-web-0\nhost: one\nstream: stdout\nts: \"1970-01-01T00:00:00Z\"\nline: \"hello <&>\"\n---\nreplica_id: app-web-0\nhost: one\nstream: stderr\nts: \"1970-01-01T00:00:00Z\"\nline: \"\"\n",
            ),
        ] {
            let server = Fake::start().await;
            server.script(|script| {
                script.logs = vec![Ok(line("stdout", "hello <&>")), Ok(line("stderr", ""))];
            });
            let args = args(true, 300_900);
            let (result, output) =
                fake::capture(format, async |ui| run(&args, &server.client(), ui).await).await;
            assert_eq!(result, Ok(()));
            assert_eq!(output.out, expected);
            let asked = &server.log_requests()[0];
            assert_eq!(
                (asked.deployment.as_str(), asked.service.as_str()),
                ("app", "web")
            );
            assert_eq!((asked.since_seconds, asked.follow), (300, true));
        }
    }

    #[tokio::test]
    async fn unreachable_node_is_a_warning() {
        let server = Fake::start().await;
        server.script(|script| {
            script.logs = vec![Ok(line("warning", "unreachable")), Ok(line("stdout", "x"))];
        });
        let (result, output) = fake::capture(Format::Table, async |ui| {
            run(&args(false, 0), &server.client(), ui).await
        })
        .await;
        assert_eq!(result, Ok(()));
        assert_eq!(output.out, "[app-web-0@one] x\n");
        assert_eq!(output.err, "warning: one: unreachable\n");
    }

    #[tokio::test]
    async fn broken_stream_keeps_lines_and_reports_code() {
        let server = Fake::start().await;
        server.script(|script| {
            let broken = jaco_proto::Error::new(jaco_proto::ErrorCode::LogsStream, "one went away");
            script.logs = vec![Ok(line("stdout", "x")), Err(broken)];
        });
        let (result, output) = fake::capture(Format::Table, async |ui| {
            run(&args(true, 0), &server.client(), ui).await
        })
        .await;
        assert_eq!(output.out, "[app-web-0@one] x\n");
        assert!(matches!(result, Err(Stop::Failed(f)) if f.code == "logs_stream"));
    }

    #[tokio::test]
    async fn closed_pipe_ends_the_stream_quietly() {
        let server = Fake::start().await;
        server.script(|script| script.logs = vec![Ok(line("stdout", "x"))]);
        let result =
            fake::into_closed_pipe(async |ui| run(&args(true, 0), &server.client(), ui).await)
                .await;
        assert_eq!(result, Err(Stop::ClosedPipe));
    }
}
