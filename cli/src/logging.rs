//! What both binaries log, and where.
//!
//! Every event of ours names its `subsystem`, and levels are set for everything and for single
//! subsystems. Events of libraries only pass when something is wrong.

mod event;
mod journal;
mod layer;
mod subsystem;

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    env,
    io::{self, Write},
    panic,
    path::Path,
    thread,
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
    let sink = sink(process, under_systemd, Path::new(JOURNAL_SOCKET));
    let subscriber = Registry::default().with(Filtered::new(process, filter, sink));
    let _ = tracing::subscriber::set_global_default(subscriber); // the first call stays
}

fn sink(process: Process, under_systemd: bool, journal: &Path) -> Sink {
    match (process, under_systemd) {
        (Process::Cli, _) | (Process::Daemon, false) => Sink::Text(stderr()),
        (Process::Daemon, true) => match Journal::connect(journal, "jacod") {
            Ok(journal) => Sink::Journal(journal),
            Err(_) => Sink::Json(stderr()), // the journal reads stderr, too
        },
    }
}

/// Logs every panic of the daemon as one line of the log, instead of the several lines without
/// a level that would go to stderr.
pub fn log_panics() {
    panic::set_hook(Box::new(|info| {
        let backtrace = Backtrace::capture();
        let shown =
            (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
        let thread = thread::current();
        // "panicked at" is what people and tools look for.
        tracing::error!(
            subsystem = "jacod",
            thread = thread.name().unwrap_or("unnamed"),
            backtrace = shown,
            "{}",
            info.to_string().replace('\n', " ")
        );
    }));
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
    fn form_depends_on_the_process_and_on_who_started_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let form = |process, under_systemd| match sink(process, under_systemd, &path) {
            Sink::Text(_) => "text",
            Sink::Json(_) => "json",
            Sink::Journal(_) => "journal",
        };
        assert_eq!(form(Process::Daemon, false), "text");
        assert_eq!(form(Process::Daemon, true), "json");
        assert_eq!(form(Process::Cli, true), "text");
        let _journal = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        assert_eq!(form(Process::Daemon, true), "journal");
        assert_eq!(form(Process::Daemon, false), "text");
    }

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
