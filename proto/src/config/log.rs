//! How much is logged, by subsystem.

use std::{fmt, str::FromStr};

/// Every subsystem there is; a log line names exactly one.
pub const SUBSYSTEMS: [&str; 28] = [
    "jacod",
    "jaco",
    "cliclient",
    "daemon/grpc",
    "admission",
    "backup",
    "raft",
    "raft/membership",
    "fsm",
    "state",
    "watch",
    "ipam",
    "scheduler",
    "scheduler/rollout",
    "scheduler/health",
    "scheduler/rebalance",
    "scheduler/pressure",
    "runtime/reconciler",
    "runtime/health",
    "wgmesh",
    "firewall",
    "dns",
    "dns.forwarder",
    "bridge",
    "ingress",
    "stagefirst",
    "peer",
    "actor",
];

/// Severity of a log line; a level lets itself and everything graver through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LogLevel {
    /// Steps of one operation.
    Debug,
    /// What changed.
    Info,
    /// What is wrong but handled.
    Warn,
    /// What someone must act on.
    Error,
}

/// The text names no level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("want debug, info, warn or error")]
pub struct UnknownLevel;

impl LogLevel {
    /// The name as it is written in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Ignores case and takes `warning` for `warn`, as flags and variables may be written.
impl FromStr for LogLevel {
    type Err = UnknownLevel;

    fn from_str(text: &str) -> Result<Self, UnknownLevel> {
        match text.to_ascii_lowercase().as_str() {
            "debug" => Ok(Self::Debug),
            "info" => Ok(Self::Info),
            "warn" | "warning" => Ok(Self::Warn),
            "error" => Ok(Self::Error),
            _ => Err(UnknownLevel),
        }
    }
}

/// A level for everything, and levels for single subsystems.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter {
    /// What holds where no override does.
    pub level: LogLevel,
    overrides: Vec<(String, LogLevel)>,
}

impl LogFilter {
    /// Takes the first source that starts with a level, such as `info,scheduler=debug`; what
    /// follows the first comma overrides single subsystems. Overrides that are not
    /// `subsystem=level` are ignored.
    pub fn resolve<'a>(
        sources: impl IntoIterator<Item = Option<&'a str>>,
        fallback: LogLevel,
    ) -> Self {
        sources
            .into_iter()
            .flatten()
            .find_map(Self::parse)
            .unwrap_or_else(|| Self::from(fallback))
    }

    /// The level of `subsystem`: that of the longest override that names it or a parent of it.
    pub fn level_of(&self, subsystem: &str) -> LogLevel {
        self.overrides
            .iter()
            .filter(|(name, _)| covers(name, subsystem))
            .max_by_key(|(name, _)| name.len())
            .map_or(self.level, |(_, level)| *level)
    }

    /// The overrides, in the order they were written.
    pub fn overrides(&self) -> impl Iterator<Item = (&str, LogLevel)> {
        self.overrides
            .iter()
            .map(|(name, level)| (name.as_str(), *level))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(',').map(str::trim);
        let level = parts.next()?.parse().ok()?;
        let overrides = parts
            .filter_map(|part| {
                let (name, level) = part.split_once('=')?;
                Some((name.trim().to_owned(), level.trim().parse().ok()?))
            })
            .filter(|(name, _)| !name.is_empty())
            .collect();
        Some(Self { level, overrides })
    }
}

impl From<LogLevel> for LogFilter {
    fn from(level: LogLevel) -> Self {
        Self {
            level,
            overrides: Vec::new(),
        }
    }
}

/// Subsystems nest with `/` and `.`: `dns` covers `dns.forwarder` but not `dnsmasq`.
fn covers(name: &str, subsystem: &str) -> bool {
    subsystem
        .strip_prefix(name)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '.']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_source_with_a_level_wins() {
        for (sources, expected) in [
            (
                [Some("debug"), Some("error"), Some("warn")],
                LogLevel::Debug,
            ),
            ([None, Some("ERROR"), Some("warn")], LogLevel::Error),
            ([Some("loud"), Some("Warning"), None], LogLevel::Warn),
            ([Some(""), None, Some("warn")], LogLevel::Warn),
            (
                [Some("trace"), Some(",scheduler=debug"), None],
                LogLevel::Info,
            ),
        ] {
            let filter = LogFilter::resolve(sources, LogLevel::Info);
            assert_eq!(filter, LogFilter::from(expected), "{sources:?}");
        }
    }

    #[test]
    fn longest_override_decides_its_subsystem() {
        let text = "warn, scheduler=debug ,scheduler/rollout=error,dns=info,x,=debug,raft=loud";
        let filter = LogFilter::resolve([Some(text)], LogLevel::Info);

        for (subsystem, level) in [
            ("scheduler", LogLevel::Debug),
            ("scheduler/health", LogLevel::Debug),
            ("scheduler/rollout", LogLevel::Error),
            ("scheduler2", LogLevel::Warn),
            ("dns.forwarder", LogLevel::Info),
            ("raft", LogLevel::Warn),
            ("x", LogLevel::Warn),
        ] {
            assert_eq!(filter.level_of(subsystem), level, "{subsystem}");
        }
    }
}
