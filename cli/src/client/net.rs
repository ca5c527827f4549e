//! `jaco net`: mesh, bridges and reachability of the container networks.

mod view;

use std::time::Duration;

use jaco_proto::v1::{self, cluster_client::ClusterClient};

use self::view::NetView;
use super::{
    args::ReadArgs,
    connection::{Client, MAX_MESSAGE_BYTES},
    failure::Stop,
    output::{Format, Ui},
};

pub(crate) use self::view::FaultRow;

const DEADLINE: Duration = Duration::from_secs(10);
const REDRAW: Duration = Duration::from_secs(1);
/// Cursor home, then clear to the end of the screen.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Arguments of `net`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Show only this node
    #[arg(value_name = "HOST")]
    host: Option<String>,

    /// Refresh every second
    #[arg(short, long)]
    pub(crate) watch: bool,

    #[command(flatten)]
    pub(crate) read: ReadArgs,
}

/// Prints the status of the networks once, or every second with `--watch`.
pub(crate) async fn run(args: &Args, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let mut first = true;
    let mut ticks = tokio::time::interval(REDRAW);
    loop {
        ticks.tick().await;
        let view = NetView::new(fetch(client).await?, args.host.as_deref());
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

async fn fetch(client: &Client) -> Result<v1::NetworkStatusResponse, Stop> {
    let call = async |connection| {
        ClusterClient::new(connection)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .network_status(v1::NetworkStatusRequest {})
            .await
    };
    Ok(client.unary(DEADLINE, call).await?)
}
