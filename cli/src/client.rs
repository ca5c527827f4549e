//! The command line client `jaco`: each command makes one call or opens one stream, and prints
//! text.
//!
//! Each command family has a file with its arguments, calls and views. A view is a plain struct
//! with a text form, so output is tested without a daemon.

mod actors;
mod apply;
mod args;
mod audit;
mod backup;
mod cancellable;
mod cert;
mod cluster;
mod cluster_files;
mod config;
mod connection;
mod domain;
mod excerpt;
mod failure;
mod get;
mod lifecycle;
mod local_daemon;
mod logs;
mod manifests;
mod net;
mod node;
mod output;
mod packaging;
mod registry;
mod replica;
mod restore;
mod rollout;
mod sanitize;
mod secret;
mod status;
mod systemd;
mod tls;
mod token;
mod transport;
mod validate;
mod version;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod golden;

use std::{
    env,
    ffi::OsString,
    fs,
    io::{self, IsTerminal},
    path::Path,
    process::ExitCode,
    time::Duration,
};

use clap::{CommandFactory, Parser};

use self::{
    args::{Cli, Command, Globals},
    connection::Client,
    failure::{Failure, Local, Stop},
    output::{Format, Ui},
    transport::{Machine, Source, contexts},
};
use crate::logging;

/// Exit status after Ctrl-C, except when Ctrl-C is the normal end of a stream.
const INTERRUPTED: u8 = 130;
const SUCCESS: u8 = 0;
/// Time for local work to end after Ctrl-C; a process that exits while the database is open may
/// abort.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs one command.
///
/// Exit status: 0 after success, a closed output pipe, or the Ctrl-C that ends a stream; 130 after
/// any other Ctrl-C; 3 if an apply was rolled back, 124 if it took longer than asked; 1 after every other
/// failure.
#[must_use]
pub fn main() -> ExitCode {
    let (mut out, mut err) = (io::stdout().lock(), io::stderr());
    let err_columns = columns(&err);
    let out_is_terminal = out.is_terminal();
    let mut ui = Ui {
        out: &mut out,
        err: &mut err,
        format: Format::Table,
        quiet: false,
        err_columns,
        out_is_terminal,
    };
    ExitCode::from(run(env::args_os(), &mut ui))
}

/// Runs the command in `args`, which begin with the program's name, and returns its exit status.
///
/// The arguments set the output format and quietness; those in `ui` are overwritten.
fn run(args: impl IntoIterator<Item = OsString>, ui: &mut Ui<'_>) -> u8 {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => return report_parse_error(&error, ui),
    };
    let verbose = cli.globals.verbose.then_some("debug");
    let level = cli
        .globals
        .log_level
        .as_deref()
        .filter(|level| logging::is_level(level));
    logging::init(logging::Process::Cli, level.or(verbose), None);
    ui.quiet = cli.globals.quiet;
    ui.format = match cli.globals.format(cli.command.as_ref()) {
        Ok(format) => format,
        Err(failure) => return report(&failure, ui),
    };
    match dispatch(cli, ui) {
        Ok(End::Done) => SUCCESS,
        Ok(End::Interrupted) => INTERRUPTED,
        Err(Stop::ClosedPipe) => SUCCESS,
        Err(Stop::Failed(failure)) => report(&failure, ui),
    }
}

/// Outcome of a command that did not fail.
enum End {
    Done,
    Interrupted,
}

fn dispatch(cli: Cli, ui: &mut Ui<'_>) -> Result<End, Stop> {
    let command = match (cli.version, cli.command) {
        (false, Some(command)) => command,
        (true, _) => {
            ui.write(&format!("{}\n", crate::version()))?;
            return Ok(End::Done);
        }
        (false, None) => {
            ui.write(&Cli::command().render_help().to_string())?;
            return Ok(End::Done);
        }
    };
    match command {
        Command::Version => version::run(ui)?,
        Command::Validate(args) => validate::run(&args, ui)?,
        Command::Config(args) if args.command.is_none() => config::run(&args, ui)?,
        Command::Completions(args) => packaging::completions(&args, ui)?,
        Command::Man(args) => packaging::man(&args)?,
        remote => return with_runtime(remote, &cli.globals, ui),
    }
    Ok(End::Done)
}

/// Runs a command that calls a daemon, until it ends or is interrupted.
fn with_runtime(command: Command, globals: &Globals, ui: &mut Ui<'_>) -> Result<End, Stop> {
    let endless = command.is_stream();
    let uses_local_files = command.uses_local_files();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Local::Internal, format!("start the runtime: {error}")))?;
    let result = runtime.block_on(async {
        tokio::select! {
            biased; // registers the signal handler before the command starts
            Ok(()) = tokio::signal::ctrl_c() => match endless {
                true => Ok(End::Done),
                false => Ok(End::Interrupted),
            },
            result = remote(command, globals, ui) => result.map(|()| End::Done),
        }
    });
    if uses_local_files {
        runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    } else {
        // A blocked name lookup must not delay the exit of a finished command.
        runtime.shutdown_background();
    }
    result
}

