//! Address blocks of a node that does not lead: the leader is asked.

use std::time::Duration;

use futures::{FutureExt as _, future::BoxFuture};
use jaco_proto::{
    ErrorCode,
    v1::{self, internal_client::InternalClient},
};
use jaco_raftnode::Propose as _;
use tokio::time::Instant;

use super::leader::{Failed, LeaderChannel, LeaderLink, Whereabouts};
use crate::network::{
    cidr::Cidr,
    ipam::{Allocator, Error, SubnetKey, existing},
};

/// How long an answer and its row may take together.
const BUDGET: Duration = Duration::from_secs(10);
/// Wait before the leader is asked again.
const AGAIN: Duration = Duration::from_millis(250);

/// The leader's allocator.
pub(super) struct AtLeader(pub(super) LeaderLink);

impl Allocator for AtLeader {
    /// Asks as long as it makes sense to: a second question gets the same answer. The block is
    /// given out once the state here shows it too.
    fn ensure(
        &self,
        key: SubnetKey,
        refused: Vec<Cidr>,
    ) -> BoxFuture<'static, Result<Cidr, Error>> {
        let link = self.0.clone();
        async move {
            let deadline = Instant::now() + BUDGET;
            loop {
                match ask(&link, &key, &refused, deadline).await {
                    Err(Error::NotLeader | Error::Unavailable)
                        if Instant::now() + AGAIN < deadline
                            && link.whereabouts() != Whereabouts::Here =>
                    {
                        tokio::time::sleep(AGAIN).await;
                    }
                    Err(error) => return Err(error),
                    Ok(cidr) => return shown(&link, &key, cidr, deadline).await,
                }
            }
        }
        .boxed()
    }
}

async fn ask(
    link: &LeaderLink,
    key: &SubnetKey,
    refused: &[Cidr],
    deadline: Instant,
) -> Result<Cidr, Error> {
    let Whereabouts::There(leader) = link.whereabouts() else {
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
        Err(status) => Err(match Failed::from(status) {
            Failed::NotSent | Failed::Unanswered(_) => Error::Unavailable,
            Failed::Refused(error) => match error.code {
                ErrorCode::SubnetPoolExhausted => Error::Exhausted(key.clone()),
                ErrorCode::DeploymentNotFound => Error::UnknownDeployment(key.deployment.clone()),
                ErrorCode::NodeNotFound => Error::UnknownHost(key.host.clone()),
                ErrorCode::NoLeader => Error::NotLeader,
                code => {
                    tracing::debug!(subsystem = "ipam", %key, %code, "the leader gives no block");
                    Error::Unavailable
                }
            },
        }),
    }
}

async fn shown(
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
