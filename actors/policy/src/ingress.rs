//! Ingress: the replicas that serve each route and each published port, as seen from one node, and
//! certificates.
//!
//! - [`certificate`]: issuance and renewal of the certificate of one domain.
//! - [`ports`]: the replicas that serve each published port.
//! - [`protection`]: limits and sticky sessions of routes.
//! - [`table`]: the replicas that serve each route.
//! - [`view`]: when a node derives its routing again from the state.

pub mod certificate;
pub mod ports;
pub mod protection;
pub mod table;
pub mod view;
