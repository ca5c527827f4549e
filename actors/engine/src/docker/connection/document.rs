//! Requests whose responses are parsed with own models.
//!
//! The client's models accept the enum values of only one engine: Podman reports the state
//! `stopped` until a container is cleaned up, and a single unknown value fails the whole response.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
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
        let request = Request::get(path).header(header::HOST, "localhost");
        self.exchange(request.body(Full::default())).await
    }

    /// Posts `document` to `path` and returns the response's document.
    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        document: &serde_json::Value,
    ) -> Result<T, EngineError> {
        let request = Request::post(path)
            .header(header::HOST, "localhost")
            .header(header::CONTENT_TYPE, "application/json");
        let body = Bytes::from(document.to_string());
        self.exchange(request.body(Full::new(body))).await
    }

    async fn exchange<T: DeserializeOwned>(
        &self,
        request: http::Result<Request<Full<Bytes>>>,
    ) -> Result<T, EngineError> {
        let answer = tokio::time::timeout(REQUEST_TIMEOUT, self.fetch(request)).await;
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
        request: http::Result<Request<Full<Bytes>>>,
    ) -> Result<(StatusCode, Bytes), Box<dyn std::error::Error + Send + Sync>> {
        let request = request?;
        let stream = UnixStream::connect(&self.socket).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
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
