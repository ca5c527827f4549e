//! `meta.json`: metadata of an archive.

use jaco_state::State;
use prost_types::Timestamp;
use serde::{Deserialize, Serialize};

use super::Error;
use crate::storage::Position;

/// The only supported layout.
pub const SCHEMA_VERSION: u64 = 1;

/// Largest index that leaves room for a log after it.
const LAST_INDEX: u64 = 1 << 62;
/// Longest id of a cluster, in bytes.
const CLUSTER_ID_BYTES: usize = 256;

/// Metadata of an archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u64,
    /// Id of the cluster, as in the snapshot.
    pub cluster_id: String,
    /// Log index of the snapshot.
    pub snapshot_index: u64,
    /// Term of the entry at that index.
    pub snapshot_term: u64,
    /// Version of the program that wrote the archive; may be empty.
    #[serde(default)]
    pub jaco_version: String,
    /// Start of the backup; RFC 3339 in UTC, whole seconds.
    pub taken_at: String,
    /// `host:port` of the leader's peer transport; empty without a leader.
    #[serde(default)]
    pub leader_at_snapshot: String,
}

/// The part of `meta.json` that is the same in every schema; parsed first.
#[derive(Deserialize)]
struct Schema {
    schema_version: u64,
}

impl Meta {
    /// Describes an archive of `state`; `None` if the state has no cluster.
    ///
    /// `term` is the term of the entry at the state's applied index.
    #[must_use]
    pub fn new(
        state: &State,
        term: u64,
        version: &str,
        leader: &str,
        taken_at: Timestamp,
    ) -> Option<Self> {
        let cluster = state.cluster.as_deref()?;
        Some(Self {
            schema_version: SCHEMA_VERSION,
            cluster_id: cluster.cluster_id.clone(),
            snapshot_index: state.applied_index,
            snapshot_term: term,
            jaco_version: version.to_owned(),
            taken_at: whole_seconds(taken_at),
            leader_at_snapshot: leader.to_owned(),
        })
    }

    /// Log position of the snapshot.
    #[must_use]
    pub fn position(&self) -> Position {
        Position {
            index: self.snapshot_index,
            term: self.snapshot_term,
        }
    }

    /// Encodes the file, indented by two spaces.
    pub(super) fn to_json(&self) -> Vec<u8> {
        // A struct of strings and numbers always serialises.
        let mut json = serde_json::to_vec_pretty(self).unwrap_or_default();
        json.push(b'\n');
        json
    }

    /// Parses and checks the file for a program of version `own`. Unknown keys are ignored.
    pub(super) fn parse(json: &[u8], own: &str) -> Result<Self, Error> {
        let damaged = |error: serde_json::Error| Error::Meta(error.to_string());
        let Schema { schema_version } = serde_json::from_slice(json).map_err(damaged)?;
        if schema_version != SCHEMA_VERSION {
            return Err(Error::Schema {
                found: schema_version,
            });
        }
        let mut meta: Self = serde_json::from_slice(json).map_err(damaged)?;
        if !versions_fit(&meta.jaco_version, own) {
            return Err(Error::Version {
                archive: meta.jaco_version,
                own: own.to_owned(),
            });
        }
        let id = &meta.cluster_id;
        if id.is_empty() || id.len() > CLUSTER_ID_BYTES || id.chars().any(char::is_control) {
            return Err(Error::Meta("cluster_id is not an id".to_owned()));
        }
        for (key, value) in [
            ("snapshot_index", meta.snapshot_index),
            ("snapshot_term", meta.snapshot_term),
        ] {
            if !(1..=LAST_INDEX).contains(&value) {
                return Err(Error::Meta(format!("{key} is {value}")));
            }
        }
        let taken_at: Timestamp = meta
            .taken_at
            .parse()
            .map_err(|_| Error::Meta("taken_at is not a time".to_owned()))?;
        // Normalised: in UTC and without surrounding text that the parser accepts.
        meta.taken_at = whole_seconds(taken_at);
        Ok(meta)
    }
}

fn whole_seconds(time: Timestamp) -> String {
    Timestamp { nanos: 0, ..time }.to_string()
}

/// Whether one version can read an archive of the other: they agree up to their first dot, or both
/// are development versions, or one is empty.
fn versions_fit(one: &str, other: &str) -> bool {
    let major = |version: &str| {
        let version = version.strip_prefix('v').unwrap_or(version);
        version.split('.').next().unwrap_or_default().to_owned()
    };
    one.is_empty()
        || other.is_empty()
        || major(one) == major(other)
        || is_development(one) && is_development(other)
}

/// Whether a version names a build from source: `dev`, or a release number followed by `-dev`, as
/// in `0.0.1-dev`, which the Go implementation writes into every archive.
fn is_development(version: &str) -> bool {
    let version = version.split('+').next().unwrap_or_default();
    match version.split_once('-') {
        Some((_, suffix)) => suffix.split('.').next() == Some("dev"),
        None => version == "dev",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_fit_by_major_part_or_as_development() {
        for (one, other, fit) in [
            ("1.2.3", "1.9.0", true),
            ("v1.2.3", "1.0.0", true),
            ("1", "v1.0", true),
            ("", "2.0.0", true),
            ("1.0.0", "", true),
            ("dev", "dev", true),
            ("0.0.1-dev", "0.7.0", true),
            ("0.0.1-dev", "dev", true),
            ("v0.0.1-dev.3+abc", "dev", true),
            ("0.0.1-dev", "1.2.0-dev", true),
            ("0.0.1-dev", "1.2.0", false),
            ("0.0.1-develop", "dev", false),
            ("0.0.1-rc.dev", "dev", false),
            ("1.2.3", "2.2.3", false),
            ("10.0", "1.0", false),
            ("dev", "1.0.0", false),
            ("dev", "0.0.1-dev", true),
            ("dev", "v0.0.1-dev", true),
            ("1.4.0-dev", "0.0.1-dev", true),
            ("1.4.0", "0.0.1-dev", false),
            ("dev", "0.0.1-rc.1", false),
            ("dev", "1.0.0-devel", false),
            ("vv1.0", "1.0", false),
        ] {
            assert_eq!(versions_fit(one, other), fit, "{one:?} and {other:?}");
            assert_eq!(versions_fit(other, one), fit, "{other:?} and {one:?}");
        }
    }
}
