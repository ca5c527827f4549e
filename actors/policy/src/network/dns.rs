//! Names of the containers: what a query of a network is answered with.
//!
//! - [`scope`]: whether a name belongs to the network, or is forwarded.
//! - [`records`]: the addresses of each service on each network, kept up to date per applied state.
//! - [`answer`]: the decision about one query.
//! - [`message`]: queries of clients, and this node's own answers.
//! - [`wire`]: answers of upstream servers, which are relayed without being decoded.
//! - [`forwarders`]: the upstream servers of the host, without those that lead back here.
//! - [`servers`]: which upstream servers answer.
//! - [`chain`]: one question to the upstream servers.
//! - [`admission`]: limits of the questions that wait for upstream servers.
//! - [`relay`]: answers of upstream servers without what belongs to one hop.
//! - [`cache`]: answers of upstream servers, until their time to live ends.

pub mod admission;
pub mod answer;
pub mod cache;
pub mod chain;
pub mod forwarders;
pub mod message;
pub mod records;
pub mod relay;
pub mod scope;
pub mod servers;
pub mod wire;

#[cfg(test)]
mod testing;
