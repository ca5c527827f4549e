//! Route matching.

mod matcher;

use std::{
    borrow::Cow,
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
    mem::take,
};

use self::matcher::Matcher;
use super::{
    Affinity, TrustedProxies, Upstream,
    affinity::StickyRoute,
    path::{NormalizedPath, Pattern},
};
use crate::limit::Limits;

/// Path prefixes that no route limits: challenges of certificate authorities, and probes of whether
/// a domain leads here.
const NEVER_LIMITED: [&str; 2] = ["/.well-known/acme-challenge/*", "/.well-known/jaco-probe/*"];

/// One route as declared.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rule {
    /// Domain as declared, in any case.
    pub domain: String,
    /// Configured path; empty for the catch-all of the domain.
    pub path: String,
    /// Whether the matched prefix is removed before forwarding.
    pub strip_path: bool,
    /// Whether plain HTTP is answered with a redirect; one such rule decides for its domain.
    pub redirect_to_https: bool,
    /// Name of the deployment that declares it, for the request counters.
    pub deployment: String,
    /// Name of the service behind it, for the request counters.
    pub service: String,
    /// Whether its replicas speak cleartext HTTP/2 with prior knowledge (RFC 9113, section 3.3).
    pub http2: bool,
    /// Replicas that may serve it, in any order.
    pub upstreams: Vec<Upstream>,
    /// Limits of each client.
    pub limits: Option<RuleLimits>,
    /// Sticky sessions; without it each request gets a random replica.
    pub affinity: Option<Affinity>,
}

/// Limits of each client of a route.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleLimits {
    /// The limits.
    pub limits: Limits,
    /// Paths without limits, matched as the configured paths of routes.
    pub exempt: Vec<String>,
}

/// The routes of every domain; immutable.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RouteTable {
    /// Positions in `domains` by name.
    index: HashMap<Box<str>, usize>,
    /// By name.
    domains: Vec<Domain>,
    trusted_proxies: TrustedProxies,
}

#[derive(Clone, Debug, PartialEq)]
struct Domain {
    name: Box<str>,
    redirect_to_https: bool,
    routes: Vec<Route>,
    /// Names of the cookies of sticky sessions.
    cookies: Box<[Box<str>]>,
    matcher: Matcher,
}

/// Position of a route in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RouteId {
    pub(super) domain: usize,
    pub(super) route: usize,
}

/// Domain and route of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) domain: usize,
    /// Whether plain HTTP is redirected, whatever the path.
    pub(super) redirect_to_https: bool,
    pub(super) route: Option<RouteId>,
    /// Whether the limits of the route apply to the path.
    pub(super) is_limited: bool,
}

/// One route, compiled for matching.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    path: String,
    strip: Option<Box<[u8]>>,
    deployment: String,
    service: String,
    http2: bool,
    upstreams: Vec<Upstream>,
    limits: Option<RouteLimits>,
    sticky: Option<StickyRoute>,
}

#[derive(Clone, Debug, PartialEq)]
struct RouteLimits {
    limits: Limits,
    exempt: Matcher,
}

/// How to answer a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Match<'a> {
    /// Redirect the client to the same address over HTTPS.
    Redirect,
    /// Forward it to a replica of this route.
    Forward(&'a Route),
}

