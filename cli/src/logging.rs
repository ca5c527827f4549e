//! What both binaries log, and where.
//!
//! Every event of ours names its `subsystem`, and levels are set for everything and for single
//! subsystems. Events of libraries only pass when something is wrong.

mod event;
mod journal;
mod layer;

use std::{
    env,
    io::{self, Write},
    path::Path,
};

use jaco_proto::config::{LogFilter, LogLevel};
use tracing_subscriber::{Registry, layer::SubscriberExt};

use self::{
    journal::Journal,
    layer::{Filtered, Sink, WriteLine},
};

/// Where the journal listens for structured entries.
const JOURNAL_SOCKET: &str = "/run/systemd/journal/socket";

/// Which binary logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// `jacod`: the journal or JSON under systemd, else text.
    Daemon,
    /// `jaco`: text.
    Cli,
}

/// Starts logging; a second call does nothing.
///
/// The level is that of the first source that names one: `flag`, `JACO_LOG`, `configured`, and
/// in the end `info` for the daemon and `warn` for the command line. After a comma, each
/// `subsystem=level` overrides it for one subsystem.
pub fn init(process: Process, flag: Option<&str>, configured: Option<&str>) {
    let variable = env::var("JACO_LOG").ok();
    let fallback = match process {
        Process::Daemon => LogLevel::Info,
        Process::Cli => LogLevel::Warn,
    };
    let filter = LogFilter::resolve([flag, variable.as_deref(), configured], fallback);
    let under_systemd = env::var_os("INVOCATION_ID").is_some();
    let sink = match (process, under_systemd) {
        (Process::Cli, _) | (Process::Daemon, false) => Sink::Text(stderr()),
        (Process::Daemon, true) => match Journal::connect(Path::new(JOURNAL_SOCKET), "jacod") {
            Ok(journal) => Sink::Journal(journal),
            Err(_) => Sink::Json(stderr()), // the journal reads stderr, too
        },
    };
    let subscriber = Registry::default().with(Filtered::new(filter, sink));
    let _ = tracing::subscriber::set_global_default(subscriber); // the first call stays
}

/// Whether a text starts with a level.
#[must_use]
pub fn is_level(text: &str) -> bool {
    text.split(',')
        .next()
        .is_some_and(|level| level.trim().parse::<LogLevel>().is_ok())
}

fn stderr() -> WriteLine {
    Box::new(|line| {
        let _ = io::stderr().write_all(line); // there is nowhere else to complain
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_part_before_the_first_comma_is_a_level() {
        for (text, expected) in [
            ("debug", true),
            ("WARNING", true),
            ("info,scheduler=debug", true),
            ("loud", false),
            ("", false),
            (",info", false),
        ] {
            assert_eq!(is_level(text), expected, "{text}");
        }
    }
}
