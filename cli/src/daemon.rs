//! The daemon `jacod`.

pub(crate) mod config;
mod handover;
mod run;

use std::{io::Write, path::PathBuf, process::ExitCode};

use anyhow::Context;
use clap::{CommandFactory, Parser};
use jaco_net::process::passed_descriptors;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{logging, version};

/// The JACO daemon: one per machine.
#[derive(Debug, Parser)]
#[command(name = "jacod", disable_version_flag = true)]
struct Args {
    /// Configuration file; defaults apply if it does not exist
    #[arg(long, env = "JACO_CONFIG", default_value = "/etc/jaco/jacod.yaml")]
    config: PathBuf,

    /// Log level: debug, info, warn or error, then optional subsystem=level overrides
    #[arg(long)]
    log_level: Option<String>,

    /// Allow operators on the unix socket to terminate actors (`jaco actors kill`)
    #[arg(long)]
    enable_fault_injection: bool,

    /// Take over the listening sockets of the daemon that runs on this data directory, which stops
    #[arg(long)]
    replace: bool,

    /// Print the version and exit
    #[arg(long)]
    version: bool,
}

/// The command line definition of the daemon.
pub(crate) fn command() -> clap::Command {
    Args::command()
}

/// Runs the daemon until a signal or a fatal error.
///
/// Exit status 0 after a graceful stop, 1 after a fatal error, 130 after a second signal.
#[must_use]
pub fn main() -> ExitCode {
    // First of all: before any descriptor is opened, and while there is only one thread.
    let passed = passed_descriptors();
    // Memory holds keys, so core dumps are disabled. A failure is ignored: it leaves only the risk
    // of a dump.
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let _ = setrlimit(Resource::Core, none);
    // Raises the soft limit to the hard one; the low default exists for programs that use
    // select(2).
    let files = Rlimit {
        current: getrlimit(Resource::Nofile).maximum,
        ..getrlimit(Resource::Nofile)
    };
    let _ = setrlimit(Resource::Nofile, files);
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let code = u8::from(error.use_stderr());
            let _ = error.print(); // a closed stderr leaves no way to report
            return ExitCode::from(code);
        }
    };
    if args.version {
        let _ = writeln!(std::io::stdout(), "{}", version());
        return ExitCode::SUCCESS;
    }
    // Files of the daemon and its database are private to their owner.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let config = config::read(&args.config);
    logging::init(
        logging::Process::Daemon,
        args.log_level.as_deref(),
        config.as_ref().ok().map(|config| config.log_level.as_str()),
    );
    logging::log_panics();
    let ended = config.and_then(|config| {
        let passed = passed.context("take the inherited sockets")?;
        let options = run::Options {
            fault_injection: args.enable_fault_injection,
            replace: args.replace,
        };
        run::run(&config, passed, options)
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // As the message, not as a field: fields would be quoted and escaped.
            tracing::error!(subsystem = "jacod", "{error:#}");
            ExitCode::FAILURE
        }
    }
}
