//! Which upstream servers answer.

use std::time::{Duration, Instant};

/// Time for which a silent server is asked after the others.
pub const SUSPENSION: Duration = Duration::from_secs(10);
/// Unanswered questions after which a server is suspended even if all have the same name.
const SAME_NAME_LIMIT: u32 = 4;

/// State of the servers, by their position in the configuration.
///
/// Servers are asked in order. One from which nothing came during the full time of two questions
/// with different names is asked last for some time, so that a dead server does not delay each
/// question; then one question tries it again. A name alone does not suspend its server: servers
/// that answer everything else are silent about names whose own servers are.
#[derive(Clone, Debug)]
pub struct Servers(Vec<Server>);

#[derive(Clone, Debug, Default)]
struct Server {
    /// Time of the last message from it.
    heard: Option<Instant>,
    /// Questions that it left unanswered since then.
    silent: u32,
    /// Name of the first of them.
    name: Vec<u8>,
    /// End of the suspension.
    suspended: Option<Instant>,
}

impl Servers {
    /// Creates the state of `count` servers.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self(vec![Server::default(); count])
    }

    /// Order for one question. A server whose suspension is over is tried by this question, and by
    /// others once it has answered.
    pub fn order(&mut self, now: Instant) -> Vec<usize> {
        let (mut order, mut last) = (Vec::new(), Vec::new());
        for (server, state) in self.0.iter_mut().enumerate() {
            match &mut state.suspended {
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

    /// Handles a message from a server, even an answer that is not relayed.
    pub fn handle_answer(&mut self, now: Instant, server: usize) {
        if let Some(state) = self.0.get_mut(server) {
            *state = Server {
                heard: Some(now),
                ..Server::default()
            };
        }
    }

    /// Handles a question about `name` (in lower case) that the server was asked at `asked` and
    /// left unanswered for its full time.
    pub fn handle_silence(&mut self, now: Instant, server: usize, asked: Instant, name: &[u8]) {
        let Some(state) = self.0.get_mut(server) else {
            return;
        };
        if state.heard.is_some_and(|heard| heard >= asked) {
            return;
        }
        if state.silent == 0 {
            state.name = name.to_vec();
        }
        state.silent = state.silent.saturating_add(1);
        if state.silent >= 2 && (state.name != name || state.silent >= SAME_NAME_LIMIT) {
            state.suspended = Some(now + SUSPENSION);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn silent_server_is_asked_last_until_retried() {
        let now = Instant::now();
        let mut servers = Servers::new(3);
        servers.handle_silence(now, 0, now, b"a");
        assert_eq!(servers.order(now), [0, 1, 2], "one question proves nothing");
        servers.handle_silence(now, 0, now, b"b");
        assert_eq!(servers.order(now), [1, 2, 0]);
        let later = now + SUSPENSION;
        assert_eq!(servers.order(later), [0, 1, 2], "one question tries it");
        assert_eq!(servers.order(later), [1, 2, 0]);
        servers.handle_answer(later, 0);
        assert_eq!(servers.order(later), [0, 1, 2]);
    }

    #[test]
    fn slow_name_does_not_suspend_its_server() {
        let mut now = Instant::now();
        let mut servers = Servers::new(2);
        for _ in 0..10 {
            let asked = now;
            now += SECOND;
            servers.handle_answer(now, 0);
            now += SECOND;
            servers.handle_silence(now, 0, asked, b"slow");
            servers.handle_silence(now, 0, asked, b"slower");
            assert_eq!(servers.order(now), [0, 1]);
        }
    }

    #[test]
    fn types_of_one_name_count_once() {
        let now = Instant::now();
        let mut servers = Servers::new(2);
        for _ in 0..3 {
            servers.handle_silence(now, 0, now, b"slow");
            assert_eq!(servers.order(now), [0, 1]);
        }
        servers.handle_silence(now, 0, now, b"slow");
        assert_eq!(servers.order(now), [1, 0]);
    }
}
