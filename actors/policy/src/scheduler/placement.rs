//! Assigns hosts to the replicas of a service.
//!
//! A pure function of the state: the same rows and members give the same result on every leader,
//! whatever passes came before. A placed replica keeps its host while the host is eligible or only
//! briefly unhealthy, or holds data of the replica; all other replicas are assigned hosts in index
//! order.

use std::collections::{BTreeMap, BTreeSet};

use jaco_proto::v1::{self, service_spec::PlacementMode};
use jaco_state::State;

mod hosts;
mod requirements;

pub use hosts::{HostEligibility, Hosts, Stuck};

/// Wanted replica and its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Replica id.
    pub id: String,
    /// Position within the service.
    pub index: i32,
    /// Assigned host.
    pub host: String,
    /// Reason why the replica cannot run properly on this host but is not moved.
    pub stuck: Option<Stuck>,
}

/// Replicas of a service with their hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Replicas that have a host, by index.
    pub replicas: Vec<Placed>,
    /// Reason why others have none.
    pub shortage: Option<Unplaceable>,
}

/// Reason why a service cannot be placed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unplaceable {
    /// Replicas are wanted, but no host is eligible.
    #[error("service {service:?}: no eligible hosts{wants}")]
    NoEligibleHosts {
        /// Service of the deployment.
        service: String,
        /// Requirements of the service, after a space; empty if it has none.
        wants: String,
    },
    /// A host may have a limited number of replicas, and there are too few eligible ones.
    #[error(
        "service {service:?}: only {eligible} eligible host(s) but {replicas} replicas \
         requested{wants}"
    )]
    TooFewHosts {
        /// Service of the deployment.
        service: String,
        /// Hosts that are eligible.
        eligible: usize,
        /// Replicas requested.
        replicas: usize,
        /// Requirements of the service, after a space; empty if it has none.
        wants: String,
    },
    /// The id already belongs to another service.
    #[error("replica_id_conflict: {id}")]
    IdConflict {
        /// Id wanted by both services.
        id: String,
    },
}

/// Service of a deployment, as input of placement.
#[derive(Clone, Copy, Debug)]
pub struct ServiceToPlace<'a> {
    /// Deployment name.
    pub deployment: &'a str,
    /// Scheduling settings.
    pub spec: &'a v1::ServiceSpec,
    /// The service keeps data on its host, so a replica never moves while its host is a member.
    pub stateful: bool,
    /// Ids of its replicas that have finished: they stay where they ended, also when their host is
    /// gone, since a move would run them again.
    pub finished: &'a BTreeSet<&'a str>,
}

/// Number of replicas per host over all services, updated during a pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaCounts(BTreeMap<String, usize>);

impl ReplicaCounts {
    /// Counts the rows of `state`.
    #[must_use]
    pub fn of(state: &State) -> Self {
        let mut load = Self::default();
        for row in state.replicas_desired.values() {
            load.add(&row.host);
        }
        load
    }

    /// Adds one replica on `host`.
    pub fn add(&mut self, host: &str) {
        match self.0.get_mut(host) {
            Some(count) => *count += 1,
            None => {
                self.0.insert(host.to_owned(), 1);
            }
        }
    }

    /// Removes one replica from `host`.
    pub fn remove(&mut self, host: &str) {
        if let Some(count) = self.0.get_mut(host) {
            *count = count.saturating_sub(1);
        }
    }

    fn on(&self, host: &str) -> usize {
        self.0.get(host).copied().unwrap_or(0)
    }
}

/// Id of replica `index` in every mode except `global`.
#[must_use]
pub fn positional_id(deployment: &str, service: &str, index: usize) -> String {
    format!("{deployment}-{service}-{index}")
}

/// Id of the replica on `host` in `global` mode.
#[must_use]
pub fn global_id(deployment: &str, service: &str, host: &str) -> String {
    let host: String = host
        .chars()
        .flat_map(|c| {
            let kept = c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
            // One dash per byte preserves the length of the host name.
            std::iter::repeat_n(if kept { c } else { '-' }, c.len_utf8())
        })
        .collect();
    format!("{deployment}-{service}-{host}")
}

