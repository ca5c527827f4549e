//! The command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    jaco_cli::client::main()
}
