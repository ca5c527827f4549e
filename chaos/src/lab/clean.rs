//! Removal of labs, by name alone.
//!
//! A lab owns a directory, network namespaces and control groups whose names begin with its own. A
//! process belongs to a lab if it is in one of these namespaces or control groups. So everything is
//! found, at whatever point the owner of the lab was killed.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::{
    mount::{UnmountFlags, unmount},
    process::{Pid, Signal, kill_process},
};

use super::netns;

/// Prefix of the name of every lab.
const PREFIX: &str = "jl";
/// Parent of the directories of labs: near the root, because the length of socket paths is limited.
const DIRECTORIES: &str = "/tmp";
/// Mount point of control groups (cgroup v2), or parent of one directory per controller (v1).
const CONTROL_GROUPS: &str = "/sys/fs/cgroup";
/// File in a lab's directory that identifies the owner's process.
const OWNER: &str = "owner";
/// Time limit for the kernel to end a process, or to release a control group.
const KERNEL_TIMEOUT: Duration = Duration::from_secs(60);

/// Name of a lab: `jl` and four hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(String);

impl Name {
    /// Creates the directory of a new lab, owned by this process.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn create() -> Result<Self> {
        for _ in 0..100 {
            let name = Self(format!("{PREFIX}{:04x}", crate::rng::unique() & 0xffff));
            // A directory without an owner file counts as stale, so the rename to its name comes
            // last.
            let new = tempfile::Builder::new()
                .prefix(".jaco-lab-")
                .tempdir_in(DIRECTORIES)?;
            fs::write(new.path().join(OWNER), owner(std::process::id())?)?;
            if fs::rename(new.path(), name.dir()).is_ok() {
                let _ = new.keep(); // already renamed: nothing to delete here
                return Ok(name);
            }
        }
        bail!("no free name for a lab")
    }

    /// Parses a name typed by a person.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(PREFIX)?;
        let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (digits.len() == 4 && digits.bytes().all(hex)).then(|| Self(text.to_owned()))
    }

    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> PathBuf {
        Path::new(DIRECTORIES).join(&self.0)
    }

    /// Name of one of its machines' network namespace and control group.
    #[must_use]
    pub fn resource_name(&self, what: &str) -> String {
        format!("{}-{what}", self.0)
    }

    /// Whether the process that created it still runs.
    #[must_use]
    pub fn is_owned(&self) -> bool {
        let Ok(text) = fs::read_to_string(self.dir().join(OWNER)) else {
            return false;
        };
        let pid = text.split(' ').next().and_then(|pid| pid.parse().ok());
        pid.and_then(|pid| owner(pid).ok()) == Some(text)
    }

    /// Process id of its owner.
    #[must_use]
    pub fn owner(&self) -> Option<u32> {
        let text = fs::read_to_string(self.dir().join(OWNER)).ok()?;
        text.split(' ').next()?.parse().ok()
    }
}

/// Identity of a process: its id and start time, because ids are reused.
fn owner(pid: u32) -> Result<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').context("no name")?;
    let mut fields = fields.split_whitespace();
    let state = fields.next().context("no state")?;
    if matches!(state, "Z" | "X") {
        bail!("process {pid} has ended");
    }
    // Start time is field 22, and the first one after the name is field 3 (proc_pid_stat(5)).
    let started = fields.nth(18).context("no start time")?;
    Ok(format!("{pid} {started}"))
}

/// Every lab of which anything is left.
#[must_use]
pub fn list() -> BTreeSet<Name> {
    let mut names = netns::list(PREFIX);
    let parents = controllers();
    for dir in parents
        .iter()
        .map(PathBuf::as_path)
        .chain([Path::new(DIRECTORIES)])
    {
        names.extend(children(dir).filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())));
    }
    let name = |text: &String| Name::parse(text.split('-').next()?);
    names.iter().filter_map(name).collect()
}

/// Removes the remains of labs whose owners have exited, and returns their names.
///
/// # Errors
/// The first failed removal.
pub fn stale() -> Result<Vec<Name>> {
    let stale: Vec<Name> = list().into_iter().filter(|name| !name.is_owned()).collect();
    for name in &stale {
        remove(name)?;
    }
    Ok(stale)
}

/// Removes everything of a lab; succeeds if there is nothing.
///
/// # Errors
/// When something is left after all removals were tried.
pub fn remove(name: &Name) -> Result<()> {
    let prefix = name.resource_name("");
    // Single failures are ignored: the remains in the end are the error.
    let _ = kill(&prefix);
    let _ = unmount_below(&name.dir());
    let _ = remove_control_groups(&prefix);
    for namespace in namespaces(&prefix) {
        let _ = netns::delete(&namespace);
    }
    let _ = fs::remove_dir_all(name.dir());
    let left = leftovers(name);
    if left.is_empty() {
        return Ok(());
    }
    bail!("of {} there is left: {}", name.0, left.join(", "))
}

