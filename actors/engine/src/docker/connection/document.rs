//! Requests whose responses are parsed with own models.
//!
//! The client's models accept the enum values of only one engine: Podman reports the state
//! `stopped` until a container is cleaned up, and a single unknown value fails the whole response.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use jaco_proto::chain;
use serde::{Deserialize, de::DeserializeOwned};
use tokio::net::UnixStream;

use super::{Connection, EngineError, REQUEST_TIMEOUT, printable};

#[derive(Deserialize)]
struct ErrorBody {
    message: String,
}

impl Connection {
    /// Fetches the document at `path`, which includes the query.
    pub(crate) async fn document<T: DeserializeOwned>(&self, path: &str) -> Result<T, EngineError> {
        let answer = tokio::time::timeout(REQUEST_TIMEOUT, self.fetch(path)).await;
        let (status, body) = answer
            .map_err(|_| EngineError::Unreachable("timeout".to_owned()))?
            .map_err(|error| EngineError::Unreachable(chain(&*error)))?;
        if !status.is_success() {
            let message = serde_json::from_slice::<ErrorBody>(&body).map_or_else(
                |_| String::from_utf8_lossy(&body).into_owned(),
                |refusal| refusal.message,
            );
            return Err(EngineError::from_status(
                status.as_u16(),
                printable(&message),
            ));
        }
        serde_json::from_slice(&body).map_err(|error| EngineError::Api {
            status: status.as_u16(),
            message: format!("unreadable answer: {error}"),
        })
    }

    async fn fetch(
        &self,
        path: &str,
    ) -> Result<(StatusCode, Bytes), Box<dyn std::error::Error + Send + Sync>> {
        let stream = UnixStream::connect(&self.socket).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let request = Request::get(path)
            .header(header::HOST, "localhost")
            .body(Empty::<Bytes>::new())?;
        let exchange = async {
            let answer = sender.send_request(request).await?;
            let status = answer.status();
            Ok((status, answer.into_body().collect().await?.to_bytes()))
        };
        let transport = async {
            // The connection may end with the response; its errors also surface in the exchange.
            let _ = connection.await;
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            answer = exchange => answer,
            never = transport => match never {},
        }
    }
}
