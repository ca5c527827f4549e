//! Log levels by subsystem.

use std::{fmt, str::FromStr};

/// All subsystems; a log line names exactly one.
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

/// Severity of a log line; a level includes all higher severities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LogLevel {
    /// Steps of an operation.
    Debug,
    /// State changes.
    Info,
    /// Problems that were handled.
    Warn,
    /// Problems that an operator must act on.
    Error,
}

/// The text is not a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("want debug, info, warn or error")]
pub struct UnknownLevel;

impl LogLevel {
    /// Returns the name used in the configuration.
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

/// Ignores case and accepts `warning` for `warn`, as in flags and environment variables.
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

/// A default level, and overrides for single subsystems.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter {
    /// Level of subsystems without an override.
    pub level: LogLevel,
    overrides: Vec<(String, LogLevel)>,
}

impl LogFilter {
    /// Parses the first source that starts with a level, such as `info,scheduler=debug`; the text
    /// after the first comma overrides single subsystems. Overrides that are not `subsystem=level`
    /// are ignored.
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

    /// Returns the level of `subsystem`: that of the longest override for it or a parent of it.
    pub fn level_of(&self, subsystem: &str) -> LogLevel {
        self.overrides
            .iter()
            .filter(|(name, _)| covers(name, subsystem))
            .max_by_key(|(name, _)| name.len())
            .map_or(self.level, |(_, level)| *level)
    }

    /// Returns the overrides in the order of the text.
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
    fn longest_override_applies() {
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
