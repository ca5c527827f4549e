//! Streams that end when their caller's token is revoked, or the node stops or is removed.

use std::{pin::Pin, sync::Arc};

use futures::{Stream, StreamExt, stream};
use jaco_proto::{Error, ErrorCode};
use jaco_state::State;
use tokio::sync::watch;
use tonic::Status;

use super::{caller::Caller, forwarded::TokenHash};
use crate::node::{EndOfService, NodeContext};

/// A boxed response stream.
pub(super) type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Passes `inner` on until it ends, the caller's token is no longer valid, or the node stops or is
/// removed.
///
/// A long stream is admitted only once, at its start; this guard also applies a revocation, or the
/// replacement of the token's secret, to it.
pub(super) fn guarded<T: Send + 'static>(
    inner: impl Stream<Item = Result<T, Error>> + Send + 'static,
    caller: &Caller,
    states: watch::Receiver<Arc<State>>,
    ending: EndOfService,
) -> ResponseStream<T> {
    let token = caller.token.map(|token| (caller.identity.clone(), token));
    let over = async move {
        let ended = ending.wait();
        match token {
            None => ended.await,
            Some((identity, token)) => tokio::select! {
                error = ended => error,
                error = revoked(identity, token, states) => error,
            },
        }
    };
    let end = stream::once(over).map(Err);
    // The guard ends the whole stream, and so does the end of `inner`.
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

/// Returns once `token`, with which `identity` was admitted, is no longer valid.
async fn revoked(
    identity: String,
    token: TokenHash,
    mut states: watch::Receiver<Arc<State>>,
) -> Error {
    loop {
        if !admits(&states.borrow_and_update(), &identity, token) {
            return Error::new(ErrorCode::TokenRevoked, "the token was revoked")
                .with("identity", &identity);
        }
        if states.changed().await.is_err() {
            return NodeContext::stopped();
        }
    }
}

fn admits(state: &State, identity: &str, TokenHash(hash): TokenHash) -> bool {
    let row = state.tokens.get(identity);
    row.is_some_and(|row| row.revoked_at.is_none() && row.hashed_secret == hash)
}

#[cfg(test)]
mod tests {
    use jaco_proto::v1;

    use super::*;
    use crate::api::admission::Transport;

    fn caller(transport: Transport) -> Caller {
        Caller {
            identity: "ci".to_owned(),
            token: (transport == Transport::Api).then_some(TokenHash([1; 32])),
            transport,
            sender: None,
            request_id: String::new(),
        }
    }

    fn state(secret: u8, revoked: bool) -> Arc<State> {
        let mut state = State::default();
        state.tokens.insert(
            "ci".to_owned(),
            Arc::new(v1::Token {
                hashed_secret: vec![secret; 32],
                revoked_at: revoked.then(Default::default),
                ..Default::default()
            }),
        );
        Arc::new(state)
    }

    /// End of service of a node, under control of the test.
    #[derive(Default)]
    struct End {
        stopping: watch::Sender<bool>,
        removed: watch::Sender<bool>,
    }

    impl End {
        fn ending(&self) -> EndOfService {
            EndOfService {
                stopping: self.stopping.subscribe(),
                removed: self.removed.subscribe(),
            }
        }
    }

    /// Returns the code with which an endless stream of `transport` ends after `change`.
    async fn end(
        transport: Transport,
        change: impl FnOnce(&watch::Sender<Arc<State>>, &End),
    ) -> String {
        let (states, receiver) = watch::channel(state(1, false));
        let end = End::default();
        let endless = stream::iter([Ok(1_u8)]).chain(stream::pending::<Result<u8, Error>>());
        let mut guarded = guarded(endless, &caller(transport), receiver, end.ending());
        assert_eq!(guarded.next().await.unwrap().unwrap(), 1);
        change(&states, &end);
        let status = guarded.next().await.unwrap().unwrap_err();
        assert!(guarded.next().await.is_none());
        status.message().to_owned()
    }

    #[tokio::test]
    async fn revocation_ends_the_stream_with_its_code() {
        let code = end(Transport::Api, |states, _| {
            states.send_replace(state(1, true));
        });
        assert_eq!(code.await, "token_revoked");
    }

    #[tokio::test]
    async fn new_secret_ends_streams_of_the_old_one() {
        let code = end(Transport::Api, |states, _| {
            states.send_replace(state(2, false));
        });
        assert_eq!(code.await, "token_revoked");
    }

    #[tokio::test]
    async fn stopping_node_ends_every_stream() {
        for transport in [Transport::Api, Transport::Local] {
            let code = end(transport, |states, end| {
                states.send_replace(state(1, false)); // does not affect the token
                end.stopping.send_replace(true);
            });
            assert_eq!(code.await, "raft_unavailable");
        }
    }

    #[tokio::test]
    async fn removed_node_ends_every_stream() {
        for transport in [Transport::Api, Transport::Local] {
            let code = end(transport, |_, end| {
                end.removed.send_replace(true);
            });
            assert_eq!(code.await, "cluster_uninitialized");
        }
    }

    #[tokio::test]
    async fn stream_ends_with_its_inner_stream() {
        // A local caller has no token to lose.
        for (transport, revoked) in [(Transport::Api, false), (Transport::Local, true)] {
            let (_states, states) = watch::channel(state(1, revoked));
            let end = End::default();
            let inner = stream::iter([Ok(1_u8), Ok(2)]);
            let items: Vec<_> = guarded(inner, &caller(transport), states, end.ending())
                .map(Result::unwrap)
                .collect()
                .await;
            assert_eq!(items, [1, 2]);
        }
    }
}
