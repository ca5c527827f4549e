//! Completion scripts and manual pages, generated from the command line definition.

use std::{fs, path::PathBuf};

use clap::CommandFactory;
use clap_complete::Shell;

use super::{
    args::Cli,
    failure::{Failure, Local, Stop},
    output::Ui,
};
use crate::daemon;

/// Arguments of `completions`.
#[derive(clap::Args)]
pub(crate) struct CompletionsArgs {
    /// Shell to complete for
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Arguments of `man`.
#[derive(clap::Args)]
pub(crate) struct ManArgs {
    /// Directory to write to; created if it does not exist
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Prints the completion script of `jaco`.
pub(crate) fn completions(args: &CompletionsArgs, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "jaco", &mut script);
    ui.write(&String::from_utf8_lossy(&script))
}

/// Writes one manual page per command of `jaco`, and one for `jacod`.
pub(crate) fn man(args: &ManArgs) -> Result<(), Stop> {
    fs::create_dir_all(&args.out)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), &args.out))
        .and_then(|()| clap_mangen::generate_to(daemon::command(), &args.out))
        .map_err(|error| {
            let shown = args.out.display();
            let message = format!("write manual pages to {shown}: {error}");
            Failure::new(Local::FileError, message)
                .with("path", shown)
                .into()
        })
}
