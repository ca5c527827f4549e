//! Why a configuration is refused.

use crate::{
    duration::{self, Nanos},
    yaml,
};

/// Why the daemon does not start with this file; the texts name the key and the bad value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The file is not YAML that we read.
    #[error(transparent)]
    Yaml(#[from] yaml::Error),
    /// The schema has no such key; nested keys are written with dots.
    #[error("unknown key {key:?} on line {line}{}", hint(.suggestion.as_deref()))]
    UnknownKey {
        /// The key with its parents.
        key: String,
        /// Line of the key, from 1.
        line: u32,
        /// A known key that looks alike.
        suggestion: Option<String>,
    },
    /// The value is not of the type of its key.
    #[error("{key} on line {line} must be {expected}, not {found}")]
    WrongType {
        /// The key with its parents.
        key: String,
        /// Line of the value, from 1.
        line: u32,
        /// What the key takes.
        expected: &'static str,
        /// What was written.
        found: &'static str,
    },
    /// The key may be left out but not set to nothing.
    #[error("{key} must not be empty")]
    Empty {
        /// The key.
        key: &'static str,
    },
    /// The number is outside the range of its key.
    #[error("{key} {value} is out of range")]
    OutOfRange {
        /// The key.
        key: &'static str,
        /// The number.
        value: i128,
    },
    /// The value does not split into host and port.
    #[error("{key} {value:?} is not host:port: {reason}")]
    NotHostPort {
        /// The key.
        key: &'static str,
        /// The text.
        value: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// API and peers would share one address.
    #[error("cluster_addr and listen_addr must differ")]
    SameAddresses,
    /// The ACME directory is not an `https` URL with a host.
    #[error("acme_ca {value:?} must be an https URL")]
    AcmeCa {
        /// The text.
        value: String,
    },
    /// The value is not one of the words its key takes.
    #[error("{key} {value:?} must be {expected}")]
    NotAWord {
        /// The key.
        key: &'static str,
        /// The text.
        value: String,
        /// The words.
        expected: &'static str,
    },
    /// The pool is not an IPv4 network.
    #[error("ipam_pool {value:?} is not an IPv4 network: {reason}")]
    PoolInvalid {
        /// The text.
        value: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The pool is too large or too small.
    #[error("ipam_pool {value:?} must be between /8 and /20 (got /{got})")]
    PoolSize {
        /// The text.
        value: String,
        /// Length of its prefix.
        got: u8,
    },
    /// The text is not a duration.
    #[error("{key} {value:?} is not a duration")]
    NotADuration {
        /// The key with its parents.
        key: String,
        /// The text.
        value: String,
    },
    /// The interval is too short or too long.
    #[error("node_status_interval {} must be between 5s and 5m0s", duration::format(*.value))]
    StatusInterval {
        /// The interval.
        value: Nanos,
    },
    /// A timeout below zero.
    #[error("dns.forwarder_timeout {} must not be negative", duration::format(*.value))]
    ForwarderTimeout {
        /// The timeout.
        value: Nanos,
    },
    /// A DNS server that is not `host[:port]`.
    #[error("dns.forwarders {value:?} is not host[:port]: {reason}")]
    Forwarder {
        /// The text.
        value: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A DNS server that is, or asks, one of our own responders.
    #[error("dns.forwarders {value:?} would send queries back to this node")]
    ForwarderLoop {
        /// The text.
        value: String,
    },
    /// The engine is reached over a unix socket only.
    #[error("docker_socket {value:?} must be unix:// and an absolute path")]
    DockerSocket {
        /// The text.
        value: String,
    },
    /// The node name is not a sequence of DNS labels.
    #[error("hostname {value:?} is not a DNS name")]
    Hostname {
        /// The text.
        value: String,
    },
}

fn hint(suggestion: Option<&str>) -> String {
    suggestion.map_or_else(String::new, |known| format!("; did you mean {known:?}?"))
}
