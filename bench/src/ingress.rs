//! The proxies that the benchmarks of the ingress compare, and the clients that load them.
//!
//! Every proxy is a process of its own on the loopback interface, has as many threads and the same
//! certificate, and forwards to the same nginx. The clients are threads of the benchmark: they check
//! the status and the length of every response, and one that is wrong ends the benchmark.

pub mod client;
pub mod handshake;
pub mod load;
pub mod peers;
pub mod process;
pub mod serve;

pub use client::Protocol;
pub use load::{Load, Outcome, Pace};
pub use peers::{Lab, Proxy};
pub use process::Process;

/// The value in the middle of `values`, or 0 without any.
#[must_use]
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
