//! Metrics of certificates.

use std::{
    collections::BTreeSet,
    fmt,
    sync::OnceLock,
    time::{SystemTime, UNIX_EPOCH},
};

use jaco_state::State;
use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};

use super::series::{Outcomes, Series};

/// Domain and environment.
type Key = (String, &'static str);
/// Returns each domain that a certificate is presented for, and the end of its validity.
type Served = Box<dyn Fn() -> Vec<(String, SystemTime)> + Send + Sync>;

/// Attempts to obtain certificates, and the ends of those that this node presents.
pub(super) struct Certificates {
    attempts: Series<Key, Outcomes>,
    served: OnceLock<Served>,
}

impl Certificates {
    pub(super) fn new() -> Self {
        Self {
            attempts: Series::new(),
            served: OnceLock::new(),
        }
    }

    pub(super) fn count(&self, domain: &str, environment: &'static str, ok: bool) {
        let outcomes = self.attempts.of((domain.to_ascii_lowercase(), environment));
        outcomes.count(ok);
    }

    /// Sets the source of the expiry times; later calls have no effect.
    pub(super) fn watch(&self, served: Served) {
        let _ = self.served.set(served);
    }

    pub(super) fn sweep(&self, state: &State) {
        let routes = state.routes.values();
        let domains: BTreeSet<_> = routes.map(|r| r.domain.to_ascii_lowercase()).collect();
        self.attempts.sweep(|(domain, _)| domains.contains(domain));
    }

    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let all = self.attempts.all();
        if !all.is_empty() {
            let help = "Attempts to obtain a certificate that are in the audit trail.";
            let mut family =
                encoder.encode_descriptor("cert_renewals", help, None, MetricType::Counter)?;
            for ((domain, environment), outcomes) in &all {
                for (result, count) in outcomes.by_result() {
                    let labels = [
                        ("domain", domain.as_str()),
                        ("environment", environment),
                        ("result", result),
                    ];
                    count.encode(family.encode_family(&labels)?)?;
                }
            }
        }
        let served = self.served.get().map_or_else(Vec::new, |served| served());
        if !served.is_empty() {
            let help = "End of the validity of the certificate chosen for a domain.";
            let name = "cert_expiry_timestamp_seconds";
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (domain, end) in served {
                let end = end.duration_since(UNIX_EPOCH).unwrap_or_default();
                let end = i64::try_from(end.as_secs()).unwrap_or(i64::MAX);
                let labels = [("domain", domain.as_str())];
                ConstGauge::new(end).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
