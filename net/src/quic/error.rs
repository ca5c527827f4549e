//! What can go wrong, by who needs to know.

use std::{io, net::SocketAddr};

use quinn::{ConnectionError, TransportErrorCode, VarInt};

use super::frame::FrameError;

/// TLS alert by which a side says that the other's certificate is good, but not a member's.
const ACCESS_DENIED: u8 = 49;

/// Why a side closes a connection; its number is what goes over the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It stops, or starts over.
    Leaving,
    /// The other is not a member, or not any more.
    NotMember,
    /// There is another connection between the two.
    Duplicate,
    /// The other does not keep to the protocol.
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
    Here,
    /// By the other side.
    #[error("closed by the peer: {}", .0.text())]
    There(Reason),
    /// Nothing was heard for the idle timeout.
    #[error("timed out")]
    TimedOut,
    /// The other side has forgotten the connection: it was restarted.
    #[error("reset by the peer")]
    Reset,
    /// Anything else, in the words of the transport.
    #[error("{0}")]
    Other(String),
}

impl Closed {
    /// Whether the other side says that this node is not a member.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        *self == Self::There(Reason::NotMember)
    }

    /// The same from somebody who has not proved who it is: no word of a member.
    pub(super) fn by_anybody(self) -> Self {
        match self {
            Self::There(reason) => Self::Other(format!("closed unproven: {}", reason.text())),
            other => other,
        }
    }
}

impl From<ConnectionError> for Closed {
    fn from(error: ConnectionError) -> Self {
        match error {
            ConnectionError::LocallyClosed => Self::Here,
            ConnectionError::TimedOut => Self::TimedOut,
            ConnectionError::Reset => Self::Reset,
            ConnectionError::ConnectionClosed(close)
                if close.error_code == TransportErrorCode::crypto(ACCESS_DENIED) =>
            {
                Self::There(Reason::NotMember)
            }
            ConnectionError::ApplicationClosed(close) => Reason::from_code(close.error_code)
                .map_or_else(|| Self::Other(close.to_string()), Self::There),
            other => Self::Other(other.to_string()),
        }
    }
}

/// Why there is no endpoint.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The address cannot be bound.
    #[error("cannot listen on UDP {0}")]
    Socket(SocketAddr, #[source] io::Error),
    /// Identity or authority cannot be used.
    #[error("tls")]
    Tls(#[from] crate::tls::Error),
    /// A setting is out of its range.
    #[error("{0} is out of range")]
    Setting(&'static str),
}

/// Why a connection did not come about.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// It cannot even be tried: no such name or address.
    #[error("cannot dial: {0}")]
    Undialable(String),
    /// The handshake failed.
    #[error(transparent)]
    Handshake(#[from] Closed),
    /// It took too long.
    #[error("the handshake did not end in time")]
    Slow,
    /// The other side is no member, or another one than was dialled.
    #[error("the peer is not the member it should be")]
    Stranger,
    /// The other side does not keep to the protocol.
    #[error("the peer's greeting is not one")]
    Greeting,
}

impl ConnectError {
    /// Whether the other side says that this node is not a member.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Handshake(closed) if closed.is_refusal())
    }
}

/// Why a stream does not go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// Its connection ended.
    #[error(transparent)]
    Lost(#[from] Closed),
    /// The sender abandoned it.
    #[error("abandoned by the peer")]
    Reset,
    /// The receiver wants no more of it.
    #[error("stopped by the peer")]
    Stopped,
    /// It was ended here.
    #[error("ended here")]
    Ended,
    /// What came is not a frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// What came is not a stream of a known kind.
    #[error("stream of no known kind")]
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
