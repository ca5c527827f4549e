//! Surveys of the networks in the engine of one node, for its firewall.

use std::sync::Arc;

use jaco_policy::network::{bridge::survey::DEBOUNCE, firewall::local::LocalNetworks};

use super::{
    cluster::{Cluster, Local},
    time::{MS, Time},
};

/// Duration of a survey.
const TAKES: Time = 20 * MS;

impl Cluster {
    /// Surveys the networks of node `id` soon, because one was removed.
    pub(super) fn schedule_survey(&mut self, id: u64) {
        let soon = Time::try_from(DEBOUNCE.as_micros()).unwrap_or(0);
        self.schedule_local(id, soon, Local::Survey);
    }

    /// Begins a survey of node `id`: it shows the networks of this moment.
    pub(super) fn survey(&mut self, id: u64) {
        let now = self.now;
        let Some(machine) = self.machines.get(&id).filter(|m| !m.engine.away) else {
            return;
        };
        let networks = machine.engine.networks().iter();
        let local = LocalNetworks {
            begun: machine.clock.instant(now),
            blocks: networks
                .map(|(network, block)| (Some(network.clone()), *block))
                .collect(),
            bridges: machine
                .engine
                .networks()
                .keys()
                .map(|network| (network.clone(), network.bridge_name()))
                .collect(),
        };
        self.schedule_local(id, TAKES, Local::Surveyed(Arc::new(local)));
    }

    /// Hands the outcome of a survey to the firewall of node `id`.
    pub(super) fn surveyed(&mut self, id: u64, local: Arc<LocalNetworks>) {
        if let Some(daemon) = self.daemon(id) {
            daemon.isolation.local = Some(Arc::clone(&local));
        }
        self.drive_isolation(id, |core, now| core.handle_local(now, local));
    }
}
