//! The transport between members: QUIC with mutual TLS.
//!
//! A connection exists only between two members that know each other: both certificates verify
//! under the cluster's authority, and each side's [`Roster`] knows the other's fingerprint, or
//! that of another certificate which the other shows for the same key.
//! There is no session to resume and nothing is sent before that, so removing a member from the
//! roster is all it takes to lock it out.
//!
//! - [`roster`]: who is a member.
//! - `verify`: the certificate checks of both sides.
//! - [`endpoint`]: one UDP socket that dials and is dialled.
//! - [`gate`]: which strangers get a handshake, and how many.
//! - [`connection`]: a proven connection and its streams.
//! - [`stream`]: both ends of a stream, in bytes and in frames.
//! - [`frame`]: length-prefixed frames, without I/O.

pub mod connection;
pub mod endpoint;
mod error;
pub mod frame;
pub mod gate;
pub mod roster;
pub mod settings;
pub mod stream;
mod verify;

pub use connection::Connection;
pub use endpoint::{Args, Arrival, Endpoint};
pub use error::{BindError, Closed, ConnectError, Reason, StreamError};
pub use roster::{Member, Roster};
pub use settings::Settings;
pub use stream::{FrameReader, Kind, Receiver, Sender};

/// Protocol name of the peer transport in the handshake.
pub const ALPN: &[u8] = b"jaco-peer/1";

#[cfg(test)]
mod tests;
