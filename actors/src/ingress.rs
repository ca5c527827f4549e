//! Ingress: maintains the reverse proxy from the routes in the replicated state.
//!
//! [`jaco_policy::ingress`] decides.
//!
//! - [`table`]: the route table of one node.
//! - [`ProxyActor`]: keeps the proxy's table and listener up to date.

mod actor;
pub mod table;

pub use actor::{Msg, ProxyActor, ProxyArgs};
