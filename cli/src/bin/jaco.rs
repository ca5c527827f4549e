//! The command line client.

use std::process::ExitCode;

fn main() -> ExitCode {
    jaco_cli::client::main()
}
