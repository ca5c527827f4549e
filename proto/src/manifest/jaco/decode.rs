//! Decodes YAML to typed fields: checks types only.

use crate::{
    Error, ErrorCode,
    manifest::fault::{Located, invalid, invalid_yaml, suggestion},
    yaml::{self, Map, Node, Position, Resolved, Scalar, Value},
};

use super::{
    Spanned,
    keys::{FLAGS, TOP, Table, ValueType, value_of},
};

/// The fields of the file, not validated yet.
pub(super) struct Raw {
    pub(super) deployment: Spanned<String>,
    pub(super) environment: Spanned<String>,
    pub(super) routes: Vec<RawRoute>,
    pub(super) services: Vec<RawOverride>,
    /// Names with the text of their values, which is empty for null.
    pub(super) secrets: Vec<(Spanned<String>, Spanned<String>)>,
    pub(super) acme: Spanned<String>,
    pub(super) acme_email: Spanned<String>,
    pub(super) empty_lists: Vec<&'static str>,
}

/// The fields of a route, not validated yet.
pub(super) struct RawRoute {
    pub(super) at: Position,
    pub(super) domain: Spanned<String>,
    pub(super) service: Spanned<String>,
    pub(super) port: Option<Spanned<i64>>,
    pub(super) tls: Spanned<String>,
    pub(super) path: Spanned<String>,
    pub(super) strip_path: bool,
    pub(super) upstream: Spanned<String>,
    pub(super) limits: Option<Spanned<RawChoice<RawLimits>>>,
    pub(super) affinity: Option<Spanned<RawChoice<RawAffinity>>>,
}

/// A word that stands for values, or the values.
pub(super) enum RawChoice<T> {
    Word(String),
    Values(T),
}

/// The fields of the limits of a route, not validated yet.
#[derive(Default)]
pub(super) struct RawLimits {
    pub(super) rps: Option<Spanned<f64>>,
    pub(super) burst_multiplier: Option<Spanned<i64>>,
    pub(super) connections: Option<Spanned<i64>>,
    /// Absent is not the same as empty.
    pub(super) exempt: Option<Vec<Spanned<String>>>,
}

/// The fields of the affinity of a route, not validated yet.
pub(super) struct RawAffinity {
    pub(super) cookie: Spanned<String>,
    pub(super) ttl: Spanned<String>,
    pub(super) same_site: Spanned<String>,
}

/// The fields of an override, not validated yet.
pub(super) struct RawOverride {
    pub(super) name: Spanned<String>,
    pub(super) replicas: Option<Spanned<i64>>,
    pub(super) placement: Spanned<String>,
    pub(super) hosts: Vec<Spanned<String>>,
    pub(super) networks: Vec<Spanned<String>>,
    pub(super) proxy_protocol: Spanned<String>,
    /// Absent is not the same as empty.
    pub(super) secrets: Option<Vec<Spanned<String>>>,
}

pub(super) fn decode(bytes: &[u8]) -> Result<Raw, Error> {
    if bytes.is_empty() {
        return Err(invalid("jaco_yaml is required").with("field", "jaco_yaml"));
    }
    let document = yaml::parse(bytes)
        .map_err(|error| invalid_yaml(ErrorCode::ParseFailed, "jaco.yaml", &error))?;
    let empty = || Node::new(Value::Map(Map::default()), Position::START);
    let root = document.root.unwrap_or_else(empty);
    refuse_compose_service(&root)?;
    table("", &root, &TOP)?;
    let top = Fields::of(&root);
    Ok(Raw {
        deployment: top.text("deployment"),
        environment: top.text("environment"),
        routes: top.items("routes").map(route).collect(),
        services: top.items("services").map(service).collect(),
        secrets: top.variables("secrets"),
        acme: top.text("acme"),
        acme_email: top.text("acme_email"),
        empty_lists: empty_lists(&root),
    })
}

/// Returns the lists of the document whose value is null.
fn empty_lists(root: &Node) -> Vec<&'static str> {
    let lists = TOP.keys.iter().filter(|key| {
        let node = root.as_map().and_then(|map| map.get(key.name));
        matches!(key.value_type, ValueType::List(_)) && node.is_some_and(Node::is_null)
    });
    lists.map(|key| key.name).collect()
}

fn route(node: &Node) -> RawRoute {
    let fields = Fields::of(node);
    RawRoute {
        at: node.at,
        domain: fields.text("domain"),
        service: fields.text("service"),
        port: fields.int("port"),
        tls: fields.text("tls"),
        path: fields.text("path"),
        strip_path: fields.flag("strip_path"),
        upstream: fields.text("upstream"),
        limits: fields.choice("limits", limits),
        affinity: fields.choice("affinity", affinity),
    }
}

