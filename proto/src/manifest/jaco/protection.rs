//! Limits and sticky sessions of a route.

use std::time::Duration;

use crate::{
    Error,
    manifest::{
        fault::{Located, invalid, suggestion},
        grammar,
    },
    v1,
    yaml::Position,
};

use super::{
    Spanned,
    check::in_range,
    decode::{RawAffinity, RawChoice, RawLimits},
    keys::{AFFINITIES, LIMITS, ROUTE_LIMITS, SAME_SITES, ValueType, value_of},
};

const DEFAULT_RPS: f64 = 20.0;
const DEFAULT_BURST_MULTIPLIER: u32 = 5;
const DEFAULT_CONNECTIONS: u32 = 20;
const DEFAULT_EXEMPT: &str = "/health";
/// Every request is compared with each exempt path.
const MAX_EXEMPT: usize = 32;

const DEFAULT_COOKIE: &str = "route";
const DEFAULT_SAME_SITE: &str = "lax";
const MAX_COOKIE_NAME: usize = 64;
/// Longest lifetime that browsers grant a cookie (draft-ietf-httpbis-rfc6265bis, section 5.5).
const MAX_TTL: Duration = Duration::from_secs(400 * 24 * 3600);

/// Limits of the word `on`, and of each value that a mapping leaves out.
pub(super) fn default_limits() -> v1::RouteLimits {
    v1::RouteLimits {
        off: false,
        rps: DEFAULT_RPS,
        burst: burst(DEFAULT_RPS, DEFAULT_BURST_MULTIPLIER),
        connections: DEFAULT_CONNECTIONS,
        exempt: vec![DEFAULT_EXEMPT.to_owned()],
    }
}

/// Requests admitted at once: `multiplier` times the rate, but at least one.
fn burst(rps: f64, multiplier: u32) -> u32 {
    // The conversion saturates, and the product is positive.
    ((rps * f64::from(multiplier)).floor() as u32).max(1)
}

/// Checks `limits` of a route of `domain`.
pub(super) fn limits(
    raw: Option<Spanned<RawChoice<RawLimits>>>,
    domain: &str,
) -> Result<Option<v1::RouteLimits>, Error> {
    let Some(Spanned { value, at }) = raw else {
        return Ok(None);
    };
    let fail = |field: &str, message: String, at: Position| refused(domain, field, message, at);
    let raw = match value {
        RawChoice::Values(values) => values,
        RawChoice::Word(word) => {
            let on = value_of(&LIMITS, &word).ok_or_else(|| {
                let near = suggestion(&word, LIMITS.map(|(known, _)| known));
                let message = format!(
                    "route {domain:?} has unknown limits {word:?}, want on, off or a mapping{near}"
                );
                fail("limits", message, at).with("value", &word)
            })?;
            return Ok(Some(if on {
                default_limits()
            } else {
                v1::RouteLimits {
                    off: true,
                    ..Default::default()
                }
            }));
        }
    };
    let max = match ROUTE_LIMITS.key("rps").map(|key| &key.value_type) {
        Some(ValueType::Rate { max }) => *max,
        Some(_) | None => f64::MAX,
    };
    if let Some(rps) = raw.rps.filter(|rps| !(rps.value > 0.0 && rps.value <= max)) {
        let given = rps.value;
        let message = format!("route {domain:?} has rps {given}, want above 0, at most {max}");
        return Err(fail("limits.rps", message, rps.at).with("value", given));
    }
    let count = |key: &str, given: Option<Spanned<i64>>, default: u32| match given {
        None => Ok(default),
        Some(given) => in_range(&ROUTE_LIMITS, key, given.value).map_err(|want| {
            let count = given.value;
            let message = format!("route {domain:?} has {key} {count}, want {want}");
            fail(&format!("limits.{key}"), message, given.at).with("value", count)
        }),
    };
    let rps = raw.rps.map_or(DEFAULT_RPS, |rps| rps.value);
    let key = "burst_multiplier";
    let multiplier = count(key, raw.burst_multiplier, DEFAULT_BURST_MULTIPLIER)?;
    Ok(Some(v1::RouteLimits {
        off: false,
        rps,
        burst: burst(rps, multiplier),
        connections: count("connections", raw.connections, DEFAULT_CONNECTIONS)?,
        exempt: match raw.exempt {
            Some(paths) => exempt(paths, domain)?,
            None => vec![DEFAULT_EXEMPT.to_owned()],
        },
    }))
}

