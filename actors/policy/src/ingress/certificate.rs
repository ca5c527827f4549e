//! Certificates of the domains with a route that asks for one.
//!
//! One [`Core`] per domain decides on the leader when its certificate is ordered, stored, renewed
//! and deleted; all nodes serve the result.
//!
//! - [`audit`]: audit events.
//! - [`backoff`]: waits after failures.
//! - [`domains`]: the domains with a certificate, and the contact of each.
//! - [`expiry`]: warnings before a certificate of an operator expires.
//! - [`preflight`]: whether the addresses of a domain lead to this cluster.
//! - [`imported`]: certificates of operators.
//! - [`queue`]: turns of the domains.
//! - [`served`]: the certificate that is presented for a domain.
//! - [`status`]: the certificate rows of `jaco status`.
//! - [`store`]: keys of the replicated certificate store.

pub mod audit;
pub mod backoff;
mod core;
pub mod domains;
pub mod expiry;
pub mod imported;
mod input;
pub mod preflight;
pub mod queue;
pub mod served;
pub mod status;
pub mod store;

pub use self::core::{
    Action, Core, LEASE, LEASE_RENEWAL, NEW_LEADER, PREFLIGHT_MAX, PREFLIGHT_MIN,
    PREFLIGHT_TIMEOUT, WINDOW, WRITE_RETRY,
};
pub use input::{
    Chain, Environment, Facts, FailureClass, LocalCopies, Lock, OrderFailure, Phase, RenewalWindow,
    Settings, Slot, Status, jitter,
};
