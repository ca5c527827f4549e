//! Further interfaces of this host's containers on several networks.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use imbl::ordmap::DiffItem;
use jaco_proto::v1::ReplicaObserved;
use jaco_state::State;

use super::{
    local::LocalReports,
    ruleset::{Attachment, Ruleset, Span},
};
use crate::network::{names::NetworkId, reported};

/// Index of the running containers of one host that are on several networks.
#[derive(Clone, Debug, Default)]
pub(super) struct Attachments {
    host: String,
    reports: LocalReports,
    /// Addresses that a row may lead out; `None`: all. See [`Attachments::trust_rows_of`].
    trusted: Option<Vec<Span>>,
    /// Each replica that has more than one network.
    replicas: BTreeMap<String, Attached>,
    /// Bridges that the engine's networks are known to have.
    bridges: BTreeMap<NetworkId, String>,
}

/// Networks of one container.
#[derive(Clone, Debug, PartialEq)]
struct Attached {
    addresses: BTreeMap<NetworkId, Ipv4Addr>,
    /// Log index of the row that the report is about.
    raft_index: u64,
}

impl Attachments {
    /// Indexes a whole state.
    pub(super) fn of(host: &str, state: &State) -> Self {
        let mut this = Self {
            host: host.to_owned(),
            ..Self::default()
        };
        this.handle_state(&State::default(), state);
        this
    }

    /// Changes the index of state `before` into that of `after`; returns whether it has changed. The
    /// cost follows what changed.
    pub(super) fn handle_state(&mut self, before: &State, after: &State) -> bool {
        if before.replicas_observed.ptr_eq(&after.replicas_observed) {
            return false;
        }
        let mut changed = false;
        for item in before.replicas_observed.diff(&after.replicas_observed) {
            let (DiffItem::Add(id, _)
            | DiffItem::Update { new: (id, _), .. }
            | DiffItem::Remove(id, _)) = item;
            changed |= self.index(after, id);
        }
        changed
    }

    /// Handles the reports of this host's replicas; returns whether an attachment has changed.
    pub(super) fn handle_reports(&mut self, state: &State, reports: LocalReports) -> bool {
        let before = std::mem::replace(&mut self.reports, reports);
        let after = self.reports.clone();
        let mut changed = false;
        for id in before.changed(&after) {
            changed |= self.index(state, id);
            changed |=
                self.trusted.is_some() && before.get(id).is_none() && after.get(id).is_some();
        }
        changed
    }

    /// Lets containers out by reports of this process, or by rows whose addresses the table of the process
    /// before led out. After a boot there is no such table, the rows show the addresses of containers that
    /// have ended, and the engine gives them to those that start first; a row of before the boot stays
    /// while its container is not started again.
    pub(super) fn trust_rows_of(&mut self, found: Option<&Ruleset>) {
        self.trusted = Some(found.map(Ruleset::outbound).unwrap_or_default().to_vec());
    }

    /// Whether the addresses of a replica count where it may have ended.
    fn is_trusted(&self, id: &str, attached: &Attached) -> bool {
        let is_led_out = |address: &Ipv4Addr| {
            let mut trusted = self.trusted.iter().flatten();
            trusted.any(|span| (span.first..=span.last).contains(&u32::from(*address)))
        };
        self.trusted.is_none()
            || self.reports.get(id).is_some()
            || attached.addresses.values().any(is_led_out)
    }

    /// Indexes one replica again; returns whether that changed it.
    fn index(&mut self, state: &State, id: &str) -> bool {
        let row = state.replicas_observed.get(id).map(AsRef::as_ref);
        let row = self.reports.get(id).or(row);
        let row = row.filter(|row| row.host == self.host);
        let attached = row.map(|row| Attached {
            addresses: networks(state, row),
            raft_index: row.desired_raft_index,
        });
        match attached.filter(|attached| attached.addresses.len() > 1) {
            Some(attached) => {
                let known = self.replicas.insert(id.to_owned(), attached.clone());
                known != Some(attached)
            }
            None => self.replicas.remove(id).is_some(),
        }
    }

