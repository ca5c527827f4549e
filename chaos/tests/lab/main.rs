//! The lab does what it says: measured on packets and on what it leaves behind.

#![expect(clippy::unwrap_used, reason = "tests")]

mod machines;
mod packets;
mod traces;
