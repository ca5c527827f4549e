//! Who is alive: heartbeats, verdicts and the way back.
//!
//! - [`mod@core`]: which members are dead, as the leader says it.

pub mod core;
