//! Key table of `jaco.yaml`: names and types of its keys.
//!
//! The decoder, the checks and the schema for editors all use this table, so that they agree.

use crate::{manifest::MAX_REPLICAS, v1::service_spec::PlacementMode};

/// Type of a node.
pub(super) enum ValueType {
    /// Any scalar, represented by its source text; null is empty.
    Text(Text),
    /// A whole number.
    Int {
        /// Smallest valid value.
        min: i64,
        /// Largest valid value.
        max: i64,
    },
    /// A number above 0, with or without a fraction.
    Rate {
        /// Largest valid value.
        max: f64,
    },
    /// A boolean.
    Flag,
    /// A list with items of one type.
    List(&'static ValueType),
    /// A mapping with the keys of the table and `x-*`.
    Table(&'static Table),
    /// A mapping of names of variables to texts.
    Variables,
    /// One of these words, or empty, or a mapping.
    WordOrTable(&'static [&'static str], &'static Table),
}

/// Valid texts.
pub(super) enum Text {
    /// Any text.
    Any,
    /// One of these words, or empty.
    Words(&'static [&'static str]),
    /// One of these words in any case, or empty.
    AnyCase(&'static [&'static str]),
    /// A text that begins with a slash.
    Path,
}

/// Keys of a mapping.
pub(super) struct Table {
    /// The keys.
    pub(super) keys: &'static [Key],
    /// Rules between the keys, in the order of the checks.
    pub(super) rules: &'static [Rule],
}

/// A key of a mapping.
pub(super) struct Key {
    pub(super) name: &'static str,
    /// Description of the key, shown by editors.
    pub(super) about: &'static str,
    /// Whether the key must be set to a text that is not empty.
    pub(super) required: bool,
    pub(super) value_type: ValueType,
}

/// Requires `requirement` of the key `other` if `key` has the value `word`.
pub(super) struct Rule {
    pub(super) key: &'static str,
    pub(super) word: &'static str,
    pub(super) other: &'static str,
    pub(super) requirement: Requirement,
}

/// Requirement of a [`Rule`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Requirement {
    /// A list that is not empty.
    Filled,
    /// An absent key.
    Absent,
}

/// Values of `placement`.
pub(super) const PLACEMENTS: [(&str, PlacementMode); 4] = [
    ("spread", PlacementMode::Spread),
    ("pack", PlacementMode::Pack),
    ("hosts", PlacementMode::Hosts),
    ("global", PlacementMode::Global),
];

/// Values of `proxy_protocol`, with the version of the header.
pub(super) const PROXY_PROTOCOLS: [(&str, u32); 1] = [("v2", 2)];

/// Values of `acme`, with whether certificates are obtained.
pub(super) const ACME: [(&str, bool); 2] = [("on", true), ("off", false)];

/// Values of `tls`, with whether a certificate is obtained.
pub(super) const TLS: [(&str, bool); 2] = [("auto", true), ("off", false)];

/// Values of `upstream`, with whether it is cleartext HTTP/2.
pub(super) const UPSTREAM: [(&str, bool); 2] = [("http1", false), ("h2c", true)];

/// Words of `limits`, with whether there are any.
pub(super) const LIMITS: [(&str, bool); 2] = [("on", true), ("off", false)];

/// Words of `affinity`.
pub(super) const AFFINITIES: [(&str, ()); 1] = [("cookie", ())];

/// Values of `same_site`.
pub(super) const SAME_SITES: [(&str, ()); 3] = [("lax", ()), ("strict", ()), ("none", ())];

/// Plain scalars that are booleans in addition to those of YAML.
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

/// Keys of the document.
pub(super) const TOP: Table = Table {
    keys: &[
        Key {
            name: "deployment",
            about: "Name of the deployment; prefix of its replicas, networks and volumes.",
            required: true,
            value_type: ValueType::Text(Text::Any),
        },
        Key {
            name: "environment",
            about: "File with values for the ${VARIABLES} of the compose file, relative to this file.",
            required: false,
            value_type: ValueType::Text(Text::Any),
        },
        Key {
            name: "routes",
            about: "Domains and paths that lead to services.",
            required: false,
            value_type: ValueType::List(&ValueType::Table(&ROUTE)),
        },
        Key {
            name: "services",
            about: "Scheduling of services of the compose file.",
            required: false,
            value_type: ValueType::List(&ValueType::Table(&SERVICE)),
        },
        Key {
            name: "secrets",
            about: "Environment variables whose values the cluster keeps sealed, each from a ${VARIABLE} of the shell or an environment file.",
            required: false,
            value_type: ValueType::Variables,
        },
        Key {
            name: "acme",
            about: "on: routes get a certificate unless they say otherwise. Default on.",
            required: false,
            value_type: ValueType::Text(Text::AnyCase(&words(&ACME))),
        },
        Key {
            name: "acme_email",
            about: "Mail address of the ACME account. Default: the cluster's.",
            required: false,
            value_type: ValueType::Text(Text::Any),
        },
    ],
    rules: &[],
};

