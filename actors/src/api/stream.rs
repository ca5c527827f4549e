//! Streams that end when their caller's token is revoked or the server stops.

use std::pin::Pin;

use futures::{Stream, StreamExt, stream};
use jaco_proto::{Error, ErrorCode};
use jaco_raftnode::State;
use tokio::sync::watch;
use tonic::Status;

use super::caller::Caller;

/// A boxed response stream.
pub(super) type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Passes `inner` on until it ends, or until the caller's token is no longer valid.
///
/// A long stream is admitted once, at its start; this makes a revocation reach it.
pub(super) fn guarded<T: Send + 'static>(
    inner: impl Stream<Item = Result<T, Error>> + Send + 'static,
    caller: &Caller,
    mut states: watch::Receiver<std::sync::Arc<State>>,
) -> ResponseStream<T> {
    if !caller.has_token() {
        return Box::pin(inner.map(|item| item.map_err(Status::from)));
    }
    let identity = caller.identity.clone();
    let revoked = async move {
        loop {
            let valid = states
                .borrow_and_update()
                .tokens
                .get(&identity)
                .is_some_and(|token| token.revoked_at.is_none());
            if !valid {
                return Error::new(ErrorCode::TokenRevoked, "the token was revoked")
                    .with("identity", &identity);
            }
            if states.changed().await.is_err() {
                return Error::new(ErrorCode::RaftUnavailable, "the node is stopping");
            }
        }
    };
    let end = stream::once(revoked).map(Err);
    // The guard ends the whole stream; so does the end of the inner one.
    let inner = inner
        .map(Some)
        .chain(stream::once(std::future::ready(None)));
    let merged = stream::select(inner, end.map(Some));
    Box::pin(stream::unfold(
        (Box::pin(merged), false),
        |(mut merged, done)| async move {
            if done {
                return None;
            }
            match merged.next().await {
                Some(Some(Ok(item))) => Some((Ok(item), (merged, false))),
                Some(Some(Err(error))) => Some((Err(Status::from(error)), (merged, true))),
                Some(None) | None => None,
            }
        },
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jaco_proto::v1;

    use super::*;
    use crate::api::admission::Transport;

    fn caller(transport: Transport) -> Caller {
        Caller {
            identity: "ci".to_owned(),
            transport,
            request_id: String::new(),
        }
    }

    fn state(revoked: bool) -> Arc<State> {
        let mut state = State::default();
        state.tokens.insert(
            "ci".to_owned(),
            Arc::new(v1::Token {
                revoked_at: revoked.then(Default::default),
                ..Default::default()
            }),
        );
        Arc::new(state)
    }

    #[tokio::test]
    async fn a_revocation_ends_the_stream_with_its_code() {
        let (sender, receiver) = watch::channel(state(false));
        let endless = stream::pending::<Result<u8, Error>>();
        let mut guarded = guarded(endless, &caller(Transport::Api), receiver);
        sender.send_replace(state(true));
        let status = guarded.next().await.unwrap().unwrap_err();
        assert_eq!(status.message(), "token_revoked");
        assert!(guarded.next().await.is_none());
    }

    #[tokio::test]
    async fn the_end_of_the_inner_stream_is_the_end() {
        let (_sender, receiver) = watch::channel(state(false));
        let inner = stream::iter([Ok(1_u8), Ok(2)]);
        let items: Vec<_> = guarded(inner, &caller(Transport::Api), receiver)
            .collect()
            .await;
        assert_eq!(
            items.into_iter().map(Result::unwrap).collect::<Vec<_>>(),
            [1, 2]
        );
    }

    #[tokio::test]
    async fn a_local_caller_has_no_token_to_lose() {
        let (_sender, receiver) = watch::channel(state(true));
        let inner = stream::iter([Ok(1_u8)]);
        let items: Vec<_> = guarded(inner, &caller(Transport::Local), receiver)
            .collect()
            .await;
        assert_eq!(items.len(), 1);
    }
}
