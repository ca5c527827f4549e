//! Platforms whose programs this machine runs.

use std::{env::consts, fs, path::Path};

use jaco_policy::scheduler::platform;

/// Interpreters that the kernel starts for programs of other processors.
///
/// Source: <https://docs.kernel.org/admin-guide/binfmt-misc.html>.
const INTERPRETERS: &str = "/proc/sys/fs/binfmt_misc";

/// Returns the platforms of the processor and of the interpreters, the machine's own first.
pub(super) fn found() -> Vec<String> {
    platform::of_machine(
        consts::OS,
        consts::ARCH,
        interpreters(Path::new(INTERPRETERS)),
    )
}

/// Names and descriptions; none where the file system is not mounted.
fn interpreters(directory: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let read = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let text = fs::read_to_string(entry.path()).ok()?;
        Some((name, text))
    });
    let mut found: Vec<_> = read.collect();
    found.sort();
    found
}
