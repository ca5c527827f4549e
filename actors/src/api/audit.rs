//! The `Audit` service: history, then live events.

use std::{collections::VecDeque, sync::Arc};

use futures::{Stream, stream};
use jaco_proto::{
    Error,
    v1::{self, AuditEventType, audit_server::Audit},
};
use jaco_raftnode::{State, StateReader};
use prost_types::Timestamp;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::{
    caller::Caller,
    stream::{ResponseStream, guarded},
};
use crate::node::NodeContext;

pub(super) struct AuditService(pub(super) Arc<NodeContext>);

/// Number of events read at once, so that a long trail is never copied whole.
const BATCH: usize = 256;

#[tonic::async_trait]
impl Audit for AuditService {
    type QueryStream = ResponseStream<v1::AuditEvent>;

    async fn query(
        &self,
        request: Request<v1::AuditQueryRequest>,
    ) -> Result<Response<Self::QueryStream>, Status> {
        let caller = Caller::of(&request)?;
        let node = self.0.running()?;
        let states = node.raft.subscribe();
        let events = events(request.into_inner(), states.clone());
        let state = states.borrow().clone();
        let stream = guarded(
            events,
            &caller,
            states,
            self.0.end_of_service_for(caller.transport),
        );
        Ok(node.read_response(&state, stream))
    }
}

/// Events of the trail in order. The trail itself is the feed: the next events are those that the
/// newest state holds after the last position, so none is lost or sent twice, however slow the
/// reader is.
fn events(
    query: v1::AuditQueryRequest,
    states: watch::Receiver<Arc<State>>,
) -> impl Stream<Item = Result<v1::AuditEvent, Error>> + Send {
    struct Cursor {
        query: v1::AuditQueryRequest,
        states: watch::Receiver<Arc<State>>,
        after: Option<(u64, u32)>,
        batch: VecDeque<v1::AuditEvent>,
    }
    let cursor = Cursor {
        query,
        states,
        after: None,
        batch: VecDeque::new(),
    };
    stream::unfold(cursor, |mut cursor| async move {
        loop {
            if let Some(event) = cursor.batch.pop_front() {
                return Some((Ok(event), cursor));
            }
            let state = cursor.states.borrow_and_update().clone();
            let (batch, after) = next_batch(&state, &cursor.query, cursor.after);
            let read = cursor.after != after;
            (cursor.batch, cursor.after) = (batch, after);
            if !read && (!cursor.query.follow || cursor.states.changed().await.is_err()) {
                return None;
            }
        }
    })
}

/// Returns the next matching events after `after`, and the position up to which the trail was read.
fn next_batch(
    state: &State,
    query: &v1::AuditQueryRequest,
    after: Option<(u64, u32)>,
) -> (VecDeque<v1::AuditEvent>, Option<(u64, u32)>) {
    use std::ops::Bound::{Excluded, Unbounded};
    let start = after.map_or(Unbounded, Excluded);
    let mut position = after;
    let mut found = VecDeque::new();
    for (key, event) in state.audit.range((start, Unbounded)) {
        position = Some(*key);
        if matches(query, event) {
            found.push_back(v1::AuditEvent::clone(event));
            if found.len() == BATCH {
                break;
            }
        }
    }
    (found, position)
}

fn matches(query: &v1::AuditQueryRequest, event: &v1::AuditEvent) -> bool {
    let order = |t: &Timestamp| (t.seconds, t.nanos);
    let ts = event.ts.unwrap_or_default();
    query
        .since
        .as_ref()
        .is_none_or(|since| order(&ts) >= order(since))
        && query
            .until
            .as_ref()
            .is_none_or(|until| order(&ts) <= order(until))
        && (query.types.is_empty() || query.types.contains(&event.r#type))
        && event.r#type != i32::from(AuditEventType::Unspecified)
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;

    use super::*;

    fn state(count: u64) -> Arc<State> {
        let mut state = State::default();
        for index in 1..=count {
            for ordinal in 0..2 {
                state.audit.insert(
                    (index, ordinal),
                    Arc::new(v1::AuditEvent {
                        raft_index: index,
                        ordinal,
                        r#type: if ordinal == 0 {
                            AuditEventType::Apply.into()
                        } else {
                            AuditEventType::Delete.into()
                        },
                        ts: Some(Timestamp {
                            seconds: index as i64,
                            nanos: 0,
                        }),
                        ..Default::default()
                    }),
                );
            }
        }
        Arc::new(state)
    }

    async fn collect(query: v1::AuditQueryRequest, count: u64) -> Vec<(u64, u32)> {
        let (_sender, receiver) = watch::channel(state(count));
        events(query, receiver)
            .map(|e| e.unwrap())
            .map(|e| (e.raft_index, e.ordinal))
            .collect()
            .await
    }

    #[tokio::test]
    async fn long_history_is_complete_and_ordered() {
        let all = collect(v1::AuditQueryRequest::default(), 1000).await;
        assert_eq!(all.len(), 2000);
        assert!(all.is_sorted());
    }

    #[tokio::test]
    async fn bounds_are_inclusive_and_types_filter() {
        let at = |seconds| Some(Timestamp { seconds, nanos: 0 });
        let query = v1::AuditQueryRequest {
            since: at(3),
            until: at(4),
            types: vec![AuditEventType::Delete.into()],
            follow: false,
        };
        assert_eq!(collect(query, 10).await, [(3, 1), (4, 1)]);
    }

    #[tokio::test]
    async fn following_sends_each_later_event_once() {
        let (sender, receiver) = watch::channel(state(2));
        let query = v1::AuditQueryRequest {
            follow: true,
            ..Default::default()
        };
        let mut stream = Box::pin(events(query, receiver));
        for expected in [(1, 0), (1, 1), (2, 0), (2, 1)] {
            let event = stream.next().await.unwrap().unwrap();
            assert_eq!((event.raft_index, event.ordinal), expected);
        }
        sender.send_replace(state(3));
        for expected in [(3, 0), (3, 1)] {
            let event = stream.next().await.unwrap().unwrap();
            assert_eq!((event.raft_index, event.ordinal), expected);
        }
        drop(sender);
        assert!(stream.next().await.is_none());
    }
}
