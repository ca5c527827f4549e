//! Log tail of a replica.
//!
//! - [`lines`]: splits the engine's frames into lines.
//! - [`reattach`]: follows a replica across its containers; no line is lost or repeated.

pub mod lines;
pub mod reattach;
