//! Tests of the lab itself: delivery of packets, machines, and cleanup.

#![expect(clippy::unwrap_used, reason = "tests")]

mod machines;
mod packets;
mod traces;