/// Keys of an entry of `routes`.
pub(super) const ROUTE: Table = Table {
    keys: &[
        Key {
            name: "domain",
            about: "Host name the rule is for, compared as it is written.",
            required: true,
            value_type: ValueType::Text(Text::Any),
        },
        Key {
            name: "service",
            about: "Service of the compose file that answers.",
            required: true,
            value_type: ValueType::Text(Text::Any),
        },
        Key {
            name: "port",
            about: "Port in the container.",
            required: true,
            value_type: ValueType::Int { min: 1, max: 65535 },
        },
        Key {
            name: "tls",
            about: "auto: serve HTTPS with a certificate; off: plain HTTP. Default: as acme says.",
            required: false,
            value_type: ValueType::Text(Text::Words(&words(&TLS))),
        },
        Key {
            name: "path",
            about: "Path prefix; the longest matching one wins. Default: everything.",
            required: false,
            value_type: ValueType::Text(Text::Any),
        },
        Key {
            name: "strip_path",
            about: "Take the prefix off before the request goes on. Default false.",
            required: false,
            value_type: ValueType::Flag,
        },
        Key {
            name: "upstream",
            about: "Protocol of the containers: http1; h2c: cleartext HTTP/2, as gRPC needs. Default http1.",
            required: false,
            value_type: ValueType::Text(Text::Words(&words(&UPSTREAM))),
        },
        Key {
            name: "limits",
            about: "Requests that each client may send to each node: on (the defaults), off, or values. Default: the cluster's ingress.limits.",
            required: false,
            value_type: ValueType::WordOrTable(&words(&LIMITS), &ROUTE_LIMITS),
        },
        Key {
            name: "affinity",
            about: "Keep a client on one replica by a cookie: cookie (the defaults), or values. Default: a random replica for each request.",
            required: false,
            value_type: ValueType::WordOrTable(&words(&AFFINITIES), &ROUTE_AFFINITY),
        },
    ],
    rules: &[],
};

/// Keys of `limits` of a route.
pub(super) const ROUTE_LIMITS: Table = Table {
    keys: &[
        Key {
            name: "rps",
            about: "Requests per second in the long run. Default 20.",
            required: false,
            value_type: ValueType::Rate { max: 1e6 },
        },
        Key {
            name: "burst_multiplier",
            about: "Requests admitted at once after a pause, as a multiple of rps. Default 5.",
            required: false,
            value_type: ValueType::Int { min: 1, max: 1000 },
        },
        Key {
            name: "connections",
            about: "Requests in flight, WebSockets included. Default 20.",
            required: false,
            value_type: ValueType::Int {
                min: 1,
                max: 1_000_000,
            },
        },
        Key {
            name: "exempt",
            about: "Path prefixes without limits. Default /health.",
            required: false,
            value_type: ValueType::List(&ValueType::Text(Text::Path)),
        },
    ],
    rules: &[],
};

/// Keys of `affinity` of a route.
pub(super) const ROUTE_AFFINITY: Table = Table {
    keys: &[
        Key {
            name: "cookie",
            about: "Name of the cookie. Default route.",
            required: false,
            value_type: ValueType::Text(Text::Any),
        },
        Key {
            name: "ttl",
            about: "Lifetime of the cookie, 1s to 400d. Default 400d.",
            required: false,
            value_type: ValueType::Text(Text::Any),
        },
        Key {
            name: "same_site",
            about: "Whether requests from other sites carry the cookie. Default lax.",
            required: false,
            value_type: ValueType::Text(Text::Words(&words(&SAME_SITES))),
        },
    ],
    rules: &[],
};

/// Keys of an entry of `services`.
pub(super) const SERVICE: Table = Table {
    keys: &[
        Key {
            name: "name",
            about: "Service of the compose file.",
            required: true,
            value_type: ValueType::Text(Text::Any),
        },
        Key {
            name: "replicas",
            about: "How many; 0 keeps routes and certificates. Default: the compose file's deploy.replicas, else 1.",
            required: false,
            value_type: ValueType::Int {
                min: 0,
                max: MAX_REPLICAS as i64,
            },
        },
        Key {
            name: "placement",
            about: "spread over hosts, pack on few, only on the listed hosts, or global: one on every host. Default spread.",
            required: false,
            value_type: ValueType::Text(Text::Words(&words(&PLACEMENTS))),
        },
        Key {
            name: "hosts",
            about: "Hosts for placement: hosts, one replica each.",
            required: false,
            value_type: ValueType::List(&ValueType::Text(Text::Any)),
        },
        Key {
            name: "networks",
            about: "Networks in attach order, instead of the compose file's.",
            required: false,
            value_type: ValueType::List(&ValueType::Text(Text::Any)),
        },
        Key {
            name: "proxy_protocol",
            about: "v2: connections to published TCP ports begin with a PROXY protocol header that names the client. Default: no header.",
            required: false,
            value_type: ValueType::Text(Text::Words(&words(&PROXY_PROTOCOLS))),
        },
        Key {
            name: "secrets",
            about: "Names of the secrets that the service has. Default: all.",
            required: false,
            value_type: ValueType::List(&ValueType::Text(Text::Any)),
        },
    ],
    rules: &[
        Rule {
            key: "placement",
            word: "global",
            other: "replicas",
            requirement: Requirement::Absent,
        },
        Rule {
            key: "placement",
            word: "hosts",
            other: "hosts",
            requirement: Requirement::Filled,
        },
    ],
};

impl Table {
    /// Iterates over the names of the keys.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> + Clone {
        self.keys.iter().map(|key| key.name)
    }

    /// Returns the key with this name.
    pub(super) fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }
}

/// Returns the value of `word`.
pub(super) fn value_of<T: Copy>(pairs: &[(&str, T)], word: &str) -> Option<T> {
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
