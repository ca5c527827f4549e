//! How the cluster gets one secrets key, and how every member gets that key.
//!
//! The replicated state only names the key. The leader makes one while the state names none, has the
//! other members write it to disk, and proposes its id once a majority of the members has it there.
//! A rotation goes the same way. A member that lacks the named key asks the others for it.
//!
//! Two leaders may each introduce a key. The state machine decides between them, because a proposal
//! says which key it replaces; a key that lost stays on disks unused. A member therefore keeps every
//! key it was given until it has seen the key replaced, and at most [`MAX_HELD`].

mod introduction;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use introduction::{Introduction, Progress};

/// Largest number of keys on the disk of a member.
pub const MAX_HELD: usize = 8;
/// Delay before a failed step is repeated.
pub const RETRY: Duration = Duration::from_secs(2);
/// Time limit of a rotation until its proposal.
pub const ROTATION_TIMEOUT: Duration = Duration::from_secs(20);

/// The cluster as this member sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Id of the key that the state names; empty if it names none.
    pub named: String,
    /// Hostnames of the other members.
    pub others: BTreeSet<String>,
    /// Term in which this member leads, with a state that includes every earlier term.
    pub leading: Option<u64>,
    /// Whether all members have the leader's version. The first key waits for that: an older member
    /// stops at a command that it does not know.
    pub same_version: bool,
}

/// Next step of the shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Generate a key and write it to disk; [`Core::handle_made`].
    Make,
    /// Have `host` write the key to its disk; [`Core::handle_stored`].
    Store {
        /// The member.
        host: String,
        /// Id of the key.
        id: String,
    },
    /// Propose the id; [`Core::handle_proposed`]. In a rotation, together with every sealed value.
    Propose {
        /// Id of the key.
        id: String,
        /// Id of the key in force; empty if there is none.
        replaces: String,
    },
    /// Ask `host` for the key, and write it to disk; [`Core::handle_fetched`].
    Fetch {
        /// The member.
        host: String,
        /// Id of the key.
        id: String,
    },
    /// Remove all other keys from the disk; [`Core::handle_kept`].
    Keep(Vec<String>),
    /// Answer the request of a rotation.
    Rotated(Result<String, NotRotated>),
}

/// Why a key was not rotated. Nothing changed, unless a proposal was under way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRotated {
    /// This member does not lead, or no longer.
    #[error("this node does not lead")]
    NotLeading,
    /// The state names no key yet.
    #[error("the cluster has no secrets key yet")]
    NoKey,
    /// Another rotation is under way.
    #[error("another rotation is under way")]
    Busy,
    /// The new key is not on the disks of a majority.
    #[error("no majority of the members has the new key")]
    NoMajority,
    /// The state names another key by now.
    #[error("the secrets key was replaced by another one")]
    Replaced,
    /// The new key could not be made or written, or its proposal failed.
    #[error("{0}")]
    Failed(String),
}

/// The key of this member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The cluster has no key yet.
    Unnamed,
    /// The member has the named key.
    Held,
    /// The member is asking the others for the named key.
    Asking,
    /// No other member that answered has the named key.
    Missing,
}

/// Asks the other members for the named key, one after the other.
#[derive(Debug)]
struct Search {
    id: String,
    asked: BTreeSet<String>,
    busy: Option<String>,
    /// Time of the next round; set at the end of one.
    next_round: Option<Instant>,
    /// Whether a round has ended without success.
    failed: bool,
}

/// The decisions of one member.
#[derive(Debug, Default)]
pub struct Core {
    /// Keys on disk, oldest first.
    held: Vec<String>,
    /// Keys that this member has seen replaced.
    replaced: BTreeSet<String>,
    view: Option<View>,
    introduction: Option<Introduction>,
    search: Option<Search>,
    keeping: bool,
    keep_after: Option<Instant>,
    actions: VecDeque<Action>,
}

impl Core {
    /// Starts with the keys on disk, oldest first.
    #[must_use]
    pub fn new(held: impl IntoIterator<Item = String>) -> Self {
        Self {
            held: held.into_iter().collect(),
            ..Self::default()
        }
    }

