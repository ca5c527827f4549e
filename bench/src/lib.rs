//! Shared code of the benchmarks.

pub mod forwarding;
pub mod group;
pub mod ingress;
mod samples;

pub use samples::{Samples, millis};

use jaco_proto::v1::{self, command::Payload};
use jaco_raftnode::command;
use prost_types::Timestamp;

/// Builds a command that stores one value.
#[must_use]
pub fn put_blob(key: String, value: Vec<u8>) -> v1::Command {
    let blob = v1::CertBlob {
        key,
        value,
        ..v1::CertBlob::default()
    };
    let upsert = Payload::CertBlobUpsert(v1::CertBlobUpsert { blob: Some(blob) });
    let ts = Timestamp {
        seconds: 1_700_000_000,
        nanos: 0,
    };
    command("bench", ts, upsert)
}
