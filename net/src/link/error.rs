//! Errors of netlink requests.

use std::io;

use rustix::io::Errno;

/// Reason why the kernel's links, addresses or routes could not be read or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused the socket.
    #[error("failed to open a netlink socket")]
    Open(#[source] io::Error),
    /// The kernel refused a request.
    #[error("failed to {action}")]
    Kernel {
        /// The request.
        action: &'static str,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// A route of another program has the same destination and metric.
    #[error("another program has a route to {0}")]
    ForeignRoute(String),
    /// The socket is closed or its answers are not understood.
    #[error("failed to {action}: {reason}")]
    Broken {
        /// The request.
        action: &'static str,
        /// The defect.
        reason: String,
    },
}

impl Error {
    /// Maps the error of a request.
    pub(super) fn of(action: &'static str, error: rtnetlink::Error) -> Self {
        match error {
            rtnetlink::Error::NetlinkError(message) => Self::Kernel {
                action,
                source: message.to_io(),
            },
            error => Self::Broken {
                action,
                reason: error.to_string(),
            },
        }
    }

    /// Treats the absence of what is to be removed as success.
    pub(super) fn unless_missing(
        action: &'static str,
        done: Result<(), rtnetlink::Error>,
    ) -> Result<(), Self> {
        match done.map_err(|error| Self::of(action, error)) {
            Err(error) if error.is_missing() => Ok(()),
            done => done,
        }
    }

    /// Treats the presence of what is to be added as success.
    pub(super) fn unless_exists(
        action: &'static str,
        done: Result<(), rtnetlink::Error>,
    ) -> Result<(), Self> {
        match done.map_err(|error| Self::of(action, error)) {
            Err(error) if error.is(&[Errno::EXIST]) => Ok(()),
            done => done,
        }
    }

    /// Whether the object of the request does not exist.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        self.is(&[Errno::NODEV, Errno::NOENT, Errno::SRCH, Errno::ADDRNOTAVAIL])
    }

    /// Whether the kernel has no such kind of object.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        self.is(&[Errno::OPNOTSUPP])
    }

    pub(super) fn is(&self, wanted: &[Errno]) -> bool {
        match self {
            Self::Kernel { source, .. } => {
                Errno::from_io_error(source).is_some_and(|errno| wanted.contains(&errno))
            }
            Self::Open(_) | Self::ForeignRoute(_) | Self::Broken { .. } => false,
        }
    }
}
