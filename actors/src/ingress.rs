//! The way in: from routes in the replicated state to answers for users.
//!
//! - [`table`]: which replicas serve which route, as seen from one node; pure.
//! - [`ProxyActor`]: keeps the proxy's table and listener as the state wants them.

mod actor;
mod debounce;
pub mod table;

pub use actor::{Msg, ProxyActor, ProxyArgs};
