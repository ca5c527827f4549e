//! Logging of both binaries.
//!
//! Every event of JACO's own code has a `subsystem`; levels are set globally and per subsystem.
//! Events of libraries pass only from level `warn` on.

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

/// Socket of the systemd journal for structured entries.
const JOURNAL_SOCKET: &str = "/run/systemd/journal/socket";

/// The binary that logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// `jacod`: to the journal, or as JSON, under systemd, else as text.
    Daemon,
    /// `jaco`: as text.
    Cli,
}

/// Installs the log subscriber; only the first call has an effect.
///
/// The level comes from the first of `flag`, `JACO_LOG` and `configured` that contains one; the
/// default is `info` for the daemon and `warn` for the client. After a comma, each
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
    let _ = tracing::subscriber::set_global_default(subscriber); // only the first call succeeds
}

fn sink(process: Process, under_systemd: bool, journal: &Path) -> Sink {
    match (process, under_systemd) {
        (Process::Cli, _) | (Process::Daemon, false) => Sink::Text(stderr()),
        (Process::Daemon, true) => match Journal::connect(journal, "jacod") {
            Ok(journal) => Sink::Journal(journal),
            Err(_) => Sink::Json(stderr()), // systemd forwards stderr to the journal
        },
    }
}

/// Installs a panic hook that logs every panic as one line at level `error`, instead of several
/// lines without a level on stderr.
pub fn log_panics() {
    panic::set_hook(Box::new(|info| {
        let backtrace = Backtrace::capture();
        let shown =
            (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
        let thread = thread::current();
        // Keeps the words "panicked at", which people and tools search for.
        tracing::error!(
            subsystem = "jacod",
            thread = thread.name().unwrap_or("unnamed"),
            backtrace = shown,
            "{}",
            info.to_string().replace('\n', " ")
        );
    }));
}

/// Whether `text` begins with a log level.
#[must_use]
pub fn is_level(text: &str) -> bool {
    text.split(',')
        .next()
        .is_some_and(|level| level.trim().parse::<LogLevel>().is_ok())
}

fn stderr() -> WriteLine {
    Box::new(|line| {
        let _ = io::stderr().write_all(line); // a failing stderr leaves nowhere to report
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_format_depends_on_process_and_systemd() {
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
    fn level_ends_at_the_first_comma() {
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