    /// Takes a newer view of the cluster.
    pub fn handle_view(&mut self, now: Instant, view: View) {
        let before = self.view.replace(view);
        if let (Some(before), Some(view)) = (before, &self.view)
            && before.named != view.named
            && !before.named.is_empty()
        {
            self.replaced.insert(before.named);
        }
        self.advance(now);
    }

    /// Starts a rotation, which ends with [`Action::Rotated`].
    ///
    /// # Errors
    /// [`NotRotated`]; then there is no such action.
    pub fn handle_rotate(&mut self, now: Instant) -> Result<(), NotRotated> {
        let view = self.view.as_ref().ok_or(NotRotated::NotLeading)?;
        let term = view.leading.ok_or(NotRotated::NotLeading)?;
        if view.named.is_empty() {
            return Err(NotRotated::NoKey);
        }
        if self.introduction.is_some() {
            return Err(NotRotated::Busy);
        }
        let deadline = now + ROTATION_TIMEOUT;
        self.introduction = Some(Introduction::rotation(term, view.named.clone(), deadline));
        self.advance(now);
        Ok(())
    }

    /// A key was made and is on the own disk, with those of [`Self::to_keep`], or the reason why not.
    pub fn handle_made(&mut self, now: Instant, made: Result<String, String>) {
        match (made, &mut self.introduction) {
            (Ok(id), Some(introduction)) => {
                introduction.handle_made(id.clone());
                self.held = self.to_keep(&id);
            }
            (Ok(id), None) => self.held = self.to_keep(&id),
            (Err(_), Some(introduction)) if !introduction.is_rotation() => {
                introduction.handle_make_failed(now);
            }
            (Err(reason), Some(_)) => self.end(Err(NotRotated::Failed(reason))),
            (Err(_), None) => {}
        }
        self.advance(now);
    }

    /// A key that another member or the operator gave is on the own disk, with those of
    /// [`Self::to_keep`].
    pub fn handle_written(&mut self, now: Instant, id: &str) {
        self.held = self.to_keep(id);
        self.advance(now);
    }

    /// The answer of `host` to [`Action::Store`].
    pub fn handle_stored(&mut self, now: Instant, host: &str, id: &str, stored: bool) {
        if let Some(introduction) = &mut self.introduction {
            introduction.handle_stored(now, host, id, stored);
        }
        self.advance(now);
    }

    /// The proposal of `id` ended. If it succeeded, the view shows it later.
    pub fn handle_proposed(&mut self, now: Instant, id: &str, proposed: Result<(), String>) {
        let Some(introduction) = &mut self.introduction else {
            return;
        };
        match proposed {
            Err(reason) if introduction.is_rotation() && introduction.introduces(id) => {
                self.end(Err(NotRotated::Failed(reason)));
            }
            // The first key is proposed until the state names one.
            Ok(()) | Err(_) => introduction.handle_proposed(now, id),
        }
        self.advance(now);
    }

    /// The answer of `host` to [`Action::Fetch`]: whether the key is on the own disk, with those of
    /// [`Self::to_keep`].
    pub fn handle_fetched(&mut self, now: Instant, host: &str, id: &str, written: bool) {
        if written {
            self.held = self.to_keep(id);
        }
        if let Some(search) = &mut self.search
            && search.busy.as_deref() == Some(host)
        {
            search.busy = None;
        }
        self.advance(now);
    }

    /// [`Action::Keep`] was carried out, or failed.
    pub fn handle_kept(&mut self, now: Instant, kept: Option<Vec<String>>) {
        self.keeping = false;
        match kept {
            Some(kept) => self.held.retain(|id| kept.contains(id)),
            None => self.keep_after = Some(now + RETRY),
        }
        self.advance(now);
    }

