//! The daemon, one per machine.

use std::process::ExitCode;

/// A call or a log entry consists of dozens of small allocations, made on one thread and freed on
/// another. The C library's allocator spends a fifth of the daemon's CPU time on them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    jaco_cli::daemon::main()
}