    /// Handles the bridges of the engine's networks; returns whether that changed an attachment.
    pub(super) fn handle_bridges(&mut self, bridges: &BTreeMap<NetworkId, String>) -> bool {
        let known = self.bridges == *bridges;
        let before = (!known).then(|| self.rendered());
        self.bridges.clone_from(bridges);
        before.is_some_and(|before| before != self.rendered())
    }

    /// The attachments, sorted.
    pub(super) fn rendered(&self) -> Vec<Attachment> {
        let mut found = BTreeSet::new();
        for Attached { addresses, .. } in self.replicas.values() {
            for (network, address) in addresses {
                let others = addresses.keys().filter(|other| *other != network);
                found.extend(
                    others
                        .flat_map(|other| self.interfaces(other))
                        .map(|interface| Attachment {
                            address: *address,
                            interface,
                        }),
                );
            }
        }
        found.into_iter().collect()
    }

    /// Addresses in `internal` networks of containers that are also on another network, sorted.
    ///
    /// A container whose row was issued anew does not count: the next one, which may be on the internal
    /// network only, can get its address before a report shows it.
    pub(super) fn outbound(&self, state: &State, internal: &BTreeSet<NetworkId>) -> Vec<Ipv4Addr> {
        let mut found = BTreeSet::new();
        let replicas = self.replicas.iter();
        for (_, attached) in replicas.filter(|(id, attached)| {
            self.is_trusted(id, attached) && self.is_current(state, id, attached)
        }) {
            let (confined, others): (Vec<_>, Vec<_>) = attached
                .addresses
                .iter()
                .partition(|(network, _)| internal.contains(*network));
            if !others.is_empty() {
                found.extend(confined.into_iter().map(|(_, address)| *address));
            }
        }
        found.into_iter().collect()
    }

    /// Whether a row with several networks was issued anew, or removed, between two states.
    pub(super) fn any_reissued(&self, before: &State, after: &State) -> bool {
        let is_current =
            |state, (id, attached): (&String, &Attached)| self.is_current(state, id, attached);
        let mut replicas = self.replicas.iter();
        !before.replicas_desired.ptr_eq(&after.replicas_desired)
            && replicas.any(|one| is_current(before, one) != is_current(after, one))
    }

    /// Whether a report is about the present row of its replica.
    fn is_current(&self, state: &State, id: &str, attached: &Attached) -> bool {
        let row = state.replicas_desired.get(id);
        row.is_some_and(|row| row.host == self.host && attached.raft_index >= row.raft_index)
    }

    /// The bridge of a network, or the names that it can have until its network is listed.
    fn interfaces(&self, network: &NetworkId) -> Vec<String> {
        match self.bridges.get(network) {
            Some(bridge) => vec![bridge.clone()],
            None => vec![network.bridge_name(), network.fallback_bridge_name()],
        }
    }
}

