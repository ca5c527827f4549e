//! Submission of changes to the log: proposed locally by the leader, or forwarded to it by another
//! node.

use jaco_engine::cidr::Cidr;
use jaco_policy::network::{ipam::SubnetKey, names::NetworkId};
use jaco_proto::v1;

use super::{
    cluster::{Cluster, Event, Local},
    node::CALL_TIMEOUT,
    time::{MS, SECOND},
};

/// Requester of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Requester {
    /// A client's operation.
    Client(u64),
    /// The scheduler, in one epoch of leadership.
    Scheduler(u64),
    /// The publisher, for one replica.
    Publisher(String),
    /// The health core, for one member.
    Health(String),
    /// A node that reports itself ready.
    Ready,
    /// The allocator, for the allocation of this number.
    Ipam(u64),
    /// The bridge of a network, for the job of this number.
    Bridge(NetworkId, u64),
    /// An instance of the firewall.
    Firewall(u64),
    /// The order of a domain with this number.
    Order(String, u64),
    /// No requester: the outcome is ignored, because the requester runs again anyway.
    Detached,
}

/// Origin of a proposal: this node, or a call of another.
#[derive(Clone, Debug)]
pub(super) enum Origin {
    Local(Requester),
    Call { from: u64, call: u64 },
}

/// A change requested of the leader.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// A command as it is.
    Command(v1::Command),
    /// A new revision of a deployment, and the identity it is requested by.
    Apply(v1::DeploymentApply, String),
    /// Rollback of a deployment to its previous revision.
    Rollback(String, String),
    /// Removal of a deployment.
    Delete(String, String),
    /// Whether the rollouts of a deployment are paused, and the identity it is requested by.
    Hold(String, bool, String),
    /// A new value of a secret: its deployment, its name, and the identity it is requested by.
    Secret(String, String, String),
    /// The address block of a network; none that overlaps these.
    Block(SubnetKey, Vec<Cidr>),
}

/// Outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// Committed at this index.
    Done(u64),
    /// The state machine refused it.
    Rejected(String),
    /// The command is in no log: it may be requested again.
    NotAppended,
    /// The command may still be committed.
    Unknown,
    /// The network has this block.
    Block(Cidr),
    /// No block is left.
    Exhausted,
}

impl Cluster {
    /// Requests a change for a requester on node `id`: proposes it on the leader, else calls the
    /// leader.
    pub(super) fn submit(&mut self, id: u64, requester: Requester, change: Change) {
        let Some(daemon) = self.daemon(id) else {
            return;
        };
        let status = &daemon.status;
        if status.leading {
            return self.propose(id, Origin::Local(requester), change);
        }
        let Some(leader) = status.leader_id.filter(|leader| *leader != id) else {
            return self.complete(id, requester, Reply::NotAppended);
        };
        self.calls += 1;
        let call = self.calls;
        if let Some(daemon) = self.daemon(id) {
            daemon.calls.insert(call, requester);
        }
        self.schedule_local(id, CALL_TIMEOUT, Local::CallTimeout(call));
        // A stream delivers a request at most once, so duplicates are ignored.
        if let Some(after) = self.network.deliveries(id, leader, 300).first() {
            let event = Event::Call {
                from: id,
                to: leader,
                call,
                change: Box::new(change),
            };
            self.agenda.add(self.now + after, event);
        }
    }

    /// Handles a request from another node.
    pub(super) fn handle_call(&mut self, from: u64, to: u64, call: u64, change: Change) {
        self.propose(to, Origin::Call { from, call }, change);
    }

    /// Delivers the outcome to the requester, or sends it to the calling node.
    pub(super) fn reply(&mut self, id: u64, origin: Origin, reply: Reply) {
        match origin {
            Origin::Local(requester) => match reply {
                Reply::Done(index) => {
                    if let Some(daemon) = self.daemon(id) {
                        daemon.waiting.push((index, requester));
                    }
                    self.complete_waiting(id);
                }
                reply => self.complete(id, requester, reply),
            },
            Origin::Call { from, call } => {
                if let Some(after) = self.network.deliveries(id, from, 50).first() {
                    let event = Event::Reply {
                        to: from,
                        call,
                        reply,
                    };
                    self.agenda.add(self.now + after, event);
                }
            }
        }
    }

    pub(super) fn handle_reply(&mut self, id: u64, call: u64, reply: Reply) {
        let Some(daemon) = self.daemon(id) else {
            return;
        };
        let Some(requester) = daemon.calls.remove(&call) else {
            return;
        };
        match reply {
            // Read your writes: wait until the client's own node shows the write.
            Reply::Done(index) => {
                daemon.waiting.push((index, requester));
                self.complete_waiting(id);
            }
            reply => self.complete(id, requester, reply),
        }
    }

    pub(super) fn call_timeout(&mut self, id: u64, call: u64) {
        let lost = self.daemon(id).and_then(|d| d.calls.remove(&call));
        if let Some(requester) = lost {
            self.complete(id, requester, Reply::Unknown);
        }
    }

    /// Completes the request of `requester` on node `id`.
    pub(super) fn complete(&mut self, id: u64, requester: Requester, reply: Reply) {
        match requester {
            Requester::Client(op) => self.client_answered(op, reply),
            Requester::Scheduler(leadership_epoch) => {
                self.pass_finished(id, leadership_epoch, &reply)
            }
            Requester::Publisher(replica) => self.published(id, &replica, &reply),
            Requester::Health(host) => self.verdict_proposed(id, &host),
            Requester::Ready => self.ready_proposed(id, &reply),
            Requester::Ipam(number) => self.block_committed(id, number, reply),
            Requester::Bridge(network, number) => {
                self.block_given(id, &network, number, &reply);
            }
            Requester::Firewall(instance) => self.firewall_reported(id, instance, &reply),
            Requester::Order(domain, number) => self.order_written(id, &domain, number, &reply),
            Requester::Detached => {}
        }
    }
}

/// Pause of a client before it retries a write that was not appended.
pub(super) const RETRY_DELAY: u64 = 250 * MS;
/// Time until a client gives up.
pub(super) const CLIENT_TIMEOUT: u64 = 5 * SECOND;
