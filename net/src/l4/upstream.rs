//! Upstreams of a published port, and the order in which they are tried.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// A replica behind a published port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// Id of the replica.
    pub replica: Arc<str>,
    /// Host of the replica.
    pub host: Arc<str>,
    /// Address it listens on.
    pub addr: SocketAddr,
}

/// Upstreams of a published port and how connections to them begin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backends {
    /// Upstreams in a stable order.
    pub upstreams: Vec<Upstream>,
    /// Whether a TCP connection begins with a PROXY header of version 2.
    pub proxy_v2: bool,
}

/// Turn of the upstreams of one listener.
#[derive(Debug, Default)]
pub(super) struct RoundRobin(AtomicUsize);

impl RoundRobin {
    /// Returns the upstreams on hosts for which `is_fresh` returns true, each once, in the order in
    /// which to try them; the next call begins with the one after the first.
    pub(super) fn order<'a>(
        &self,
        upstreams: &'a [Upstream],
        is_fresh: impl Fn(&str) -> bool,
    ) -> Vec<&'a Upstream> {
        let fresh = upstreams.iter().filter(|upstream| is_fresh(&upstream.host));
        let mut fresh: Vec<_> = fresh.collect();
        if !fresh.is_empty() {
            let turn = self.0.fetch_add(1, Ordering::Relaxed);
            let count = fresh.len();
            fresh.rotate_left(turn % count);
        }
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upstreams() -> Vec<Upstream> {
        let upstreams = ["a", "b", "c"].into_iter();
        upstreams
            .map(|host| Upstream {
                replica: format!("web-{host}").into(),
                host: host.into(),
                addr: ([10, 1, 0, 1], 80).into(),
            })
            .collect()
    }

    fn hosts(turn: &RoundRobin, upstreams: &[Upstream], fresh: &[&str]) -> String {
        let order = turn.order(upstreams, |host| fresh.contains(&host));
        order.iter().map(|upstream| &*upstream.host).collect()
    }

    #[test]
    fn upstreams_take_turns_and_the_rest_follows() {
        let (turn, upstreams) = (RoundRobin::default(), upstreams());
        let all = ["a", "b", "c"];
        let tried = [(); 4].map(|()| hosts(&turn, &upstreams, &all));
        assert_eq!(tried, ["abc", "bca", "cab", "abc"]);
    }

    #[test]
    fn stale_hosts_are_left_out_when_picked() {
        let (turn, upstreams) = (RoundRobin::default(), upstreams());
        let tried = [(); 3].map(|()| hosts(&turn, &upstreams, &["a", "c"]));
        assert_eq!(tried, ["ac", "ca", "ac"]);
        assert_eq!(hosts(&turn, &upstreams, &[]), "");
        assert_eq!(hosts(&turn, &[], &["a"]), "");
    }
}
