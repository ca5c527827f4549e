//! The daemon, one per machine.

use std::process::ExitCode;

/// A call or a log entry is some dozens of small pieces, made on one thread and dropped on
/// another. The C library's allocator takes a fifth of the daemon's time for that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    jaco_cli::daemon::main()
}
