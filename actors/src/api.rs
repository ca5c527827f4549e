//! The gRPC API `jaco.v1`: admission, handlers and the listeners that carry them.
//!
//! A handler reads a snapshot of the state or proposes one command; it holds nothing between
//! calls, so a listener can be restarted at any moment and a client just calls again.

pub mod admission;
mod apply;
mod audit;
pub(crate) mod backup;
mod body;
mod caller;
mod claim;
mod client;
mod cluster;
mod deploy;
mod diff;
mod digest;
mod forward;
pub mod forwarded;
pub(crate) mod gate;
mod internal;
mod join;
mod layer;
mod leave;
pub(crate) mod limits;
mod logs;
pub mod methods;
mod registry;
mod server;
pub(crate) mod sign;
mod stream;
mod tokens;
mod typed;
mod views;
mod visit;
mod watch;

pub(crate) use client::InProcess;

pub use caller::Caller;
pub use client::{Client, LocalService};
pub(crate) use server::service;
pub use server::{ApiArgs, ControlSocket, TlsApiActor, UnixApiActor};