    /// Repeats what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance(now);
    }

    /// Returns the next action.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns when to call [`Self::handle_timeout`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let introduction = self.introduction.as_ref().and_then(Introduction::timeout);
        let search = self.search.as_ref().and_then(|search| search.next_round);
        [introduction, search, self.keep_after]
            .into_iter()
            .flatten()
            .min()
    }

    /// The key of this member.
    #[must_use]
    pub fn status(&self) -> Status {
        match &self.view {
            None => Status::Unnamed,
            Some(view) if view.named.is_empty() => Status::Unnamed,
            Some(view) if self.held.contains(&view.named) => Status::Held,
            Some(_) if self.search.as_ref().is_some_and(|search| search.failed) => Status::Missing,
            Some(_) => Status::Asking,
        }
    }

    /// Keys on disk, oldest first.
    #[must_use]
    pub fn held(&self) -> &[String] {
        &self.held
    }

    /// Returns the keys that the disk must hold once `new` is added, oldest first.
    #[must_use]
    pub fn to_keep(&self, new: &str) -> Vec<String> {
        let mut keep = self.held.clone();
        if !keep.iter().any(|id| id == new) {
            keep.push(new.to_owned());
        }
        let named = self.view.as_ref().map_or("", |view| view.named.as_str());
        let introduction = self.introduction.as_ref();
        let needed = |id: &str| {
            id == new || id == named || introduction.is_some_and(|one| one.introduces(id))
        };
        while keep.len() > MAX_HELD {
            let Some(oldest) = keep.iter().position(|id| !needed(id)) else {
                break;
            };
            keep.remove(oldest);
        }
        keep
    }

    fn advance(&mut self, now: Instant) {
        self.introduce(now);
        self.search(now);
        self.forget(now);
    }

    /// Starts, continues or ends the introduction of a key by this leader.
    fn introduce(&mut self, now: Instant) {
        let Some(view) = &self.view else { return };
        let first = view
            .leading
            .filter(|_| view.named.is_empty() && view.same_version);
        if self.introduction.is_none()
            && let Some(term) = first
        {
            // A key of an earlier attempt, which other members may have already.
            let known = self.held.first().cloned();
            self.introduction = Some(Introduction::first(term, known));
        }
        let Some(introduction) = &mut self.introduction else {
            return;
        };
        match introduction.advance(now, view, &mut self.actions) {
            Progress::UnderWay => {}
            Progress::Ended(result) => {
                self.end(result);
                // A new leadership begins with a new introduction.
                if self
                    .view
                    .as_ref()
                    .is_some_and(|view| view.leading.is_some() && view.named.is_empty())
                {
                    self.introduce(now);
                }
            }
        }
    }

    /// Ends the introduction; the operator gets the result of a rotation.
    fn end(&mut self, result: Result<String, NotRotated>) {
        if let Some(ended) = self.introduction.take()
            && ended.is_rotation()
        {
            self.actions.push_back(Action::Rotated(result));
        }
    }

    /// Asks the next member for the named key, if this one lacks it.
    fn search(&mut self, now: Instant) {
        let Some(view) = &self.view else { return };
        if view.named.is_empty() || self.held.contains(&view.named) {
            self.search = None;
            return;
        }
        let search = match &mut self.search {
            Some(search) if search.id == view.named => search,
            other => other.insert(Search {
                id: view.named.clone(),
                asked: BTreeSet::new(),
                busy: None,
                next_round: None,
                failed: false,
            }),
        };
        if search.busy.is_some() {
            return;
        }
        match search.next_round {
            Some(at) if at > now => return,
            Some(_) => {
                search.next_round = None;
                search.asked.clear();
            }
            None => {}
        }
        match view
            .others
            .iter()
            .find(|host| !search.asked.contains(*host))
        {
            Some(host) => {
                search.asked.insert(host.clone());
                search.busy = Some(host.clone());
                self.actions.push_back(Action::Fetch {
                    host: host.clone(),
                    id: search.id.clone(),
                });
            }
            None => {
                search.failed = true;
                search.next_round = Some(now + RETRY);
            }
        }
    }

    /// Has replaced keys removed from the disk, once the present one is there.
    fn forget(&mut self, now: Instant) {
        let named = self.view.as_ref().map_or("", |view| view.named.as_str());
        let unneeded = |id: &String| self.replaced.contains(id) && id != named;
        let present = self.held.iter().any(|id| id == named);
        if self.keep_after.is_some_and(|at| at <= now) {
            self.keep_after = None;
        }
        if self.keeping || self.keep_after.is_some() || !present || !self.held.iter().any(unneeded)
        {
            return;
        }
        let keep = self.held.iter().filter(|id| !unneeded(id)).cloned();
        self.actions.push_back(Action::Keep(keep.collect()));
        self.keeping = true;
    }
}
