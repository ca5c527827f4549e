//! The account of the requests of a load.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use super::mix::Request;

/// Failures that are kept; further ones are only counted.
const KEPT: usize = 10_000;

/// A request without a complete answer of status 200.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) request: Request,
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
    /// Container that sent the head of the answer, if one arrived.
    pub(crate) replica: Option<String>,
    pub(crate) why: String,
}

/// Requests that have ended.
#[derive(Debug, Default)]
pub(crate) struct Account {
    pub(crate) answered: u64,
    pub(crate) failed: u64,
    pub(crate) failures: Vec<Failure>,
    /// Requests repeated because the node closed their kept connection before its answer began.
    pub(crate) repeated: u64,
    /// Arrivals left out because too many requests were outstanding.
    pub(crate) left_out: u64,
    pub(crate) longest: Duration,
    pub(crate) by_replica: BTreeMap<String, u64>,
}

#[derive(Default)]
struct Entries {
    account: Account,
    next: u64,
    outstanding: BTreeSet<(Instant, u64)>,
}

/// Shared by the loop that sends and the test that judges.
#[derive(Clone, Default)]
pub(super) struct Ledger(Arc<Mutex<Entries>>);

/// An outstanding request.
pub(super) struct Entry {
    began: Instant,
    number: u64,
}

impl Ledger {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap()
    }

    pub(super) fn begin(&self) -> Entry {
        let mut entries = self.entries();
        entries.next += 1;
        let (began, number) = (Instant::now(), entries.next);
        entries.outstanding.insert((began, number));
        Entry { began, number }
    }

    pub(super) fn repeat(&self) {
        self.entries().account.repeated += 1;
    }

    pub(super) fn left_out(&self) {
        self.entries().account.left_out += 1;
    }

    /// Ends a request: `Ok` with the container that answered, or a failure with the container that
    /// began to, if any.
    pub(super) fn end(
        &self,
        entry: &Entry,
        request: Request,
        outcome: Result<String, (Option<String>, String)>,
    ) {
        let ended = Instant::now();
        let mut entries = self.entries();
        entries.outstanding.remove(&(entry.began, entry.number));
        let account = &mut entries.account;
        account.longest = account.longest.max(ended - entry.began);
        match outcome {
            Ok(replica) => {
                account.answered += 1;
                *account.by_replica.entry(replica).or_default() += 1;
            }
            Err((replica, why)) => {
                account.failed += 1;
                if account.failures.len() < KEPT {
                    account.failures.push(Failure {
                        request,
                        began: entry.began,
                        ended,
                        replica,
                        why,
                    });
                }
            }
        }
    }

    pub(super) fn outstanding(&self) -> usize {
        self.entries().outstanding.len()
    }

    /// Start of the oldest outstanding request.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.entries().outstanding.first().map(|(began, _)| *began)
    }

    /// Takes what has ended since the last call.
    pub(super) fn take(&self) -> Account {
        std::mem::take(&mut self.entries().account)
    }
}
