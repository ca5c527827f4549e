//! One question to the upstream servers.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use super::wire::Verdict;

/// Time in which every question is answered, by a failure at the latest. The engine's resolver
/// waits 4 s for each of its servers, and libc 5 s (`timeout` of resolv.conf(5)).
pub const BUDGET: Duration = Duration::from_millis(3500);

/// Action for the driver to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send the question to a server. Earlier attempts with other servers go on; one with the same
    /// server is obsolete.
    Ask {
        /// Position of the server.
        server: usize,
        /// How to ask it.
        attempt: Attempt,
    },
    /// The time of a server has passed; its attempt may go on, but is not waited for.
    GiveUp {
        /// Position of the server.
        server: usize,
        /// Time at which the server was first asked, if it has had its full time.
        asked: Option<Instant>,
    },
    /// Relay the last answer of this server; the chain is over.
    Relay {
        /// Position of the server.
        server: usize,
    },
    /// No server answered; the chain is over.
    Fail,
}

/// Manner of asking a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Whether to use TCP in place of UDP.
    pub tcp: bool,
    /// Whether to send an EDNS record.
    pub edns: bool,
}

/// State machine of one forwarded question.
///
/// Servers count in order: the answer of one is relayed once all servers before it have failed or
/// have had their time. They are asked before that: the next one when all asked ones have failed,
/// and at the latest when the last one could not have its full time otherwise. So a silent server
/// neither uses up the budget of the others nor adds their time to its own.
#[derive(Clone, Debug)]
pub struct Chain {
    servers: Vec<(usize, State)>,
    timeout: Duration,
    /// Longest time between the starts of two servers.
    gap: Duration,
    /// Time at which the next server is asked.
    next: Instant,
    /// End of the whole chain.
    end: Instant,
    given_up: VecDeque<Action>,
    finished: bool,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Queued,
    Asking {
        attempt: Attempt,
        /// Whether the attempt was handed out.
        sent: bool,
        asked: Instant,
        until: Instant,
    },
    Answered,
    Failed,
}

impl Chain {
    /// Starts a chain over `servers`, each of which has `timeout` to answer, TCP included; less
    /// only if the budget does not allow it.
    #[must_use]
    pub fn new(now: Instant, servers: &[usize], timeout: Duration) -> Self {
        let others = u32::try_from(servers.len().saturating_sub(1)).unwrap_or(u32::MAX);
        // With others, a third of the budget is left for them however long one may take.
        let longest = if others == 0 { BUDGET } else { BUDGET * 2 / 3 };
        let timeout = timeout.min(longest);
        let gap = (BUDGET - timeout).checked_div(others).unwrap_or(BUDGET);
        Self {
            servers: servers.iter().map(|id| (*id, State::Queued)).collect(),
            timeout,
            gap: gap.min(timeout),
            next: now,
            end: now + BUDGET,
            given_up: VecDeque::new(),
            finished: false,
        }
    }

    /// Handles the answer of a server to the last attempt.
    pub fn handle_answer(&mut self, server: usize, verdict: Verdict) {
        let Some(State::Asking { attempt, sent, .. }) = self.state(server) else {
            return;
        };
        // Nothing is truncated over TCP, and a server is asked without EDNS once.
        let next = match verdict {
            Verdict::Truncated if !attempt.tcp => Attempt {
                tcp: true,
                ..*attempt
            },
            Verdict::NoEdns if attempt.edns => Attempt {
                edns: false,
                ..*attempt
            },
            Verdict::Final => return self.set(server, State::Answered),
            Verdict::Truncated | Verdict::NoEdns | Verdict::Failed => {
                return self.set(server, State::Failed);
            }
        };
        (*attempt, *sent) = (next, false);
    }

    /// Handles an error of the transport to a server.
    pub fn handle_error(&mut self, server: usize) {
        if let Some(State::Asking { .. }) = self.state(server) {
            self.set(server, State::Failed);
        }
    }

    /// Handles the passing of deadlines; has no effect before the first one.
    pub fn handle_timeout(&mut self, now: Instant) {
        for (server, state) in &mut self.servers {
            if let State::Asking { asked, until, .. } = *state
                && until <= now
            {
                let is_full = until.duration_since(asked) >= self.timeout;
                self.given_up.push_back(Action::GiveUp {
                    server: *server,
                    asked: is_full.then_some(asked),
                });
                *state = State::Failed;
            }
        }
        if now >= self.end {
            self.servers
                .retain(|(_, state)| !matches!(state, State::Queued));
        }
    }

    /// Returns the next action; the last one is [`Action::Relay`] or [`Action::Fail`].
    pub fn poll_action(&mut self, now: Instant) -> Option<Action> {
        if self.finished {
            return None;
        }
        if let Some(action) = self.given_up.pop_front() {
            return Some(action);
        }
        let mut states = self.servers.iter();
        let first = states.find(|(_, state)| !matches!(state, State::Failed));
        match first {
            None => return self.finish(Action::Fail),
            Some((server, State::Answered)) => {
                let server = *server;
                return self.finish(Action::Relay { server });
            }
            Some((_, State::Queued | State::Asking { .. } | State::Failed)) => {}
        }
        self.start_next(now);
        self.servers.iter_mut().find_map(|(server, state)| {
            let State::Asking { attempt, sent, .. } = state else {
                return None;
            };
            let is_new = !std::mem::replace(sent, true);
            is_new.then_some(Action::Ask {
                server: *server,
                attempt: *attempt,
            })
        })
    }

    /// Time at which to call [`Chain::handle_timeout`], then [`Chain::poll_action`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.finished {
            return None;
        }
        let asking = self.servers.iter().filter_map(|(_, state)| match state {
            State::Asking { until, .. } => Some(*until),
            State::Queued | State::Answered | State::Failed => None,
        });
        asking
            .chain(self.waits_for_next().then_some(self.next))
            .min()
    }

    /// Begins the next server if all asked ones have failed, or its time has come.
    fn start_next(&mut self, now: Instant) {
        let mut states = self.servers.iter();
        let is_asking = states.any(|(_, state)| matches!(state, State::Asking { .. }));
        if is_asking && (now < self.next || !self.waits_for_next()) {
            return;
        }
        let until = now.checked_add(self.timeout).unwrap_or(self.end);
        let begun = State::Asking {
            attempt: Attempt {
                tcp: false,
                edns: true,
            },
            sent: false,
            asked: now,
            until: until.min(self.end),
        };
        let mut states = self.servers.iter_mut().map(|(_, state)| state);
        if let Some(state) = states.find(|state| matches!(state, State::Queued)) {
            *state = begun;
            self.next = now + self.gap;
        }
    }

    /// Whether another server will be asked although none has failed; not if one has answered,
    /// which is relayed before any later one.
    fn waits_for_next(&self) -> bool {
        let has = |wanted: fn(&State) -> bool| self.servers.iter().any(|(_, state)| wanted(state));
        has(|state| matches!(state, State::Queued))
            && !has(|state| matches!(state, State::Answered))
    }

    fn finish(&mut self, action: Action) -> Option<Action> {
        self.finished = true;
        Some(action)
    }

    fn state(&mut self, server: usize) -> Option<&mut State> {
        let mut servers = self.servers.iter_mut();
        servers
            .find(|(id, _)| *id == server)
            .map(|(_, state)| state)
    }

    fn set(&mut self, server: usize, new: State) {
        if let Some(state) = self.state(server) {
            *state = new;
        }
    }
}

#[cfg(test)]
mod tests;
