//! One request: from its stream to the proxy, and the response back.

use std::{pin::pin, sync::Arc, time::SystemTime};

use bytes::Bytes;
use h3::{
    error::{Code, StreamError},
    server::{RequestResolver, RequestStream},
};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode,
    header::{CONNECTION, CONTENT_LENGTH, DATE, EXPECT, TE, TRANSFER_ENCODING, UPGRADE},
};
use http_body_util::BodyExt;
use hyper::body::Body;
use tokio::time::timeout;

use super::{
    super::{
        body::{ClientBody, ResponseBody},
        connection::Connection,
        forward::{self, InterimResponses},
        timeouts::ClientTimeouts,
    },
    body::RequestBody,
    transport::{GivenUp, SendStream, Transport},
};

/// Fields that exist only in HTTP/1.1; with one of them a request is malformed (RFC 9114,
/// section 4.2).
const CONNECTION_SPECIFIC: [HeaderName; 5] = [
    CONNECTION,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// A stream whose request has not been read.
pub(super) type Resolver = RequestResolver<Transport, Bytes>;

/// Why no response was completed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("the head of the request did not arrive in time")]
    HeadTimeout,
    #[error("malformed request: {0}")]
    Malformed(&'static str),
    #[error("the stream of the request failed")]
    Stream(#[from] StreamError),
    #[error("the replica broke its response")]
    Replica(#[from] hyper::Error),
}

/// Serves the request of one stream until the client has the response or gives it up.
pub(super) async fn serve(
    connection: Arc<Connection>,
    timeouts: Arc<ClientTimeouts>,
    stream: Resolver,
    given_up: GivenUp,
) {
    tokio::select! {
        () = given_up => {}
        answered = answer(connection, &timeouts, stream) => if let Err(why) = answered {
            tracing::debug!(subsystem = "ingress", %why, "request over HTTP/3 failed");
        },
    }
}

async fn answer(
    connection: Arc<Connection>,
    timeouts: &Arc<ClientTimeouts>,
    stream: Resolver,
) -> Result<(), Failure> {
    let limit = connection.worker.shared.settings.request_head_timeout;
    let resolved = timeout(limit, stream.resolve_request()).await;
    let (request, stream) = resolved.map_err(|_| Failure::HeadTimeout)??;
    let serving = timeouts.serve();
    let (send, receive) = stream.split();
    let mut sending = Sending {
        stream: send,
        code: Code::H3_MESSAGE_ERROR,
    };
    let length = content_length(request.headers())?;
    check(request.headers())?;
    sending.code = Code::H3_INTERNAL_ERROR;

    let mut body = RequestBody::new(receive, length);
    // A request with one of these methods has a body only by announcement: the end of its stream
    // is as near as its head, and decides about the framing towards the replica.
    let wait = matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::DELETE | Method::OPTIONS | Method::TRACE
    );
    let begun = timeout(limit, body.begin(wait)).await;
    if begun.map_err(|_| Failure::HeadTimeout)?.is_err() {
        return Err(Failure::Malformed("its body cannot be read"));
    }
    if request.headers().contains_key(EXPECT) {
        let mut interim = Response::new(());
        *interim.status_mut() = StatusCode::CONTINUE;
        sending.stream.send_response(interim).await?;
    }
    let is_head = *request.method() == Method::HEAD;
    let mut request = for_proxy(request, body);
    let (interim, mut interim_responses) = InterimResponses::channel();
    request.extensions_mut().insert(interim);
    let mut handled = pin!(forward::handle(connection, serving, request));
    let response = loop {
        tokio::select! {
            biased;
            Some(interim) = interim_responses.recv() => sending.stream.send_response(interim).await?,
            Ok(response) = &mut handled => break response,
        }
    };
    sending.respond(response, is_head).await
}

/// Makes the request one of the proxy.
fn for_proxy(request: Request<()>, body: RequestBody) -> Request<ClientBody> {
    let mut request = request.map(|()| ClientBody::from(body));
    // No tunnel is offered here, but the answer to an attempt is that of the other protocols.
    if let Some(asked) = request.extensions_mut().remove::<h3::ext::Protocol>() {
        let protocol = hyper::ext::Protocol::from(asked.as_str());
        request.extensions_mut().insert(protocol);
    }
    request
}

/// The announced length of the body.
fn content_length(headers: &HeaderMap) -> Result<Option<u64>, Failure> {
    let mut values = headers.get_all(CONTENT_LENGTH).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let digits = value.as_bytes().iter().all(u8::is_ascii_digit);
    let length = value.to_str().ok().filter(|_| digits);
    let length = length.and_then(|length| length.parse().ok());
    match (length, values.next()) {
        (Some(length), None) => Ok(Some(length)),
        (_, _) => Err(Failure::Malformed("its Content-Length is no number")),
    }
}

/// Refuses the fields that HTTP/3 forbids.
fn check(headers: &HeaderMap) -> Result<(), Failure> {
    if CONNECTION_SPECIFIC
        .iter()
        .any(|name| headers.contains_key(name))
    {
        return Err(Failure::Malformed("it has a field of HTTP/1.1"));
    }
    let trailers = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"trailers");
    if headers.get_all(TE).iter().all(trailers) {
        Ok(())
    } else {
        Err(Failure::Malformed("it accepts a transfer coding"))
    }
}

/// The sending half of a stream; dropped before the response is complete, it is reset.
struct Sending {
    stream: RequestStream<SendStream, Bytes>,
    code: Code,
}

impl Sending {
    async fn respond(
        &mut self,
        response: Response<ResponseBody>,
        is_head: bool,
    ) -> Result<(), Failure> {
        let (parts, mut body) = response.into_parts();
        let mut head = Response::from_parts(parts, ());
        complete_head(&mut head, &body, is_head);
        self.stream.send_response(head).await?;
        while let Some(frame) = body.frame().await {
            match frame?.into_data() {
                Ok(data) if data.is_empty() => {}
                Ok(data) => self.stream.send_data(data).await?,
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        self.stream.send_trailers(trailers).await?;
                    }
                }
            }
        }
        // The replica's connection and the client's timeouts do not wait for acknowledgements.
        drop(body);
        self.code = Code::H3_NO_ERROR;
        self.stream.finish().await?;
        Ok(())
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        // Without effect on a stream that is finished.
        if self.code != Code::H3_NO_ERROR {
            self.stream.stop_stream(self.code);
        }
    }
}

