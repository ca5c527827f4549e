//! `jacod`: from a configuration file to a running node, and back down.

pub(crate) mod config;
mod run;

use std::{io::Write, path::PathBuf, process::ExitCode};

use clap::{CommandFactory, Parser};

use crate::{logging, version};

/// The JACO daemon: one per machine.
#[derive(Debug, Parser)]
#[command(name = "jacod", disable_version_flag = true)]
struct Args {
    /// Configuration file; a missing one means all defaults
    #[arg(long, env = "JACO_CONFIG", default_value = "/etc/jaco/jacod.yaml")]
    config: PathBuf,

    /// Log level: debug, info, warn or error, then optional subsystem=level overrides
    #[arg(long)]
    log_level: Option<String>,

    /// Let operators on the unix socket kill single actors (`jaco actors kill`)
    #[arg(long)]
    enable_fault_injection: bool,

    /// Print the version and exit
    #[arg(long)]
    version: bool,
}

/// The arguments of the daemon.
pub(crate) fn command() -> clap::Command {
    Args::command()
}

/// Runs the daemon until a signal or a fatal error ends it.
///
/// Exit status 0 after a graceful stop, 1 after a fatal error, 130 after a second signal.
#[must_use]
pub fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let code = u8::from(error.use_stderr());
            let _ = error.print(); // nobody is left to tell
            return ExitCode::from(code);
        }
    };
    if args.version {
        let _ = writeln!(std::io::stdout(), "{}", version());
        return ExitCode::SUCCESS;
    }
    // What the daemon and its database write is nobody else's business.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let config = match config::read(&args.config) {
        Ok(config) => config,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "jacod: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    logging::init(
        logging::Process::Daemon,
        args.log_level.as_deref(),
        Some(config.log_level.as_str()),
    );
    match run::run(&config, args.enable_fault_injection) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(subsystem = "jacod", error = format!("{error:#}"), "fatal");
            ExitCode::FAILURE
        }
    }
}
