//! Telemetry: collects a node's metrics and exports them.
//!
//! - [`metrics`]: all counters and histograms; one [`Metrics`] per node, no process globals.
//! - `routes`, `certificates`, `starts`, `round_trips`: series that exist per route, domain, service or
//!   member.
//! - `snapshot`: gauges computed from the state and the supervision tree at each scrape.
//! - [`text`]: the Prometheus text format.
//! - [`actor`]: the listener, and the sweep of series of removed objects.

pub mod actor;
mod certificates;
pub mod metrics;
mod round_trips;
mod routes;
mod series;
mod server;
mod snapshot;
mod starts;
pub mod text;

pub use actor::{TelemetryActor, TelemetryArgs};
pub use metrics::Metrics;

#[cfg(test)]
mod tests;
