//! From YAML to typed fields: shape only, no meaning.

use crate::{
    Error, ErrorCode,
    manifest::fault::{Located, invalid, suggestion, unreadable},
    yaml::{self, Map, Node, Position, Resolved, Value},
};

/// The file as written.
pub(super) struct Raw {
    pub(super) deployment: String,
    pub(super) environment: String,
    pub(super) routes: Vec<RawRoute>,
    pub(super) services: Vec<RawOverride>,
    pub(super) acme: String,
    pub(super) acme_email: String,
}

/// A route as written.
pub(super) struct RawRoute {
    pub(super) at: Position,
    pub(super) domain: String,
    pub(super) service: String,
    pub(super) port: i64,
    pub(super) tls: String,
    pub(super) path: String,
    pub(super) strip_path: bool,
}

/// An override as written.
pub(super) struct RawOverride {
    pub(super) at: Position,
    pub(super) name: String,
    pub(super) replicas: Option<i64>,
    pub(super) placement: String,
    pub(super) hosts: Vec<String>,
    pub(super) networks: Vec<String>,
}

pub(super) fn decode(bytes: &[u8]) -> Result<Raw, Error> {
    if bytes.is_empty() {
        return Err(invalid("jaco_yaml is required").with("field", "jaco_yaml"));
    }
    let document = yaml::parse(bytes)
        .map_err(|error| unreadable(ErrorCode::ParseFailed, "jaco.yaml", &error))?;
    let root = document.root.unwrap_or_else(|| Node {
        value: Value::Map(Map::default()),
        at: Position::START,
    });
    refuse_compose_service(&root)?;
    let keys = [
        "deployment",
        "environment",
        "routes",
        "services",
        "acme",
        "acme_email",
    ];
    let top = Fields::of("", &root, &keys)?;
    Ok(Raw {
        deployment: top.string("deployment")?,
        environment: top.string("environment")?,
        routes: top.list("routes", route)?,
        services: top.list("services", service)?,
        acme: top.string("acme")?,
        acme_email: top.string("acme_email")?,
    })
}

fn route(path: &str, node: &Node) -> Result<RawRoute, Error> {
    let keys = ["domain", "service", "port", "tls", "path", "strip_path"];
    let fields = Fields::of(path, node, &keys)?;
    Ok(RawRoute {
        at: node.at,
        domain: fields.string("domain")?,
        service: fields.string("service")?,
        port: fields.int("port")?.unwrap_or(0),
        tls: fields.string("tls")?,
        path: fields.string("path")?,
        strip_path: fields.boolean("strip_path")?,
    })
}

fn service(path: &str, node: &Node) -> Result<RawOverride, Error> {
    let keys = ["name", "replicas", "placement", "hosts", "networks"];
    let fields = Fields::of(path, node, &keys)?;
    Ok(RawOverride {
        at: node.at,
        name: fields.string("name")?,
        replicas: fields.int("replicas")?,
        placement: fields.string("placement")?,
        hosts: fields.list("hosts", string)?,
        networks: fields.list("networks", string)?,
    })
}

/// Refuses `compose_service`, at whatever depth it stands: a service is named by its compose
/// key alone.
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

/// One mapping with a closed list of keys.
struct Fields<'a> {
    path: &'a str,
    map: Option<&'a Map>,
}

impl<'a> Fields<'a> {
    fn of(path: &'a str, node: &'a Node, keys: &[&str]) -> Result<Self, Error> {
        let map = match &node.value {
            Value::Map(map) => map,
            Value::Scalar(scalar) if scalar.is_null() => return Ok(Self { path, map: None }),
            Value::Scalar(_) | Value::Seq(_) => return Err(wrong(path, node, "a mapping")),
        };
        for (key, _) in map.iter() {
            let text = key.text.as_str();
            if !keys.contains(&text) && !text.starts_with("x-") {
                let near = suggestion(text, keys.iter().copied());
                let message = format!("unknown key {text:?} in jaco.yaml{near}");
                return Err(invalid(message).with("field", text).at(key.at));
            }
        }
        Ok(Self {
            path,
            map: Some(map),
        })
    }

    fn node(&self, key: &str) -> Option<&'a Node> {
        self.map?.get(key).filter(|node| !node.is_null())
    }

    fn path(&self, key: &str) -> String {
        match self.path {
            "" => key.to_owned(),
            path => format!("{path}.{key}"),
        }
    }

    fn string(&self, key: &str) -> Result<String, Error> {
        match self.node(key) {
            Some(node) => string(&self.path(key), node),
            None => Ok(String::new()),
        }
    }

    fn int(&self, key: &str) -> Result<Option<i64>, Error> {
        let Some(node) = self.node(key) else {
            return Ok(None);
        };
        let resolved = node.as_scalar().map(yaml::Scalar::resolve);
        match resolved {
            Some(Resolved::Int(value)) => i64::try_from(value)
                .map(Some)
                .map_err(|_| wrong(&self.path(key), node, "a smaller number")),
            Some(Resolved::Null | Resolved::Bool(_) | Resolved::Float(_) | Resolved::Str(_))
            | None => Err(wrong(&self.path(key), node, "a whole number")),
        }
    }

    fn boolean(&self, key: &str) -> Result<bool, Error> {
        let Some(node) = self.node(key) else {
            return Ok(false);
        };
        let plain = node.as_scalar().filter(|scalar| scalar.plain);
        match plain.map(|scalar| scalar.text.as_str()) {
            Some(
                "true" | "True" | "TRUE" | "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON",
            ) => Ok(true),
            Some(
                "false" | "False" | "FALSE" | "n" | "N" | "no" | "No" | "NO" | "off" | "Off"
                | "OFF",
            ) => Ok(false),
            Some(_) | None => Err(wrong(&self.path(key), node, "a boolean")),
        }
    }

    fn list<T>(
        &self,
        key: &str,
        read: impl Fn(&str, &Node) -> Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        let Some(node) = self.node(key) else {
            return Ok(Vec::new());
        };
        let path = self.path(key);
        let items = node.as_seq().ok_or_else(|| wrong(&path, node, "a list"))?;
        items
            .iter()
            .enumerate()
            .map(|(index, item)| read(&format!("{path}[{index}]"), item))
            .collect()
    }
}

/// The source text of any scalar; null is empty.
fn string(path: &str, node: &Node) -> Result<String, Error> {
    match node.text() {
        Some(_) if node.is_null() => Ok(String::new()),
        Some(text) => Ok(text.to_owned()),
        None => Err(wrong(path, node, "a string")),
    }
}

fn wrong(path: &str, node: &Node, expected: &str) -> Error {
    let subject = if path.is_empty() { "jaco.yaml" } else { path };
    let message = format!("{subject} must be {expected}, not {}", node.kind());
    Error::new(ErrorCode::ParseFailed, message)
        .with("field", path)
        .at(node.at)
}