fn exempt(paths: Vec<Spanned<String>>, domain: &str) -> Result<Vec<String>, Error> {
    for (count, path) in paths.iter().enumerate() {
        let fault = if count >= MAX_EXEMPT {
            format!("more than {MAX_EXEMPT} exempt paths")
        } else if !path.starts_with('/') {
            format!("exempt path {:?}, want one that begins with /", path.value)
        } else {
            continue;
        };
        let message = format!("route {domain:?} has {fault}");
        return Err(refused(domain, "limits.exempt", message, path.at).with("value", &path.value));
    }
    Ok(paths.into_iter().map(|path| path.value).collect())
}

/// Checks `affinity` of a route of `domain`.
pub(super) fn affinity(
    raw: Option<Spanned<RawChoice<RawAffinity>>>,
    domain: &str,
) -> Result<Option<v1::RouteAffinity>, Error> {
    let Some(Spanned { value, at }) = raw else {
        return Ok(None);
    };
    let mut affinity = v1::RouteAffinity {
        cookie: DEFAULT_COOKIE.to_owned(),
        ttl_s: MAX_TTL.as_secs(),
        same_site: DEFAULT_SAME_SITE.to_owned(),
    };
    let raw = match value {
        RawChoice::Values(values) => values,
        RawChoice::Word(word) => {
            return match value_of(&AFFINITIES, &word) {
                Some(()) => Ok(Some(affinity)),
                None => {
                    let near = suggestion(&word, AFFINITIES.map(|(known, ())| known));
                    let message = format!(
                        "route {domain:?} has unknown affinity {word:?}, want cookie or a \
                         mapping{near}"
                    );
                    Err(refused(domain, "affinity", message, at).with("value", word))
                }
            };
        }
    };
    let fail = |key: &str, given: &Spanned<String>, want: &str| {
        let message = format!("route {domain:?} has {key} {:?}, want {want}", given.value);
        let field = format!("affinity.{key}");
        refused(domain, &field, message, given.at).with("value", &given.value)
    };
    if !raw.cookie.is_empty() {
        if !is_cookie_name(&raw.cookie) {
            let want = "at most 64 letters, digits and -_.~!#$%&'*+^`|";
            return Err(fail("cookie", &raw.cookie, want));
        }
        affinity.cookie = raw.cookie.value;
    }
    if !raw.ttl.is_empty() {
        let ttl = grammar::duration(&raw.ttl);
        let ttl = ttl.filter(|ttl| (1..=MAX_TTL.as_secs()).contains(&ttl.as_secs()));
        let ttl = ttl.filter(|ttl| *ttl <= MAX_TTL);
        affinity.ttl_s = ttl
            .ok_or_else(|| fail("ttl", &raw.ttl, "1s to 400d"))?
            .as_secs();
    }
    if !raw.same_site.is_empty() {
        value_of(&SAME_SITES, &raw.same_site)
            .ok_or_else(|| fail("same_site", &raw.same_site, "lax, strict or none"))?;
        affinity.same_site = raw.same_site.value;
    }
    Ok(Some(affinity))
}

/// Whether `name` is a token (RFC 6265, section 4.1.1).
fn is_cookie_name(name: &str) -> bool {
    let token = |c: u8| c.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&c);
    name.len() <= MAX_COOKIE_NAME && name.bytes().all(token)
}

fn refused(domain: &str, field: &str, message: String, at: Position) -> Error {
    invalid(message)
        .with("field", format!("routes.{field}"))
        .with_text("domain", domain)
        .at(at)
}
