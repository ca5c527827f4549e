//! Errors of the transport, one type per operation.

use std::{io, net::SocketAddr};

use quinn::{ConnectionError, TransportErrorCode, VarInt};

use super::frame::FrameError;

/// TLS alert for a peer whose certificate verifies, but belongs to no member.
const ACCESS_DENIED: u8 = 49;

/// Reason for closing a connection; its number is sent to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// This side stops or restarts.
    Leaving,
    /// The peer is not a member, or not any more.
    NotMember,
    /// The two members have another connection.
    Duplicate,
    /// The peer violated the protocol.
    Protocol,
}

impl Reason {
    const ALL: [Self; 4] = [
        Self::Leaving,
        Self::NotMember,
        Self::Duplicate,
        Self::Protocol,
    ];

    pub(super) fn code(self) -> VarInt {
        VarInt::from_u32(match self {
            Self::Leaving => 0,
            Self::NotMember => 1,
            Self::Duplicate => 2,
            Self::Protocol => 3,
        })
    }

    pub(super) fn from_code(code: VarInt) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.code() == code)
    }

    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Leaving => "leaving",
            Self::NotMember => "not a member",
            Self::Duplicate => "duplicate",
            Self::Protocol => "protocol violation",
        }
    }
}

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    /// By this side.
    #[error("closed here")]
    Local,
    /// By the other side.
    #[error("closed by the peer: {}", .0.text())]
    Remote(Reason),
    /// No packet arrived during the idle timeout.
    #[error("timed out")]
    TimedOut,
    /// The peer does not know the connection: it has restarted.
    #[error("reset by the peer")]
    Reset,
    /// Any other error, in the transport's words.
    #[error("{0}")]
    Other(String),
}

impl Closed {
    /// Whether the peer reports that this node is not a member.
    #[must_use]
    pub fn is_not_member(&self) -> bool {
        *self == Self::Remote(Reason::NotMember)
    }

    /// The same error from a peer that is not authenticated: its reason does not count as a
    /// member's.
    pub(super) fn unauthenticated(self) -> Self {
        match self {
            Self::Remote(reason) => {
                Self::Other(format!("closed before authentication: {}", reason.text()))
            }
            other => other,
        }
    }
}

impl From<ConnectionError> for Closed {
    fn from(error: ConnectionError) -> Self {
        match error {
            ConnectionError::LocallyClosed => Self::Local,
            ConnectionError::TimedOut => Self::TimedOut,
            ConnectionError::Reset => Self::Reset,
            ConnectionError::ConnectionClosed(close)
                if close.error_code == TransportErrorCode::crypto(ACCESS_DENIED) =>
            {
                Self::Remote(Reason::NotMember)
            }
            ConnectionError::ApplicationClosed(close) => Reason::from_code(close.error_code)
                .map_or_else(|| Self::Other(close.to_string()), Self::Remote),
            other => Self::Other(other.to_string()),
        }
    }
}

/// Why the endpoint could not be created.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The address cannot be bound.
    #[error("cannot listen on UDP {0}")]
    Socket(SocketAddr, #[source] io::Error),
    /// The endpoint's thread did not start.
    #[error("the thread of the peer connections did not start")]
    Thread(#[source] io::Error),
    /// Certificate, key or CA cannot be used.
    #[error("tls")]
    Tls(#[from] crate::tls::Error),
    /// A setting is out of range.
    #[error("{0} is out of range")]
    Setting(&'static str),
}

/// Why a connection could not be established.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// Not attempted: the name or address is invalid.
    #[error("cannot dial: {0}")]
    InvalidAddress(String),
    /// The handshake failed.
    #[error(transparent)]
    Handshake(#[from] Closed),
    /// The handshake timed out.
    #[error("the handshake did not end in time")]
    TimedOut,
    /// The peer is no member, or not the member that was dialled.
    #[error("the peer is not the expected member")]
    NotMember,
    /// The peer violated the protocol.
    #[error("malformed greeting from the peer")]
    MalformedGreeting,
}

impl ConnectError {
    /// Whether the peer reports that this node is not a member.
    #[must_use]
    pub fn is_not_member(&self) -> bool {
        matches!(self, Self::Handshake(closed) if closed.is_not_member())
    }
}

/// Why a stream cannot be used any further.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// Its connection ended.
    #[error(transparent)]
    Lost(#[from] Closed),
    /// The sender reset the stream.
    #[error("abandoned by the peer")]
    Reset,
    /// The receiver stopped the stream.
    #[error("stopped by the peer")]
    Stopped,
    /// The stream was ended by this side.
    #[error("ended here")]
    Ended,
    /// The budget for received bytes stayed exhausted.
    #[error("too many bytes of the peer are held")]
    Busy,
    /// The received bytes are not a valid frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The first byte names no known kind of stream.
    #[error("unknown kind of stream")]
    Kind,
}

impl From<quinn::ReadError> for StreamError {
    fn from(error: quinn::ReadError) -> Self {
        match error {
            quinn::ReadError::Reset(_) => Self::Reset,
            quinn::ReadError::ConnectionLost(why) => Self::Lost(why.into()),
            _ => Self::Ended,
        }
    }
}

impl From<quinn::WriteError> for StreamError {
    fn from(error: quinn::WriteError) -> Self {
        match error {
            quinn::WriteError::Stopped(_) => Self::Stopped,
            quinn::WriteError::ConnectionLost(why) => Self::Lost(why.into()),
            _ => Self::Ended,
        }
    }
}

impl From<ConnectionError> for StreamError {
    fn from(error: ConnectionError) -> Self {
        Self::Lost(error.into())
    }
}