async fn remote(command: Command, globals: &Globals, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let (rule, consistent) = (command.token_rule(), command.is_consistent());
    let flags = match command.takes_join_token() {
        true => globals.source().without_token(),
        false => globals.source(),
    };
    let client = || -> Result<Client, Failure> {
        let env = Source::from_env(|name| env::var(name).ok());
        let target = transport::choose(&flags, &env, &ThisMachine, rule)?;
        Client::new(target, consistent)
    };
    match command {
        Command::Version
        | Command::Validate(_)
        | Command::Config(config::Args { command: None, .. })
        | Command::Completions(_)
        | Command::Man(_) => {
            Ok(()) // need no runtime
        }
        Command::Cluster { command } => cluster::run(&command, &client()?, ui).await,
        Command::Node {
            command: node::Command::Join(args),
        } => {
            let env = env::var("JACO_JOIN_TOKEN").ok();
            let token = node::join_token(&globals.source(), env, &ThisMachine)?;
            node::join(&args, &token, &client()?, ui).await
        }
        Command::Node { command } => node::run(&command, &client()?, ui).await,
        Command::Apply(args) => apply::run(&args, client, ui).await,
        Command::Status(args) => status::run(&args, &client()?, ui).await,
        Command::Get { command, .. } => get::run(&command, &client()?, ui).await,
        Command::Logs(args) => logs::run(&args, &client()?, ui).await,
        Command::Rollout { command } => rollout::run(&command, &client()?, ui).await,
        Command::Rollback(args) => lifecycle::rollback(&args, &client()?, ui).await,
        Command::Delete(args) => lifecycle::delete(&args, &client()?, ui).await,
        Command::Token { command } => token::run(&command, &client()?, ui).await,
        Command::Config(config::Args {
            command: Some(command),
            ..
        }) => cluster_files::config(command, &client()?, ui).await,
        Command::Secret { command } => secret::run(command, &client()?, ui).await,
        Command::Registry { command } => registry::run(&command, &client()?, ui).await,
        Command::Domain { command } => domain::run(&command, &client()?, ui).await,
        Command::Tls { command } => tls::run(&command, &client()?, ui).await,
        Command::Cert { command } => cert::run(&command, &client()?, ui).await,
        Command::Audit(args) => audit::run(&args, &client()?, ui).await,
        Command::Backup(args) => backup::run(&args, globals.destination(), client, ui).await,
        Command::Restore(args) => restore::run(&args, globals.socket(), ui).await,
        Command::Actors(args) => actors::run(&args, &client()?, ui).await,
        Command::Net(args) => net::run(&args, &client()?, ui).await,
    }
}

/// Runs blocking work on a thread, so that Ctrl-C still ends the command meanwhile.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Failure::new(Local::Internal, error.to_string()))
}

/// The real machine.
struct ThisMachine;

impl Machine for ThisMachine {
    fn exists(&self, path: &Path) -> bool {
        fs::metadata(path).is_ok()
    }

    fn read(&self, path: &Path) -> io::Result<String> {
        fs::read_to_string(path)
    }

    fn contexts(&self) -> Result<Option<contexts::Contexts>, Failure> {
        let var = |name| env::var(name).ok();
        match contexts::path(var("XDG_CONFIG_HOME").as_deref(), var("HOME").as_deref()) {
            Some(path) => contexts::Contexts::read(&path),
            None => Ok(None),
        }
    }
}

/// Prints help to stdout; reports any other error of clap as a usage error.
fn report_parse_error(error: &clap::Error, ui: &mut Ui<'_>) -> u8 {
    use clap::error::ErrorKind;
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = write!(ui.out, "{}", error.render()); // the pipe may be closed
            SUCCESS
        }
        _ => report(&args::usage_error(error), ui),
    }
}

fn report(failure: &Failure, ui: &mut Ui<'_>) -> u8 {
    let text = failure.render(ui.err_columns.is_some());
    let _ = write!(ui.err, "{text}"); // a closed stderr leaves no way to report
    failure.exit_status()
}

/// Width of the terminal that `stream` is connected to, if any.
fn columns(stream: &(impl IsTerminal + std::os::fd::AsFd)) -> Option<usize> {
    if !stream.is_terminal() {
        return None;
    }
    let columns = rustix::termios::tcgetwinsize(stream).map_or(0, |size| size.ws_col);
    // A terminal of unknown size reports 0.
    Some(if columns == 0 {
        80
    } else {
        usize::from(columns)
    })
}
