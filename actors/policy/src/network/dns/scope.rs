//! Names that belong to a network, and names that are forwarded.

/// Domain of the cluster with the dot before it; no name below it ever leaves the node.
const INTERNAL: &str = ".jaco.internal";
/// Longest name as text: 255 bytes with the lengths of its labels.
const MAX_TEXT: usize = 255;

/// Meaning of a name for the containers of one network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning<'a> {
    /// A service of the deployment, in lower case; it may have no records. With a single label it
    /// may not exist.
    Service(&'a str),
    /// A name below `jaco.internal` that is none of the deployment's.
    Unknown,
    /// Any other name.
    External,
}

/// A name as text: labels in lower case, separated by dots.
#[derive(Clone, Debug)]
pub struct NameText {
    bytes: [u8; MAX_TEXT],
    length: usize,
    labels: usize,
    /// Whether a label has a character that no service can have. Dots inside a label are not
    /// separators, so such a name means no service.
    is_unusual: bool,
}

impl NameText {
    /// Joins the labels of a name, of 255 bytes at most.
    #[must_use]
    pub fn of<'a>(labels: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut text = Self {
            bytes: [0; MAX_TEXT],
            length: 0,
            labels: 0,
            is_unusual: false,
        };
        for label in labels {
            if text.labels > 0 {
                text.push(b'.');
            }
            text.labels += 1;
            for byte in label {
                let plain = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
                text.is_unusual |= !plain;
                // A byte beyond ASCII is no text; a dot would separate.
                text.push(if plain {
                    byte.to_ascii_lowercase()
                } else {
                    b'?'
                });
            }
        }
        text
    }

    fn push(&mut self, byte: u8) {
        match self.bytes.get_mut(self.length) {
            Some(end) => {
                *end = byte;
                self.length += 1;
            }
            None => self.is_unusual = true,
        }
    }

    fn text(&self) -> &str {
        str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

/// Returns the meaning of `name` in `deployment`; `declares` tells whether the deployment has a
/// service with a name in lower case.
///
/// Case is ignored (RFC 4343). Names of services and deployments may contain dots, so a declared
/// service is recognised before the name is split. A name that ends in the deployment belongs to it
/// only if it begins with a declared service: a deployment may be called like a domain.
#[must_use]
pub fn classify<'a>(
    name: &'a NameText,
    deployment: &str,
    declares: impl Fn(&str) -> bool,
) -> Meaning<'a> {
    let text = name.text();
    let (text, other, dots) = match text.strip_suffix(INTERNAL) {
        Some(text) => (text, Meaning::Unknown, name.labels.saturating_sub(3)),
        None if text == &INTERNAL[1..] => return Meaning::Unknown,
        None => (text, Meaning::External, name.labels.saturating_sub(1)),
    };
    if name.is_unusual {
        return if dots == 0 { Meaning::Unknown } else { other };
    }
    if text.is_empty() {
        return other; // the root
    }
    if dots == 0 || declares(text) {
        return Meaning::Service(text);
    }
    let split = text.len().checked_sub(deployment.len() + 1);
    match split.and_then(|at| text.split_at_checked(at)) {
        Some((service, own))
            if own.starts_with('.')
                && own[1..].eq_ignore_ascii_case(deployment)
                && declares(service) =>
        {
            Meaning::Service(service)
        }
        Some(_) | None => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, deployment: &str, expected: Meaning<'_>) {
        let labels = name.split('.').filter(|label| !label.is_empty());
        let declares = |name: &str| matches!(name, "web" | "api.v1");
        let text = NameText::of(labels.map(str::as_bytes));
        let found = classify(&text, deployment, declares);
        assert_eq!(found, expected, "{name:?} in {deployment:?}");
    }

    fn service(name: &str) -> Meaning<'_> {
        Meaning::Service(name)
    }

    #[test]
    fn names_have_the_documented_meaning() {
        for (name, expected) in [
            ("web", service("web")),
            ("WEB.", service("web")),
            ("unknown", service("unknown")),
            ("_jaco", service("_jaco")),
            ("web.jaco.internal", service("web")),
            ("Web.JACO.Internal.", service("web")),
            ("web.shop", service("web")),
            ("web.SHOP", service("web")),
            ("web.shop.jaco.internal", service("web")),
            ("nothing.shop", Meaning::External),
            ("nothing.shop.jaco.internal", Meaning::Unknown),
            ("api.v1", service("api.v1")),
            ("api.v1.shop", service("api.v1")),
            ("api.v1.jaco.internal", service("api.v1")),
            ("api.v1.shop.jaco.internal", service("api.v1")),
            ("jaco.internal", Meaning::Unknown),
            ("web.other.jaco.internal", Meaning::Unknown),
            ("a.web.shop.other.jaco.internal", Meaning::Unknown),
            ("web.other", Meaning::External),
            ("api.v2", Meaning::External),
            ("example.com.", Meaning::External),
            ("jaco.internal.example.com", Meaning::External),
            ("notjaco.internal", Meaning::External),
            ("", Meaning::External),
        ] {
            check(name, "Shop", expected);
        }
    }

    #[test]
    fn dotted_deployments_are_stripped_whole() {
        check("web.my-dep.v1", "my-dep.v1", service("web"));
        check("web.v1", "my-dep.v1", Meaning::External);
        check("my-dep.v1", "my-dep.v1", Meaning::External);
    }

    #[test]
    fn deployment_named_like_a_domain_forwards_others() {
        check("web.com", "com", service("web"));
        check("web.Com", "COM", service("web"));
        check("example.com", "com", Meaning::External);
        check("www.web.com", "com", Meaning::External);
        check("com", "com", service("com"));
    }

    #[test]
    fn dots_inside_labels_do_not_separate() {
        let of = |labels: &[&[u8]]| {
            let text = NameText::of(labels.iter().copied());
            match classify(&text, "shop", |_| true) {
                Meaning::Service(name) => panic!("{name}"),
                Meaning::Unknown => "unknown",
                Meaning::External => "external",
            }
        };
        assert_eq!(of(&[b"web.shop"]), "unknown");
        assert_eq!(of(&[b"a\0", b"example"]), "external");
        assert_eq!(of(&[b"\xff", b"Jaco", b"internal"]), "unknown");
        assert_eq!(of(&[b"\xff", b"a", b"Jaco", b"internal"]), "unknown");
        assert_eq!(of(&[b"a.jaco.internal", b"b"]), "external");
        assert_eq!(of(&[b"a.jaco.internal"]), "unknown");
        assert_eq!(of(&[&[b'a'; 200], &[b'b'; 100]]), "external");
    }
}
