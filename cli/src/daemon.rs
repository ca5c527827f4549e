//! `jacod`: from a configuration file to a running node, and back down.

pub(crate) mod config;
mod run;

use std::{io::Write, path::PathBuf, process::ExitCode};

use anyhow::Context;
use clap::{CommandFactory, Parser};
use jaco_net::process::inherited_listener;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

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
    // First of all: the descriptors must not be taken for others, and no thread runs yet.
    let inherited = inherited_listener();
    // Memory holds keys. A limit can always be lowered, and without it a dump is all that follows.
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let _ = setrlimit(Resource::Core, none);
    // The lower limit is for the sake of programs that use select(2).
    let files = Rlimit {
        current: getrlimit(Resource::Nofile).maximum,
        ..getrlimit(Resource::Nofile)
    };
    let _ = setrlimit(Resource::Nofile, files);
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
    let config = config::read(&args.config);
    logging::init(
        logging::Process::Daemon,
        args.log_level.as_deref(),
        config.as_ref().ok().map(|config| config.log_level.as_str()),
    );
    logging::log_panics();
    let ended = config.and_then(|config| {
        let socket = inherited.context("take the inherited socket")?;
        run::run(&config, socket, args.enable_fault_injection)
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // As the message: people read it, and its quotes stay as they are.
            tracing::error!(subsystem = "jacod", "{error:#}");
            ExitCode::FAILURE
        }
    }
}
