//! Proposals of one node, from the request until the outcome is certain, with the time limits and
//! the commit lock of the production handle.
//!
//! A requester is answered within [`COMMIT_BUDGET`]. A proposal that raft has not taken by then is
//! withdrawn, as on a disk that stalls; the outcome of one that raft has taken is unknown, and it
//! keeps the commit lock until it is certain.

use jaco_proto::{
    Error, ErrorCode,
    v1::{self, command::Payload},
};
use jaco_raftnode::{
    apply::Answer,
    core::{ProposalLoss, Ticket},
};
use jaco_state::{State, command, fsm};
use prost::Message as _;

use super::{
    calls::{Change, Origin, Reply, Requester},
    cluster::{Cluster, Local},
    mutation::Mutation,
    node::Input,
    secrets,
    time::{SECOND, Time},
};

/// Time after which the requester of a proposal is answered in any case.
const COMMIT_BUDGET: Time = 5 * SECOND;

/// A proposal of this node whose outcome is not certain yet.
#[derive(Debug)]
pub(super) struct Proposal {
    /// `None` once the requester has its answer: that the outcome is unknown.
    origin: Option<Origin>,
    pub(super) data: Vec<u8>,
    /// Index of its entry, once appended.
    pub(super) index: Option<u64>,
    /// The only term in which it may be appended, if it was judged on a state.
    pub(super) term: Option<u64>,
}

impl Proposal {
    /// The requester on this node, if it still waits.
    pub(super) fn requester(self) -> Option<Requester> {
        match self.origin? {
            Origin::Local(requester) => Some(requester),
            Origin::Call { .. } => None,
        }
    }
}

impl Cluster {
    /// Proposes a change on node `id` if it leads. Changes of deployments are judged on the newest
    /// state one after the other, under the commit lock.
    pub(super) fn propose(&mut self, id: u64, origin: Origin, change: Change) {
        let change = match change {
            Change::Block(key, refused) => return self.request_block(id, origin, key, refused),
            change => change,
        };
        let now = self.now;
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let ts = machine.clock.timestamp(now);
        let Some(daemon) = &mut machine.daemon else {
            return;
        };
        let judged = !matches!(change, Change::Command(_));
        if !daemon.status.leading || judged && daemon.commit_lock.is_some() {
            return self.reply(id, origin, Reply::NotAppended);
        }
        let command = match change {
            Change::Command(command) => command,
            Change::Block(..) => return,
            Change::Apply(mut apply, identity) => {
                let known = daemon.state.deployments.get(&apply.deployment);
                apply.revision = known.map_or(0, |d| d.highest_revision) + 1;
                secrets::retain_known(&daemon.state, &mut apply);
                command(identity, ts, Payload::DeploymentApply(apply))
            }
            Change::Rollback(deployment, identity) => {
                let revision = 0;
                let rollback = v1::DeploymentRollback {
                    deployment,
                    revision,
                    ..Default::default()
                };
                command(identity, ts, Payload::DeploymentRollback(rollback))
            }
            Change::Hold(deployment, held, identity) => {
                let known = daemon.state.deployments.get(&deployment);
                let hold = v1::RolloutHoldSet {
                    revision: known.map_or(0, |d| d.applied_revision),
                    deployment,
                    held,
                };
                command(identity, ts, Payload::RolloutHoldSet(hold))
            }
            Change::Secret(deployment, name, identity) => {
                let upsert = secrets::next(&daemon.state, deployment, name);
                command(identity, ts, Payload::SecretUpsert(upsert))
            }
            Change::Delete(deployment, identity) => {
                let delete = v1::DeploymentDelete { deployment };
                command(identity, ts, Payload::DeploymentDelete(delete))
            }
        };
        if judged && takes_route(&daemon.state, &command) {
            let conflict = Error::new(ErrorCode::RouteConflict, "the route is taken");
            return self.reply(id, origin, Reply::Rejected(conflict.to_string()));
        }
        let data = command.encode_to_vec();
        let ticket = daemon.ticket();
        if judged {
            daemon.commit_lock = Some(ticket);
        }
        let proposal = Proposal {
            origin: Some(origin),
            data: data.clone(),
            index: None,
            term: judged.then_some(daemon.status.term),
        };
        daemon.proposals.insert(ticket, proposal);
        self.schedule_local(id, COMMIT_BUDGET, Local::ProposalDue(ticket));
        self.input(id, Input::Propose(ticket, data));
    }

