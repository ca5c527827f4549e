//! Order in which upstream servers are asked.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use super::wire::Verdict;

/// Time in which every query is answered. A resolver of libc waits 5 s for a server, twice
/// (`timeout` and `attempts` of resolv.conf(5)); its second query joins the first.
pub const BUDGET: Duration = Duration::from_secs(9);
/// Time for which a server that did not answer is asked after the others.
pub const SUSPENSION: Duration = Duration::from_secs(10);

/// Which servers answer, by their position in the configuration.
///
/// Servers are asked in order. One that did not answer a query is asked last for some time, so
/// that a dead server does not delay each query; then one query tries it again.
#[derive(Clone, Debug)]
pub struct Servers(Vec<Option<Instant>>);

impl Servers {
    /// Creates the state of `count` servers.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self(vec![None; count])
    }

    /// Order for one query. A server whose suspension is over is tried by this query, and by
    /// others once it has answered.
    pub fn order(&mut self, now: Instant) -> Vec<usize> {
        let (mut order, mut last) = (Vec::new(), Vec::new());
        for (server, suspended) in self.0.iter_mut().enumerate() {
            match suspended {
                Some(until) if now < *until => last.push(server),
                Some(until) => {
                    *until = now + SUSPENSION;
                    order.push(server);
                }
                None => order.push(server),
            }
        }
        order.extend(last);
        order
    }

    /// Handles an answer of a server, even one that the chain does not accept.
    pub fn handle_answer(&mut self, server: usize) {
        if let Some(suspended) = self.0.get_mut(server) {
            *suspended = None;
        }
    }

    /// Handles silence of a server, or an error of its transport.
    pub fn handle_failure(&mut self, now: Instant, server: usize) {
        if let Some(suspended) = self.0.get_mut(server) {
            *suspended = Some(now + SUSPENSION);
        }
    }
}

/// Action for the driver to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send the question to a server; any question before is obsolete.
    Ask {
        /// Position of the server.
        server: usize,
        /// Whether to use TCP in place of UDP.
        tcp: bool,
    },
    /// Relay the last answer.
    Relay,
    /// No server answered.
    Fail,
}

/// State machine of one forwarded question.
#[derive(Clone, Debug)]
pub struct Chain {
    servers: VecDeque<usize>,
    timeout: Duration,
    /// End of the whole chain.
    end: Instant,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The first of the servers is to be asked.
    Next,
    Asking {
        until: Instant,
    },
    /// The same server is to be asked over TCP.
    Again {
        until: Instant,
    },
    Answered,
    Finished,
}

impl Chain {
    /// Starts a chain over `servers`, each of which has `timeout` to answer, TCP included.
    #[must_use]
    pub fn new(now: Instant, servers: Vec<usize>, timeout: Duration) -> Self {
        Self {
            servers: servers.into(),
            timeout,
            end: now + BUDGET,
            state: State::Next,
        }
    }

    /// Handles the answer of the server that is asked.
    pub fn handle_answer(&mut self, verdict: Verdict, tcp: bool) {
        let State::Asking { until } = self.state else {
            return;
        };
        match verdict {
            Verdict::Final => self.state = State::Answered,
            Verdict::Truncated if !tcp => self.state = State::Again { until },
            // Nothing is truncated over TCP.
            Verdict::Truncated | Verdict::Failed => self.next(),
        }
    }

    /// Handles an error of the transport to the server that is asked.
    pub fn handle_error(&mut self) {
        if let State::Asking { .. } = self.state {
            self.next();
        }
    }

    /// Handles the passing of the deadline; has no effect before it.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.poll_timeout().is_none_or(|due| due > now) {
            return;
        }
        if now >= self.end {
            self.servers.clear();
        }
        self.next();
    }

    /// Returns the next action; the last one is [`Action::Relay`] or [`Action::Fail`].
    pub fn poll_action(&mut self, now: Instant) -> Option<Action> {
        match self.state {
            State::Next => match self.servers.front() {
                Some(server) if now < self.end => {
                    let server = *server;
                    let until = now.checked_add(self.timeout).unwrap_or(self.end);
                    let until = until.min(self.end);
                    self.state = State::Asking { until };
                    Some(Action::Ask { server, tcp: false })
                }
                Some(_) | None => {
                    self.state = State::Finished;
                    Some(Action::Fail)
                }
            },
            State::Again { until } => {
                self.state = State::Asking { until };
                let server = self.servers.front().copied();
                server.map(|server| Action::Ask { server, tcp: true })
            }
            State::Answered => {
                self.state = State::Finished;
                Some(Action::Relay)
            }
            State::Asking { .. } | State::Finished => None,
        }
    }

    /// Time at which to call [`Chain::handle_timeout`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Asking { until } => Some(until),
            State::Next | State::Again { .. } | State::Answered | State::Finished => None,
        }
    }

    fn next(&mut self) {
        self.servers.pop_front();
        self.state = State::Next;
    }
}

#[cfg(test)]
mod tests;
