//! `jaco actors`: the supervision tree of a daemon.

mod tree;

use std::time::Duration;

use clap::ValueEnum;
use jaco_proto::v1::{self, cluster_client::ClusterClient};
use serde::Serialize;

use super::{
    connection::{Client, MAX_MESSAGE_BYTES},
    failure::Stop,
    output::{
        Format, Ui, View,
        table::{self, col, free},
        text::short_duration,
    },
};

const DEADLINE: Duration = Duration::from_secs(10);
const REDRAW: Duration = Duration::from_secs(1);
/// Cursor home, then clear to the end of the screen.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Arguments of `actors`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,

    /// Show only this actor and its descendants
    #[arg(value_name = "PATH")]
    path: Option<String>,

    /// Refresh every second
    #[arg(short, long)]
    pub(crate) watch: bool,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Terminate one actor; the daemon must run with --enable-fault-injection
    #[command(hide = true)]
    Kill {
        /// Path of the actor
        #[arg(value_name = "PATH")]
        path: String,
        /// How to terminate it
        #[arg(long, value_enum, default_value_t = Mode::Kill)]
        mode: Mode,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    /// Abort it at its next await point.
    Kill,
    /// Make its handler panic.
    Panic,
}

#[derive(Serialize)]
struct ActorsView {
    actors: Vec<ActorRow>,
}

#[derive(Serialize)]
struct ActorRow {
    path: String,
    kind: String,
    state: String,
    restarts: u32,
    uptime_ms: u64,
    mailbox_depth: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    last_failure: String,
}

impl From<v1::ActorsResponse> for ActorsView {
    fn from(response: v1::ActorsResponse) -> Self {
        Self {
            actors: response.actors.into_iter().map(ActorRow::from).collect(),
        }
    }
}

impl From<v1::ActorInfo> for ActorRow {
    fn from(actor: v1::ActorInfo) -> Self {
        Self {
            path: actor.path,
            kind: actor.kind,
            state: actor.state,
            restarts: actor.restarts,
            uptime_ms: actor.uptime_ms,
            mailbox_depth: actor.mailbox_depth,
            last_failure: actor.last_failure,
        }
    }
}

impl View for ActorsView {
    fn text(&self) -> String {
        // Never truncated: the left column is a drawing, and `kill` needs the whole path.
        let columns = [
            free("ACTOR"),
            col("KIND"),
            col("STATE"),
            col("RESTARTS"),
            col("UPTIME"),
            col("MAILBOX"),
            free("LAST FAILURE"),
        ];
        let paths: Vec<&str> = self
            .actors
            .iter()
            .map(|actor| actor.path.as_str())
            .collect();
        let rows = tree::draw(&paths)
            .into_iter()
            .zip(&self.actors)
            .map(|(name, actor)| {
                let uptime = match actor.uptime_ms {
                    0 => "-".to_owned(),
                    ms => short_duration(Duration::from_millis(ms)),
                };
                vec![
                    name,
                    actor.kind.clone(),
                    actor.state.to_uppercase(),
                    actor.restarts.to_string(),
                    uptime,
                    actor.mailbox_depth.to_string(),
                    actor.last_failure.clone(),
                ]
            });
        table::render(&columns, rows)
    }
}

#[derive(Serialize)]
struct KilledView<'a> {
    path: &'a str,
    killed: bool,
}

impl View for KilledView<'_> {
    fn text(&self) -> String {
        format!("Killed {}\n", self.path)
    }
}

/// Prints the tree, or terminates one actor.
pub(crate) async fn run(args: &Args, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    if let Some(Command::Kill { path, mode }) = &args.command {
        return kill(path, *mode, client, ui).await;
    }
    let path = args.path.as_deref().unwrap_or_default();
    let mut first = true;
    let mut ticks = tokio::time::interval(REDRAW);
    loop {
        ticks.tick().await;
        let view = ActorsView::from(fetch(path, client).await?);
        match ui.format {
            Format::Table if args.watch && ui.out_is_terminal => ui.write(CLEAR)?,
            Format::Table | Format::Yaml if !first => ui.write("---\n")?,
            Format::Table | Format::Yaml | Format::Json => {}
        }
        first = false;
        ui.data(&view)?;
        if !args.watch {
            return Ok(());
        }
    }
}

async fn fetch(path: &str, client: &Client) -> Result<v1::ActorsResponse, Stop> {
    let call = async |connection| {
        let mut cluster =
            ClusterClient::new(connection).max_decoding_message_size(MAX_MESSAGE_BYTES);
        cluster
            .actors(v1::ActorsRequest {
                path: path.to_owned(),
            })
            .await
    };
    Ok(client.unary(DEADLINE, call).await?)
}

async fn kill(path: &str, mode: Mode, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let mode = match mode {
        Mode::Kill => v1::FailureMode::Kill,
        Mode::Panic => v1::FailureMode::Panic,
    };
    let call = async |connection| {
        let request = v1::KillActorRequest {
            path: path.to_owned(),
            mode: mode.into(),
        };
        ClusterClient::new(connection).kill_actor(request).await
    };
    let v1::KillActorResponse {} = client.unary(DEADLINE, call).await?;
    ui.outcome(&KilledView { path, killed: true })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::output::json;

    fn actor(path: &str, kind: &str, uptime_ms: u64) -> v1::ActorInfo {
        v1::ActorInfo {
            path: path.to_owned(),
            kind: kind.to_owned(),
            state: if uptime_ms == 0 { "backoff" } else { "running" }.to_owned(),
            uptime_ms,
            ..Default::default()
        }
    }

    #[test]
    fn table_shows_the_tree_and_its_actors() {
        let broken = v1::ActorInfo {
            restarts: 2,
            mailbox_depth: 4,
            last_failure: "panicked: x".to_owned(),
            ..actor("node/runtime/app-web-0", "ReplicaActor", 0)
        };
        let view = ActorsView::from(v1::ActorsResponse {
            actors: vec![
                actor("node", "NodeActor", 61_000),
                actor("node/raft", "RaftActor", 60_000),
                actor("node/runtime", "RuntimeSupervisor", 5_000),
                broken,
            ],
        });
        assert_eq!(
            view.text(),
            "\
ACTOR              KIND               STATE    RESTARTS  UPTIME  MAILBOX  LAST FAILURE
node               NodeActor          RUNNING  0         1m01s   0
├── raft           RaftActor          RUNNING  0         1m00s   0
└── runtime        RuntimeSupervisor  RUNNING  0         5s      0
    └── app-web-0  ReplicaActor       BACKOFF  2         -       4        panicked: x
"
        );
        let one = ActorsView::from(v1::ActorsResponse {
            actors: vec![actor("a", "K", 1)],
        });
        assert_eq!(
            json(&one).unwrap(),
            r#"{
  "actors": [
    {
      "path": "a",
      "kind": "K",
      "state": "running",
      "restarts": 0,
      "uptime_ms": 1,
      "mailbox_depth": 0
    }
  ]
}
"#
        );
    }
}
