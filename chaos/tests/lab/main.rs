//! Tests of the lab itself: delivery of packets, machines, and cleanup.

#![expect(clippy::unwrap_used, reason = "tests")]

mod cleanup;
mod machines;
mod packets;
