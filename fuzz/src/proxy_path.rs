//! Fuzzes the selection of a route for a request, and the removal of its prefix.

use std::cmp::Reverse;

use jaco_net::ingress::{Match, RouteTable, Rule};

/// Maximum number of routes per input.
const ROUTES: usize = 16;

/// Input: the path of a request on the first line, then configured paths.
///
/// The selected route is the longest one that matches the decoded path, in every encoding of the
/// path. The path without the route's prefix is a valid path.
pub fn proxy_path(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.split('\n');
    let path = lines.next().unwrap_or_default();
    let rules: Vec<Rule> = lines.take(ROUTES).map(rule).collect();
    let table = RouteTable::new(rules.clone());
    let decoded_path = decoded_path(path.as_bytes());
    let found = table.lookup("A.example", path).map(|found| match found {
        Match::Forward(route) => route,
        Match::Redirect => panic!("nothing is redirected"),
    });
    let mut matching: Vec<&str> = rules.iter().map(|rule| rule.path.as_str()).collect();
    matching.retain(|configured| matches(configured, &decoded_path));
    matching.sort_by_key(|path| (Reverse(path.len()), *path));
    assert_eq!(found.map(|route| route.path()), matching.first().copied());
    let Some(route) = found else { return };
    if let Some(rest) = route.stripped(path) {
        assert!(rest.starts_with('/'), "{rest:?}");
        assert!(rest.len() <= 3 * path.len() + 1, "{rest:?}");
    }
}

fn rule(path: &str) -> Rule {
    Rule {
        domain: "a.EXAMPLE".to_owned(),
        path: path.to_owned(),
        strip_path: true,
        ..Rule::default()
    }
}

fn matches(configured: &str, decoded_path: &[u8]) -> bool {
    let starts = |prefix: &str| {
        let prefix = prefix.as_bytes();
        decoded_path.len() >= prefix.len()
            && decoded_path[..prefix.len()].eq_ignore_ascii_case(prefix)
    };
    if matches!(configured, "" | "/") {
        return true;
    }
    if let Some(prefix) = configured.strip_suffix('*') {
        return starts(prefix);
    }
    let base = configured.strip_suffix('/').unwrap_or(configured);
    starts(base) && (decoded_path.len() == base.len() || decoded_path[base.len()] == b'/')
}

/// Returns the path without percent encoding and dot segments.
fn decoded_path(path: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::new();
    let mut rest = path;
    while let Some((&byte, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|hex| str::from_utf8(hex).ok());
        let code = code.filter(|hex| byte == b'%' && hex.bytes().all(|b| b.is_ascii_hexdigit()));
        match code {
            Some(hex) => {
                decoded.push(u8::from_str_radix(hex, 16).unwrap());
                rest = &after[2..];
            }
            None => {
                decoded.push(byte);
                rest = after;
            }
        }
    }
    let segments: Vec<&[u8]> = decoded.split(|byte| *byte == b'/').collect();
    let is_dots = |segment: &&[u8]| matches!(*segment, b"." | b"..");
    if !segments.iter().any(is_dots) {
        return decoded;
    }
    let start = usize::from(decoded.starts_with(b"/"));
    let mut kept: Vec<&[u8]> = Vec::new();
    for segment in &segments[start..] {
        match *segment {
            b"." => {}
            b".." => drop(kept.pop()),
            name => kept.push(name),
        }
    }
    let mut clean: Vec<u8> = kept
        .iter()
        .flat_map(|name| [b"/", *name].concat())
        .collect();
    if clean.is_empty() || segments.last().is_some_and(is_dots) {
        clean.push(b'/');
    }
    clean
}
