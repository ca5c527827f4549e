//! Connection to a container engine with the Docker API on a unix socket: connecting, negotiating
//! the API version, and mapping errors.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use arc_swap::ArcSwapOption;
use bollard::{
    API_DEFAULT_VERSION, Docker, errors::Error, models::EventMessage,
    query_parameters::EventsOptions,
};
use futures::{StreamExt, TryStreamExt, future, stream::BoxStream};
use http::HeaderValue;
use jaco_proto::chain;

use crate::{EngineError, printable};

mod document;

/// Timeout of a response; does not apply to streams.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

impl EngineError {
    fn from_status(status: u16, message: String) -> Self {
        match status {
            404 => Self::NotFound(message),
            409 => Self::Conflict(message),
            status => Self::Api { status, message },
        }
    }

    /// Treats absence as success, for removals.
    pub(crate) fn ignore_not_found(result: Result<(), Self>) -> Result<(), Self> {
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
            } => Self::from_status(status_code, message),
            Error::DockerStreamError { error } => Self::Api {
                status: 0,
                message: error,
            },
            Error::JsonDataError { message, .. } => Self::Api { status: 0, message },
            // The remaining variants of this external enum are transport errors: connect, read,
            // timeout.
            other => Self::Unreachable(chain(&other)),
        };
        error.map(|message| printable(&message))
    }
}

/// Client that connects at the first call and reconnects after a failure, so it can be created
/// before the engine runs. Reconnecting negotiates the version again, because another engine may be
/// behind the socket.
pub(crate) struct Connection {
    socket: PathBuf,
    client: ArcSwapOption<Docker>,
}

impl Connection {
    /// Creates a connection to the engine at `socket` without connecting.
    pub(crate) fn new(socket: impl Into<PathBuf>) -> Arc<Self> {
        Arc::new(Self {
            socket: socket.into(),
            client: ArcSwapOption::empty(),
        })
    }

    /// Returns a client with a negotiated API version.
    pub(crate) async fn client(&self) -> Result<Arc<Docker>, EngineError> {
        if let Some(client) = self.client.load_full() {
            return Ok(client);
        }
        let docker = connect(&self.socket)?.negotiate_version().await?;
        let docker = Arc::new(docker);
        self.client.store(Some(Arc::clone(&docker)));
        Ok(docker)
    }

    /// Converts the error of a result; drops the client if the engine is unreachable.
    pub(crate) fn map_result<T>(&self, result: Result<T, Error>) -> Result<T, EngineError> {
        result.map_err(|error| {
            let error = EngineError::from(error);
            if matches!(error, EngineError::Unreachable(_)) {
                self.client.store(None);
            }
            error
        })
    }

    /// Returns a stream that connects when it is first polled.
    pub(crate) fn stream<T: Send + 'static>(
        self: Arc<Self>,
        open: impl FnOnce(&Docker) -> BoxStream<'static, Result<T, Error>> + Send + 'static,
    ) -> BoxStream<'static, Result<T, EngineError>> {
        let connected = async move {
            let client = self.client().await?;
            let stream = open(&client);
            Ok::<_, EngineError>(stream.map(move |item| self.map_result(item)))
        };
        futures::stream::once(connected).try_flatten().boxed()
    }

    /// Streams the events from now on that match all `filters` and that `convert` knows.
    pub(crate) fn events<T: Send + 'static>(
        self: &Arc<Self>,
        filters: &[(&str, &str)],
        convert: fn(EventMessage) -> Option<T>,
    ) -> BoxStream<'static, Result<T, EngineError>> {
        let filters = filters.iter();
        let filters = filters.map(|(key, value)| ((*key).to_owned(), vec![(*value).to_owned()]));
        let options = EventsOptions {
            // The engine registers the stream some time after the request. It replays the events
            // from in between, so that none is lost.
            since: Some(unix_time(SystemTime::now())),
            filters: Some(filters.collect()),
            ..Default::default()
        };
        let events = Arc::clone(self)
            .stream(|docker| docker.events(Some(options)).boxed())
            .try_filter_map(move |message| future::ready(Ok(convert(message))));
        events.boxed()
    }
}

/// Formats a time as whole seconds since 1970, rounded down: events that come twice do no harm, and
/// not every version of Podman reads fractions.
fn unix_time(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs().to_string()
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
