//! Metrics of requests through the ingress.

use std::{collections::BTreeSet, fmt, sync::Arc};

use http::Version;
use jaco_net::ingress::{Finished, Meter};
use jaco_state::State;
use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::Counter, histogram::Histogram},
};

use super::{metrics::buckets, series::Series};

/// Label of all hosts that no route declares: client-chosen names must not create series.
const UNKNOWN: &str = "_unknown";
const CODES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
const PROTOS: [&str; 4] = ["http/1.0", "http/1.1", "http/2", "http/3"];

/// Domain and service.
type Key = (String, String);

/// Metrics of requests, by domain and service, and of refused ones, by deployment and service.
#[derive(Debug)]
pub(super) struct Routes {
    requests: Series<Key, Requests>,
    limited: Series<Key, Counter>,
}

impl Routes {
    pub(super) fn new() -> Self {
        Self {
            requests: Series::new(),
            limited: Series::new(),
        }
    }

    pub(super) fn meter(&self, domain: Option<&str>, service: &str) -> Arc<Requests> {
        let domain = domain.unwrap_or(UNKNOWN).to_owned();
        self.requests.of((domain, service.to_owned()))
    }

    /// Counts a request that was refused because its client is beyond a limit.
    pub(super) fn count_limited(&self, deployment: &str, service: &str) {
        let key = (deployment.to_owned(), service.to_owned());
        self.limited.of(key).inc();
    }

    pub(super) fn sweep(&self, state: &State) {
        let routes = || state.routes.values();
        let domains: BTreeSet<_> = routes().map(|r| r.domain.to_ascii_lowercase()).collect();
        let served: BTreeSet<Key> = routes()
            .map(|r| (r.domain.to_ascii_lowercase(), r.service.clone()))
            .collect();
        let owners: BTreeSet<Key> = routes()
            .map(|r| (r.deployment.clone(), r.service.clone()))
            .collect();
        self.limited.sweep(|key| owners.contains(key));
        self.requests.sweep(|key| {
            let (domain, service) = key;
            domain == UNKNOWN
                || served.contains(key)
                || (service.is_empty() && domains.contains(domain))
        });
    }

    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let all = self.requests.all();
        let help = "Finished requests.";
        let mut family =
            encoder.encode_descriptor("ingress_requests", help, None, MetricType::Counter)?;
        for ((domain, service), requests) in &all {
            for (code, counts) in CODES.iter().zip(&requests.counts) {
                for (proto, count) in PROTOS.iter().zip(counts) {
                    if count.get() == 0 {
                        continue;
                    }
                    let labels = [
                        ("domain", domain.as_str()),
                        ("service", service),
                        ("code", code),
                        ("proto", proto),
                    ];
                    count.encode(family.encode_family(&labels)?)?;
                }
            }
        }
        let help = "From the head of a request to the end of its response.";
        let mut family = encoder.encode_descriptor(
            "ingress_duration_seconds",
            help,
            None,
            MetricType::Histogram,
        )?;
        for ((domain, service), requests) in &all {
            let labels = [("domain", domain.as_str()), ("service", service)];
            requests.duration.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// Encodes the counts of refused requests, which are those of one node.
    pub(super) fn encode_limited(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let all = self.limited.all();
        if all.is_empty() {
            return Ok(());
        }
        let help = "Requests refused because their client is beyond a limit.";
        let mut family =
            encoder.encode_descriptor("ingress_limited", help, None, MetricType::Counter)?;
        for ((deployment, service), count) in &all {
            let labels = [
                ("deployment", deployment.as_str()),
                ("service", service.as_str()),
            ];
            count.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

/// Requests for one service of one domain.
#[derive(Debug)]
pub(super) struct Requests {
    counts: [[Counter; PROTOS.len()]; CODES.len()],
    duration: Histogram,
}

impl Default for Requests {
    fn default() -> Self {
        Self {
            counts: Default::default(),
            duration: buckets(),
        }
    }
}

impl Meter for Requests {
    fn finished(&self, finished: &Finished) {
        let class = usize::from(finished.status.as_u16() / 100).clamp(1, CODES.len()) - 1;
        let proto = match finished.version {
            Version::HTTP_09 | Version::HTTP_10 => 0,
            Version::HTTP_2 => 2,
            Version::HTTP_3 => 3,
            _ => 1, // the type is not exhaustive
        };
        self.counts[class][proto].inc();
        if let Some(took) = finished.took {
            self.duration.observe(took.as_secs_f64());
        }
    }
}
