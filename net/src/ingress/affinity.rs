//! Sticky sessions: a cookie that names the replica of a client.
//!
//! The value is a message authentication code over route and replica, so every node with the key
//! resolves it, it tells nothing about the replica, and a forged one names none. Nothing is stored
//! per client. The cookie is a matter between client and proxy: containers do not see it, and
//! clients do not see a container's cookie of that name.

use std::{fmt, time::Duration};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{
    HeaderMap, HeaderValue,
    header::{COOKIE, SET_COOKIE},
};
use ring::hmac;

use super::Upstream;

/// Bytes of the authentication code in a cookie.
const CODE_BYTES: usize = 12;
/// Characters of a cookie's value.
const TOKEN_CHARS: usize = CODE_BYTES.div_ceil(3) * 4;

/// Value of a cookie.
type Token = [u8; TOKEN_CHARS];

/// Key of the cookies, equal on every node of a cluster. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct AffinityKey([u8; 32]);

impl AffinityKey {
    /// Wraps the bytes of a key.
    #[must_use]
    pub fn new(key: [u8; 32]) -> Self {
        Self(key)
    }

    /// The value that names `replica` as that of a client of the route of `domain` and `path`.
    fn token(&self, domain: &str, path: &str, replica: &str) -> Token {
        let mut mac = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, &self.0));
        for part in [domain, path, replica] {
            // With its length each part ends where it should.
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part.as_bytes());
        }
        let mut token = [0; TOKEN_CHARS];
        let mac = mac.sign();
        let code = mac.as_ref().get(..CODE_BYTES).unwrap_or_default();
        // The token has room for exactly this text.
        let _ = URL_SAFE_NO_PAD.encode_slice(code, &mut token);
        token
    }
}

impl fmt::Debug for AffinityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AffinityKey(<redacted>)")
    }
}

/// Which requests from other sites carry a cookie (RFC 6265bis, section 4.1.2.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SameSite {
    /// Only top-level navigation.
    #[default]
    Lax,
    /// None.
    Strict,
    /// All; browsers want `Secure` with it, which only TLS gives.
    None,
}

impl SameSite {
    fn name(self) -> &'static str {
        match self {
            Self::Lax => "Lax",
            Self::Strict => "Strict",
            Self::None => "None",
        }
    }
}

/// Sticky sessions of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Affinity {
    /// Name of the cookie, a token (RFC 6265, section 4.1.1).
    pub cookie: String,
    /// Lifetime of the cookie, in whole seconds.
    pub ttl: Duration,
    /// Which requests from other sites carry it.
    pub same_site: SameSite,
    /// Key of the cookies.
    pub key: AffinityKey,
}

/// The cookies of one route's replicas, ready for use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StickyRoute {
    cookie: Box<str>,
    /// Attributes of the cookie without TLS.
    attributes: Box<str>,
    /// By position of the replica.
    tokens: Box<[Token]>,
}

impl StickyRoute {
    pub(super) fn new(
        affinity: &Affinity,
        domain: &str,
        path: &str,
        upstreams: &[Upstream],
    ) -> Self {
        let (ttl, same_site) = (affinity.ttl.as_secs(), affinity.same_site.name());
        let scope = cookie_path(path);
        let token = |upstream: &Upstream| affinity.key.token(domain, path, &upstream.replica);
        Self {
            cookie: affinity.cookie.as_str().into(),
            attributes: format!("; Path={scope}; Max-Age={ttl}; HttpOnly; SameSite={same_site}")
                .into(),
            tokens: upstreams.iter().map(token).collect(),
        }
    }

    /// Name of the cookie.
    pub(super) fn cookie(&self) -> &str {
        &self.cookie
    }

    /// Position of the replica that a cookie of the request names. With several cookies of the name,
    /// such as those of a shorter path, the first that names one counts.
    pub(super) fn named_replica(&self, headers: &HeaderMap) -> Option<usize> {
        let fields = headers.get_all(COOKIE).iter();
        let mut cookies = fields.flat_map(|field| cookies(field.as_bytes()));
        cookies.find_map(|cookie| {
            let value = cookie.value_of(&self.cookie)?;
            self.tokens.iter().position(|token| token == value)
        })
    }

