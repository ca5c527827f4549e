//! Errors of a configuration file.

use crate::{
    duration::{self, Nanos},
    yaml,
};

/// Error in the configuration file, with the key and the bad value in its text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The file is not valid YAML.
    #[error(transparent)]
    Yaml(#[from] yaml::Error),
    /// The key is not in the schema; nested keys are written with dots.
    #[error("unknown key {key:?} on line {line}{}", hint(.suggestion.as_deref()))]
    UnknownKey {
        /// The key with its parents.
        key: String,
        /// Line of the key, from 1.
        line: u32,
        /// A known key with a similar name.
        suggestion: Option<String>,
    },
    /// The value has the wrong type for its key.
    #[error("{key} on line {line} must be {expected}, not {found}")]
    WrongType {
        /// The key with its parents.
        key: String,
        /// Line of the value, from 1.
        line: u32,
        /// Expected type.
        expected: &'static str,
        /// Type of the value.
        found: &'static str,
    },
    /// The key may be omitted, but its value must not be empty.
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
        /// Reason why it does not parse.
        reason: &'static str,
    },
    /// Labels that are too many, too long or not printable.
    #[error("labels: {reason}")]
    Labels {
        /// Fault of the first bad one.
        reason: String,
    },
    /// API and peer transport have the same address.
    #[error("cluster_addr and listen_addr must differ")]
    SameAddresses,
    /// The ACME directory is not an `https` URL with a host.
    #[error("acme_ca {value:?} must be an https URL")]
    AcmeCa {
        /// The text.
        value: String,
    },
    /// The value is not one of the allowed words.
    #[error("{key} {value:?} must be {expected}")]
    NotAWord {
        /// The key.
        key: &'static str,
        /// The text.
        value: String,
        /// The allowed words.
        expected: &'static str,
    },
    /// The pool is not an IPv4 network.
    #[error("ipam_pool {value:?} is not an IPv4 network: {reason}")]
    PoolInvalid {
        /// The text.
        value: String,
        /// Reason why it does not parse.
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
        /// Reason why it does not parse.
        reason: &'static str,
    },
    /// A DNS server that is, or forwards to, one of our own responders.
    #[error("dns.forwarders {value:?} would send queries back to this node")]
    ForwarderLoop {
        /// The text.
        value: String,
    },
    /// The path is not `unix://` and absolute; only unix sockets are supported.
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
