//! Metric series that are dropped some time after their object is removed.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use prometheus_client::metrics::counter::Counter;

use crate::lock::lock;

/// Attempts by their result.
#[derive(Debug, Default)]
pub(super) struct Outcomes {
    ok: Counter,
    failed: Counter,
}

impl Outcomes {
    pub(super) fn count(&self, ok: bool) {
        if ok {
            self.ok.inc();
        } else {
            self.failed.inc();
        }
    }

    /// The counts and the values of the label `result`.
    pub(super) fn by_result(&self) -> [(&'static str, &Counter); 2] {
        [("ok", &self.ok), ("failed", &self.failed)]
    }
}

/// Metrics by key; [`Series::sweep`] drops those of removed objects.
#[derive(Debug)]
pub(super) struct Series<K, M>(Mutex<BTreeMap<K, Entry<M>>>);

#[derive(Debug)]
struct Entry<M> {
    metrics: Arc<M>,
    /// The object was missing at the last sweep.
    missing: bool,
}

impl<K: Ord + Clone, M: Default> Series<K, M> {
    pub(super) fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// Metrics of `key`, created at first use.
    pub(super) fn of(&self, key: K) -> Arc<M> {
        let mut entries = lock(&self.0);
        let entry = entries.entry(key).or_insert_with(|| Entry {
            metrics: Arc::default(),
            missing: false,
        });
        entry.metrics.clone()
    }

    /// All metrics in key order.
    pub(super) fn all(&self) -> Vec<(K, Arc<M>)> {
        let entries = lock(&self.0);
        entries
            .iter()
            .map(|(key, entry)| (key.clone(), entry.metrics.clone()))
            .collect()
    }

    /// Drops keys for which `exists` is false at two successive sweeps, so that a scrape still gets
    /// the last values, and an object that is replaced keeps its series.
    pub(super) fn sweep(&self, exists: impl Fn(&K) -> bool) {
        lock(&self.0).retain(|key, entry| {
            let missing = !exists(key);
            let twice = std::mem::replace(&mut entry.missing, missing) && missing;
            !twice
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_outlives_its_object_by_one_sweep() {
        let series = Series::<&str, u8>::new();
        let keys = || {
            series
                .all()
                .into_iter()
                .map(|(key, _)| key)
                .collect::<Vec<_>>()
        };
        for key in ["a", "b", "c"] {
            series.of(key);
        }
        series.sweep(|key| *key == "a");
        assert_eq!(keys(), ["a", "b", "c"]);
        series.sweep(|key| *key != "c"); // b exists again
        assert_eq!(keys(), ["a", "b"]);
        series.sweep(|key| *key == "a");
        assert_eq!(keys(), ["a", "b"], "b existed at the sweep in between");
        series.sweep(|key| *key == "a");
        assert_eq!(keys(), ["a"]);
    }
}
