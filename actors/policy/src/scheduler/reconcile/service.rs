//! Plans one deployment and its services within a pass.

use std::collections::{BTreeMap, BTreeSet};

use jaco_proto::v1::{self, DeploymentStatus, command::Payload};

use jaco_state::command;

use super::{IDENTITY, Plan, rearm, rolling::Due};
use crate::scheduler::{
    moves,
    placement::{self, Placed, Placement, ServiceToPlace, Stuck, Unplaceable},
    projects::{Template, Templates},
};

/// Reason why a deployment is pending, in the form of `status_details`.
struct Blocked(BTreeMap<String, String>);

impl<const N: usize> From<[(&str, String); N]> for Blocked {
    fn from(details: [(&str, String); N]) -> Self {
        let details = details.map(|(key, value)| (key.to_owned(), value));
        Self(details.into())
    }
}

impl From<String> for Blocked {
    fn from(reason: String) -> Self {
        [("reason", reason)].into()
    }
}

impl From<Unplaceable> for Blocked {
    fn from(why: Unplaceable) -> Self {
        let code = match why {
            Unplaceable::NoEligibleHosts { .. } | Unplaceable::TooFewHosts { .. } => {
                "cannot_satisfy_host_placement"
            }
            Unplaceable::IdConflict { .. } => "replica_id_conflict",
        };
        [("reason", why.to_string()), ("code", code.to_owned())].into()
    }
}

/// Replicas that stay on hosts where they cannot run properly, by reason and host.
type StuckAt = BTreeMap<Stuck, BTreeMap<String, Vec<String>>>;

/// Selects the most severe reason ([`Stuck`] is ordered), with all its hosts and replicas:
/// operators resolve one reason at a time.
fn stuck(at: StuckAt) -> Option<Blocked> {
    let (why, hosts) = at.into_iter().next()?;
    let list = |items: Vec<String>| items.join(",");
    let (hosts, replicas): (Vec<String>, Vec<Vec<String>>) = hosts.into_iter().unzip();
    Some(
        [
            ("reason", why.as_str().to_owned()),
            ("host", list(hosts)),
            ("replicas", list(replicas.concat())),
        ]
        .into(),
    )
}

/// Obstacles of a service that is placed as far as possible.
struct Obstacles {
    /// Replicas that cannot run properly where they stay: why, host and id.
    stuck: Vec<(Stuck, String, String)>,
    /// Reason why other replicas have no host.
    shortage: Option<Unplaceable>,
}

impl<'a> Plan<'a> {
    /// Plans one deployment; if its document cannot be parsed, only the status changes.
    pub(super) fn deployment(&mut self, deployment: &'a v1::Deployment, templates: &Templates) {
        let templates = match templates {
            Ok(templates) => templates,
            Err(error) => {
                let reason = format!("compose parse failed: {error}");
                self.status(deployment, Some(reason.into()));
                return;
            }
        };
        let due = self.roll(deployment, templates);
        if let Due::RolledBack = due {
            return;
        }
        self.remove_retired_services(deployment);
        let mut specs: Vec<&v1::ServiceSpec> = deployment.services.iter().collect();
        specs.sort_by(|a, b| a.name.cmp(&b.name));
        let mut blocked = None;
        let mut at = StuckAt::new();
        for spec in specs {
            let template = templates.get(&spec.name);
            // Report the first obstacle; others are reported once it is resolved.
            match self.service(deployment, spec, template, &due) {
                Ok(Obstacles { stuck, shortage }) => {
                    if let Some(why) = shortage {
                        blocked.get_or_insert(why.into());
                    }
                    for (why, host, id) in stuck {
                        at.entry(why).or_default().entry(host).or_default().push(id);
                    }
                }
                Err(why) => {
                    blocked.get_or_insert(why);
                }
            }
        }
        self.status(deployment, blocked.or_else(|| stuck(at)));
    }

