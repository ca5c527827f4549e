//! Route table of the proxy; [`jaco_policy::ingress::table`] decides which replicas serve.

use std::{collections::BTreeSet, time::Duration};

use jaco_net::{
    ingress::{
        Affinity, AffinityKey, RouteTable, Rule, RuleLimits, SameSite, TrustedProxies, Upstream,
    },
    limit::Limits,
};
use jaco_policy::{
    ingress::{protection, table::served_routes},
    settings::ClusterSettings,
};
use jaco_proto::v1;
use jaco_state::State;

pub use jaco_policy::ingress::table::{NodeFacts, same_input};

/// Builds the table of all routes; a route without an eligible replica has no upstreams.
///
/// Rebuild the table when `fresh` changes: replicas of hosts that are not fresh are excluded here
/// and not when an upstream is picked.
///
/// Sticky sessions need `key`; without it each request gets a random replica.
#[must_use]
pub fn route_table(
    state: &State,
    facts: &NodeFacts,
    fresh: &BTreeSet<String>,
    key: Option<&AffinityKey>,
) -> RouteTable {
    let settings = ClusterSettings::of(state);
    let default = protection::default_limits(&settings);
    let served = served_routes(state, facts, fresh).into_iter();
    let rules = served.map(|served| {
        let limits = protection::limits(served.route, default.as_ref());
        let affinity = key.zip(protection::affinity(served.route));
        let upstreams = served.upstreams.into_iter().map(|upstream| Upstream {
            replica: upstream.replica.into(),
            addr: upstream.addr,
            fresh_until: None,
            leaving: upstream.leaving,
        });
        Rule {
            domain: served.route.domain.clone(),
            path: served.route.path.clone(),
            strip_path: served.route.strip_path,
            redirect_to_https: served.redirect_to_https,
            deployment: served.route.deployment.clone(),
            service: served.route.service.clone(),
            http2: served.route.upstream_h2c,
            upstreams: upstreams.collect(),
            limits: limits.map(rule_limits),
            affinity: affinity.map(|(key, row)| rule_affinity(row, key)),
        }
    });
    let trusted = settings.trusted_proxies.iter();
    let trusted = trusted.map(|proxy| (proxy.address(), proxy.length()));
    RouteTable::new(rules).trusting(TrustedProxies::new(trusted))
}

fn rule_limits(row: v1::RouteLimits) -> RuleLimits {
    RuleLimits {
        limits: Limits {
            rps: row.rps,
            burst: row.burst,
            connections: row.connections,
        },
        exempt: row.exempt,
    }
}

fn rule_affinity(row: &v1::RouteAffinity, key: &AffinityKey) -> Affinity {
    Affinity {
        cookie: row.cookie.clone(),
        ttl: Duration::from_secs(row.ttl_s),
        same_site: match row.same_site.as_str() {
            "strict" => SameSite::Strict,
            "none" => SameSite::None,
            _ => SameSite::Lax,
        },
        key: key.clone(),
    }
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
            unreached: Default::default(),
        };
        let mut state = state_with_route();
        add_replica(&mut state, "web-0", "here", "10.1.0.2");
        let key = ("a.example".to_owned(), String::new());
        let mut route = (**state.routes.get(&key).unwrap()).clone();
        route.tls_auto = true;
        state.routes.insert(key, route.into());
        let table = route_table(&state, &facts(false), &BTreeSet::new(), None);
        let expected = Upstream {
            replica: "web-0".into(),
            addr: ([10, 1, 0, 2], 8080).into(),
            fresh_until: None,
            leaving: false,
        };
        assert_eq!(table.routes("a.example")[0].upstreams(), [expected]);
        let table = route_table(&state, &facts(true), &BTreeSet::new(), None);
        let found = table.lookup("a.example", "/");
        assert!(matches!(found, Some(Match::Redirect)));
    }
}
