//! Route matching.

use std::{borrow::Cow, cmp::Reverse, collections::HashMap};

use super::{
    Upstream,
    path::{NormalizedPath, Pattern},
};

/// One route as declared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Path as declared; empty for the catch-all of the domain.
    pub domain: String,
    /// Configured path; empty for the catch-all of the domain.
    pub path: String,
    /// Whether the matched prefix is removed before forwarding.
    pub strip_path: bool,
    /// Whether plain HTTP is answered with a redirect; one such rule decides for its domain.
    pub redirect_to_https: bool,
    /// Name of the service behind it, for the request counters.
    pub service: String,
    /// Replicas that may serve it, in any order.
    pub upstreams: Vec<Upstream>,
}

/// The routes of every domain; immutable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteTable {
    domains: HashMap<String, Domain>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Domain {
    redirect_to_https: bool,
    routes: Vec<Route>,
}

/// One route, compiled for matching.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    path: String,
    pattern: Pattern,
    strip: Option<Box<[u8]>>,
    service: String,
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
        let mut domains: HashMap<String, Domain> = HashMap::new();
        for mut rule in rules {
            rule.domain.make_ascii_lowercase();
            let domain = domains.entry(std::mem::take(&mut rule.domain)).or_default();
            domain.redirect_to_https |= rule.redirect_to_https;
            domain.routes.push(Route::new(rule));
        }
        for domain in domains.values_mut() {
            // Longest configured path first, equal lengths in byte order; the empty path, the
            // catch-all, comes last.
            domain.routes.sort_by(|a, b| {
                (Reverse(a.path.len()), &a.path).cmp(&(Reverse(b.path.len()), &b.path))
            });
            domain
                .routes
                .dedup_by(|later, first| later.path == first.path);
        }
        Self { domains }
    }

    /// Finds how a request for `path` on `host` is answered; `None` if no route matches.
    ///
    /// `host` carries no port; `path` is as received, without the query.
    #[must_use]
    pub fn lookup(&self, host: &str, path: &str) -> Option<Match<'_>> {
        let domain = self.domains.get(fold_case(host).as_ref())?;
        if domain.redirect_to_https {
            return Some(Match::Redirect);
        }
        let normalized = NormalizedPath::new(path);
        domain
            .routes
            .iter()
            .find(|route| route.pattern.matches(&normalized))
            .map(Match::Forward)
    }

    /// Every domain, in no particular order.
    pub fn domains(&self) -> impl Iterator<Item = &str> {
        self.domains.keys().map(String::as_str)
    }

    /// The routes of one domain in the order they are tried.
    #[must_use]
    pub fn routes(&self, domain: &str) -> &[Route] {
        self.domains
            .get(domain)
            .map_or(&[], |domain| &domain.routes)
    }

    /// Every replica of every route, repeated if several routes use it.
    pub fn upstreams(&self) -> impl Iterator<Item = &Upstream> {
        self.domains
            .values()
            .flat_map(|domain| &domain.routes)
            .flat_map(Route::upstreams)
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
            pattern: Pattern::new(&rule.path),
            path: rule.path,
            strip,
            service: rule.service,
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
