//! Transport between cluster members.
//!
//! - [`rejections`]: members that reject this node as a non-member.
//! - [`simultaneous_open`]: choice between duplicate connections, and the dial backoff.

pub mod rejections;
pub mod simultaneous_open;
