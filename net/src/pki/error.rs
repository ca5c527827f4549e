//! Errors of keys, certificates and their files.

use std::{io, path::PathBuf};

/// Why a key, certificate, request or file was refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system's random number generator failed.
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
    /// A signing request that asks for more than its sender may have.
    #[error("signing request refused: {0}")]
    Request(String),
    /// A certificate that does not belong to the key or authority it came with.
    #[error("certificate refused: {0}")]
    Mismatch(&'static str),
    /// Key or certificate generation failed.
    #[error("failed to {what}")]
    Crypto {
        /// The operation that failed.
        what: &'static str,
        /// The cause.
        #[source]
        source: rcgen::Error,
    },
    /// A file could not be read or written.
    #[error("failed to {what} {}", path.display())]
    File {
        /// The operation that failed.
        what: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A file was read, but its content is invalid.
    #[error("{} cannot be used", path.display())]
    Content {
        /// The path of the file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: Box<Error>,
    },
}

impl Error {
    /// Wraps a generation failure with the operation.
    pub(super) fn crypto(what: &'static str) -> impl FnOnce(rcgen::Error) -> Self {
        move |source| Self::Crypto { what, source }
    }

    /// Wraps a file failure with the operation and the path.
    pub(super) fn file(
        what: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { what, path, source }
    }

    /// Wraps the error of a file's content with the path.
    pub(super) fn content(path: impl Into<PathBuf>) -> impl FnOnce(Self) -> Self {
        let path = path.into();
        move |source| Self::Content {
            path,
            source: Box::new(source),
        }
    }
}
