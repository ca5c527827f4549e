//! Restart counts by kind of actor, over the life of a tree.

use std::{collections::BTreeMap, sync::Mutex};

use super::report::lock;

/// Restart counts of one kind of actor since the tree was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindRestarts {
    /// Instances started after an earlier one of the same child ended.
    pub restarts: u64,
    /// Times a child of this kind used up its restarts.
    pub exhausted: u64,
}

/// Counters of a tree, shared by its supervisors.
#[derive(Debug, Default)]
pub(crate) struct RestartStats(Mutex<BTreeMap<&'static str, KindRestarts>>);

impl RestartStats {
    /// Registers `kind`, so that a kind without restarts is listed with zeros.
    pub(crate) fn first(&self, kind: &'static str) {
        lock(&self.0).entry(kind).or_default();
    }

    pub(crate) fn restarted(&self, kind: &'static str) {
        lock(&self.0).entry(kind).or_default().restarts += 1;
    }

    pub(crate) fn exhausted(&self, kind: &'static str) {
        lock(&self.0).entry(kind).or_default().exhausted += 1;
    }

    pub(crate) fn counts(&self) -> BTreeMap<&'static str, KindRestarts> {
        lock(&self.0).clone()
    }
}