fn limits(node: &Node) -> RawLimits {
    let fields = Fields::of(node);
    RawLimits {
        rps: fields.number("rps"),
        burst_multiplier: fields.int("burst_multiplier"),
        connections: fields.int("connections"),
        exempt: fields.node("exempt").map(|_| fields.texts("exempt")),
    }
}

fn affinity(node: &Node) -> RawAffinity {
    let fields = Fields::of(node);
    RawAffinity {
        cookie: fields.text("cookie"),
        ttl: fields.text("ttl"),
        same_site: fields.text("same_site"),
    }
}

fn service(node: &Node) -> RawOverride {
    let fields = Fields::of(node);
    RawOverride {
        name: fields.text("name"),
        replicas: fields.int("replicas"),
        placement: fields.text("placement"),
        hosts: fields.texts("hosts"),
        networks: fields.texts("networks"),
        proxy_protocol: fields.text("proxy_protocol"),
        secrets: fields.node("secrets").map(|_| fields.texts("secrets")),
    }
}

/// Rejects `compose_service` at any depth: a service is identified by its compose key alone.
fn refuse_compose_service(node: &Node) -> Result<(), Error> {
    match &node.value {
        Value::Scalar(_) => Ok(()),
        Value::Seq(items) => items.iter().try_for_each(refuse_compose_service),
        Value::Map(map) => map.iter().try_for_each(|(key, value)| {
            if key.text == "compose_service" {
                let message = "compose_service is no longer supported, \
                               services are named after their compose keys";
                return Err(invalid(message).with("field", "compose_service").at(key.at));
            }
            refuse_compose_service(value)
        }),
    }
}

/// Fails on the first node of the wrong type.
fn check_type(path: &str, node: &Node, value_type: &ValueType) -> Result<(), Error> {
    if node.is_null() {
        return Ok(());
    }
    let fits = |fits: bool, expected: &str| {
        let fault = || wrong(path, node, expected);
        fits.then_some(()).ok_or_else(fault)
    };
    match value_type {
        ValueType::Text(_) => fits(node.text().is_some(), "a string"),
        ValueType::Rate { .. } => fits(number(node).is_some(), "a number"),
        ValueType::Flag => fits(node.as_scalar().and_then(flag).is_some(), "a boolean"),
        ValueType::Int { .. } => match node.as_scalar().map(Scalar::resolve) {
            Some(Resolved::Int(value)) => fits(i64::try_from(value).is_ok(), "a smaller number"),
            Some(Resolved::Null | Resolved::Bool(_) | Resolved::Float(_) | Resolved::Str(_))
            | None => fits(false, "a whole number"),
        },
        ValueType::List(item) => {
            let items = node.as_seq().ok_or_else(|| wrong(path, node, "a list"))?;
            let mut items = items.iter().enumerate();
            items.try_for_each(|(index, node)| check_type(&format!("{path}[{index}]"), node, item))
        }
        ValueType::Table(keys) => table(path, node, keys),
        ValueType::Variables => {
            let map = node
                .as_map()
                .ok_or_else(|| wrong(path, node, "a mapping"))?;
            map.iter().try_for_each(|(key, value)| match value.text() {
                Some(_) => Ok(()),
                None => Err(wrong(&format!("{path}.{}", key.text), value, "a string")),
            })
        }
        ValueType::WordOrTable(_, keys) => match &node.value {
            Value::Map(_) => table(path, node, keys),
            Value::Scalar(_) => Ok(()),
            Value::Seq(_) => Err(wrong(path, node, "a word or a mapping")),
        },
    }
}

fn table(path: &str, node: &Node, table: &Table) -> Result<(), Error> {
    let map = match &node.value {
        Value::Map(map) => map,
        Value::Scalar(scalar) if scalar.is_null() => return Ok(()),
        Value::Scalar(_) | Value::Seq(_) => return Err(wrong(path, node, "a mapping")),
    };
    let is_extension = |text: &str| text.starts_with("x-");
    for (key, _) in map.iter() {
        let text = key.text.as_str();
        if table.key(text).is_none() && !is_extension(text) {
            let near = suggestion(text, table.names());
            let message = format!("unknown key {text:?} in jaco.yaml{near}");
            return Err(invalid(message).with("field", text).at(key.at));
        }
    }
    for (key, node) in map.iter() {
        let Some(known) = table.key(&key.text) else {
            continue;
        };
        let path = match path {
            "" => key.text.clone(),
            path => format!("{path}.{}", key.text),
        };
        check_type(&path, node, &known.value_type)?;
    }
    Ok(())
}