    /// The field that gives the cookie of the replica at position `upstream` to the client.
    pub(super) fn set_cookie(&self, upstream: usize, secure: bool) -> Option<HeaderValue> {
        let token = std::str::from_utf8(self.tokens.get(upstream)?).ok()?;
        let (name, attributes) = (&self.cookie, &self.attributes);
        let secure = if secure { "; Secure" } else { "" };
        HeaderValue::try_from(format!("{name}={token}{attributes}{secure}")).ok()
    }

    /// Removes a container's own cookies of this name from a response.
    pub(super) fn hide_from_client(&self, headers: &mut HeaderMap) {
        let is_ours = |field: &HeaderValue| {
            let cookie = cookies(field.as_bytes()).next();
            cookie.is_some_and(|cookie| cookie.name == self.cookie.as_bytes())
        };
        if !headers.get_all(SET_COOKIE).iter().any(is_ours) {
            return;
        }
        let fields = headers.get_all(SET_COOKIE).iter();
        let kept: Vec<_> = fields.filter(|field| !is_ours(field)).cloned().collect();
        headers.remove(SET_COOKIE);
        for field in kept {
            headers.append(SET_COOKIE, field);
        }
    }
}

/// Removes the proxy's cookies from a request: those named `own`, and those with one of `names` and
/// a value of their form, which belong to other routes of the domain.
pub(super) fn hide_from_replica(headers: &mut HeaderMap, own: Option<&str>, names: &[Box<str>]) {
    let is_ours = |cookie: &Cookie<'_>| {
        own.is_some_and(|own| cookie.name == own.as_bytes())
            || names.iter().any(|name| {
                let value = cookie.value_of(name);
                value.is_some_and(has_token_form)
            })
    };
    let mut fields = headers.get_all(COOKIE).iter();
    if !fields.any(|field| cookies(field.as_bytes()).any(|cookie| is_ours(&cookie))) {
        return;
    }
    let fields = headers.get_all(COOKIE).iter();
    let kept = fields.filter_map(|field| {
        let kept = cookies(field.as_bytes()).filter(|cookie| !is_ours(cookie));
        let kept: Vec<&[u8]> = kept.map(|cookie| cookie.text).collect();
        let field = HeaderValue::from_bytes(&kept.join(&b"; "[..])).ok()?;
        (!kept.is_empty()).then_some(field)
    });
    let kept: Vec<_> = kept.collect();
    headers.remove(COOKIE);
    for field in kept {
        headers.append(COOKIE, field);
    }
}

fn has_token_form(value: &[u8]) -> bool {
    let allowed = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
    value.len() == TOKEN_CHARS && value.iter().all(allowed)
}

/// A name with a value.
struct Cookie<'a> {
    /// Both, as written.
    text: &'a [u8],
    name: &'a [u8],
    value: &'a [u8],
}

impl<'a> Cookie<'a> {
    /// The value, if the cookie has this name.
    fn value_of(&self, name: &str) -> Option<&'a [u8]> {
        (self.name == name.as_bytes()).then_some(self.value)
    }
}

/// The cookies of a field (RFC 6265, section 4.2.1). Names are case-sensitive; a member without `=`
/// has an empty name, as browsers send it, and empty members are skipped.
fn cookies(field: &[u8]) -> impl Iterator<Item = Cookie<'_>> {
    let members = field.split(|&b| b == b';').map(<[u8]>::trim_ascii);
    members.filter(|text| !text.is_empty()).map(|text| {
        let at = text.iter().position(|&b| b == b'=');
        let (name, value) = match at {
            Some(at) => (&text[..at], &text[at + 1..]),
            None => (&text[..0], text),
        };
        Cookie {
            text,
            name: name.trim_ascii(),
            value: value.trim_ascii(),
        }
    })
}

/// The cookie path that covers every request of a route with this configured path
/// (RFC 6265, section 5.1.4).
fn cookie_path(configured: &str) -> &str {
    let path = match configured.strip_suffix('*') {
        // `/api*` matches `/apix`, which no cookie of `/api` reaches.
        Some(prefix) => prefix.rfind('/').map_or("", |slash| &prefix[..=slash]),
        None => configured,
    };
    // Clients compare the path as they write it, which is unknown for encoded characters.
    let plain = |b: u8| b.is_ascii_graphic() && !matches!(b, b';' | b'%' | b'"' | b'\\');
    if !path.starts_with('/') || !path.bytes().all(plain) {
        return "/";
    }
    match path.strip_suffix('/') {
        Some("") | None => path,
        Some(_) if configured.ends_with('*') => path,
        Some(base) => base,
    }
}

#[cfg(test)]
mod tests;
