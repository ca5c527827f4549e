//! Names that belong to a network, and names that are forwarded.

/// Domain of the cluster with the dot before it; no name below it ever leaves the node.
const INTERNAL: &str = ".jaco.internal";
/// Longest name as text: 255 bytes with the lengths of its labels.
const MAX_TEXT: usize = 255;

/// Meaning of a name for the containers of one network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning<'a> {
    /// A service, in lower case, of any visible deployment; it may have no records. With a single
    /// label it may not exist.
    Service(&'a str),
    /// A service, in lower case, of this deployment; it may have no records.
    ServiceOf {
        /// Service or alias.
        service: &'a str,
        /// Deployment, as the caller writes it.
        deployment: &'a str,
    },
    /// A name below `jaco.internal` or below a visible deployment that means no service of it.
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

/// Returns the meaning of `name` for a client that knows the names of `deployments`; `declares` tells
/// whether a deployment has a service with a name in lower case.
///
/// Case is ignored (RFC 4343). Names of services and deployments may contain dots, so a declared
/// service is recognised before the name is split. A name that ends in a deployment belongs to it,
/// unless the deployment is called like a public suffix, below which sites have names: then it must
/// begin with a declared service.
#[must_use]
pub fn classify<'a>(
    name: &'a NameText,
    deployments: impl Iterator<Item = &'a str> + Clone,
    declares: impl Fn(&str, &str) -> bool,
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
    let mut all = deployments.clone();
    if dots == 0 || all.any(|deployment| declares(deployment, text)) {
        return Meaning::Service(text);
    }
    let mut meaning = other;
    for deployment in deployments {
        let Some(service) = below(text, deployment) else {
            continue;
        };
        if declares(deployment, service) {
            return Meaning::ServiceOf {
                service,
                deployment,
            };
        }
        if !is_public_suffix(deployment) {
            meaning = Meaning::Unknown;
        }
    }
    meaning
}

/// The part of a name in lower case before `.<deployment>`, if it ends so.
fn below<'a>(text: &'a str, deployment: &str) -> Option<&'a str> {
    let at = text.len().checked_sub(deployment.len() + 1)?;
    let (service, own) = text.split_at_checked(at)?;
    let is_own = own.strip_prefix('.')?.eq_ignore_ascii_case(deployment);
    is_own.then_some(service)
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
        let declares = |_: &str, name: &str| matches!(name, "web" | "api.v1");
        let text = NameText::of(labels.map(str::as_bytes));
        let found = classify(&text, [deployment].into_iter(), declares);
        let expected = match expected {
            Meaning::ServiceOf { service, .. } => Meaning::ServiceOf {
                service,
                deployment,
            },
            other => other,
        };
        assert_eq!(found, expected, "{name:?} in {deployment:?}");
    }

    fn own(service: &str) -> Meaning<'_> {
        Meaning::ServiceOf {
            service,
            deployment: "",
        }
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
            ("web.my-shop", own("web")),
            ("web.MY-SHOP", own("web")),
            ("web.my-shop.jaco.internal", own("web")),
            ("nothing.my-shop", Meaning::Unknown),
            ("a.web.my-shop", Meaning::Unknown),
            ("my-shop.my-shop.my-shop", Meaning::Unknown),
            ("workshop", service("workshop")),
            ("web.workshop", Meaning::External),
            ("nothing.my-shop.jaco.internal", Meaning::Unknown),
            ("api.v1", service("api.v1")),
            ("api.v1.my-shop", own("api.v1")),
            ("api.v1.jaco.internal", service("api.v1")),
            ("api.v1.my-shop.jaco.internal", own("api.v1")),
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
        check("web.my-dep.v1", "my-dep.v1", own("web"));
        check("web.v1", "my-dep.v1", Meaning::External);
        check("my-dep.v1", "my-dep.v1", Meaning::External);
    }

    #[test]
    fn deployment_named_like_a_domain_forwards_others() {
        check("web.com", "com", own("web"));
        check("web.Com", "COM", own("web"));
        check("example.com", "com", Meaning::External);
        check("www.web.com", "com", Meaning::External);
        check("com", "com", service("com"));
        check("example.co.uk", "co.uk", Meaning::External);
        check("example.github.io", "GitHub.io", Meaning::External);
        check("example.com.jaco.internal", "com", Meaning::Unknown);
        check("www.example.com", "example.com", Meaning::Unknown);
    }

    #[test]
    fn names_of_several_deployments_are_known() {
        let found = |name: &'static str| {
            let text = NameText::of(name.split('.').map(str::as_bytes));
            let declares = |deployment: &str, name: &str| {
                matches!(
                    (deployment, name),
                    ("shop", "web") | ("v1", "web.my-shop") | ("my-shop.v1", "db" | "site.example")
                )
            };
            let visible = ["shop", "v1", "my-shop.v1"].into_iter();
            match classify(&text, visible, declares) {
                Meaning::Service(name) => name.to_owned(),
                Meaning::ServiceOf {
                    service,
                    deployment,
                } => format!("{service} of {deployment}"),
                Meaning::Unknown => "unknown".to_owned(),
                Meaning::External => "external".to_owned(),
            }
        };
        assert_eq!(found("web.shop"), "web of shop");
        assert_eq!(found("db.my-shop.v1"), "db of my-shop.v1");
        assert_eq!(found("web.my-shop.v1"), "web.my-shop of v1");
        assert_eq!(found("site.example"), "site.example");
        assert_eq!(found("web.v1"), "unknown");
        assert_eq!(found("web.v2"), "external");
    }

    #[test]
    fn dots_inside_labels_do_not_separate() {
        let of = |labels: &[&[u8]]| {
            let text = NameText::of(labels.iter().copied());
            match classify(&text, ["my-shop"].into_iter(), |_, _| true) {
                Meaning::Service(name) | Meaning::ServiceOf { service: name, .. } => {
                    panic!("{name}")
                }
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
