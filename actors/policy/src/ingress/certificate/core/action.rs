//! Actions of a certificate's core.

use std::time::SystemTime;

use jaco_proto::v1::AuditEvent;

use crate::ingress::certificate::Slot;

/// Action for the driver to run.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Wait for a turn among the domains, oldest first; answered by
    /// [`Core::handle_turn`](super::Core::handle_turn).
    Queue {
        /// Time since which the attempt is due.
        due: SystemTime,
    },
    /// End the turn, or stop waiting for it.
    EndTurn,
    /// Acquire or renew the domain's lock.
    Lock {
        /// End of the lease.
        until: SystemTime,
    },
    /// Release the domain's lock.
    Unlock,
    /// Ask the addresses of the domain; answered by [`Core::handle_preflight`](super::Core::handle_preflight).
    Preflight {
        /// Attempt that the verdict belongs to.
        attempt: u64,
    },
    /// Order a certificate; answered by [`Core::handle_order`](super::Core::handle_order), which keeps chain and key until
    /// they are stored or discarded.
    Order {
        /// Attempt that the outcome belongs to.
        attempt: u64,
        /// Directory to order from.
        slot: Slot,
        /// Contact of the account; empty for none.
        contact: String,
        /// Whether the certificate replaces the stored one of the directory.
        renews: bool,
    },
    /// Cancel this and earlier orders if they are under way, and drop their chains and keys.
    Discard {
        /// Last attempt to discard.
        attempt: u64,
    },
    /// Store the chain and key of an attempt, together with an audit event.
    Store {
        /// Attempt that obtained them.
        attempt: u64,
        /// Directory that issued them.
        slot: Slot,
        /// Event to write in the same entry.
        event: AuditEvent,
    },
    /// Store the copy of this node again.
    Reseed(Slot),
    /// Delete the stored certificate of the staging directory.
    DeleteStaging,
    /// Delete all stored certificates of the domain.
    DeleteAll,
    /// Write an audit event.
    Audit(AuditEvent),
    /// Ask the authority when to renew; answered by [`Core::handle_renewal_window`](super::Core::handle_renewal_window).
    QueryRenewal,
}
