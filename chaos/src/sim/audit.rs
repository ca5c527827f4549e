//! Periodic and final checks: containers, members, convergence.

use jaco_proto::v1::{NodeStatus, ReplicaDesired, ReplicaState};
use jaco_raftnode::Role;
use jaco_state::State;

use super::{
    cluster::Cluster,
    control::{pass_cache, plan},
    expected, jobs,
    oracle::Violation,
    orphan_check::orphan_reason,
    rollouts,
};

impl Cluster {
    /// Checks properties that cannot be judged at a single event.
    pub(super) fn audit(&mut self) {
        self.stop_removed();
        self.check_orphans();
        self.judge_all();
        self.audit_certificates();
        self.audit_ports();
        if let Some(what) = self.clients.unserved().first() {
            let what = format!("at rest: {what}");
            return self.oracle.violate("every member serves", what);
        }
        for op in self.clients.failed() {
            if self.oracle.has_committed(op) {
                let what = format!("{op} was reported as not appended, and is committed");
                return self.oracle.violate("not appended", what);
            }
        }
    }

    /// Reason why the cluster is not at rest yet; `None` if it is.
    pub(super) fn unrest(&mut self) -> Option<Violation> {
        self.stop_removed();
        let members = self.members();
        let leader = match self.leader() {
            Some(leader) => leader,
            None => return violation("convergence", "there is no leader"),
        };
        let unrest = self
            .unrest_of_nodes(leader, &members)
            .and_then(|what| violation("convergence", what))
            .or_else(|| self.unrest_of_members(leader, &members));
        unrest.or_else(|| {
            let rows = expected::wrong_rows(self.oracle.newest());
            rows.and_then(|what| violation("rows as asked for", what))
                .or_else(|| {
                    let what = self.unrest_of_replicas(leader)?;
                    violation("convergence", what)
                })
                .or_else(|| {
                    let what = self.unrest_of_certificates(leader)?;
                    violation("certificates land", what)
                })
        })
    }

    fn unrest_of_nodes(&self, leader: u64, members: &[u64]) -> Option<String> {
        if members.len() != self.oracle.newest().nodes.len() {
            return Some("a member has no machine".to_owned());
        }
        let mut leaders = 0;
        for id in members {
            let machine = self.machines.get(id)?;
            let Some(daemon) = &machine.daemon else {
                return Some(format!("n{id} is down"));
            };
            let status = daemon.core.status();
            leaders += usize::from(status.role == Role::Leader);
            if status.leader_id != Some(leader) {
                return Some(format!("n{id} follows {:?}", status.leader_id));
            }
            if daemon.state.applied_index != self.oracle.last() || status.commit > status.applied {
                return Some(format!(
                    "n{id} has applied {} of {}",
                    daemon.state.applied_index,
                    self.oracle.last()
                ));
            }
            if !daemon.runtime.is_quiet() {
                return Some(format!("n{id} has observations to write"));
            }
        }
        if leaders != 1 {
            return Some(format!("{leaders} nodes lead"));
        }
        (!self.clients.is_quiet()).then(|| "a client waits".to_owned())
    }

    fn unrest_of_members(&self, leader: u64, members: &[u64]) -> Option<Violation> {
        let newest = self.oracle.newest();
        let status = self.machines.get(&leader)?.daemon.as_ref()?.core.status();
        if status.voters.len() != expected::voters(members.len()) {
            let (members, voters) = (members.len(), &status.voters);
            let what = format!("{members} members have the voters {voters:?}");
            return violation("voters as in the table", what);
        }
        let mut configured = status.voters.clone();
        configured.extend(&status.learners);
        configured.sort_unstable();
        if configured != members {
            let what = format!("{configured:?} take part, not {members:?}");
            return violation("convergence", what);
        }
        let odd = newest
            .nodes
            .values()
            .find(|node| node.draining || node.cordoned || node.status() != NodeStatus::Ready)?;
        let (host, status, leaving) = (&odd.hostname, odd.status(), odd.draining);
        let cordoned = odd.cordoned;
        let what = format!("{host} is {status:?}, leaving: {leaving}, cordoned: {cordoned}");
        violation("convergence", what)
    }

