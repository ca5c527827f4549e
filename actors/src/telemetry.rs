//! Telemetry: what a node counts, and where it shows it.
//!
//! - [`metrics`]: everything that is counted; one [`Metrics`] per node, no process globals.
//! - `routes`, `starts`, `round_trips`: series that come and go with routes, services and members.
//! - `snapshot`: gauges that are read off the state and the tree when somebody asks.
//! - [`text`]: the Prometheus text format.
//! - [`actor`]: the listener, and the sweep of series whose objects are gone.

pub mod actor;
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
