//! Ingress: the replicas that serve each route and each published port, as seen from one node, and
//! certificates.
//!
//! - [`certificate`]: issuance and renewal of the certificate of one domain.
//! - [`ports`]: the replicas that serve each published port.
//! - [`table`]: the replicas that serve each route.

pub mod certificate;
pub mod ports;
pub mod table;
