//! A leader's attempt to have the state name a key.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Instant,
};

use super::{Action, NotRotated, RETRY, View};

/// State of the attempt after a step.
pub(super) enum Progress {
    UnderWay,
    Ended(Result<String, NotRotated>),
}

#[derive(Debug)]
pub(super) struct Introduction {
    /// Term of the leadership.
    term: u64,
    /// The key; `None` until it is made and on the own disk.
    id: Option<String>,
    /// The key in force; empty for the first key.
    replaces: String,
    /// Time limit of a rotation; `None` for the first key.
    deadline: Option<Instant>,
    making: bool,
    /// Members that have the key on disk.
    stored: BTreeSet<String>,
    /// Members with a request under way.
    busy: BTreeSet<String>,
    /// When to ask members again that did not store the key.
    retry: BTreeMap<String, Instant>,
    proposing: bool,
    /// When to make or propose the key again.
    pause: Option<Instant>,
}

impl Introduction {
    /// The first key of a cluster; `known` is on the own disk.
    pub(super) fn first(term: u64, known: Option<String>) -> Self {
        Self {
            term,
            id: known,
            replaces: String::new(),
            deadline: None,
            making: false,
            stored: BTreeSet::new(),
            busy: BTreeSet::new(),
            retry: BTreeMap::new(),
            proposing: false,
            pause: None,
        }
    }

    /// A new key in place of `replaces`.
    pub(super) fn rotation(term: u64, replaces: String, deadline: Instant) -> Self {
        Self {
            replaces,
            deadline: Some(deadline),
            ..Self::first(term, None)
        }
    }

    pub(super) fn is_rotation(&self) -> bool {
        self.deadline.is_some()
    }

    pub(super) fn introduces(&self, id: &str) -> bool {
        self.id.as_deref() == Some(id)
    }

    pub(super) fn handle_made(&mut self, id: String) {
        // A key made for an earlier attempt is as good as any other.
        self.making = false;
        self.id.get_or_insert(id);
    }

    pub(super) fn handle_make_failed(&mut self, now: Instant) {
        self.making = false;
        self.pause = Some(now + RETRY);
    }

    pub(super) fn handle_stored(&mut self, now: Instant, host: &str, id: &str, stored: bool) {
        if !self.introduces(id) {
            return;
        }
        self.busy.remove(host);
        if stored {
            self.stored.insert(host.to_owned());
            self.retry.remove(host);
        } else {
            self.retry.insert(host.to_owned(), now + RETRY);
        }
    }

    pub(super) fn handle_proposed(&mut self, now: Instant, id: &str) {
        if self.introduces(id) {
            self.proposing = false;
            self.pause = Some(now + RETRY);
        }
    }

    pub(super) fn timeout(&self) -> Option<Instant> {
        let retries = self
            .retry
            .iter()
            .filter(|(host, _)| !self.busy.contains(*host));
        let pause = self.pause.filter(|_| !self.making && !self.proposing);
        // Once proposed, only the outcome ends a rotation.
        let deadline = self.deadline.filter(|_| !self.proposing);
        let times = retries.map(|(_, at)| *at);
        times.chain(pause).chain(deadline).min()
    }

    /// Takes every step that is possible in `view`.
    pub(super) fn advance(
        &mut self,
        now: Instant,
        view: &View,
        actions: &mut VecDeque<Action>,
    ) -> Progress {
        if let Some(end) = self.end(now, view) {
            return Progress::Ended(end);
        }
        if self.pause.is_some_and(|at| at <= now) {
            self.pause = None;
        }
        let Some(id) = self.id.clone() else {
            if !self.making && self.pause.is_none() {
                self.making = true;
                actions.push_back(Action::Make);
            }
            return Progress::UnderWay;
        };
        self.retry
            .retain(|host, at| *at > now && view.others.contains(host));
        for host in &view.others {
            let waits = self.busy.contains(host) || self.retry.contains_key(host);
            if !waits && !self.stored.contains(host) {
                self.busy.insert(host.clone());
                actions.push_back(Action::Store {
                    host: host.clone(),
                    id: id.clone(),
                });
            }
        }
        if self.has_majority(view) && !self.proposing && self.pause.is_none() {
            self.proposing = true;
            actions.push_back(Action::Propose {
                id,
                replaces: self.replaces.clone(),
            });
        }
        Progress::UnderWay
    }

    /// Whether a majority of all members, this one included, has the key on disk.
    fn has_majority(&self, view: &View) -> bool {
        let others = self.stored.intersection(&view.others).count();
        2 * (others + 1) > view.others.len() + 1
    }

    fn end(&self, now: Instant, view: &View) -> Option<Result<String, NotRotated>> {
        if let Some(id) = &self.id
            && *id == view.named
        {
            return Some(Ok(id.clone()));
        }
        if view.named != self.replaces {
            return Some(Err(NotRotated::Replaced));
        }
        if view.leading != Some(self.term) {
            return Some(Err(NotRotated::NotLeading));
        }
        let late = self.deadline.is_some_and(|at| at <= now) && !self.proposing;
        late.then_some(Err(NotRotated::NoMajority))
    }
}
