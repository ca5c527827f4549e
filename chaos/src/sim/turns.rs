//! Turns of a node's domains: the production queue, with a limit so low that domains wait.

use std::time::SystemTime;

use jaco_policy::runtime::replica::core::Now;

use super::{cluster::Cluster, mutation::Mutation};

/// Attempts that a simulated node makes at once. Its clusters have few domains, so none would wait
/// under a higher limit.
pub(super) const LIMIT: usize = 1;

impl Cluster {
    /// A domain asks for a turn.
    pub(super) fn queue_up(&mut self, id: u64, domain: &str, due: SystemTime) {
        let Some(daemon) = self.daemon(id) else {
            return;
        };
        let certificates = &mut daemon.certificates;
        if let Some(known) = certificates.domains.get_mut(domain) {
            known.ticket = Some(certificates.queue.handle_request(due, domain));
        }
    }

    /// A domain ends its turn, or gives up its wait for one.
    pub(super) fn end_turn(&mut self, id: u64, domain: &str) {
        let keeps = self.has(Mutation::KeepTurn);
        let Some(daemon) = self.daemon(id) else {
            return;
        };
        let certificates = &mut daemon.certificates;
        let known = certificates.domains.get_mut(domain);
        let ticket = known.and_then(|it| it.ticket.take());
        if let Some(ticket) = ticket.filter(|_| !keeps) {
            certificates.queue.handle_end(ticket);
        }
    }

    /// Grants the next turn of a node; `false` if no domain waits or none may begin.
    pub(super) fn begin_turn(&mut self, id: u64) -> bool {
        let forgets = self.has(Mutation::ForgetTurns);
        let Some(machine) = self.machines.get_mut(&id) else {
            return false;
        };
        let now = Now {
            instant: machine.clock.instant(self.now),
            wall: machine.clock.wall(self.now),
        };
        let Some(daemon) = &mut machine.daemon else {
            return false;
        };
        let certificates = &mut daemon.certificates;
        let Some(ticket) = certificates.queue.poll_turn() else {
            return false;
        };
        let mut domains = certificates.domains.values_mut();
        let holder = domains.find(|domain| domain.ticket == Some(ticket));
        let wanted = holder.is_some_and(|domain| domain.core.handle_turn(now));
        if !wanted || forgets {
            certificates.queue.handle_end(ticket);
        }
        true
    }
}
