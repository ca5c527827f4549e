//! What the kernel says about a process.

use std::{fs, time::Duration};

use anyhow::{Context, Result};

/// Ticks per second in `/proc`, fixed by the kernel's interface.
const TICKS: u64 = 100;

/// Resident memory, in bytes.
///
/// # Errors
/// When there is no such process.
pub fn rss_bytes(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("no VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib * 1024)
}

/// Time in user and kernel mode.
///
/// # Errors
/// When there is no such process.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in parentheses may hold anything; the fields after it are counted.
    let (_, fields) = stat.rsplit_once(')').context("no name")?;
    let field = |n: usize| {
        fields
            .split_whitespace()
            .nth(n)
            .and_then(|text| text.parse::<u64>().ok())
    };
    // utime and stime are fields 14 and 15, and state, the first one here, is field 3.
    let ticks = field(11).context("no utime")? + field(12).context("no stime")?;
    Ok(Duration::from_millis(ticks * 1000 / TICKS))
}

/// Whether no thread of it runs, because of a signal.
///
/// # Errors
/// When there is no such process.
pub fn is_stopped(pid: u32) -> Result<bool> {
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let stat = fs::read_to_string(task?.path().join("stat"))?;
        let (_, fields) = stat.rsplit_once(')').context("no name")?;
        if !fields.starts_with(" T") {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_uses_time() {
        assert!(rss_bytes(std::process::id()).unwrap() > 1 << 20);
        let mut n = 1_u64;
        while cpu_time(std::process::id()).unwrap().is_zero() {
            n = std::hint::black_box(n.wrapping_mul(3));
        }
    }
}
