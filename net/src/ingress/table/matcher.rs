//! Index of the configured paths of one domain.
//!
//! A configured path is a prefix of the request path with a condition on what follows, so all candidates are
//! prefixes of one another. The distinct prefixes are sorted, and each knows the longest other one
//! it begins with: a binary search finds the longest candidate, the links lead to the others. Costs
//! O(log routes) comparisons and one step per nested prefix.

use super::super::path::{NormalizedPath, Pattern};

/// Position that means "none".
const NONE: u32 = u32::MAX;

/// Finds the first of several patterns that matches; immutable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Matcher {
    /// By prefix in lower case.
    prefixes: Vec<Prefix>,
    /// First pattern that matches every path.
    any: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Prefix {
    bytes: Box<[u8]>,
    /// Position of the longest other prefix that this one begins with.
    parent: u32,
    /// First pattern that matches every path beginning with `bytes`.
    open: u32,
    /// First pattern that matches `bytes` and the paths below it.
    subtree: u32,
}

impl Matcher {
    /// An index of `patterns`, which are in the order of precedence. At most 2^32 - 1 are indexed.
    pub(super) fn new(patterns: impl Iterator<Item = Pattern>) -> Self {
        let mut any = NONE;
        let mut prefixes: Vec<Prefix> = Vec::new();
        for (at, pattern) in (0..NONE).zip(patterns) {
            let (mut bytes, open, subtree) = match pattern {
                Pattern::Any => {
                    any = any.min(at);
                    continue;
                }
                Pattern::Prefix(bytes) => (bytes, at, NONE),
                Pattern::Subtree(bytes) => (bytes, NONE, at),
            };
            bytes.make_ascii_lowercase();
            prefixes.push(Prefix {
                bytes,
                parent: NONE,
                open,
                subtree,
            });
        }
        prefixes.sort_unstable_by(|a, b| a.bytes.cmp(&b.bytes));
        prefixes.dedup_by(|later, kept| {
            let same = later.bytes == kept.bytes;
            if same {
                kept.open = kept.open.min(later.open);
                kept.subtree = kept.subtree.min(later.subtree);
            }
            same
        });
        link(&mut prefixes);
        Self { prefixes, any }
    }

    /// Position of the first pattern that matches `path`.
    pub(super) fn find(&self, path: &NormalizedPath<'_>) -> Option<usize> {
        let mut best = self.any;
        let path = path.folded();
        let after = self
            .prefixes
            .partition_point(|prefix| *prefix.bytes <= *path);
        let mut next = after
            .checked_sub(1)
            .and_then(|last| self.prefixes.get(last));
        while let Some(prefix) = next {
            if path.starts_with(&prefix.bytes) {
                best = best.min(prefix.open);
                if matches!(path.get(prefix.bytes.len()), None | Some(b'/')) {
                    best = best.min(prefix.subtree);
                }
            }
            next = self.prefixes.get(usize::try_from(prefix.parent).ok()?);
        }
        (best != NONE).then(|| usize::try_from(best).ok())?
    }
}

/// Sets the parents of sorted prefixes: those that the current one begins with are on the stack.
fn link(prefixes: &mut [Prefix]) {
    let mut open: Vec<(u32, usize)> = Vec::new();
    for at in 0..prefixes.len() {
        let (before, rest) = prefixes.split_at_mut(at);
        let Some(current) = rest.first_mut() else {
            return;
        };
        let is_prefix = |&(_, of): &(u32, usize)| {
            let other = before.get(of);
            other.is_some_and(|other| current.bytes.starts_with(&other.bytes))
        };
        while open.last().is_some_and(|last| !is_prefix(last)) {
            open.pop();
        }
        current.parent = open.last().map_or(NONE, |(number, _)| *number);
        let number = u32::try_from(at).unwrap_or(NONE);
        open.push((number, at));
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*, sample::select};

    use super::*;

    fn any_configured() -> impl Strategy<Value = String> {
        let part = select(vec!["a", "B", "ab", "A", "abc", "", "é", "a*"]);
        let path = vec(part, 0..4).prop_map(|parts| format!("/{}", parts.join("/")));
        let tail = select(vec!["", "/", "*", "/*"]);
        let odd = select(vec!["", "*", "/", "/*", "//", "a"]).prop_map(str::to_owned);
        prop_oneof![4 => (path, tail).prop_map(|(path, tail)| path + tail), 1 => odd]
    }

    fn any_request() -> impl Strategy<Value = String> {
        let part = select(vec![
            "a", "b", "AB", "abc", "abcd", "", "..", "%61", "%2f", "é",
        ]);
        let path = vec(part, 0..5).prop_map(|parts| format!("/{}", parts.join("/")));
        prop_oneof![9 => path, 1 => select(vec!["*", "", "a"]).prop_map(str::to_owned)]
    }

    proptest! {
        #[test]
        fn first_matching_pattern_is_found(
            configured in vec(any_configured(), 0..24),
            requests in vec(any_request(), 1..8),
        ) {
            let patterns: Vec<_> = configured.iter().map(|path| Pattern::new(path)).collect();
            let matcher = Matcher::new(patterns.iter().cloned());
            for request in requests {
                let path = NormalizedPath::new(&request);
                let linear = patterns.iter().position(|pattern| pattern.matches(&path));
                prop_assert_eq!(matcher.find(&path), linear, "{:?}", request);
            }
        }
    }

    #[test]
    fn nested_prefixes_are_all_candidates() {
        let paths = ["/a/b/c", "/a/b*", "/a", "/a/b/cc*", ""];
        let matcher = Matcher::new(paths.iter().map(|path| Pattern::new(path)));
        for (path, expected) in [
            ("/a/b/c/d", Some(0)),
            ("/a/b/ccc", Some(1)),
            ("/a/x", Some(2)),
            ("/ax", Some(4)),
        ] {
            assert_eq!(matcher.find(&NormalizedPath::new(path)), expected, "{path}");
        }
    }
}
