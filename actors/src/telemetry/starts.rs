//! Metrics of container starts.

use std::fmt;

use jaco_state::State;
use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::MetricType,
};

use super::series::{Outcomes, Series};

/// Deployment and service.
type Key = (String, String);

/// Start attempts that reached the create request, by deployment and service.
#[derive(Debug)]
pub(super) struct Starts(Series<Key, Outcomes>);

impl Starts {
    pub(super) fn new() -> Self {
        Self(Series::new())
    }

    pub(super) fn count(&self, deployment: &str, service: &str, ok: bool) {
        let outcomes = self.0.of((deployment.to_owned(), service.to_owned()));
        outcomes.count(ok);
    }

    pub(super) fn sweep(&self, state: &State) {
        self.0.sweep(|(deployment, service)| {
            let found = state.deployments.get(deployment);
            found.is_some_and(|row| row.services.iter().any(|spec| spec.name == *service))
        });
    }

    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut family = encoder.encode_descriptor(
            "runtime_container_starts",
            "Attempts to start a container that reached its creation.",
            None,
            MetricType::Counter,
        )?;
        for ((deployment, service), outcomes) in self.0.all() {
            for (result, count) in outcomes.by_result() {
                let labels = [
                    ("deployment", deployment.as_str()),
                    ("service", &service),
                    ("result", result),
                ];
                count.encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