impl RouteTable {
    /// Builds a table. Of several rules with the same domain and path the first one counts.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Self {
        let mut rules: Vec<Rule> = rules.into_iter().collect();
        for rule in &mut rules {
            rule.domain.make_ascii_lowercase();
        }
        // By domain; then the longest configured path first, equal lengths in byte order, so the
        // empty path, the catch-all, comes last. Of duplicates the first comes first. Keys are
        // sorted because moving the rules themselves takes longer.
        let keys = rules.iter().enumerate().map(|(at, rule)| {
            let path = rule.path.as_str();
            (rule.domain.as_str(), Reverse(path.len()), path, at)
        });
        let mut keys: Vec<_> = keys.collect();
        keys.sort_unstable();
        let order: Vec<usize> = keys.into_iter().map(|(_, _, _, at)| at).collect();
        let ordered = order
            .into_iter()
            .filter_map(|at| rules.get_mut(at).map(take));
        let mut domains: Vec<Domain> = Vec::new();
        let mut ordered = ordered.peekable();
        while let Some(first) = ordered.next() {
            let name = first.domain.clone();
            let mut redirect_to_https = first.redirect_to_https;
            let mut routes = vec![Route::new(first)];
            while let Some(rule) = ordered.next_if(|rule| rule.domain == name) {
                redirect_to_https |= rule.redirect_to_https;
                if routes.last().is_none_or(|last| last.path != rule.path) {
                    routes.push(Route::new(rule));
                }
            }
            let cookies = routes.iter().filter_map(|route| route.sticky.as_ref());
            let cookies: BTreeSet<&str> = cookies.map(StickyRoute::cookie).collect();
            domains.push(Domain {
                cookies: cookies.into_iter().map(Box::<str>::from).collect(),
                name: name.into(),
                redirect_to_https,
                matcher: Matcher::new(routes.iter().map(|route| Pattern::new(&route.path))),
                routes,
            });
        }
        let names = domains.iter().enumerate();
        let index = names
            .map(|(at, domain)| (domain.name.clone(), at))
            .collect();
        Self {
            index,
            domains,
            trusted_proxies: TrustedProxies::default(),
        }
    }

    /// Believes the addresses of clients that these proxies report.
    #[must_use]
    pub fn trusting(mut self, proxies: TrustedProxies) -> Self {
        self.trusted_proxies = proxies;
        self
    }

    /// The proxies whose reports of clients are believed.
    #[must_use]
    pub fn trusted_proxies(&self) -> &TrustedProxies {
        &self.trusted_proxies
    }

    /// Finds how a plain HTTP request for `path` on `host` is answered; `None` if no route matches.
    ///
    /// `host` carries no port; `path` is as received, without the query.
    #[must_use]
    pub fn lookup(&self, host: &str, path: &str) -> Option<Match<'_>> {
        let found = self.find(host, path)?;
        if found.redirect_to_https {
            return Some(Match::Redirect);
        }
        self.route(found.route?).map(Match::Forward)
    }

    /// Finds domain and route of a request; `None` for an unknown host.
    pub(super) fn find(&self, host: &str, path: &str) -> Option<Found> {
        let at = *self.index.get(fold_case(host).as_ref())?;
        let domain = self.domains.get(at)?;
        let path = NormalizedPath::new(path);
        let route = domain.matcher.find(&path);
        let limits = route.and_then(|route| domain.routes.get(route)?.limits.as_ref());
        Some(Found {
            is_limited: limits.is_some_and(|limits| limits.exempt.find(&path).is_none()),
            domain: at,
            redirect_to_https: domain.redirect_to_https,
            route: route.map(|route| RouteId { domain: at, route }),
        })
    }

    pub(super) fn route(&self, id: RouteId) -> Option<&Route> {
        self.domains.get(id.domain)?.routes.get(id.route)
    }

    pub(super) fn domain_name(&self, domain: usize) -> Option<&str> {
        self.domains.get(domain).map(|domain| &*domain.name)
    }

    /// Names of the cookies of sticky sessions of a domain, by name.
    pub(super) fn cookies(&self, domain: usize) -> &[Box<str>] {
        self.domains
            .get(domain)
            .map_or(&[], |domain| &domain.cookies)
    }

    /// The routes of each domain, by domain.
    pub(super) fn all_routes(&self) -> impl Iterator<Item = &[Route]> {
        self.domains.iter().map(|domain| &*domain.routes)
    }

    /// Every domain, by name.
    pub fn domains(&self) -> impl Iterator<Item = &str> {
        self.domains.iter().map(|domain| &*domain.name)
    }

    /// The routes of one domain in the order they are tried.
    #[must_use]
    pub fn routes(&self, domain: &str) -> &[Route] {
        let at = self.index.get(domain);
        let domain = at.and_then(|at| self.domains.get(*at));
        domain.map_or(&[], |domain| &domain.routes)
    }

    /// Every replica of every route, repeated if several routes use it.
    pub fn upstreams(&self) -> impl Iterator<Item = &Upstream> {
        self.all_routes().flatten().flat_map(Route::upstreams)
    }

    /// Whether there is no route at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }
}

impl Route {
    fn new(rule: Rule) -> Self {
        let strip = rule.strip_path.then(|| {
            let path = rule.path.strip_suffix('*').unwrap_or(&rule.path);
            path.strip_suffix('/').unwrap_or(path).as_bytes().into()
        });
        let mut upstreams = rule.upstreams;
        // Sorted and without duplicates, so that tables with the same upstreams compare equal.
        upstreams.sort();
        upstreams.dedup();
        let limits = rule.limits.map(|rule| {
            let exempt = rule.exempt.iter().map(String::as_str);
            RouteLimits {
                exempt: Matcher::new(exempt.chain(NEVER_LIMITED).map(Pattern::new)),
                limits: rule.limits,
            }
        });
        let sticky = rule.affinity.as_ref();
        let sticky =
            sticky.map(|affinity| StickyRoute::new(affinity, &rule.domain, &rule.path, &upstreams));
        Self {
            limits,
            sticky,
            path: rule.path,
            strip,
            deployment: rule.deployment,
            service: rule.service,
            http2: rule.http2,
            upstreams,
        }
    }

    /// The configured path.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Name of the deployment that declares it.
    #[must_use]
    pub fn deployment(&self) -> &str {
        &self.deployment
    }

    /// Name of the service behind it.
    #[must_use]
    pub fn service(&self) -> &str {
        &self.service
    }

    /// Whether its replicas speak cleartext HTTP/2.
    #[must_use]
    pub fn http2(&self) -> bool {
        self.http2
    }

    /// Limits of each client.
    #[must_use]
    pub fn limits(&self) -> Option<&Limits> {
        self.limits.as_ref().map(|limits| &limits.limits)
    }

    /// Name of the cookie of its sticky sessions.
    #[must_use]
    pub fn cookie(&self) -> Option<&str> {
        self.sticky().map(StickyRoute::cookie)
    }

    pub(super) fn sticky(&self) -> Option<&StickyRoute> {
        self.sticky.as_ref()
    }

    /// Replicas that may serve it.
    #[must_use]
    pub fn upstreams(&self) -> &[Upstream] {
        &self.upstreams
    }

    /// The path to forward instead of `path`, if the route strips its prefix.
    #[must_use]
    pub fn stripped(&self, path: &str) -> Option<String> {
        let prefix = self.strip.as_deref().filter(|prefix| !prefix.is_empty())?;
        Some(super::path::strip(path, prefix))
    }
}

/// Folds the case of a host: hosts are matched case-insensitively.
pub(super) fn fold_case(host: &str) -> Cow<'_, str> {
    if host.bytes().any(|b| b.is_ascii_uppercase()) {
        Cow::Owned(host.to_ascii_lowercase())
    } else {
        Cow::Borrowed(host)
    }
}

#[cfg(test)]
mod tests;