/// 32-bit FNV-1a over the UTF-8 bytes.
#[must_use]
pub fn fnv1a32(text: &str) -> u32 {
    text.bytes().fold(2_166_136_261, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(16_777_619)
    })
}

/// Places every wanted replica of one service, in index order.
///
/// `rows` are the current rows of this service by id. `load` counts the replicas of all services
/// and is updated with these placements.
///
/// # Errors
/// [`Unplaceable`] if the service cannot be placed as a whole; `load` is then unchanged, and the
/// rows should be too.
pub fn place(
    subject: ServiceToPlace<'_>,
    rows: &BTreeMap<&str, &v1::ReplicaDesired>,
    hosts: &Hosts,
    load: &mut ReplicaCounts,
) -> Result<Placement, Unplaceable> {
    let spec = subject.spec;
    let eligible = || {
        let eligible = hosts.eligible().iter().map(String::as_str);
        eligible.filter(|host| hosts.fit(spec, host))
    };
    match subject.spec.placement() {
        PlacementMode::Global => global(subject, rows, hosts, load),
        PlacementMode::Hosts => {
            let listed: BTreeSet<&str> = subject.spec.hosts.iter().map(String::as_str).collect();
            let field = Candidates {
                hosts,
                spec,
                eligible: eligible().filter(|host| listed.contains(host)).collect(),
                listed: Some(&listed),
            };
            positional(subject, rows, &field, load, pinned)
        }
        PlacementMode::Pack => {
            let field = Candidates {
                hosts,
                spec,
                eligible: eligible().collect(),
                listed: None,
            };
            let counts = count(rows.values().map(|row| row.host.as_str()));
            positional(subject, rows, &field, load, |want| packed(want, &counts))
        }
        PlacementMode::Unspecified | PlacementMode::Spread => {
            let field = Candidates {
                hosts,
                spec,
                eligible: eligible().collect(),
                listed: None,
            };
            positional(subject, rows, &field, load, spread)
        }
    }
}

/// Hosts on which the replicas of one service may run.
struct Candidates<'a> {
    hosts: &'a Hosts,
    spec: &'a v1::ServiceSpec,
    /// Hosts eligible for new replicas, sorted.
    eligible: Vec<&'a str>,
    /// Only hosts allowed, if the service lists them.
    listed: Option<&'a BTreeSet<&'a str>>,
}

impl Candidates<'_> {
    /// Eligibility of a host that may keep its replicas; `None` if it may not or is not a member.
    fn eligibility(&self, host: &str) -> Option<HostEligibility> {
        let allowed = self.listed.is_none_or(|listed| listed.contains(host))
            && self.hosts.fit(self.spec, host);
        self.hosts.eligibility(host).filter(|_| allowed)
    }

    /// Replicas that a host may have at most, unless the hosts are listed.
    fn limit(&self) -> Option<usize> {
        let limit = usize::try_from(self.spec.max_replicas_per_node).ok();
        limit.filter(|limit| *limit > 0 && self.listed.is_none())
    }

    /// Decides whether a replica keeps `host` without considering alternatives: `None` if it does
    /// not, else why it is stuck there, if it is.
    fn keeps_host(&self, host: &str, stateful: bool) -> Option<Option<Stuck>> {
        match self.eligibility(host)? {
            HostEligibility::Eligible | HostEligibility::Cordoned | HostEligibility::Suspect => {
                Some(None)
            }
            eligibility @ (HostEligibility::Evacuating(_) | HostEligibility::Down) if stateful => {
                Some(eligibility.stuck())
            }
            HostEligibility::Evacuating(_) | HostEligibility::Down => None,
        }
    }
}

/// Input for choosing the host of one replica.
struct PlacementRequest<'a> {
    id: &'a str,
    index: usize,
    eligible: &'a [&'a str],
    /// Replicas of this service by host: kept ones and those placed so far.
    taken: &'a BTreeMap<&'a str, usize>,
    /// Replicas of this service that a host may have at most.
    limit: Option<usize>,
    load: &'a ReplicaCounts,
}