    /// Removes the replicas of services that the revision no longer has.
    fn remove_retired_services(&mut self, deployment: &'a v1::Deployment) {
        let wanted: BTreeSet<&str> = deployment
            .services
            .iter()
            .map(|s| s.name.as_str())
            .collect();
        let gone: Vec<(&'a str, &'a str)> = self
            .rows
            .range((deployment.name.as_str(), "")..)
            .take_while(|((owner, _), _)| *owner == deployment.name)
            .filter(|((_, service), _)| !wanted.contains(service))
            .flat_map(|(_, rows)| rows.iter().map(|(id, row)| (*id, row.host.as_str())))
            .collect();
        for (id, host) in gone {
            self.remove(id, host);
        }
    }

    /// Plans one service.
    fn service(
        &mut self,
        deployment: &'a v1::Deployment,
        spec: &'a v1::ServiceSpec,
        template: Option<&Template>,
        due: &Due,
    ) -> Result<Obstacles, Blocked> {
        let name = &spec.name;
        let template =
            template.ok_or_else(|| format!("service {name:?} not found in compose project"))?;
        let owner = (deployment.name.as_str(), spec.name.as_str());
        let rows = self.rows.get(&owner).cloned().unwrap_or_default();
        let secrets_version = self.state.secrets_version(&deployment.name, spec);
        let finished = template.finished(self.state, &rows, secrets_version);
        let subject = ServiceToPlace {
            deployment: &deployment.name,
            spec,
            stateful: template.stateful,
            finished: &finished,
        };
        let mut load = self.load.clone();
        let Placement {
            replicas: placed,
            shortage,
        } = placement::place(subject, &rows, &self.hosts, &mut load)?;
        if let Some(placed) = placed
            .iter()
            .find(|placed| self.is_taken(&placed.id, owner))
        {
            let id = placed.id.clone();
            return Err(Unplaceable::IdConflict { id }.into());
        }
        self.load = load;

        let wanted: BTreeSet<&str> = placed.iter().map(|placed| placed.id.as_str()).collect();
        let surplus: Vec<(&str, &str)> = rows
            .iter()
            .filter(|(id, _)| !wanted.contains(*id))
            .map(|(id, row)| (*id, row.host.as_str()))
            .collect();
        let mut moving = self.moving(&placed, &rows);
        for placed in &placed {
            let row = rows.get(placed.id.as_str()).copied();
            let mut host = placed.host.as_str();
            if let Some(row) = row.filter(|row| self.leaves_serving_host(row, placed)) {
                if moving.is_empty() || moving.contains(placed.id.as_str()) {
                    moving.insert(&placed.id);
                } else {
                    // It waits, and is changed where it is.
                    host = &row.host;
                }
            }
            let changed = row.is_none_or(|row| {
                row.host != host
                    || !template.is_of(row, secrets_version) && due.contains(name, &placed.id)
            });
            if changed || rearm::is_due(self.state, deployment, &placed.id) {
                let replica = v1::ReplicaDesired {
                    secrets_version,
                    ..self.replica(owner, placed, host, row, template)
                };
                self.upsert(owner, replica);
            }
        }
        for (id, host) in surplus {
            self.remove(id, host);
        }
        let stuck = |placed: Placed| Some((placed.stuck?, placed.host, placed.id));
        Ok(Obstacles {
            stuck: placed.into_iter().filter_map(stuck).collect(),
            shortage,
        })
    }

    fn is_taken(&self, id: &str, owner: (&str, &str)) -> bool {
        let row = self.state.replicas_desired.get(id);
        row.is_some_and(|row| (row.deployment.as_str(), row.service.as_str()) != owner)
            || self.issued.get(id).is_some_and(|by| *by != owner)
    }

