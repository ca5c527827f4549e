//! Names that belong to a network, and names that are forwarded.

/// Domain of the cluster; no name below it ever leaves the node.
const INTERNAL: &str = "jaco.internal";

/// Meaning of a name for the containers of one network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// A service of the deployment, in lower case; it may have no records, and may not exist.
    Service(String),
    /// A name below `jaco.internal` that is none of the deployment's.
    Unknown,
    /// Any other name.
    External,
}

/// Returns the meaning of the name with these `labels` in `deployment`; `declares` tells whether
/// the deployment has a service with a name in lower case.
///
/// Case is ignored (RFC 4343). Names of services and deployments may contain dots, so a declared
/// service is recognised before the name is split.
#[must_use]
pub fn classify<'a>(
    labels: impl IntoIterator<Item = &'a [u8]>,
    deployment: &str,
    declares: impl Fn(&str) -> bool,
) -> Meaning {
    let labels: Vec<&[u8]> = labels.into_iter().collect();
    let plain: Option<Vec<String>> = labels.iter().map(|label| plain(label)).collect();
    let Some(labels) = plain else {
        return unusual(&labels);
    };
    let name = labels.join(".");
    if name == INTERNAL {
        return Meaning::Unknown;
    }
    let (name, other, dots) = match name.strip_suffix(&format!(".{INTERNAL}")) {
        Some(name) => (name, Meaning::Unknown, labels.len() - 3),
        None => (name.as_str(), Meaning::External, labels.len().max(1) - 1),
    };
    if name.is_empty() {
        return other; // the root
    }
    if dots == 0 || declares(name) {
        return Meaning::Service(name.to_owned());
    }
    let own = format!(".{}", deployment.to_ascii_lowercase());
    match name.strip_suffix(&own) {
        Some(service) if !service.is_empty() => Meaning::Service(service.to_owned()),
        Some(_) | None => other,
    }
}

/// A label of the characters that names of services and hosts have, in lower case.
fn plain(label: &[u8]) -> Option<String> {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let text = str::from_utf8(label).ok()?;
    label.iter().all(plain).then(|| text.to_ascii_lowercase())
}

/// Meaning of a name with a label that no service can have. Dots inside a label are not
/// separators, so such a name is never joined.
fn unusual(labels: &[&[u8]]) -> Meaning {
    let is_internal = match labels {
        [.., domain, top] => {
            domain.eq_ignore_ascii_case(b"jaco") && top.eq_ignore_ascii_case(b"internal")
        }
        [_] | [] => false,
    };
    if is_internal || labels.len() == 1 {
        Meaning::Unknown
    } else {
        Meaning::External
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meaning(name: &str, deployment: &str) -> Meaning {
        let labels = name.split('.').filter(|label| !label.is_empty());
        let declares = |name: &str| matches!(name, "web" | "api.v1");
        classify(labels.map(str::as_bytes), deployment, declares)
    }

    fn service(name: &str) -> Meaning {
        Meaning::Service(name.to_owned())
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
            ("nothing.shop", service("nothing")),
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
            assert_eq!(meaning(name, "Shop"), expected, "{name:?}");
        }
    }

    #[test]
    fn dotted_deployments_are_stripped_whole() {
        assert_eq!(meaning("web.my-dep.v1", "my-dep.v1"), service("web"));
        assert_eq!(meaning("web.v1", "my-dep.v1"), Meaning::External);
        assert_eq!(meaning("my-dep.v1", "my-dep.v1"), Meaning::External);
    }

    #[test]
    fn dots_inside_labels_do_not_separate() {
        let of = |labels: &[&[u8]]| classify(labels.iter().copied(), "shop", |_| false);
        assert_eq!(of(&[b"web.shop"]), Meaning::Unknown);
        assert_eq!(of(&[b"a\0", b"example"]), Meaning::External);
        assert_eq!(of(&[b"\xff", b"Jaco", b"internal"]), Meaning::Unknown);
        assert_eq!(of(&[b"a.jaco.internal", b"b"]), Meaning::External);
    }
}