/// Networks and addresses of a replica whose container may run.
fn networks(state: &State, row: &ReplicaObserved) -> BTreeMap<NetworkId, Ipv4Addr> {
    let Some(desired) = state.replicas_desired.get(&row.id) else {
        return BTreeMap::new();
    };
    let known = |(name, address)| {
        let network = NetworkId::of_engine_name(&desired.deployment, name)?;
        Some((network, address))
    };
    reported::addresses(row).filter_map(known).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jaco_proto::v1::{ReplicaDesired, ReplicaState};

    use super::*;
    use jaco_engine::cidr::Cidr;

    use crate::network::firewall::ruleset::HostInputs;

    const BOTH: &[(&str, [u8; 4])] = &[("front", [10, 244, 1, 2]), ("_default", [10, 244, 2, 2])];

    fn put(state: &mut State, id: &str, host: &str, networks: &[(&str, [u8; 4])]) {
        let desired = ReplicaDesired {
            id: id.to_owned(),
            deployment: "app".to_owned(),
            host: host.to_owned(),
            ..Default::default()
        };
        state
            .replicas_desired
            .insert(id.to_owned(), Arc::new(desired));
        let details = networks.iter().map(|(network, address)| {
            let address = Ipv4Addr::from(*address).to_string();
            (format!("ip.jaco_app_{network}"), address)
        });
        let observed = ReplicaObserved {
            id: id.to_owned(),
            host: host.to_owned(),
            state: ReplicaState::Running.into(),
            details: details.collect(),
            ..Default::default()
        };
        state
            .replicas_observed
            .insert(id.to_owned(), Arc::new(observed));
    }

    fn shown(attachments: &Attachments) -> Vec<String> {
        let rendered = attachments.rendered();
        rendered.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn internal_addresses_lead_out_beside_another_network() {
        let mut state = State::default();
        put(&mut state, "a", "n1", BOTH);
        put(&mut state, "b", "n1", &[("front", [10, 244, 1, 3])]);
        put(&mut state, "c", "n2", BOTH);
        let index = Attachments::of("n1", &state);
        let found = |names: &[&str]| {
            let networks = names.iter().map(|name| NetworkId::new("app", *name));
            index.outbound(&state, &networks.collect())
        };
        assert_eq!(found(&["front"]), [Ipv4Addr::new(10, 244, 1, 2)]);
        assert_eq!(found(&["_default"]), [Ipv4Addr::new(10, 244, 2, 2)]);
        assert_eq!(found(&["front", "_default"]), [Ipv4Addr::UNSPECIFIED; 0]);
        assert_eq!(found(&[]), [Ipv4Addr::UNSPECIFIED; 0]);
        let mut next = state.clone();
        let row = next.replicas_desired.get_mut("a").unwrap();
        Arc::make_mut(row).raft_index = 7;
        assert!(index.any_reissued(&state, &next) && !index.any_reissued(&next, &next));
        let front = BTreeSet::from([NetworkId::new("app", "front")]);
        assert_eq!(index.outbound(&next, &front), [Ipv4Addr::UNSPECIFIED; 0]);
    }

    #[test]
    fn containers_on_one_network_have_no_attachment() {
        let mut state = State::default();
        put(&mut state, "a", "n1", &BOTH[..1]);
        put(&mut state, "b", "n2", BOTH);
        assert_eq!(shown(&Attachments::of("n1", &state)), [""; 0]);
    }

    #[test]
    fn each_address_has_the_bridges_of_the_others() {
        let mut state = State::default();
        let empty = state.clone();
        put(&mut state, "a", "n1", BOTH);
        let mut index = Attachments::of("n1", &state);
        let network = |name| NetworkId::new("app", name);
        let (front, default) = (network("front"), network("_default"));
        let names = |id: &NetworkId| [id.bridge_name(), id.fallback_bridge_name()];
        let mut expected: Vec<_> = names(&default)
            .map(|name| format!("10.244.1.2@{name}"))
            .into();
        expected.extend(names(&front).map(|name| format!("10.244.2.2@{name}")));
        expected.sort();
        assert_eq!(shown(&index), expected);

        let bridges = BTreeMap::from([(front, "br1".to_owned()), (default, "br2".to_owned())]);
        assert!(index.handle_bridges(&bridges));
        assert!(!index.handle_bridges(&bridges));
        let listed = ["10.244.1.2@br2", "10.244.2.2@br1"];
        assert_eq!(shown(&index), listed);

        assert!(!index.handle_state(&state, &state.clone()));
        assert!(index.handle_state(&state, &empty));
        assert_eq!(shown(&index), [""; 0]);
    }

    #[test]
    fn local_report_counts_before_the_row() {
        let mut state = State::default();
        put(&mut state, "a", "n1", BOTH);
        let mut index = Attachments::of("n1", &state);
        let front = BTreeSet::from([NetworkId::new("app", "front")]);
        let mut reports = LocalReports::default();
        let mut report = state.replicas_observed["a"].as_ref().clone();
        reports.insert(report.clone());
        assert!(!index.handle_reports(&state, reports.clone()));
        assert_eq!(
            index.outbound(&state, &front),
            [Ipv4Addr::new(10, 244, 1, 2)]
        );

        report.state = ReplicaState::Failed.into();
        reports.insert(report);
        assert!(index.handle_reports(&state, reports.clone()));
        assert_eq!(index.outbound(&state, &front), [Ipv4Addr::UNSPECIFIED; 0]);
        let before = state.clone();
        let row = state.replicas_observed.get_mut("a").unwrap();
        Arc::make_mut(row).message = "late".to_owned();
        assert!(!index.handle_state(&before, &state));

        assert!(reports.remove("a") && !reports.remove("a"));
        assert!(index.handle_reports(&state, reports));
        assert_eq!(
            index.outbound(&state, &front),
            [Ipv4Addr::new(10, 244, 1, 2)]
        );
    }

    #[test]
    fn rows_of_before_a_boot_do_not_count() {
        let mut state = State::default();
        put(&mut state, "a", "n1", BOTH);
        put(&mut state, "b", "n1", BOTH);
        let mut index = Attachments::of("n1", &state);
        let front = BTreeSet::from([NetworkId::new("app", "front")]);
        index.trust_rows_of(None);
        assert_eq!(index.outbound(&state, &front), [Ipv4Addr::UNSPECIFIED; 0]);
        let before = state.clone();
        let row = state.replicas_observed.get_mut("a").unwrap();
        Arc::make_mut(row).message = "again".to_owned();
        assert!(!index.handle_state(&before, &state));

        let mut reports = LocalReports::default();
        reports.insert(state.replicas_observed["b"].as_ref().clone());
        assert!(index.handle_reports(&state, reports));
        assert_eq!(
            index.outbound(&state, &front),
            [Ipv4Addr::new(10, 244, 1, 2)]
        );
    }

    #[test]
    fn rows_count_as_the_former_table_let_them() {
        let mut state = State::default();
        put(&mut state, "a", "n1", BOTH);
        let mut index = Attachments::of("n1", &state);
        let front = BTreeSet::from([NetworkId::new("app", "front")]);
        let led_out = Ipv4Addr::new(10, 244, 1, 2);
        for (outbound, expected) in [
            (vec![led_out], vec![led_out]),
            (vec![Ipv4Addr::new(10, 244, 1, 3)], vec![]),
            (vec![], vec![]),
        ] {
            let block = Cidr::aligned(Ipv4Addr::new(10, 244, 1, 0).into(), 24);
            let inputs = HostInputs {
                outbound,
                retired: vec![block],
                confined: vec![Span::from(block)],
                ..HostInputs::default()
            };
            index.trust_rows_of(Some(&Ruleset::of_scopes(&[], &inputs)));
            assert_eq!(index.outbound(&state, &front), expected);
        }
    }

    #[test]
    fn address_of_an_ended_container_is_released() {
        let mut state = State::default();
        put(&mut state, "a", "n1", BOTH);
        let mut index = Attachments::of("n1", &state);
        for (ended, gone) in [
            (ReplicaState::Degraded, false),
            (ReplicaState::Stopped, true),
            (ReplicaState::Running, true),
            (ReplicaState::Failed, true),
        ] {
            let before = state.clone();
            let row = state.replicas_observed.get_mut("a").unwrap();
            Arc::make_mut(row).state = ended.into();
            assert_eq!(index.handle_state(&before, &state), gone, "{ended:?}");
        }
        assert_eq!(shown(&index), [""; 0]);
    }
}
