//! Route table of the proxy; [`jaco_policy::ingress::table`] decides which replicas serve.

use std::collections::BTreeSet;

use jaco_net::ingress::{RouteTable, Rule, Upstream};
use jaco_policy::ingress::table::served_routes;
use jaco_state::State;

pub use jaco_policy::ingress::table::{NodeFacts, same_input};

/// Builds the table of all routes; a route without an eligible replica has no upstreams.
///
/// Rebuild the table when `fresh` changes: replicas of hosts that are not fresh are excluded here
/// and not when an upstream is picked.
#[must_use]
pub fn route_table(state: &State, facts: &NodeFacts, fresh: &BTreeSet<String>) -> RouteTable {
    let served = served_routes(state, facts, fresh).into_iter();
    RouteTable::new(served.map(|served| {
        let upstreams = served.upstreams.into_iter().map(|upstream| Upstream {
            replica: upstream.replica.into(),
            addr: upstream.addr,
            fresh_until: None,
        });
        Rule {
            domain: served.route.domain.clone(),
            path: served.route.path.clone(),
            strip_path: served.route.strip_path,
            redirect_to_https: served.redirect_to_https,
            service: served.route.service.clone(),
            http2: served.route.upstream_h2c,
            upstreams: upstreams.collect(),
        }
    }))
}

#[cfg(test)]
mod tests {
    use jaco_net::ingress::Match;
    use jaco_policy::ingress::table::testing::{add_replica, state_with_route};

    use super::*;

    #[test]
    fn table_has_routes_and_their_upstreams() {
        let facts = |https| NodeFacts {
            hostname: "here".to_owned(),
            https,
            mesh: false,
        };
        let mut state = state_with_route();
        add_replica(&mut state, "web-0", "here", "10.1.0.2");
        let key = ("a.example".to_owned(), String::new());
        let mut route = (**state.routes.get(&key).unwrap()).clone();
        route.tls_auto = true;
        state.routes.insert(key, route.into());
        let table = route_table(&state, &facts(false), &BTreeSet::new());
        let expected = Upstream {
            replica: "web-0".into(),
            addr: ([10, 1, 0, 2], 8080).into(),
            fresh_until: None,
        };
        assert_eq!(table.routes("a.example")[0].upstreams(), [expected]);
        let table = route_table(&state, &facts(true), &BTreeSet::new());
        let found = table.lookup("a.example", "/");
        assert!(matches!(found, Some(Match::Redirect)));
    }
}