/// Describes everything that exists of a lab.
#[must_use]
pub fn leftovers(name: &Name) -> Vec<String> {
    let prefix = name.resource_name("");
    let mut found = Vec::new();
    found.extend(
        processes(&prefix)
            .iter()
            .map(|pid| format!("process {pid}")),
    );
    found.extend(
        namespaces(&prefix)
            .iter()
            .map(|name| format!("namespace {name}")),
    );
    let groups = control_groups(&prefix);
    found.extend(
        groups
            .iter()
            .map(|path| format!("control group {}", path.display())),
    );
    found.extend(
        mounts(&name.dir())
            .iter()
            .map(|path| format!("mount {}", path.display())),
    );
    if name.dir().exists() {
        found.push(format!("directory {}", name.dir().display()));
    }
    found
}

/// Kills all processes of a machine, or of all machines of a lab if `prefix` ends with a hyphen.
///
/// # Errors
/// When one does not exit.
pub fn kill(prefix: &str) -> Result<()> {
    let start = Instant::now();
    loop {
        let pids = processes(prefix);
        if pids.is_empty() {
            return Ok(());
        }
        for pid in &pids {
            let pid = i32::try_from(*pid).ok().and_then(Pid::from_raw);
            // The process may have exited by itself.
            let _ = pid.map(|pid| kill_process(pid, Signal::KILL));
        }
        if start.elapsed() > KERNEL_TIMEOUT {
            bail!("processes {pids:?} of {prefix} do not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Ids of the processes of these machines.
fn processes(prefix: &str) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    for namespace in namespaces(prefix) {
        found.extend(netns::processes(&namespace));
    }
    for group in control_groups(prefix) {
        for dir in below(&group) {
            let pids = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
            found.extend(pids.lines().filter_map(|pid| pid.parse::<u32>().ok()));
        }
    }
    // A zombie holds no resources, and this process must not kill itself.
    found.retain(|pid| *pid != std::process::id() && owner(*pid).is_ok());
    found
}

/// Unmounts everything mounted below a directory, the innermost first.
pub(crate) fn unmount_below(dir: &Path) -> io::Result<()> {
    let mut result = Ok(());
    for path in mounts(dir) {
        result = result.and(unmount(&path, UnmountFlags::DETACH).map_err(io::Error::from));
    }
    result
}

fn mounts(dir: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let second = text.lines().filter_map(|line| line.split(' ').nth(1));
    let mut found: Vec<PathBuf> = second
        .map(PathBuf::from)
        .filter(|path| path.starts_with(dir))
        .collect();
    found.reverse();
    found
}

pub(crate) fn remove_control_groups(prefix: &str) -> Result<()> {
    let start = Instant::now();
    loop {
        let groups = control_groups(prefix);
        if groups.is_empty() {
            return Ok(());
        }
        for dir in groups.iter().flat_map(|group| below(group)) {
            let _ = fs::remove_dir(dir); // busy for a moment after its last process
        }
        if start.elapsed() > KERNEL_TIMEOUT {
            bail!("{groups:?} cannot be removed");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn namespaces(prefix: &str) -> Vec<String> {
    let mut found = netns::list(prefix);
    found.retain(|name| matches_prefix(name, prefix));
    found
}

/// Whether `name` is `prefix`, or begins with it if it ends with a hyphen: `n1` does not match
/// `n10`.
fn matches_prefix(name: &str, prefix: &str) -> bool {
    name == prefix || (prefix.ends_with('-') && name.starts_with(prefix))
}

fn control_groups(prefix: &str) -> Vec<PathBuf> {
    let has_prefix = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| matches_prefix(name, prefix))
    };
    let parents = controllers();
    parents
        .iter()
        .flat_map(|dir| children(dir))
        .filter(has_prefix)
        .collect()
}

/// Directories that hold control groups of engines.
fn controllers() -> Vec<PathBuf> {
    let root = PathBuf::from(CONTROL_GROUPS);
    let mut found: Vec<PathBuf> = children(&root).collect();
    found.push(root);
    found
}

fn children(dir: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| path.is_dir() && !path.is_symlink())
}

/// A directory and all below it, the innermost first.
fn below(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = children(dir).flat_map(|child| below(&child)).collect();
    found.push(dir.to_owned());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_complete_lab_names_are_parsed() {
        assert!(Name::parse("jl03af").is_some());
        for foreign in [
            "jl03a", "jl03aff", "jl03AF", "jlxxxx", "xl03af", "", "jl", "jlonger",
        ] {
            assert_eq!(Name::parse(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn prefix_does_not_match_longer_machine_name() {
        assert!(matches_prefix("jl0000-n1", "jl0000-n1") && matches_prefix("jl0000-n1", "jl0000-"));
        assert!(
            !matches_prefix("jl0000-n10", "jl0000-n1") && !matches_prefix("jl0001-n1", "jl0000-")
        );
    }

    #[test]
    fn lab_is_owned_while_its_process_runs() {
        let name = Name::create().unwrap();
        assert!(name.is_owned() && list().contains(&name));
        assert_eq!(name.owner(), Some(std::process::id()));
        // Process 1 runs, but started at another time.
        let other = format!(
            "1 {}",
            owner(std::process::id())
                .unwrap()
                .split_once(' ')
                .unwrap()
                .1
        );
        fs::write(name.dir().join(OWNER), other).unwrap();
        assert!(!name.is_owned());
        remove(&name).unwrap();
        assert!(!name.is_owned() && !list().contains(&name));
        assert_eq!(leftovers(&name), Vec::<String>::new());
    }
}
