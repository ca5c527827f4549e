//! The transport between members: QUIC with mutual TLS.
//!
//! A connection exists only between two members that know each other: both certificates verify
//! under the cluster's CA, and the [`Roster`] of each side contains the fingerprint of the peer's
//! certificate, or of another certificate that the peer presents for the same key. Sessions are
//! never resumed and no application data is sent before these checks, so removing a member from the
//! roster is enough to lock it out.
//!
//! - [`roster`]: membership lookup.
//! - `verify`: the certificate checks of both sides.
//! - [`endpoint`]: one UDP socket for outgoing and incoming connections.
//! - [`admission`]: admission control for incoming handshakes.
//! - [`connection`]: an authenticated connection and its streams.
//! - [`budget`]: limit on the received bytes held for one member.
//! - [`stream`]: both ends of a stream, in bytes and in frames.
//! - [`frame`]: length-prefixed frames, without I/O.

pub mod admission;
pub mod budget;
pub mod connection;
pub mod endpoint;
mod error;
pub mod frame;
mod io_thread;
pub mod roster;
pub mod settings;
pub mod stream;
mod verify;

pub use budget::{ReceiveBudget, Reservation};
pub use connection::Connection;
pub use endpoint::{Args, Endpoint, IncomingPeer};
pub use error::{BindError, Closed, ConnectError, Reason, StreamError};
pub use roster::{Member, Roster};
pub use settings::Settings;
pub use stream::{FrameReader, Kind, Receiver, Sender};

/// Protocol name of the peer transport in the handshake.
pub const ALPN: &[u8] = b"jaco-peer/1";

#[cfg(test)]
mod tests;
