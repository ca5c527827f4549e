//! The `Watch` service: the change feed.

use std::sync::Arc;

use futures::{FutureExt, StreamExt, stream};
use jaco_proto::v1::{self, watch_server::Watch};
use jaco_raftnode::{StateReader, watch::Filter};
use tonic::{Request, Response, Status};

use super::{
    caller::Caller,
    stream::{ResponseStream, guarded},
};
use crate::node::NodeContext;

pub(super) struct WatchService(pub(super) Arc<NodeContext>);

#[tonic::async_trait]
impl Watch for WatchService {
    type SubscribeStream = ResponseStream<v1::SubscribeEvent>;

    async fn subscribe(
        &self,
        request: Request<v1::SubscribeRequest>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let caller = Caller::of(&request)?;
        let node = self.0.running()?;
        let filter = Filter::from_request(request.get_ref())?;
        let subscription = node.raft.hub().subscribe(filter);
        let state = node.raft.state();
        let events = stream::unfold(subscription, |mut subscription| async move {
            let update = subscription.next().await?;
            Some((Ok(update.to_wire()), subscription))
        });
        // The hub closes when the node stops or is removed; the client should use another node.
        let over = self.0.end_of_service_for(caller.transport).wait();
        let events = events.chain(stream::once(over.map(Err)));
        let stream = guarded(
            events,
            &caller,
            node.raft.subscribe(),
            self.0.end_of_service_for(caller.transport),
        );
        Ok(node.read_response(&state, stream))
    }
}
