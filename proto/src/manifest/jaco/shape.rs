//! The shape of a `jaco.yaml` as data: what its keys are called and what they hold.
//!
//! The decoder, the checks and the schema for editors all read this table, so that they cannot
//! tell different stories.

use crate::{manifest::MAX_REPLICAS, v1::service_spec::PlacementMode};

/// What a node holds.
pub(super) enum Shape {
    /// Any scalar, taken by its source text; null is empty.
    Text(Text),
    /// A whole number written as one.
    Int {
        /// Smallest value that passes the checks.
        min: i64,
        /// Largest value that passes the checks.
        max: i64,
    },
    /// A boolean.
    Flag,
    /// Items of one shape.
    List(&'static Shape),
    /// A mapping with these keys, `x-*`, and no others.
    Table(&'static Table),
}

/// Which texts pass the checks.
pub(super) enum Text {
    /// Any.
    Any,
    /// One of these, or empty.
    Words(&'static [&'static str]),
    /// One of these in any case, or empty.
    AnyCase(&'static [&'static str]),
}

/// A mapping.
pub(super) struct Table {
    /// Its keys.
    pub(super) keys: &'static [Key],
    /// Rules between its keys, in the order in which they are checked.
    pub(super) rules: &'static [Rule],
}

/// A key of a mapping.
pub(super) struct Key {
    pub(super) name: &'static str,
    /// What it means, for people in an editor.
    pub(super) about: &'static str,
    /// Must be set, and not to an empty text.
    pub(super) required: bool,
    pub(super) shape: Shape,
}

/// What follows for `other` from `key` being `word`.
pub(super) struct Rule {
    pub(super) key: &'static str,
    pub(super) word: &'static str,
    pub(super) other: &'static str,
    pub(super) demand: Demand,
}

/// What a [`Rule`] demands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Demand {
    /// A list with an item.
    Filled,
    /// Not set.
    Absent,
}

/// Values of `placement`.
pub(super) const PLACEMENTS: [(&str, PlacementMode); 4] = [
    ("spread", PlacementMode::Spread),
    ("pack", PlacementMode::Pack),
    ("hosts", PlacementMode::Hosts),
    ("global", PlacementMode::Global),
];

/// Values of `acme` and whether certificates are obtained.
pub(super) const ACME: [(&str, bool); 2] = [("on", true), ("off", false)];

/// Values of `tls` and whether a certificate is obtained.
pub(super) const TLS: [(&str, bool); 2] = [("auto", true), ("off", false)];

/// Plain scalars that are booleans besides the ones of YAML itself.
pub(super) const FLAGS: [(&str, bool); 8] = [
    ("y", true),
    ("Y", true),
    ("yes", true),
    ("on", true),
    ("n", false),
    ("N", false),
    ("no", false),
    ("off", false),
];

/// The document.
pub(super) const TOP: Table = Table {
    keys: &[
        Key {
            name: "deployment",
            about: "Name of the deployment; prefix of its replicas, networks and volumes.",
            required: true,
            shape: Shape::Text(Text::Any),
        },
        Key {
            name: "environment",
            about: "File with values for the ${VARIABLES} of the compose file, relative to this file.",
            required: false,
            shape: Shape::Text(Text::Any),
        },
        Key {
            name: "routes",
            about: "Domains and paths that lead to services.",
            required: false,
            shape: Shape::List(&Shape::Table(&ROUTE)),
        },
        Key {
            name: "services",
            about: "Scheduling of services of the compose file.",
            required: false,
            shape: Shape::List(&Shape::Table(&SERVICE)),
        },
        Key {
            name: "acme",
            about: "on: routes get a certificate unless they say otherwise. Default on.",
            required: false,
            shape: Shape::Text(Text::AnyCase(&words(&ACME))),
        },
        Key {
            name: "acme_email",
            about: "Mail address of the ACME account. Default: the cluster's.",
            required: false,
            shape: Shape::Text(Text::Any),
        },
    ],
    rules: &[],
};

/// An entry of `routes`.
pub(super) const ROUTE: Table = Table {
    keys: &[
        Key {
            name: "domain",
            about: "Host name the rule is for, compared as it is written.",
            required: true,
            shape: Shape::Text(Text::Any),
        },
        Key {
            name: "service",
            about: "Service of the compose file that answers.",
            required: true,
            shape: Shape::Text(Text::Any),
        },
        Key {
            name: "port",
            about: "Port in the container.",
            required: true,
            shape: Shape::Int { min: 1, max: 65535 },
        },
        Key {
            name: "tls",
            about: "auto: serve HTTPS with a certificate; off: plain HTTP. Default: as acme says.",
            required: false,
            shape: Shape::Text(Text::Words(&words(&TLS))),
        },
        Key {
            name: "path",
            about: "Path prefix; the longest matching one wins. Default: everything.",
            required: false,
            shape: Shape::Text(Text::Any),
        },
        Key {
            name: "strip_path",
            about: "Take the prefix off before the request goes on. Default false.",
            required: false,
            shape: Shape::Flag,
        },
    ],
    rules: &[],
};

/// An entry of `services`.
pub(super) const SERVICE: Table = Table {
    keys: &[
        Key {
            name: "name",
            about: "Service of the compose file.",
            required: true,
            shape: Shape::Text(Text::Any),
        },
        Key {
            name: "replicas",
            about: "How many; 0 keeps routes and certificates. Default: the compose file's deploy.replicas, else 1.",
            required: false,
            shape: Shape::Int {
                min: 0,
                max: MAX_REPLICAS as i64,
            },
        },
        Key {
            name: "placement",
            about: "spread over hosts, pack on few, only on the listed hosts, or global: one on every host. Default spread.",
            required: false,
            shape: Shape::Text(Text::Words(&words(&PLACEMENTS))),
        },
        Key {
            name: "hosts",
            about: "Hosts for placement: hosts, one replica each.",
            required: false,
            shape: Shape::List(&Shape::Text(Text::Any)),
        },
        Key {
            name: "networks",
            about: "Networks in attach order, instead of the compose file's.",
            required: false,
            shape: Shape::List(&Shape::Text(Text::Any)),
        },
    ],
    rules: &[
        Rule {
            key: "placement",
            word: "global",
            other: "replicas",
            demand: Demand::Absent,
        },
        Rule {
            key: "placement",
            word: "hosts",
            other: "hosts",
            demand: Demand::Filled,
        },
    ],
};

impl Table {
    /// Names of the keys.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> + Clone {
        self.keys.iter().map(|key| key.name)
    }

    /// The key called `name`.
    pub(super) fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }
}

/// What `word` stands for.
pub(super) fn meaning<T: Copy>(pairs: &[(&str, T)], word: &str) -> Option<T> {
    let pair = pairs.iter().find(|(known, _)| *known == word);
    pair.map(|(_, value)| *value)
}

const fn words<T: Copy, const N: usize>(pairs: &[(&'static str, T); N]) -> [&'static str; N] {
    let mut words = [""; N];
    let mut index = 0;
    while index < N {
        words[index] = pairs[index].0;
        index += 1;
    }
    words
}
