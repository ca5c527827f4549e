//! Parameters of the events that a certificate's core handles.

use std::time::{Duration, SystemTime};

use sha2::{Digest as _, Sha256};

/// Kind of directory that issued a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Environment {
    /// Its certificates are not trusted by clients.
    Staging,
    /// Any other directory.
    Prod,
}

impl Environment {
    /// Name in audit events, metrics and `jaco status`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Staging => "staging",
            Self::Prod => "prod",
        }
    }
}

/// Place of a certificate in the sequence of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Slot {
    /// From the staging directory, to find faults that do not depend on the authority.
    Staging,
    /// From the configured directory.
    Production,
}

/// Settings of the daemon that the sequence depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether a first certificate is ordered from the staging directory before.
    pub stage_first: bool,
    /// Whether the addresses of a domain are asked before its first order.
    pub preflight: bool,
    /// Kind of the configured directory.
    pub environment: Environment,
}

/// Facts about a stored or issued certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    /// SHA-256 of the leaf's DER.
    pub fingerprint: [u8; 32],
    /// Start of the leaf's validity.
    pub not_before: SystemTime,
    /// End of the leaf's validity.
    pub not_after: SystemTime,
    /// Whether the leaf names the domain and belongs to the stored key.
    pub covers: bool,
}

impl Chain {
    /// Whether the certificate can be presented and has not expired at `wall`.
    #[must_use]
    pub fn is_valid(&self, wall: SystemTime) -> bool {
        self.covers && wall < self.not_after
    }

    /// Length of the validity; zero for an impossible one.
    #[must_use]
    pub fn lifetime(&self) -> Duration {
        let lifetime = self.not_after.duration_since(self.not_before);
        lifetime.unwrap_or_default()
    }
}

/// Lease of the domain's lock in the replicated state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Whether this node holds it.
    pub ours: bool,
    /// End of the lease.
    pub until: SystemTime,
}

/// Facts about the domain from the replicated state and from the disk of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Whether a route asks for a certificate.
    pub wanted: bool,
    /// Whether an operator supplied one for this very domain that has not expired; none is ordered
    /// as long.
    pub imported: bool,
    /// Contact of the account; empty for none.
    pub contact: String,
    /// Stored certificate of the staging directory; never set if the configured directory is it.
    pub staging: Option<Chain>,
    /// Stored certificate of any other directory.
    pub production: Option<Chain>,
    /// Whether the store has entries of the domain, readable or not.
    pub stored: bool,
    /// Certificates that this node has on disk, which replace missing ones of the state.
    pub local: LocalCopies,
    /// Lock of the domain, expired or not; `None` without a holder.
    pub lock: Option<Lock>,
}

/// Certificates of the domain on the disk of this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalCopies {
    /// Of the staging directory.
    pub staging: Option<Chain>,
    /// Of any other directory.
    pub production: Option<Chain>,
}

/// Class of a failed order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureClass {
    /// The authority limits the rate of requests.
    RateLimit,
    /// The authority could not validate the domain, or refuses to.
    Validation,
    /// The authority or the network failed.
    Transient,
    /// Anything else.
    Unknown,
}

impl FailureClass {
    /// Name in audit events.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RateLimit => "rate_limit",
            Self::Validation => "validation",
            Self::Transient => "transient",
            Self::Unknown => "unknown",
        }
    }
}

/// Failure of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderFailure {
    /// Its class.
    pub class: FailureClass,
    /// Time that the authority asks to wait.
    pub retry_after: Option<Duration>,
    /// Reason, without secrets.
    pub reason: String,
}

/// Times between which the authority suggests to renew a certificate (RFC 9773).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenewalWindow {
    /// Start of the window.
    pub start: SystemTime,
    /// End of the window.
    pub end: SystemTime,
}

/// State of a domain's certificate, as shown to operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The domain's addresses do not lead to this cluster.
    WaitingDns,
    /// An order is under way or about to begin.
    Ordering,
    /// A certificate of the configured directory is stored and has not expired.
    Valid,
    /// The last attempt failed; the next one waits.
    Failed,
}

impl Phase {
    /// Name in `CertState.state`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::WaitingDns => "waiting_dns",
            Self::Ordering => "ordering",
            Self::Valid => "valid",
            Self::Failed => "failed",
        }
    }
}

/// State of a domain's certificate and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The state.
    pub phase: Phase,
    /// Reason of the last failure; empty without one.
    pub reason: String,
}

/// Fraction from 0 to 1 by which the renewals and queries of `domain` are spread; the same on every
/// node.
#[must_use]
pub fn jitter(domain: &str) -> f64 {
    let digest = Sha256::digest(domain.as_bytes());
    let first = digest.iter().take(4);
    let number = first.fold(0_u32, |sum, byte| (sum << 8) | u32::from(*byte));
    f64::from(number) / (f64::from(u32::MAX) + 1.0)
}
