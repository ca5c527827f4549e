//! The JSON Schema of `jaco.yaml`, for editors.

use serde_json::{Map, Value, json};

use super::{
    keys::{FLAGS, Key, Requirement, Rule, TOP, Table, Text, ValueType},
    secrets::{MAX_NAME, MAX_SECRETS},
};

/// Returns the JSON Schema (draft 2020-12) of `jaco.yaml` as JSON text.
///
/// It is generated from the table that the decoder uses. A valid file can still violate rules that
/// a schema cannot express: unique names, one TLS mode per domain, the format of an email address,
/// and all rules about the compose file and the cluster.
pub fn json_schema() -> String {
    let mut schema = table(&TOP);
    let head = [
        (
            "$schema",
            json!("https://json-schema.org/draft/2020-12/schema"),
        ),
        ("title", json!("jaco.yaml")),
        (
            "description",
            json!("What a deployment wants from the cluster, beside its compose file."),
        ),
        ("$defs", json!({ "extension": extension() })),
    ];
    for (key, value) in head {
        schema.insert(key.to_owned(), value);
    }
    format!("{:#}\n", Value::Object(schema))
}

/// Schema of any content without the key that is rejected at every depth.
fn extension() -> Value {
    let itself = json!({ "$ref": "#/$defs/extension" });
    json!({
        "propertyNames": { "not": { "const": "compose_service" } },
        "additionalProperties": itself,
        "items": itself,
    })
}

fn table(table: &Table) -> Map<String, Value> {
    let properties = table.keys.iter().map(|key| {
        let mut property = value_type(&key.value_type, key.required);
        property.insert("description".to_owned(), json!(key.about));
        (key.name.to_owned(), Value::Object(property))
    });
    let required = table.keys.iter().filter(|key| key.required);
    let required: Vec<_> = required.map(|key| key.name).collect();
    let mut schema = object(json!({
        "type": "object",
        "properties": properties.collect::<Map<_, _>>(),
        "patternProperties": { "^x-": { "$ref": "#/$defs/extension" } },
        "additionalProperties": false,
        "required": required,
    }));
    if !table.rules.is_empty() {
        let rules: Vec<_> = table
            .rules
            .iter()
            .map(|rule| conditional(table, rule))
            .collect();
        schema.insert("allOf".to_owned(), json!(rules));
    }
    schema
}

fn conditional(table: &Table, rule: &Rule) -> Value {
    let requirement = match rule.requirement {
        Requirement::Filled => json!({
            "required": [rule.other],
            "properties": { rule.other: { "type": "array", "minItems": 1 } },
        }),
        // A key set to null counts as absent.
        Requirement::Absent if table.key(rule.other).is_some_and(|key: &Key| !key.required) => {
            json!({ "properties": { rule.other: { "type": "null" } } })
        }
        Requirement::Absent => json!(false),
    };
    json!({
        "if": {
            "required": [rule.key],
            "properties": { rule.key: { "const": rule.word } },
        },
        "then": requirement,
    })
}

fn value_type(value_type: &ValueType, required: bool) -> Map<String, Value> {
    let or_null = |kinds: &[&'static str]| {
        let null = (!required).then_some("null");
        kinds.iter().copied().chain(null).collect::<Vec<_>>()
    };
    object(match value_type {
        ValueType::Text(Text::Any) if required => {
            json!({ "type": or_null(&["string", "number", "boolean"]), "minLength": 1 })
        }
        ValueType::Text(Text::Any) => json!({ "type": or_null(&["string", "number", "boolean"]) }),
        ValueType::Text(Text::Words(words)) => {
            let words = words.iter().map(|word| json!(word));
            json!({ "enum": words.chain([json!(""), Value::Null]).collect::<Vec<_>>() })
        }
        ValueType::Text(Text::AnyCase(words)) => {
            json!({ "type": or_null(&["string"]), "pattern": any_case(words) })
        }
        ValueType::Text(Text::Path) => json!({ "type": "string", "pattern": "^/" }),
        ValueType::Rate { max } => {
            json!({ "type": or_null(&["number"]), "exclusiveMinimum": 0, "maximum": max })
        }
        ValueType::Int { min, max } => {
            json!({ "type": or_null(&["integer"]), "minimum": min, "maximum": max })
        }
        ValueType::Flag => json!({
            "anyOf": [{ "type": or_null(&["boolean"]) }, { "enum": FLAGS.map(|(word, _)| word) }],
        }),
        ValueType::List(item) => json!({
            "type": or_null(&["array"]),
            "items": Value::Object(self::value_type(item, false)),
        }),
        ValueType::Table(keys) => return table(keys),
        ValueType::Variables => json!({
            "type": or_null(&["object"]),
            "propertyNames": { "pattern": "^[A-Z_][A-Z0-9_]*$", "maxLength": MAX_NAME },
            "additionalProperties": { "type": ["string", "number", "boolean"] },
            "maxProperties": MAX_SECRETS,
        }),
        ValueType::WordOrTable(words, keys) => {
            let words = self::value_type(&ValueType::Text(Text::Words(words)), required);
            json!({ "anyOf": [Value::Object(words), Value::Object(table(keys))] })
        }
    })
}

/// Returns a pattern for the words in any case, and for the empty text.
fn any_case(words: &[&str]) -> String {
    let word = |word: &&str| -> String {
        word.chars()
            .map(|c| format!("[{}{}]", c.to_ascii_uppercase(), c))
            .collect()
    };
    let words: Vec<_> = words.iter().map(word).collect();
    format!("^({})?$", words.join("|"))
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Map::new()
        }
    }
}
