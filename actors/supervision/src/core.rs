//! Decisions of a supervisor about its children, without I/O.
//!
//! Inputs report events ([`Core::handle_ended`], [`Core::handle_timeout`], ...), actions request
//! the next steps. Every input ends in [`Core::advance`], which compares the phase of each child
//! with the one the strategy requires and requests the next step. A step that is not possible yet
//! (a sibling is stopping, a delay is running) is requested by a later input.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use super::{
    spec::{Restart, Strategy},
    window::{Backoff, Intensity, Window},
};

mod child;
#[cfg(test)]
mod tests;

pub(crate) use child::{Child, Phase};

/// Id of a child within one supervisor instance; later children have greater ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ChildId(u64);

/// Configuration of one supervisor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) strategy: Strategy,
    pub(crate) intensity: Intensity,
    pub(crate) backoff: Backoff,
}

/// Configuration of one child.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) key: String,
    pub(crate) restart: Restart,
    /// Whether exhaustion is reported and leaves the child down, instead of failing the supervisor.
    pub(crate) notify: bool,
    /// Time after which a stop becomes a kill; `None` waits without a limit.
    pub(crate) stop_timeout: Option<Duration>,
    /// Whether it was added while the supervisor was running.
    pub(crate) dynamic: bool,
    /// Whether it stops in order also where dynamic children stop together.
    pub(crate) ordered_stop: bool,
}

/// Reason a child was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Another child has the key.
    Taken,
    /// The supervisor is shutting down.
    Closing,
}

/// No child has the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnknownKey;

/// How an instance ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Normally, by its own decision.
    Finished,
    /// By error, panic or kill.
    Failed(String),
}

/// Actions that the supervisor actor must carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Start an instance; the child has none.
    Start(ChildId),
    /// Ask the instance to stop.
    Stop(ChildId),
    /// Kill the instance, which did not stop in time.
    Kill(ChildId),
    /// Report that the child used up its restarts.
    Exhausted(ChildId),
    /// Forget the child; its key is free again.
    Removed(ChildId),
    /// Every static child has started, or will not start for now: it is down or exhausted.
    StartDone,
    /// End the supervisor, whose children have all ended: normally, or with the reason of a
    /// failure.
    Close(Option<String>),
}

/// Restart of several children: they stop in reverse order and start in order.
#[derive(Clone, Copy, Debug)]
struct Round {
    /// This child and all later ones take part.
    lowest: ChildId,
    /// Start of the first child at the earliest.
    until: Instant,
}

#[derive(Debug)]
enum Closing {
    No,
    Begun(Option<String>),
    Done,
}

/// State of one supervisor instance.
#[derive(Debug)]
pub(crate) struct Core {
    rules: Rules,
    children: Vec<Child>,
    next: u64,
    /// Restarts of the group, for strategies that restart more than the failed child.
    group: Window,
    round: Option<Round>,
    closing: Closing,
    started: bool,
    start_done: bool,
    actions: VecDeque<Action>,
}

impl Core {
    pub(crate) fn new(rules: Rules) -> Self {
        Self {
            rules,
            children: Vec::new(),
            next: 0,
            group: Window::default(),
            round: None,
            closing: Closing::No,
            started: false,
            start_done: false,
            actions: VecDeque::new(),
        }
    }

    /// Adds a child after the present ones.
    ///
    /// # Errors
    /// [`Refusal`]; nothing was added.
    pub(crate) fn handle_add(&mut self, now: Instant, plan: Plan) -> Result<ChildId, Refusal> {
        if self.id(&plan.key).is_some() {
            return Err(Refusal::Taken);
        }
        if !matches!(self.closing, Closing::No) {
            return Err(Refusal::Closing);
        }
        let id = ChildId(self.next);
        self.next += 1;
        let ordered = !plan.dynamic || self.rules.strategy != Strategy::OneForOne;
        self.children.push(Child::new(id, plan, ordered));
        self.advance(now);
        Ok(id)
    }

    /// Starts the children added so far.
    pub(crate) fn handle_start(&mut self, now: Instant) {
        self.started = true;
        self.advance(now);
    }

    /// Handles the successful start of the child's instance.
    pub(crate) fn handle_started(&mut self, now: Instant, id: ChildId) {
        if let Some(child) = self.child_mut(id)
            && child.phase == Phase::Starting
        {
            child.phase = Phase::Running;
            child.up_since = Some(now);
            child.start_done = true;
        }
        self.advance(now);
    }

