//! Subsystems of events that do not name one.

use super::Process;

/// The subsystem of a library's event: that of the part of JACO that uses the library. Events of
/// JACO's own code always name theirs.
pub(super) fn of_library(target: &str, process: Process) -> &'static str {
    let library = target.split("::").next().unwrap_or_default();
    let of_transport = matches!(
        library,
        "h2" | "hyper" | "hyper_util" | "rustls" | "tokio_rustls" | "tonic" | "tower"
    );
    match (library, process) {
        (_, Process::Daemon) if of_transport => "daemon/grpc",
        (_, Process::Cli) if of_transport => "cliclient",
        ("ractor", _) => "actor",
        ("raft", _) => "raft",
        ("bollard", _) => "runtime/reconciler",
        (_, Process::Daemon) => "jacod",
        (_, Process::Cli) => "jaco",
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        fs,
        path::{Path, PathBuf},
    };

    use jaco_proto::config::SUBSYSTEMS;

    use super::*;

    #[test]
    fn library_events_get_their_users_subsystem() {
        for (target, daemon, cli) in [
            ("h2::proto::connection", "daemon/grpc", "cliclient"),
            ("tonic", "daemon/grpc", "cliclient"),
            ("ractor::actor", "actor", "actor"),
            ("raft::raft", "raft", "raft"),
            ("bollard", "runtime/reconciler", "runtime/reconciler"),
            ("something_new::part", "jacod", "jaco"),
        ] {
            assert_eq!(of_library(target, Process::Daemon), daemon, "{target}");
            assert_eq!(of_library(target, Process::Cli), cli, "{target}");
            assert!(SUBSYSTEMS.contains(&daemon) && SUBSYSTEMS.contains(&cli));
        }
    }

    #[test]
    fn every_event_names_one_known_subsystem() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut files = Vec::new();
        for part in [
            "proto",
            "raftnode",
            "raftnode/state",
            "net",
            "actors",
            "actors/engine",
            "actors/supervision",
            "cli",
        ] {
            sources(&root.join(part).join("src"), &mut files);
        }
        let (mut events, mut wrong) = (0, BTreeSet::new());
        for file in files {
            let text = fs::read_to_string(&file).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            for event in macros(code) {
                events += 1;
                let mut named = event.split("subsystem = \"").skip(1);
                let subsystem = named.next().and_then(|rest| rest.split('"').next());
                let known = subsystem.is_some_and(|name| SUBSYSTEMS.contains(&name));
                if !known || named.next().is_some() {
                    wrong.insert(format!("{}: {event}", file.display()));
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(events > 50, "only {events} events were found");
    }

    fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|kind| kind == "rs")
                && !path.ends_with("tests.rs")
            {
                found.push(path);
            }
        }
    }

    /// The arguments of every log macro in `code`.
    fn macros(code: &str) -> Vec<&str> {
        const NAMES: [&str; 6] = [
            "error!(", "warn!(", "info!(", "debug!(", "trace!(", "event!(",
        ];
        let mut found = Vec::new();
        for name in NAMES {
            for (at, _) in code.match_indices(name) {
                let before = code[..at].chars().next_back();
                if before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
                    continue; // another macro with the same ending
                }
                let arguments = &code[at + name.len()..];
                let mut depth = 1;
                let end = arguments.find(|c| {
                    depth += match c {
                        '(' => 1,
                        ')' => -1,
                        _ => 0,
                    };
                    depth == 0
                });
                found.push(&arguments[..end.unwrap_or(arguments.len())]);
            }
        }
        found
    }
}
