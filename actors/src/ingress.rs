//! Ingress: maintains the reverse proxy from the routes in the replicated state.
//!
//! - [`table`]: derives the route table of one node from the state; pure.
//! - [`ProxyActor`]: keeps the proxy's table and listener up to date.

mod actor;
pub mod table;

pub use actor::{Msg, ProxyActor, ProxyArgs};