    /// Handles the end of the child's instance, of which nothing is left.
    pub(crate) fn handle_ended(&mut self, now: Instant, id: ChildId, exit: Exit) {
        let in_round = self.round.is_some_and(|round| id >= round.lowest);
        let closing = !matches!(self.closing, Closing::No);
        let Some(child) = self.child_mut(id) else {
            return;
        };
        if !child.phase.is_alive() {
            return;
        }
        let stopping = matches!(child.phase, Phase::Stopping { .. });
        child.up_since = None;
        if let Exit::Failed(reason) = &exit
            && !stopping
        {
            child.last_failure = Some(reason.clone());
        }
        if child.removing {
            self.remove(id);
        } else if closing {
            child.phase = Phase::Down;
        } else if in_round && child.plan.restart != Restart::Temporary {
            child.phase = Phase::Pending;
        } else if in_round || stopping {
            self.retire(id);
        } else {
            match (child.plan.restart, exit) {
                (Restart::Permanent, Exit::Finished) => {
                    self.fail(now, id, "finished, but is permanent".to_owned());
                }
                (Restart::Permanent | Restart::Transient, Exit::Failed(reason)) => {
                    self.fail(now, id, reason);
                }
                (Restart::Transient, Exit::Finished) | (Restart::Temporary, _) => self.retire(id),
            }
        }
        self.advance(now);
    }

    /// Stops and then forgets the child.
    ///
    /// # Errors
    /// [`UnknownKey`] if there is no such child.
    pub(crate) fn handle_remove(&mut self, now: Instant, key: &str) -> Result<ChildId, UnknownKey> {
        let id = self.id(key).ok_or(UnknownKey)?;
        let child = self.child_mut(id).ok_or(UnknownKey)?;
        child.removing = true;
        if child.phase.is_alive() {
            if child.begin_stop(now) {
                self.actions.push_back(Action::Stop(id));
            }
        } else {
            self.remove(id);
        }
        self.advance(now);
        Ok(id)
    }

    /// Resets the restart window of the child and of the group, and starts the child if it is down.
    ///
    /// # Errors
    /// [`UnknownKey`] if there is no such child.
    pub(crate) fn handle_restart(&mut self, now: Instant, key: &str) -> Result<(), UnknownKey> {
        let id = self.id(key).ok_or(UnknownKey)?;
        let child = self.child_mut(id).ok_or(UnknownKey)?;
        child.window.clear();
        if matches!(child.phase, Phase::Exhausted | Phase::Down) {
            child.phase = Phase::Pending;
        }
        self.group.clear();
        self.advance(now);
        Ok(())
    }

    /// Stops all children in reverse order, then closes.
    pub(crate) fn handle_shutdown(&mut self, now: Instant) {
        if matches!(self.closing, Closing::No) {
            self.close(None);
        }
        self.advance(now);
    }

