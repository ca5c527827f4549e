//! What can go wrong with keys and certificates.

use std::{io, path::PathBuf};

/// Why a key, certificate, request or file was refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine has no randomness to give.
    #[error("no random bytes available")]
    Random,
    /// Not a PEM text of the named kind.
    #[error("{0} did not parse as PEM")]
    Pem(&'static str),
    /// Not a fingerprint in the form `sha256:<64 hex>`.
    #[error("fingerprint must be sha256: and 64 hex digits")]
    Fingerprint,
    /// Not usable as the name of a node.
    #[error("{0:?} is not a valid hostname")]
    Hostname(String),
    /// A signing request that asks for something else than its sender may have.
    #[error("signing request refused: {0}")]
    Request(String),
    /// A certificate that does not belong to the key or authority it came with.
    #[error("certificate refused: {0}")]
    Mismatch(&'static str),
    /// Key or certificate generation failed.
    #[error("failed to {what}")]
    Crypto {
        /// What was attempted.
        what: &'static str,
        /// The cause.
        #[source]
        source: rcgen::Error,
    },
    /// A file could not be read or written.
    #[error("failed to {what} {}", path.display())]
    File {
        /// What was attempted.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A file was read, but its content cannot be used.
    #[error("{} cannot be used", path.display())]
    Content {
        /// Which one.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: Box<Error>,
    },
}

impl Error {
    /// Wraps a generation failure with what was attempted.
    pub(super) fn crypto(what: &'static str) -> impl FnOnce(rcgen::Error) -> Self {
        move |source| Self::Crypto { what, source }
    }

    /// Wraps a file failure with what was attempted and where.
    pub(super) fn file(
        what: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { what, path, source }
    }

    /// Names the file whose content was refused.
    pub(super) fn content(path: impl Into<PathBuf>) -> impl FnOnce(Self) -> Self {
        let path = path.into();
        move |source| Self::Content {
            path,
            source: Box::new(source),
        }
    }
}