    fn unrest_of_replicas(&self, leader: u64) -> Option<String> {
        let newest = self.oracle.newest();
        let machine = self.machines.get(&leader)?;
        let clock = machine.clock;
        let now = (clock.instant(self.now), clock.timestamp(self.now));
        let pass = plan(
            &machine.host,
            newest,
            &mut pass_cache(),
            now,
            self.plan.mutation,
        );
        if pass.batch.is_some() {
            return Some(format!("the scheduler has {:?} to do", pass.summary));
        }
        if let Some(what) = rollouts::unfinished(newest) {
            return Some(what);
        }
        for (id, row) in &newest.replicas_desired {
            if is_stranded(newest, row) {
                continue;
            }
            let seen = newest.replicas_observed.get(id);
            let spent = seen.is_some_and(|seen| seen.code == "restart_exhausted");
            let runs = seen.is_some_and(|seen| {
                seen.state() == ReplicaState::Running
                    && seen.host == row.host
                    && seen.desired_raft_index == row.raft_index
            });
            let rests = if row.service == jobs::JOB {
                jobs::is_at_rest(newest, row)
            } else {
                runs || jobs::is_at_rest(newest, row)
            };
            if !rests && !spent {
                let seen = seen.map(|seen| (seen.state(), seen.code.clone(), seen.host.clone()));
                return Some(format!("{id} on {} is {seen:?}", row.host));
            }
        }
        for machine in self.machines.values().filter(|m| !m.removed) {
            for container in machine.engine.containers() {
                let row = newest.replicas_desired.get(&container.replica);
                let wanted = row.is_some_and(|row| {
                    let own = row.host == machine.host && row.raft_index == container.raft_index;
                    own || is_stranded(newest, row)
                        && orphan_reason(newest, &machine.host, container).is_none()
                });
                if !wanted {
                    return Some(format!("{} still has {container:?}", machine.host));
                }
            }
        }
        self.missing_container()
            .or_else(|| self.unrest_of_networks())
    }

    /// Describes a row that a member reports as running without a running container.
    fn missing_container(&self) -> Option<String> {
        let newest = self.oracle.newest();
        for (id, seen) in &newest.replicas_observed {
            if seen.state() != ReplicaState::Running {
                continue;
            }
            let mut members = self.machines.values().filter(|m| !m.removed);
            let Some(machine) = members.find(|m| m.host == seen.host) else {
                continue;
            };
            let running = machine
                .engine
                .running()
                .filter(|c| c.replica == *id)
                .count();
            if running != 1 {
                return Some(format!("{id} has {running} containers on {}", seen.host));
            }
        }
        None
    }
}

/// Whether `row` is on a host that is no member any more and stays there, because its service asks
/// for more than the members can hold. If it had moved there and never ran, its previous host
/// serves on.
fn is_stranded(state: &State, row: &ReplicaDesired) -> bool {
    !state.nodes.contains_key(&row.host) && expected::is_unsatisfiable(state, row)
}

fn violation(invariant: &'static str, what: impl Into<String>) -> Option<Violation> {
    let what = what.into();
    Some(Violation { invariant, what })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jaco_proto::v1::{Deployment, Node, ServiceSpec, service_spec::PlacementMode};

    use super::*;

    fn state(members: &[&str], listed: &[&str]) -> State {
        let mut state = State::default();
        for host in members {
            let node = Node {
                hostname: (*host).to_owned(),
                status: NodeStatus::Ready.into(),
                ..Node::default()
            };
            state.nodes.insert((*host).to_owned(), Arc::new(node));
        }
        let service = ServiceSpec {
            name: "db".to_owned(),
            replicas: 2,
            placement: PlacementMode::Hosts.into(),
            hosts: listed.iter().map(|host| (*host).to_owned()).collect(),
            ..Default::default()
        };
        let deployment = Deployment {
            name: "app".to_owned(),
            services: vec![service],
            ..Deployment::default()
        };
        let deployment = Arc::new(deployment);
        state.deployments.insert("app".to_owned(), deployment);
        state
    }

    #[test]
    fn only_unplaceable_rows_of_removed_nodes_are_stranded() {
        let row = |host: &str| ReplicaDesired {
            id: "app-db-0".to_owned(),
            deployment: "app".to_owned(),
            service: "db".to_owned(),
            host: host.to_owned(),
            ..ReplicaDesired::default()
        };
        for (members, listed, host, stranded) in [
            (&["n2", "n3"][..], &["n1", "n3"][..], "n1", true),
            (&["n2", "n3"], &["n1", "n3"], "n3", false),
            (&["n2", "n3"], &["n2", "n3"], "n1", false),
            (&["n1", "n2", "n3"], &["n1", "n3"], "n1", false),
        ] {
            let state = state(members, listed);
            let found = is_stranded(&state, &row(host));
            assert_eq!(found, stranded, "{members:?} {listed:?} {host}");
        }
    }
}