/// Adds the fields that hyper adds in the other protocols.
fn complete_head(head: &mut Response<()>, body: &ResponseBody, is_head: bool) {
    let status = head.status();
    let bodiless = is_head
        || status.is_informational()
        || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let headers = head.headers_mut();
    if let Some(length) = body.size_hint().exact().filter(|_| !bodiless) {
        headers
            .entry(CONTENT_LENGTH)
            .or_insert_with(|| HeaderValue::from(length));
    }
    if !headers.contains_key(DATE)
        && let Ok(date) = HeaderValue::try_from(httpdate::fmt_http_date(SystemTime::now()))
    {
        headers.insert(DATE, date);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let parsed = fields.iter().map(|(name, value)| {
            let name = HeaderName::from_static(name);
            (name, HeaderValue::from_static(value))
        });
        parsed.collect()
    }

    fn lengths(values: &[&'static str]) -> Result<Option<u64>, Failure> {
        let mut map = HeaderMap::new();
        for value in values {
            map.append(CONTENT_LENGTH, HeaderValue::from_static(value));
        }
        content_length(&map)
    }

    #[test]
    fn length_is_one_number() {
        assert_eq!(lengths(&[]).unwrap(), None);
        assert_eq!(lengths(&["0"]).unwrap(), Some(0));
        assert_eq!(lengths(&["18446744073709551615"]).unwrap(), Some(u64::MAX));
        for malformed in [
            &["5", "5"][..],
            &["+5"],
            &["-1"],
            &["5, 5"],
            &[""],
            &["18446744073709551616"],
        ] {
            assert!(lengths(malformed).is_err(), "{malformed:?}");
        }
    }

    #[test]
    fn fields_of_the_connection_are_refused() {
        assert!(check(&headers(&[("te", "Trailers"), ("x-any", "1")])).is_ok());
        for (name, value) in [
            ("connection", "close"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("keep-alive", "5"),
            ("proxy-connection", "keep-alive"),
            ("te", "gzip"),
            ("te", "trailers, gzip"),
        ] {
            assert!(
                check(&headers(&[(name, value)])).is_err(),
                "{name}: {value}"
            );
        }
    }
}