fn wrong(path: &str, node: &Node, expected: &str) -> Error {
    let subject = if path.is_empty() { "jaco.yaml" } else { path };
    let text = node.text().map(|text| format!(" {text:?}"));
    let message = format!(
        "{subject} must be {expected}, not {}{}",
        node.kind(),
        text.unwrap_or_default()
    );
    Error::new(ErrorCode::ParseFailed, message)
        .with_text("field", path)
        .with_text("value", node.text().unwrap_or_default())
        .at(node.at)
}

fn flag(scalar: &Scalar) -> Option<bool> {
    match scalar.resolve() {
        Resolved::Bool(value) => Some(value),
        Resolved::Str(text) if scalar.plain => value_of(&FLAGS, text),
        Resolved::Null | Resolved::Int(_) | Resolved::Float(_) | Resolved::Str(_) => None,
    }
}

/// Returns the value of a number, whole or not; infinities and NaN are none.
fn number(node: &Node) -> Option<f64> {
    let value = match node.as_scalar()?.resolve() {
        Resolved::Int(value) => value as f64,
        Resolved::Float(value) => value,
        Resolved::Null | Resolved::Bool(_) | Resolved::Str(_) => return None,
    };
    Some(value).filter(|value| value.is_finite())
}

/// A mapping whose types are validated.
struct Fields<'a> {
    map: Option<&'a Map>,
    at: Position,
}

impl<'a> Fields<'a> {
    fn of(node: &'a Node) -> Self {
        Self {
            map: node.as_map(),
            at: node.at,
        }
    }

    fn node(&self, key: &str) -> Option<&'a Node> {
        self.map?.get(key).filter(|node| !node.is_null())
    }

    /// Returns the text of a key; an absent one is empty and has the position of the mapping.
    fn text(&self, key: &str) -> Spanned<String> {
        let absent = Spanned {
            value: String::new(),
            at: self.at,
        };
        self.node(key).map_or(absent, text)
    }

    fn int(&self, key: &str) -> Option<Spanned<i64>> {
        let node = self.node(key)?;
        match node.as_scalar()?.resolve() {
            Resolved::Int(value) => Some(Spanned {
                value: i64::try_from(value).ok()?,
                at: node.at,
            }),
            Resolved::Null | Resolved::Bool(_) | Resolved::Float(_) | Resolved::Str(_) => None,
        }
    }

    fn number(&self, key: &str) -> Option<Spanned<f64>> {
        let node = self.node(key)?;
        Some(Spanned {
            value: number(node)?,
            at: node.at,
        })
    }

    /// Returns the word or the values of a key; `None` for an absent key and an empty word.
    fn choice<T>(&self, key: &str, values: impl Fn(&Node) -> T) -> Option<Spanned<RawChoice<T>>> {
        let node = self.node(key)?;
        let value = match node.text() {
            Some("") => return None,
            Some(word) => RawChoice::Word(word.to_owned()),
            None => RawChoice::Values(values(node)),
        };
        Some(Spanned { value, at: node.at })
    }

    fn flag(&self, key: &str) -> bool {
        let scalar = self.node(key).and_then(Node::as_scalar);
        scalar.and_then(flag).unwrap_or(false)
    }

    fn items(&self, key: &str) -> impl Iterator<Item = &'a Node> {
        let items = self.node(key).and_then(Node::as_seq);
        items.unwrap_or_default().iter()
    }

    /// Returns the entries of a mapping to texts, in file order.
    fn variables(&self, key: &str) -> Vec<(Spanned<String>, Spanned<String>)> {
        let map = self.node(key).and_then(Node::as_map);
        let entries = map.into_iter().flat_map(Map::iter);
        let name = |key: &yaml::Key| Spanned {
            value: key.text.clone(),
            at: key.at,
        };
        entries
            .map(|(key, value)| (name(key), text(value)))
            .collect()
    }

    fn texts(&self, key: &str) -> Vec<Spanned<String>> {
        self.items(key).map(text).collect()
    }
}

/// Returns the source text of a scalar; null is empty.
fn text(node: &Node) -> Spanned<String> {
    let text = node.text().filter(|_| !node.is_null());
    Spanned {
        value: text.unwrap_or_default().to_owned(),
        at: node.at,
    }
}