    /// Handles a timeout that [`Core::poll_timeout`] requested.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        for child in &mut self.children {
            if let Phase::Stopping { kill_at } = &mut child.phase
                && kill_at.is_some_and(|at| at <= now)
            {
                *kill_at = None;
                self.actions.push_back(Action::Kill(child.id));
            }
        }
        self.advance(now);
    }

    /// Takes the next action.
    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Time at which to call [`Core::handle_timeout`].
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let own = self.children.iter().filter_map(|child| match child.phase {
            Phase::Stopping { kill_at } => kill_at,
            Phase::Backoff { until } => Some(until),
            Phase::Pending | Phase::Starting | Phase::Running | Phase::Down | Phase::Exhausted => {
                None
            }
        });
        // A round with children left to stop continues when the last one ends, without a timeout.
        let round = self
            .round
            .filter(|r| !self.any_alive(r.lowest))
            .map(|r| r.until);
        own.chain(round).min()
    }

    pub(crate) fn child(&self, id: ChildId) -> Option<&Child> {
        self.children.iter().find(|child| child.id == id)
    }

    pub(crate) fn rules(&self) -> Rules {
        self.rules
    }

    pub(crate) fn children(&self) -> &[Child] {
        &self.children
    }

    /// Whether the child takes part in a group restart in progress.
    pub(crate) fn awaits_round(&self, id: ChildId) -> bool {
        self.round.is_some_and(|round| id >= round.lowest)
    }

    fn id(&self, key: &str) -> Option<ChildId> {
        self.children
            .iter()
            .find(|child| child.plan.key == key)
            .map(|child| child.id)
    }

    fn child_mut(&mut self, id: ChildId) -> Option<&mut Child> {
        self.children.iter_mut().find(|child| child.id == id)
    }

    fn any_alive(&self, lowest: ChildId) -> bool {
        self.children
            .iter()
            .any(|child| child.id >= lowest && child.phase.is_alive())
    }

    /// Schedules a restart of the failed child or its group, or gives up.
    fn fail(&mut self, now: Instant, id: ChildId, reason: String) {
        let rules = self.rules;
        let Some(child) = self.children.iter_mut().find(|child| child.id == id) else {
            return;
        };
        child.last_failure = Some(reason.clone());
        let own = child.window.admit(rules.intensity, now);
        let nth = match rules.strategy {
            Strategy::OneForOne => own,
            Strategy::RestForOne | Strategy::OneForAll => self.group.admit(rules.intensity, now),
        };
        let Some(nth) = nth else {
            child.phase = Phase::Exhausted;
            child.start_done = true;
            let escalates = !child.plan.notify;
            let report = format!("{} used up its restarts: {reason}", child.plan.key);
            self.actions.push_back(Action::Exhausted(id));
            if escalates {
                self.close(Some(report));
            }
            return;
        };
        let until = now + rules.backoff.delay(nth);
        let lowest = match rules.strategy {
            Strategy::OneForOne => {
                child.phase = Phase::Backoff { until };
                return;
            }
            Strategy::RestForOne => id,
            Strategy::OneForAll => ChildId(0),
        };
        child.phase = Phase::Pending;
        let round = self.round.get_or_insert(Round { lowest, until });
        round.lowest = round.lowest.min(lowest);
        round.until = round.until.max(until);
    }

    /// Leaves a child down that must not restart; a dynamic child is forgotten.
    fn retire(&mut self, id: ChildId) {
        let Some(child) = self.child_mut(id) else {
            return;
        };
        if child.plan.dynamic {
            self.remove(id);
        } else {
            child.phase = Phase::Down;
            child.start_done = true;
        }
    }

    fn remove(&mut self, id: ChildId) {
        self.children.retain(|child| child.id != id);
        self.actions.push_back(Action::Removed(id));
    }

    fn close(&mut self, reason: Option<String>) {
        self.closing = Closing::Begun(reason);
        self.round = None;
        for child in &mut self.children {
            if matches!(child.phase, Phase::Pending | Phase::Backoff { .. }) {
                child.phase = Phase::Down;
            }
        }
    }

    /// Requests every step that has become possible.
    fn advance(&mut self, now: Instant) {
        if let Closing::Begun(reason) = &mut self.closing {
            let reason = reason.take();
            if self.any_alive(ChildId(0)) {
                self.closing = Closing::Begun(reason);
                self.stop_last(now, ChildId(0));
            } else {
                self.closing = Closing::Done;
                self.actions.push_back(Action::Close(reason));
            }
            return;
        }
        if !self.started || matches!(self.closing, Closing::Done) {
            return;
        }
        self.advance_round(now);
        self.start_due(now);
        if !self.start_done
            && self
                .children
                .iter()
                .all(|child| child.plan.dynamic || child.start_done)
        {
            self.start_done = true;
            self.actions.push_back(Action::StartDone);
        }
    }

    fn advance_round(&mut self, now: Instant) {
        let Some(round) = self.round else { return };
        if self.any_alive(round.lowest) {
            self.stop_last(now, round.lowest);
        } else if round.until <= now {
            self.round = None;
            for child in self
                .children
                .iter_mut()
                .filter(|child| child.id >= round.lowest)
            {
                match child.phase {
                    Phase::Exhausted => {}
                    Phase::Down if child.plan.restart == Restart::Temporary => {
                        child.start_done = true
                    }
                    Phase::Pending
                    | Phase::Backoff { .. }
                    | Phase::Starting
                    | Phase::Running
                    | Phase::Stopping { .. }
                    | Phase::Down => {
                        child.phase = Phase::Pending;
                        child.start_done = false;
                    }
                }
            }
        }
    }

    /// Stops the last running child from `lowest` on. Adjacent children without an order are stopped
    /// at once.
    fn stop_last(&mut self, now: Instant, lowest: ChildId) {
        let Self {
            children, actions, ..
        } = self;
        let mut alive = children
            .iter_mut()
            .filter(|child| child.id >= lowest && child.phase.is_alive())
            .rev();
        let mut unordered = false;
        for child in alive.by_ref() {
            if child.ordered || child.plan.ordered_stop {
                if !unordered && child.begin_stop(now) {
                    actions.push_back(Action::Stop(child.id));
                }
                return;
            }
            unordered = true;
            if child.begin_stop(now) {
                actions.push_back(Action::Stop(child.id));
            }
        }
    }

    fn start_due(&mut self, now: Instant) {
        let lowest = self.round.map(|round| round.lowest);
        let mut start_done = true;
        for child in &mut self.children {
            let due = match child.phase {
                Phase::Pending => {
                    (start_done || !child.ordered) && lowest.is_none_or(|lowest| child.id < lowest)
                }
                Phase::Backoff { until } => until <= now,
                Phase::Starting
                | Phase::Running
                | Phase::Stopping { .. }
                | Phase::Down
                | Phase::Exhausted => false,
            };
            if due {
                child.phase = Phase::Starting;
                self.actions.push_back(Action::Start(child.id));
            }
            start_done &= !child.ordered || child.start_done;
        }
    }
}
