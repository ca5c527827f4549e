//! Ingress: maintains the reverse proxy and the published ports from the routes in the replicated state.
//!
//! [`jaco_policy::ingress`] decides.
//!
//! - [`certificate`]: obtains and publishes certificates.
//! - [`table`]: the route table of one node.
//! - [`probe_key`]: gives the data plane the key that signs probes.
//! - [`port`]: published TCP and UDP ports.
//! - [`view`]: the input that the proxy and the published ports share.
//! - [`ProxyActor`]: keeps the proxy's table and listener up to date.

mod actor;
pub mod certificate;
pub mod port;
pub mod probe_key;
pub mod table;
pub mod view;

pub(crate) use actor::DRAIN as HTTP_DRAIN;
pub use actor::{Msg, ProxyActor, ProxyArgs};
pub(crate) use port::DRAIN as PORT_DRAIN;
pub use view::ServingInput;
