//! Route matching.

mod matcher;

use std::{borrow::Cow, cmp::Reverse, collections::HashMap, mem::take};

use self::matcher::Matcher;
use super::{
    Upstream,
    path::{NormalizedPath, Pattern},
};

/// One route as declared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Domain as declared, in any case.
    pub domain: String,
    /// Configured path; empty for the catch-all of the domain.
    pub path: String,
    /// Whether the matched prefix is removed before forwarding.
    pub strip_path: bool,
    /// Whether plain HTTP is answered with a redirect; one such rule decides for its domain.
    pub redirect_to_https: bool,
    /// Name of the service behind it, for the request counters.
    pub service: String,
    /// Whether its replicas speak cleartext HTTP/2 with prior knowledge (RFC 9113, section 3.3).
    pub http2: bool,
    /// Replicas that may serve it, in any order.
    pub upstreams: Vec<Upstream>,
}

/// The routes of every domain; immutable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteTable {
    /// Positions in `domains` by name.
    index: HashMap<Box<str>, usize>,
    /// By name.
    domains: Vec<Domain>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Domain {
    name: Box<str>,
    redirect_to_https: bool,
    routes: Vec<Route>,
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
}

/// One route, compiled for matching.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    path: String,
    strip: Option<Box<[u8]>>,
    service: String,
    http2: bool,
    upstreams: Vec<Upstream>,
}

/// How to answer a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
            domains.push(Domain {
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
        Self { index, domains }
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
        let route = domain.matcher.find(&NormalizedPath::new(path));
        Some(Found {
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
        Self {
            path: rule.path,
            strip,
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
