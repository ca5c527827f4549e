//! Tests the JSON Schema of `jaco.yaml`: the stored file is current, and it agrees with the
//! decoder.

use std::{fs, path::PathBuf};

use boon::{Compiler, Schemas};
use jaco_proto::{
    Error, ErrorCode,
    manifest::{jaco::Jaco, json_schema},
    yaml::{self, Node, Resolved},
};
use serde_json::{Number, Value};

use crate::cases;

fn stored() -> PathBuf {
    PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../schemas/jaco.schema.json"
    ))
}

#[test]
fn stored_schema_equals_the_generated_one() {
    let made = json_schema();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(stored(), &made).unwrap();
    }
    let stored: Value = serde_json::from_str(&fs::read_to_string(stored()).unwrap()).unwrap();
    let made: Value = serde_json::from_str(&made).unwrap();
    assert_eq!(stored, made, "run this test with UPDATE_GOLDEN=1");
}

/// Messages of errors that no schema can express.
const BEYOND_A_SCHEMA: [(&str, &str); 10] = [
    ("deployment", "jaco_yaml is required"),
    (
        "a schema sees numbers, not how they are written",
        "whole number, not a number \"2.0\"",
    ),
    (
        "a schema sees no quotes",
        "must be a boolean, not a string \"yes\"",
    ),
    ("addresses", "is not a valid email address"),
    ("tokens of cookies", "want at most 64 letters"),
    ("durations", "want 1s to 400d"),
    ("names are unique", "declared more than once"),
    ("one mode per domain", "a domain has one mode"),
    ("paths are unique", "two routes without a path"),
    ("paths are unique", "appears twice"),
];

#[test]
fn schema_and_decoder_agree_on_every_case() {
    let schema: Value = serde_json::from_str(&json_schema()).unwrap();
    let mut compiler = Compiler::new();
    compiler.enable_format_assertions();
    compiler.add_resource("jaco.schema.json", schema).unwrap();
    let mut schemas = Schemas::new();
    let schema = compiler.compile("jaco.schema.json", &mut schemas).unwrap();
    let mut accepted = 0;
    let mut refused = 0;
    let mut beyond = 0;
    let own = [
        "deployment: d\nservices: [{name: web, replicas: 2.0}]",
        "deployment: d\nroutes: [{domain: a, service: b, port: 1, strip_path: \"yes\"}]",
        "deployment: true",
        "deployment: d\nacme: \"\"",
        "deployment: d\nacme: 1",
        "deployment: d\nservices: [{name: 5, placement: hosts, hosts: ~}]",
        "deployment: d\nservices: [{name: 5, placement: global, replicas: ~}]",
        "deployment: d\nservices: [{name: 5, placement: ~, replicas: ~, networks: ~, hosts: ~}]",
        "deployment: d\nx-a: {b: [{c: ~}]}",
        "deployment: d\nroutes: [{domain: a, service: b, port: 1, limits: {exempt: [~]}}]",
        "deployment: d\nroutes: [{domain: a, service: b, port: 1, limits: on, affinity: ~}]",
    ];
    let table = cases::all();
    let table = table
        .iter()
        .filter_map(|case| Some((case.place.as_str(), case.input("jaco")?)));
    for (place, text) in table.chain(own.map(|text| ("here", text))) {
        let decoded = Jaco::parse(text.as_bytes());
        let Ok(instance) = yaml::parse(text.as_bytes()) else {
            assert_eq!(decoded.unwrap_err().code, ErrorCode::ParseFailed);
            continue;
        };
        let instance = instance.root.map_or(Value::Null, |root| json(&root));
        let valid = schemas.validate(&instance, schema);
        match decoded {
            Ok(_) => {
                assert!(
                    valid.is_ok(),
                    "{place}: the schema refuses {text}: {valid:?}"
                );
                accepted += 1;
            }
            Err(error) if is_beyond(&error) => beyond += 1,
            Err(error) => {
                assert!(
                    valid.is_err(),
                    "{place}: the schema accepts {text}: {error}"
                );
                refused += 1;
            }
        }
    }
    let seen = format!("{accepted} accepted, {refused} refused, {beyond} beyond a schema");
    let enough = accepted >= 40 && refused >= 40 && beyond >= BEYOND_A_SCHEMA.len();
    assert!(enough, "{seen}");
}

fn is_beyond(error: &Error) -> bool {
    let message = &error.message;
    BEYOND_A_SCHEMA
        .iter()
        .any(|(_, words)| message.contains(words))
}

/// Converts a node to the JSON that a YAML 1.2 editor passes to its schema validator.
fn json(node: &Node) -> Value {
    if let Some(map) = node.as_map() {
        let entries = map
            .iter()
            .map(|(key, value)| (key.text.clone(), json(value)));
        return Value::Object(entries.collect());
    }
    if let Some(items) = node.as_seq() {
        return items.iter().map(json).collect();
    }
    match node.as_scalar().unwrap().resolve() {
        Resolved::Null => Value::Null,
        Resolved::Bool(value) => Value::Bool(value),
        Resolved::Int(value) => i64::try_from(value).map_or_else(
            |_| Number::from_f64(value as f64).map_or(Value::Null, Value::Number),
            Value::from,
        ),
        Resolved::Float(value) => Number::from_f64(value).map_or(Value::Null, Value::Number),
        Resolved::Str(text) => Value::from(text),
    }
}
