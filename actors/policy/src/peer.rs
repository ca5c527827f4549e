//! Transport between cluster members.
//!
//! - [`gossip`]: members reported by other members.
//! - [`members`]: the members according to the replicated state.
//! - [`rejections`]: members that reject this node as a non-member.
//! - [`simultaneous_open`]: choice between duplicate connections, and the dial backoff.

pub mod gossip;
pub mod members;
pub mod rejections;
pub mod simultaneous_open;
