//! Errors of the engine.

/// Error of a request to the engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// No response: the engine is down, restarting or too slow. Holds the chain of causes.
    #[error("container engine is unreachable: {0}")]
    Unreachable(String),
    /// The container, image or network does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The name is taken, or the state of the object does not allow the request.
    #[error("{0}")]
    Conflict(String),
    /// Any other error response.
    #[error("{message}")]
    Api {
        /// HTTP status of the response; 0 for an error inside a stream.
        status: u16,
        /// Message of the engine.
        message: String,
    },
}

impl EngineError {
    /// Transforms the message.
    #[must_use]
    pub fn map(self, transform: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::Unreachable(message) => Self::Unreachable(transform(message)),
            Self::NotFound(message) => Self::NotFound(transform(message)),
            Self::Conflict(message) => Self::Conflict(transform(message)),
            Self::Api { status, message } => Self::Api {
                status,
                message: transform(message),
            },
        }
    }
}

/// Longest error text in bytes; it may quote an arbitrary response of a registry.
pub(crate) const ERROR_MAX: usize = 2048;

/// Makes an error text safe to display: bounded, and without control characters.
#[must_use]
pub fn printable(message: &str) -> String {
    let mut text = String::new();
    for c in message.chars() {
        if text.len() + c.len_utf8() > ERROR_MAX {
            text.push('…');
            break;
        }
        text.push(if c.is_control() { ' ' } else { c });
    }
    text
}
