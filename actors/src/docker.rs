//! The way to a container engine that speaks the Docker API over a unix socket.
//!
//! The verticals share what is the same for all of them: when to connect, which version of the
//! API to speak, and what an error means.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwapOption;
use bollard::{API_DEFAULT_VERSION, Docker, errors::Error};
use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use http::HeaderValue;
use jaco_proto::chain;

mod document;

/// Longest wait for an answer; streams are not bounded by it.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Why the engine did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// No answer: the engine is down, restarting or too slow. Holds the chain of causes.
    #[error("container engine is unreachable: {0}")]
    Unreachable(String),
    /// There is no such container, image or network.
    #[error("{0}")]
    NotFound(String),
    /// The name is taken, or the object is in a state that forbids the request.
    #[error("{0}")]
    Conflict(String),
    /// Any other refusal.
    #[error("{message}")]
    Api {
        /// HTTP status of the answer; 0 for an error inside a stream.
        status: u16,
        /// What the engine said.
        message: String,
    },
}

impl EngineError {
    fn refused(status: u16, message: String) -> Self {
        match status {
            404 => Self::NotFound(message),
            409 => Self::Conflict(message),
            status => Self::Api { status, message },
        }
    }

    /// The same error with other words.
    pub(crate) fn map(self, words: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::Unreachable(message) => Self::Unreachable(words(message)),
            Self::NotFound(message) => Self::NotFound(words(message)),
            Self::Conflict(message) => Self::Conflict(words(message)),
            Self::Api { status, message } => Self::Api {
                status,
                message: words(message),
            },
        }
    }

    /// Absence taken for success: a thing that is not there needs no removing.
    pub(crate) fn unless_absent(result: Result<(), Self>) -> Result<(), Self> {
        match result {
            Err(Self::NotFound(_)) => Ok(()),
            other => other,
        }
    }
}

impl From<Error> for EngineError {
    fn from(error: Error) -> Self {
        let error = match error {
            Error::DockerResponseServerError {
                status_code,
                message,
            } => Self::refused(status_code, message),
            Error::DockerStreamError { error } => Self::Api {
                status: 0,
                message: error,
            },
            Error::JsonDataError { message, .. } => Self::Api { status: 0, message },
            // The rest of this foreign enum is transport trouble: connect, read, timeout.
            other => Self::Unreachable(chain(&other)),
        };
        error.map(|message| readable(&message))
    }
}

/// Longest text of an error, in bytes: it may quote whatever a registry answered.
const ERROR_MAX: usize = 2048;

/// Text of an error as people may see it: bounded, and nothing that a terminal obeys.
pub(crate) fn readable(message: &str) -> String {
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

/// A client that connects at the first call and again after a failure, so it can exist before
/// the engine does; the next engine behind the socket may speak another version.
pub(crate) struct Connection {
    socket: PathBuf,
    client: ArcSwapOption<Docker>,
}

impl Connection {
    /// The engine at `socket`; nothing is connected yet.
    pub(crate) fn new(socket: impl Into<PathBuf>) -> Arc<Self> {
        Arc::new(Self {
            socket: socket.into(),
            client: ArcSwapOption::empty(),
        })
    }

    /// A client that speaks a version the engine knows.
    pub(crate) async fn client(&self) -> Result<Arc<Docker>, EngineError> {
        if let Some(client) = self.client.load_full() {
            return Ok(client);
        }
        let docker = connect(&self.socket)?.negotiate_version().await?;
        let docker = Arc::new(docker);
        self.client.store(Some(Arc::clone(&docker)));
        Ok(docker)
    }

    /// Translates an outcome, and forgets the client when the engine is gone.
    pub(crate) fn settle<T>(&self, result: Result<T, Error>) -> Result<T, EngineError> {
        result.map_err(|error| {
            let error = EngineError::from(error);
            if matches!(error, EngineError::Unreachable(_)) {
                self.client.store(None);
            }
            error
        })
    }

    /// A stream that connects when it is first polled.
    pub(crate) fn stream<T: Send + 'static>(
        self: Arc<Self>,
        open: impl FnOnce(&Docker) -> BoxStream<'static, Result<T, Error>> + Send + 'static,
    ) -> BoxStream<'static, Result<T, EngineError>> {
        let connected = async move {
            let client = self.client().await?;
            let stream = open(&client);
            Ok::<_, EngineError>(stream.map(move |item| self.settle(item)))
        };
        futures::stream::once(connected).try_flatten().boxed()
    }
}

fn connect(socket: &Path) -> Result<Docker, EngineError> {
    let docker = Docker::connect_with_unix(
        &socket.to_string_lossy(),
        REQUEST_TIMEOUT.as_secs(),
        API_DEFAULT_VERSION,
    )?;
    Ok(docker.with_request_modifier(|mut request| {
        // The engine decodes this header as base64url; the client encodes the standard alphabet.
        if let Some(auth) = request.headers_mut().get_mut("X-Registry-Auth") {
            let url_safe: Vec<u8> = auth
                .as_bytes()
                .iter()
                .map(|byte| match byte {
                    b'+' => b'-',
                    b'/' => b'_',
                    byte => *byte,
                })
                .collect();
            if let Ok(value) = HeaderValue::from_bytes(&url_safe) {
                *auth = value;
            }
        }
        request
    }))
}

#[cfg(test)]
mod tests;
