//! Facts about a process, from `/proc`.

use std::{fs, time::Duration};

use anyhow::{Context, Result};

/// Clock ticks per second in `/proc` (USER_HZ).
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

/// Processor time in user and kernel mode.
///
/// # Errors
/// When there is no such process.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in parentheses may hold any character, so fields are counted after it.
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

/// Whether all threads of a process are stopped by a signal.
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

/// Id of the parent process.
///
/// # Errors
/// When there is no such process.
pub fn parent(pid: u32) -> Result<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').context("no name")?;
    let id = fields.split_whitespace().nth(1).context("no parent")?;
    Ok(id.parse()?)
}

/// Ids of a process and all its descendants.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn family(pid: u32) -> Result<Vec<u32>> {
    let mut pairs = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let id = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        // A process that has exited meanwhile has no descendants.
        pairs.extend(id.and_then(|id: u32| Some((id, parent(id).ok()?))));
    }
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        let children = pairs.iter().filter(|(_, of)| *of == parent);
        found.extend(children.map(|(pid, _)| pid));
        next += 1;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn family_is_process_with_its_descendants() {
        let own = std::process::id();
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let seen = (parent(child.id()), family(own));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(seen.0.unwrap(), own);
        let family = seen.1.unwrap();
        assert!(
            family[0] == own && family.contains(&child.id()),
            "{family:?}"
        );
        assert!(!family.contains(&parent(own).unwrap()), "{family:?}");
        parent(u32::MAX).unwrap_err();
    }

    #[test]
    fn own_process_has_memory_and_cpu_time() {
        assert!(rss_bytes(std::process::id()).unwrap() > 1 << 20);
        let mut n = 1_u64;
        while cpu_time(std::process::id()).unwrap().is_zero() {
            n = std::hint::black_box(n.wrapping_mul(3));
        }
    }
}