impl PlacementRequest<'_> {
    /// Positions of the hosts that may have another replica.
    fn free(&self) -> impl Iterator<Item = usize> {
        let limit = self.limit.unwrap_or(usize::MAX);
        let hosts = self.eligible.iter().enumerate();
        let free = hosts.filter(move |(_, host)| self.taken.get(*host).is_none_or(|n| *n < limit));
        free.map(|(at, _)| at)
    }
}

fn positional<'r>(
    subject: ServiceToPlace<'_>,
    rows: &BTreeMap<&'r str, &'r v1::ReplicaDesired>,
    field: &Candidates<'r>,
    load: &mut ReplicaCounts,
    choose: impl Fn(&PlacementRequest<'_>) -> Option<usize>,
) -> Result<Placement, Unplaceable> {
    let limit = field.limit();
    let replicas = usize::try_from(subject.spec.replicas).unwrap_or(0);
    let ids: Vec<String> = (0..replicas)
        .map(|index| positional_id(subject.deployment, &subject.spec.name, index))
        .collect();
    // Kept replicas are determined first, so that new placements do not depend on the index order.
    let mut taken = BTreeMap::new();
    let kept: Vec<Option<(&'r str, Option<Stuck>)>> = ids
        .iter()
        .map(|id| {
            let host = rows.get(id.as_str())?.host.as_str();
            let stuck = match subject.finished.contains(id.as_str()) {
                true => None,
                false => field.keeps_host(host, subject.stateful)?,
            };
            let on_host = taken.entry(host).or_insert(0);
            if !subject.stateful
                && !subject.finished.contains(id.as_str())
                && limit.is_some_and(|limit| *on_host >= limit)
            {
                return None;
            }
            *on_host += 1;
            Some((host, stuck))
        })
        .collect();
    let mut shortage = None;
    let mut moved = load.clone();
    let mut placed = Vec::with_capacity(replicas);
    for (index, (id, kept)) in ids.into_iter().zip(kept).enumerate() {
        let (host, stuck) = match kept {
            Some(kept) => kept,
            None => {
                let row = rows.get(id.as_str());
                let want = PlacementRequest {
                    id: &id,
                    index,
                    eligible: &field.eligible,
                    taken: &taken,
                    limit,
                    load: &moved,
                };
                let found = choose(&want).and_then(|at| field.eligible.get(at).copied());
                let (host, stuck) = match (found, row) {
                    (Some(host), _) => (host, None),
                    (None, row) if limit.is_some() && !field.eligible.is_empty() => {
                        shortage = Some(unplaceable(subject, field));
                        // It stays where it is, if it may.
                        match row.and_then(|row| Some((row, field.eligibility(&row.host)?))) {
                            Some((row, eligibility)) => (row.host.as_str(), eligibility.stuck()),
                            None => continue,
                        }
                    }
                    (None, Some(row)) => {
                        (row.host.as_str(), Some(stuck_reason(subject, field, row)?))
                    }
                    (None, None) => return Err(unplaceable(subject, field)),
                };
                *taken.entry(host).or_default() += 1;
                if let Some(row) = row {
                    moved.remove(&row.host);
                }
                moved.add(host);
                (host, stuck)
            }
        };
        placed.push(Placed {
            index: i32::try_from(index).unwrap_or(i32::MAX),
            host: host.to_owned(),
            id,
            stuck,
        });
    }
    *load = moved;
    Ok(Placement {
        replicas: placed,
        shortage,
    })
}

/// Returns why a replica of a service with listed hosts stays although no listed host can take it.
fn stuck_reason(
    subject: ServiceToPlace<'_>,
    field: &Candidates<'_>,
    row: &v1::ReplicaDesired,
) -> Result<Stuck, Unplaceable> {
    let pinned = field.listed.is_some();
    let eligibility = field.eligibility(&row.host).filter(|_| pinned);
    eligibility
        .and_then(HostEligibility::stuck)
        .ok_or_else(|| unplaceable(subject, field))
}

fn unplaceable(subject: ServiceToPlace<'_>, field: &Candidates<'_>) -> Unplaceable {
    let service = subject.spec.name.clone();
    let wants = requirements::described(subject.spec);
    if field.eligible.is_empty() {
        return Unplaceable::NoEligibleHosts { service, wants };
    }
    Unplaceable::TooFewHosts {
        service,
        wants,
        eligible: field.eligible.len(),
        replicas: usize::try_from(subject.spec.replicas).unwrap_or(0),
    }
}

/// Prefers fewest replicas of this service, then fewest in total, then the highest rendezvous
/// weight.
fn spread(want: &PlacementRequest<'_>) -> Option<usize> {
    let rank = |host: &str| {
        let weight = fnv1a32(&format!("{host}/{}", want.id));
        let own = want.taken.get(host).copied().unwrap_or(0);
        (own, want.load.on(host), std::cmp::Reverse(weight))
    };
    // `min_by_key` returns the first minimum, and the hosts are sorted.
    want.free()
        .min_by_key(|&at| want.eligible.get(at).map(|host| rank(host)))
}

/// Prefers fewest replicas of this service at the beginning of the pass, so that all new replicas
/// of a pass share a host.
fn packed(want: &PlacementRequest<'_>, at_start: &BTreeMap<&str, usize>) -> Option<usize> {
    want.free().min_by_key(|&at| {
        want.eligible
            .get(at)
            .map(|host| at_start.get(host).copied().unwrap_or(0))
    })
}

/// Chooses the host at the replica's index, or the next one without a replica of the service.
fn pinned(want: &PlacementRequest<'_>) -> Option<usize> {
    let hosts = want.eligible.len();
    let free = |at: &usize| {
        want.eligible
            .get(*at)
            .is_some_and(|host| !want.taken.contains_key(host))
    };
    let start = want.index.checked_rem(hosts)?;
    (0..hosts)
        .map(|step| (start + step) % hosts)
        .find(|at| free(at))
}

/// Places one replica on each eligible host that fits. A cordoned, unhealthy or offline host keeps its
/// replica, which continues there once the host is back.
fn global(
    subject: ServiceToPlace<'_>,
    rows: &BTreeMap<&str, &v1::ReplicaDesired>,
    hosts: &Hosts,
    load: &mut ReplicaCounts,
) -> Result<Placement, Unplaceable> {
    let spec = subject.spec;
    let keeps = |row: &&&v1::ReplicaDesired| match hosts.eligibility(&row.host) {
        Some(HostEligibility::Cordoned | HostEligibility::Suspect | HostEligibility::Down) => {
            row.id == global_id(subject.deployment, &subject.spec.name, &row.host)
        }
        Some(HostEligibility::Eligible | HostEligibility::Evacuating(_)) | None => false,
    };
    let kept = rows.values().filter(keeps).map(|row| row.host.as_str());
    let wanted: BTreeSet<&str> = kept
        .chain(hosts.eligible().iter().map(String::as_str))
        .filter(|host| hosts.fit(spec, host))
        .collect();
    let wants = requirements::described(spec);
    let shortage = (wanted.is_empty() && !wants.is_empty()).then(|| Unplaceable::NoEligibleHosts {
        service: spec.name.clone(),
        wants,
    });
    let mut placed = Vec::with_capacity(wanted.len());
    let mut ids = BTreeSet::new();
    for (index, host) in wanted.into_iter().enumerate() {
        let id = global_id(subject.deployment, &subject.spec.name, host);
        if !ids.insert(id.clone()) {
            return Err(Unplaceable::IdConflict { id });
        }
        placed.push(Placed {
            index: i32::try_from(index).unwrap_or(i32::MAX),
            host: host.to_owned(),
            id,
            stuck: None,
        });
    }
    for new in &placed {
        match rows.get(new.id.as_str()) {
            Some(row) if row.host == new.host => {}
            Some(row) => {
                load.remove(&row.host);
                load.add(&new.host);
            }
            None => load.add(&new.host),
        }
    }
    Ok(Placement {
        replicas: placed,
        shortage,
    })
}

fn count<'a>(hosts: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, usize> {
    let mut counts = BTreeMap::new();
    for host in hosts {
        *counts.entry(host).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests;