    fn replica(
        &self,
        (deployment, service): (&str, &str),
        placed: &Placed,
        host: &str,
        row: Option<&v1::ReplicaDesired>,
        template: &Template,
    ) -> v1::ReplicaDesired {
        v1::ReplicaDesired {
            id: placed.id.clone(),
            deployment: deployment.to_owned(),
            service: service.to_owned(),
            index: placed.index,
            host: host.to_owned(),
            image: template.image.clone(),
            raft_index: 0, // set by the apply
            spec_hash: template.spec_hash.clone(),
            files: template.files.clone(),
            previous_host: row
                .and_then(|row| self.previous_host(row, host))
                .unwrap_or_default()
                .to_owned(),
            secrets_version: 0,
        }
    }

    /// Host that serves until `row` runs on `host`, if it is another one: the previous host while
    /// the row has not run on its present one, else the present one, unless its container there has
    /// spent its restart budget.
    fn previous_host<'r>(&self, row: &'r v1::ReplicaDesired, host: &str) -> Option<&'r str> {
        let runs = moves::has_arrived(self.state, row);
        let spent = moves::is_exhausted(self.state, row);
        let serving = if !runs && self.hosts.serves(&row.previous_host) {
            Some(row.previous_host.as_str())
        } else {
            let left = row.host.as_str();
            (!spent && self.hosts.serves(left)).then_some(left)
        };
        serving.filter(|serving| *serving != host)
    }

    /// Ids of the replicas for which the others wait before they leave a host that serves them.
    ///
    /// The replicas of a service move one at a time: an ingress that follows the state late, or a
    /// new container that does not come up, then never concerns more than one. A move that has
    /// stopped, or whose new host is out of contact, does not hold up the others: its previous host
    /// serves on.
    fn moving<'p>(
        &self,
        placed: &'p [Placed],
        rows: &BTreeMap<&str, &v1::ReplicaDesired>,
    ) -> BTreeSet<&'p str> {
        let is_moving = |placed: &&Placed| {
            let row = rows.get(placed.id.as_str());
            row.is_some_and(|row| {
                let goes_on = row.host != placed.host
                    || self.hosts.accepts(&row.host) && !moves::is_stopped(self.state, row);
                self.hosts.serves(&row.previous_host)
                    && !moves::has_arrived(self.state, row)
                    && goes_on
            })
        };
        let moving = placed.iter().filter(is_moving);
        moving.map(|placed| placed.id.as_str()).collect()
    }

    /// Whether a container of `row` may serve on the host that it leaves for its new place. None does
    /// before the first report.
    fn leaves_serving_host(&self, row: &v1::ReplicaDesired, placed: &Placed) -> bool {
        row.host != placed.host
            && self.hosts.serves(&row.host)
            && self.state.replicas_observed.contains_key(&row.id)
            && !moves::is_exhausted(self.state, row)
    }

    fn upsert(&mut self, owner: (&'a str, &'a str), replica: v1::ReplicaDesired) {
        let id = replica.id.clone();
        self.push(Payload::ReplicaDesiredUpsert(v1::ReplicaDesiredUpsert {
            replica: Some(replica),
        }));
        // A re-issued replica starts with a full restart budget.
        if self.state.restart_counters.contains_key(&id) {
            let reset = Payload::RestartCounterUpdate(v1::RestartCounterUpdate {
                replica_id: id.clone(),
                action: v1::restart_counter_update::Action::Reset.into(),
            });
            self.children
                .push_with_last(command(IDENTITY, self.ts, reset));
        }
        self.issued.insert(id, owner);
    }

    /// Updates the status if it differs from the current one.
    fn status(&mut self, deployment: &v1::Deployment, blocked: Option<Blocked>) {
        let (status, details) = match blocked {
            None => (DeploymentStatus::Active, BTreeMap::new()),
            Some(Blocked(details)) => (DeploymentStatus::Pending, details),
        };
        if deployment.status() == status && deployment.status_details == details {
            return;
        }
        self.push(Payload::DeploymentStatusUpdate(
            v1::DeploymentStatusUpdate {
                deployment: deployment.name.clone(),
                status: status.into(),
                details,
            },
        ));
    }
}
