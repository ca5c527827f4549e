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
    /// A name below `jaco.internal` or below the deployment that means no service of it.
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
/// service is recognised before the name is split. A name that ends in the deployment belongs to it,
/// unless the deployment is called like a public suffix, below which sites have names: then it must
/// begin with a declared service.
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
            if own.starts_with('.') && own[1..].eq_ignore_ascii_case(deployment) =>
        {
            if declares(service) {
                Meaning::Service(service)
            } else if is_public_suffix(deployment) {
                other
            } else {
                Meaning::Unknown
            }
        }
        Some(_) | None => other,
    }
}

/// Whether `name` is one below which sites register their names, such as `com` or `co.uk`, by the Public
/// Suffix List (publicsuffix.org), which is in lower case.
fn is_public_suffix(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let suffix = psl::suffix(name.as_bytes()).filter(psl::Suffix::is_known);
    suffix.is_some_and(|suffix| suffix == name.as_bytes())
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
            ("web.my-shop", service("web")),
            ("web.MY-SHOP", service("web")),
            ("web.my-shop.jaco.internal", service("web")),
            ("nothing.my-shop", Meaning::Unknown),
            ("a.web.my-shop", Meaning::Unknown),
            ("my-shop.my-shop.my-shop", Meaning::Unknown),
            ("workshop", service("workshop")),
            ("web.workshop", Meaning::External),
            ("nothing.my-shop.jaco.internal", Meaning::Unknown),
            ("api.v1", service("api.v1")),
            ("api.v1.my-shop", service("api.v1")),
            ("api.v1.jaco.internal", service("api.v1")),
            ("api.v1.my-shop.jaco.internal", service("api.v1")),
            ("jaco.internal", Meaning::Unknown),
            ("web.other.jaco.internal", Meaning::Unknown),
            ("a.web.my-shop.other.jaco.internal", Meaning::Unknown),
            ("web.other", Meaning::External),
            ("api.v2", Meaning::External),
            ("example.com.", Meaning::External),
            ("jaco.internal.example.com", Meaning::External),
            ("notjaco.internal", Meaning::External),
            ("", Meaning::External),
        ] {
            check(name, "My-Shop", expected);
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
        check("example.co.uk", "co.uk", Meaning::External);
        check("example.github.io", "GitHub.io", Meaning::External);
        check("example.com.jaco.internal", "com", Meaning::Unknown);
        check("www.example.com", "example.com", Meaning::Unknown);
    }

    #[test]
    fn dots_inside_labels_do_not_separate() {
        let of = |labels: &[&[u8]]| {
            let text = NameText::of(labels.iter().copied());
            match classify(&text, "my-shop", |_| true) {
                Meaning::Service(name) => panic!("{name}"),
                Meaning::Unknown => "unknown",
                Meaning::External => "external",
            }
        };
        assert_eq!(of(&[b"web.my-shop"]), "unknown");
        assert_eq!(of(&[b"a\0", b"example"]), "external");
        assert_eq!(of(&[b"\xff", b"Jaco", b"internal"]), "unknown");
        assert_eq!(of(&[b"\xff", b"a", b"Jaco", b"internal"]), "unknown");
        assert_eq!(of(&[b"a.jaco.internal", b"b"]), "external");
        assert_eq!(of(&[b"a.jaco.internal"]), "unknown");
        assert_eq!(of(&[&[b'a'; 200], &[b'b'; 100]]), "external");
    }
}
