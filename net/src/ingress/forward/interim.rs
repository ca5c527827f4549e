//! Interim responses of replicas, such as 103 (Early Hints).
//!
//! Only requests of HTTP/3 have a way back for them: hyper's server sends none but 100 by itself.
//! Source: RFC 9110, section 15.2; RFC 8297.

use http::{Request, Response, StatusCode};
use tokio::sync::mpsc;

use super::super::headers;

/// Interim responses that wait for the client; further ones are dropped, because nothing depends on
/// them.
const WAITING: usize = 8;

/// Where the interim responses to a request go; an extension of the request.
#[derive(Clone, Debug)]
pub(in super::super) struct InterimResponses(mpsc::Sender<Response<()>>);

impl InterimResponses {
    /// The way of interim responses to one client.
    pub(in super::super) fn channel() -> (Self, mpsc::Receiver<Response<()>>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self(sender), receiver)
    }

    /// Passes on the interim responses to a request that is about to be sent.
    pub(super) fn follow<B>(&self, request: &mut Request<B>) {
        let sender = self.0.clone();
        hyper::ext::on_informational(request, move |received| {
            let status = received.status();
            // 100 is a matter of each hop, and 101 is no interim response.
            if matches!(
                status,
                StatusCode::CONTINUE | StatusCode::SWITCHING_PROTOCOLS
            ) {
                return;
            }
            let mut interim = Response::new(());
            *interim.status_mut() = status;
            *interim.headers_mut() = received.headers().clone();
            headers::remove_hop_by_hop(interim.headers_mut());
            let _ = sender.try_send(interim); // the client reads too slowly, or has gone
        });
    }
}