    /// The requester of a proposal has waited for [`COMMIT_BUDGET`].
    pub(super) fn proposal_due(&mut self, id: u64, ticket: Ticket) {
        let replans = self.has(Mutation::ReplanEarly);
        let frees = self.has(Mutation::FreeCommitLockEarly);
        let Some(daemon) = self.daemon(id) else {
            return;
        };
        let Some(proposal) = daemon.proposals.get_mut(&ticket) else {
            return;
        };
        let scheduler = proposal.origin.as_ref().is_some_and(is_scheduler);
        // The scheduler plans again only once the outcome of its last pass is certain.
        if scheduler && !replans {
            return;
        }
        let Some(origin) = proposal.origin.take() else {
            return;
        };
        if frees && daemon.commit_lock == Some(ticket) {
            daemon.release(ticket);
        } else if !replans && daemon.withdraw(ticket) {
            return self.reply(id, origin, Reply::NotAppended);
        }
        self.count("proposals unknown in time");
        self.reply(id, origin, Reply::Unknown);
    }

    /// Delivers the answers of the state machine to proposals of this node.
    pub(super) fn answer_proposals(&mut self, id: u64, answers: Vec<(Ticket, Answer)>) {
        for (ticket, answer) in answers {
            let Some(daemon) = self.daemon(id) else {
                return;
            };
            daemon.release(ticket);
            let proposal = daemon.proposals.remove(&ticket);
            let Some((origin, data)) = proposal.and_then(|p| Some((p.origin?, p.data))) else {
                continue;
            };
            let reply = match answer {
                Answer::Applied(index) => {
                    self.oracle.record_acknowledged(index, &data);
                    Reply::Done(index)
                }
                Answer::Rejected(error) => Reply::Rejected(error.to_string()),
                Answer::Halted(_) => Reply::Unknown,
            };
            self.reply(id, origin, reply);
        }
    }

    /// Delivers that raft has given a proposal of this node up.
    pub(super) fn proposal_lost(&mut self, id: u64, ticket: Ticket, lost: ProposalLoss) {
        let unknown_is_done = self.has(Mutation::AcknowledgeUnknown);
        let unknown_is_nothing = self.has(Mutation::RetryUnknown);
        let Some(daemon) = self.daemon(id) else {
            return;
        };
        daemon.release(ticket);
        let Some(proposal) = daemon.proposals.remove(&ticket) else {
            return;
        };
        let Some(origin) = proposal.origin else {
            return;
        };
        let reply = match lost {
            ProposalLoss::Unknown if unknown_is_done => match proposal.index {
                Some(index) => {
                    self.oracle.record_acknowledged(index, &proposal.data);
                    Reply::Done(index)
                }
                None => Reply::Unknown,
            },
            ProposalLoss::Unknown if unknown_is_nothing => Reply::NotAppended,
            ProposalLoss::Unknown => Reply::Unknown,
            ProposalLoss::NotAppended => Reply::NotAppended,
        };
        self.reply(id, origin, reply);
    }
}

fn is_scheduler(origin: &Origin) -> bool {
    matches!(origin, Origin::Local(Requester::Scheduler(_)))
}

/// Whether `command` would take a route or a published port that another deployment has in `state`.
pub(super) fn takes_route(state: &State, command: &v1::Command) -> bool {
    fsm::apply(state, state.applied_index + 1, command).is_ok_and(|applied| {
        let refused = applied.result.as_ref().err();
        refused.is_some_and(|error| {
            matches!(
                error.code,
                ErrorCode::RouteConflict | ErrorCode::PortConflict
            )
        }) || changes_owner(state, &applied.state)
    })
}

/// Whether a route of `before` belongs to another deployment in `after`.
pub(super) fn changes_owner(before: &State, after: &State) -> bool {
    !before.routes.ptr_eq(&after.routes)
        && before.routes.iter().any(|(key, route)| {
            let owner = after.routes.get(key);
            owner.is_some_and(|owner| owner.deployment != route.deployment)
        })
}
