//! Limits and sticky sessions of routes, as they are in force.

use jaco_proto::v1;

use crate::settings::ClusterSettings;

/// Path without limits of a route with the cluster's limits, as of one with `limits: on`.
const DEFAULT_EXEMPT: &str = "/health";

/// Highest rate of a route, in requests per second.
const MAX_RPS: f64 = 1e6;

/// Returns the limits of routes without limits of their own.
#[must_use]
pub fn default_limits(settings: &ClusterSettings) -> Option<v1::RouteLimits> {
    let limits = settings.ingress_limits?;
    let burst = (limits.rps * f64::from(limits.burst_multiplier)).floor();
    Some(v1::RouteLimits {
        off: false,
        rps: limits.rps,
        // The conversion saturates, and the product is positive.
        burst: burst as u32,
        connections: limits.connections,
        exempt: vec![DEFAULT_EXEMPT.to_owned()],
    })
}

/// Returns the limits of each client in force for `route`: its own, else `default`, the cluster's;
/// `None` for no limits.
///
/// Values that no manifest could have are corrected, so that the result is always usable: a rate of
/// 0 or less, or that is no number, is no limit.
#[must_use]
pub fn limits(route: &v1::Route, default: Option<&v1::RouteLimits>) -> Option<v1::RouteLimits> {
    let limits = route.limits.as_ref().or(default)?;
    let counts = !limits.off && limits.rps > 0.0;
    counts.then(|| v1::RouteLimits {
        off: false,
        rps: limits.rps.min(MAX_RPS),
        burst: limits.burst.max(1),
        connections: limits.connections.max(1),
        exempt: limits.exempt.clone(),
    })
}

/// Returns the sticky sessions in force for `route`; `None` if each request gets a random replica.
#[must_use]
pub fn affinity(route: &v1::Route) -> Option<&v1::RouteAffinity> {
    let affinity = route.affinity.as_ref();
    affinity.filter(|affinity| !affinity.cookie.is_empty() && affinity.ttl_s > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Limits;

    fn limits_of(rps: f64, burst: u32) -> v1::RouteLimits {
        v1::RouteLimits {
            rps,
            burst,
            connections: 20,
            ..Default::default()
        }
    }

    #[test]
    fn own_limits_win_over_those_of_the_cluster() {
        let off = v1::RouteLimits {
            off: true,
            ..limits_of(5.0, 5)
        };
        let (own, cluster) = (limits_of(20.0, 100), limits_of(1.0, 5));
        for (given, default, expected) in [
            (None, None, None),
            (None, Some(&cluster), Some(&cluster)),
            (Some(&own), None, Some(&own)),
            (Some(&own), Some(&cluster), Some(&own)),
            (Some(&off), Some(&cluster), None),
            (None, Some(&off), None),
        ] {
            let route = v1::Route {
                limits: given.cloned(),
                ..Default::default()
            };
            assert_eq!(limits(&route, default).as_ref(), expected);
        }
    }

    #[test]
    fn cluster_has_limits_if_they_are_set() {
        let of = |ingress_limits| {
            default_limits(&ClusterSettings {
                ingress_limits,
                ..Default::default()
            })
        };
        assert_eq!(of(None), None);
        let limits = of(Some(Limits {
            rps: 2.5,
            burst_multiplier: 3,
            connections: 20,
        }));
        let expected = v1::RouteLimits {
            exempt: vec!["/health".to_owned()],
            ..limits_of(2.5, 7)
        };
        assert_eq!(limits, Some(expected));
    }

    #[test]
    fn values_that_no_manifest_has_are_corrected() {
        for (rps, expected) in [
            (0.0, None),
            (-1.0, None),
            (f64::NAN, None),
            (f64::INFINITY, Some(MAX_RPS)),
            (2e6, Some(MAX_RPS)),
        ] {
            let route = v1::Route {
                limits: Some(v1::RouteLimits {
                    rps,
                    ..Default::default()
                }),
                ..Default::default()
            };
            let in_force = limits(&route, None);
            assert_eq!(in_force.as_ref().map(|limits| limits.rps), expected);
            if let Some(limits) = in_force {
                assert_eq!((limits.burst, limits.connections), (1, 1));
            }
        }
    }

    #[test]
    fn affinity_needs_a_cookie_with_a_lifetime() {
        for (cookie, ttl_s, in_force) in [("route", 1, true), ("", 1, false), ("route", 0, false)] {
            let route = v1::Route {
                affinity: Some(v1::RouteAffinity {
                    cookie: cookie.to_owned(),
                    ttl_s,
                    ..Default::default()
                }),
                ..Default::default()
            };
            assert_eq!(affinity(&route).is_some(), in_force, "{cookie} {ttl_s}");
        }
        assert_eq!(affinity(&v1::Route::default()), None);
    }
}
