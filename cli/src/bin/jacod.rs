//! The daemon, one per machine.

use std::process::ExitCode;

fn main() -> ExitCode {
    jaco_cli::daemon::main()
}
