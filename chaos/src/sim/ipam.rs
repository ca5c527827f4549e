//! Allocation of address blocks on the leader, one decision after the other, as the production
//! allocator makes them.

use std::collections::VecDeque;

use jaco_engine::cidr::Cidr;
use jaco_policy::network::ipam::{Decision, Pool, SubnetKey, allocation, decide};
use jaco_proto::v1::command::Payload;
use jaco_state::command;

use super::{
    calls::{Change, Origin, Reply, Requester},
    cluster::Cluster,
};

/// Request for a block.
#[derive(Debug)]
struct Request {
    origin: Origin,
    key: SubnetKey,
    refused: Vec<Cidr>,
}

/// The allocator of one daemon.
#[derive(Debug, Default)]
pub(super) struct Ipam {
    /// Number of allocations proposed by all instances.
    proposed: u64,
    waiting: VecDeque<Request>,
    /// Number of the proposed allocation, its request, and the block.
    committing: Option<(u64, Request, Cidr)>,
}

impl Cluster {
    /// Requests the block of a network from the allocator of node `id`.
    pub(super) fn request_block(
        &mut self,
        id: u64,
        origin: Origin,
        key: SubnetKey,
        refused: Vec<Cidr>,
    ) {
        if let Some(daemon) = self.daemon(id) {
            daemon.ipam.waiting.push_back(Request {
                origin,
                key,
                refused,
            });
        }
        self.serve_blocks(id);
    }

    fn serve_blocks(&mut self, id: u64) {
        while let Some(daemon) = self.daemon(id)
            && daemon.ipam.committing.is_none()
            && let Some(request) = daemon.ipam.waiting.pop_front()
        {
            self.serve_block(id, request);
        }
    }

    fn serve_block(&mut self, id: u64, request: Request) {
        let Some(ts) = self.machines.get(&id).map(|m| m.clock.timestamp(self.now)) else {
            return;
        };
        let Some(daemon) = self.daemon(id) else {
            return;
        };
        let (key, state) = (&request.key, &daemon.state);
        if !daemon.status.leading {
            return self.reply(id, request.origin, Reply::NotAppended);
        }
        // A block of a removed deployment or host would never be freed.
        let used = state.networks_in_use();
        let known =
            used.contains(&key.deployment, &key.network) && state.nodes.contains_key(&key.host);
        if !known {
            let what = format!("{key} is not known");
            return self.reply(id, request.origin, Reply::Rejected(what));
        }
        match decide(&ts, state, key, Pool::default(), &request.refused) {
            Decision::Existing(cidr) => self.reply(id, request.origin, Reply::Block(cidr)),
            Decision::Exhausted => self.reply(id, request.origin, Reply::Exhausted),
            Decision::Allocate(cidr) => {
                let payload = Payload::SubnetAllocate(allocation(key, cidr));
                let change = Change::Command(command("ipam", ts, payload));
                daemon.ipam.proposed += 1;
                let number = daemon.ipam.proposed;
                daemon.ipam.committing = Some((number, request, cidr));
                self.count("blocks allocated");
                self.propose(id, Origin::Local(Requester::Ipam(number)), change);
            }
        }
    }

    /// Handles the outcome of the allocation of this number that node `id` proposed.
    pub(super) fn block_committed(&mut self, id: u64, number: u64, reply: Reply) {
        let Some(daemon) = self.daemon(id) else {
            return;
        };
        let own = |(proposed, ..): &mut (u64, _, _)| *proposed == number;
        if let Some((_, request, cidr)) = daemon.ipam.committing.take_if(own) {
            let reply = match reply {
                Reply::Done(_) => Reply::Block(cidr),
                failed => failed,
            };
            self.reply(id, request.origin, reply);
        }
        self.serve_blocks(id);
    }

    /// Crashes the allocator of node `id`; its requests fail.
    pub(super) fn crash_ipam(&mut self, id: u64) {
        let Some(daemon) = self.daemon(id) else {
            return;
        };
        let Ipam {
            proposed,
            waiting,
            committing,
        } = std::mem::take(&mut daemon.ipam);
        daemon.ipam.proposed = proposed;
        let committing = committing.map(|(_, request, _)| request);
        for request in committing.into_iter().chain(waiting) {
            self.reply(id, request.origin, Reply::NotAppended);
        }
    }
}
