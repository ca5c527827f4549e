//! The gRPC API `jaco.v1`: admission, handlers and listeners.
//!
//! A handler reads a snapshot of the state or proposes one command and keeps nothing between calls,
//! so a listener can be restarted at any time and clients simply retry.

pub mod admission;
mod apply;
mod audit;
mod backup;
mod body;
mod caller;
mod certs;
mod client;
mod cluster;
mod config;
mod connection;
mod context;
mod cordon;
mod credentials;
mod deploy;
mod digest;
mod error_details;
mod files;
mod forward;
pub mod forwarded;
mod internal;
mod join;
mod layer;
mod leave;
mod logs;
pub mod methods;
mod names;
mod network;
mod registry;
mod rollout;
mod secrets;
mod server;
mod stream;
mod tls;
mod tokens;
mod watch;

pub(crate) use client::InProcess;
pub(crate) use context::ApiContext;

pub use caller::Caller;
pub use client::{Client, LocalService};
pub(crate) use server::service;
pub use server::{ApiArgs, ControlSocket, TlsApiActor, UnixApiActor};
