//! Address blocks on a node that does not lead, requested from the leader.

use std::time::Duration;

use futures::{FutureExt as _, future::BoxFuture};
use jaco_policy::network::ipam::{SubnetKey, existing};
use jaco_proto::{
    ErrorCode,
    v1::{self, internal_client::InternalClient},
};
use jaco_raftnode::StateReader as _;
use tokio::time::Instant;

use super::leader::{CallFailure, LeaderChannel, LeaderLink, LeaderLocation};
use crate::network::{
    cidr::Cidr,
    ipam::{Allocator, Error},
};

/// Time limit for the answer and for its row in the local state, together.
const BUDGET: Duration = Duration::from_secs(10);
/// Delay before the next request to the leader.
const RETRY: Duration = Duration::from_millis(250);

/// Allocator that forwards to the leader's.
pub(crate) struct LeaderAllocator(pub(crate) LeaderLink);

impl Allocator for LeaderAllocator {
    /// Retries while that can help: allocation is idempotent. The block is returned once the local
    /// state holds it too.
    fn ensure(
        &self,
        key: SubnetKey,
        refused: Vec<Cidr>,
    ) -> BoxFuture<'static, Result<Cidr, Error>> {
        let link = self.0.clone();
        async move {
            let deadline = Instant::now() + BUDGET;
            loop {
                match request_block(&link, &key, &refused, deadline).await {
                    Err(Error::NotLeader | Error::Unavailable)
                        if Instant::now() + RETRY < deadline
                            && link.location() != LeaderLocation::Local =>
                    {
                        tokio::time::sleep(RETRY).await;
                    }
                    Err(error) => return Err(error),
                    Ok(cidr) => return wait_for_row(&link, &key, cidr, deadline).await,
                }
            }
        }
        .boxed()
    }
}

async fn request_block(
    link: &LeaderLink,
    key: &SubnetKey,
    refused: &[Cidr],
    deadline: Instant,
) -> Result<Cidr, Error> {
    let LeaderLocation::Remote(leader) = link.location() else {
        return Err(Error::NotLeader);
    };
    let channel = LeaderChannel::new(link.clone(), leader, deadline);
    let request = v1::EnsureSubnetRequest {
        deployment: key.deployment.clone(),
        network: key.network.clone(),
        host: key.host.clone(),
        refused: refused.iter().map(Cidr::to_string).collect(),
    };
    let mut client = InternalClient::new(channel);
    let answer = tokio::time::timeout_at(deadline, client.ensure_subnet(request)).await;
    match answer.map_err(|_| Error::Unavailable)? {
        Ok(answer) => {
            let cidr = answer.into_inner().cidr;
            cidr.parse().map_err(|_| Error::Unavailable)
        }
        Err(status) => Err(match CallFailure::from(status) {
            CallFailure::NotSent | CallFailure::Unanswered(_) => Error::Unavailable,
            CallFailure::Refused(error) => match error.code {
                ErrorCode::SubnetPoolExhausted => Error::Exhausted(key.clone()),
                ErrorCode::DeploymentNotFound => Error::UnknownDeployment(key.deployment.clone()),
                ErrorCode::NodeNotFound => Error::UnknownHost(key.host.clone()),
                ErrorCode::NoLeader => Error::NotLeader,
                code => {
                    tracing::debug!(subsystem = "ipam", %key, %code, "the leader refused to allocate a block");
                    Error::Unavailable
                }
            },
        }),
    }
}

async fn wait_for_row(
    link: &LeaderLink,
    key: &SubnetKey,
    cidr: Cidr,
    deadline: Instant,
) -> Result<Cidr, Error> {
    let mut states = link.raft().subscribe();
    let row = states.wait_for(|state| existing(state, key) == Some(cidr));
    match tokio::time::timeout_at(deadline, row).await {
        Ok(Ok(_)) => Ok(cidr),
        Ok(Err(_)) | Err(_) => Err(Error::Unavailable),
    }
}
