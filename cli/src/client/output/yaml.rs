//! YAML serialization.
//!
//! A value is converted through JSON into an ordered tree and written in block style. Text that a
//! reader could take for another type is quoted; text of several lines becomes a literal block, so
//! that a manifest stays readable.

use std::fmt;

use jaco_proto::quote::write_quoted;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{MapAccess, SeqAccess, Visitor},
};

/// Serializes one document without its `---`.
///
/// # Errors
/// An error for values without a JSON form, such as a map whose keys are not text.
pub(crate) fn to_string(value: &impl Serialize) -> Result<String, serde_json::Error> {
    let tree: Tree = serde_json::from_str(&serde_json::to_string(value)?)?;
    let mut out = String::new();
    match &tree {
        Tree::Map(entries) if !entries.is_empty() => write_map(&mut out, entries, 0, false),
        Tree::Seq(items) if !items.is_empty() => write_seq(&mut out, items, 0, false),
        Tree::Map(_) | Tree::Seq(_) | Tree::Plain(_) | Tree::Text(_) => {
            write_leaf(&mut out, &tree, 0);
        }
    }
    Ok(out)
}

/// A JSON value that keeps the order of its keys.
pub(crate) enum Tree {
    /// A number, a boolean or null.
    Plain(String),
    Text(String),
    Seq(Vec<Tree>),
    Map(Vec<(String, Tree)>),
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Plain(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Plain(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Plain(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree::Plain(format!("{value:?}")))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Text(value.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Plain("null".to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Tree::Seq(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Tree::Map(entries))
    }
}

/// `continues`: the current line already begins with `- `, so the first entry is not indented.
fn write_map(out: &mut String, entries: &[(String, Tree)], indent: usize, continues: bool) {
    for (at, (key, value)) in entries.iter().enumerate() {
        if at > 0 || !continues {
            pad(out, indent);
        }
        write_text(out, key);
        out.push(':');
        match value {
            Tree::Map(inner) if !inner.is_empty() => {
                out.push('\n');
                write_map(out, inner, indent + 2, false);
            }
            Tree::Seq(items) if !items.is_empty() => {
                out.push('\n');
                write_seq(out, items, indent + 2, false);
            }
            Tree::Map(_) | Tree::Seq(_) | Tree::Plain(_) | Tree::Text(_) => {
                out.push(' ');
                write_leaf(out, value, indent + 2);
            }
        }
    }
}

fn write_seq(out: &mut String, items: &[Tree], indent: usize, continues: bool) {
    for (at, item) in items.iter().enumerate() {
        if at > 0 || !continues {
            pad(out, indent);
        }
        out.push_str("- ");
        match item {
            Tree::Map(inner) if !inner.is_empty() => write_map(out, inner, indent + 2, true),
            Tree::Seq(inner) if !inner.is_empty() => write_seq(out, inner, indent + 2, true),
            Tree::Map(_) | Tree::Seq(_) | Tree::Plain(_) | Tree::Text(_) => {
                write_leaf(out, item, indent + 2);
            }
        }
    }
}

fn write_leaf(out: &mut String, tree: &Tree, indent: usize) {
    match tree {
        Tree::Map(_) => out.push_str("{}\n"),
        Tree::Seq(_) => out.push_str("[]\n"),
        Tree::Plain(text) => {
            out.push_str(text);
            out.push('\n');
        }
        Tree::Text(text) if is_block(text) => write_block(out, text, indent.max(2)),
        Tree::Text(text) => {
            write_text(out, text);
            out.push('\n');
        }
    }
}

/// Whether a literal block reproduces the text exactly.
fn is_block(text: &str) -> bool {
    text.trim_end_matches('\n').contains('\n')
        && !text.ends_with("\n\n")
        && !text.starts_with([' ', '\n', '\t'])
        && text.chars().all(|c| c == '\n' || is_printable(c))
}

fn write_block(out: &mut String, text: &str, indent: usize) {
    out.push_str(if text.ends_with('\n') { "|\n" } else { "|-\n" });
    for line in text.lines() {
        if !line.is_empty() {
            pad(out, indent);
            out.push_str(line);
        }
        out.push('\n');
    }
}

fn write_text(out: &mut String, text: &str) {
    if is_plain(text) {
        out.push_str(text);
        return;
    }
    write_quoted(out, text, |c| {
        (!is_printable(c)).then(|| format!("\\U{:08X}", u32::from(c)))
    });
}

/// Whether unquoted text can only be read as this text, also by YAML 1.1 readers.
fn is_plain(text: &str) -> bool {
    const WORDS: [&str; 12] = [
        "null", "true", "false", "yes", "no", "on", "off", "y", "n", "nan", "inf", "infinity",
    ];
    let inner = |c: char| c.is_ascii_alphanumeric() || "_-./@+ (),=".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == '/')
        && text.chars().all(inner)
        && !text.ends_with(' ')
        && !WORDS.contains(&text.to_ascii_lowercase().as_str())
}

fn is_printable(c: char) -> bool {
    !c.is_control()
        && !matches!(
            c,
            '\u{85}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}'
        )
}

fn pad(out: &mut String, indent: usize) {
    out.extend(std::iter::repeat_n(' ', indent));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use jaco_proto::yaml;
    use serde_json::{Value, json};

    use super::*;

    fn read(text: &str) -> Value {
        let document = yaml::parse(text.as_bytes()).unwrap();
        document.root.as_ref().map_or(Value::Null, value)
    }

    fn value(node: &yaml::Node) -> Value {
        match &node.value {
            yaml::Value::Map(map) => Value::Object(
                map.iter()
                    .map(|(key, node)| (key.text.clone(), value(node)))
                    .collect(),
            ),
            yaml::Value::Seq(items) => items.iter().map(value).collect(),
            yaml::Value::Scalar(scalar) if !scalar.plain => scalar.text.clone().into(),
            yaml::Value::Scalar(scalar) => match scalar.resolve() {
                yaml::Resolved::Str(text) => text.into(),
                _ => serde_json::from_str(&scalar.text).unwrap(),
            },
        }
    }

    #[test]
    fn nested_values_are_blocks_in_their_order() {
        #[derive(Serialize)]
        struct Outer {
            z: Vec<Inner>,
            a: bool,
            none: Vec<u8>,
        }
        #[derive(Serialize)]
        struct Inner {
            name: &'static str,
            list: Vec<u8>,
        }
        let outer = Outer {
            z: vec![
                Inner {
                    name: "web",
                    list: vec![1, 2],
                },
                Inner {
                    name: "no",
                    list: vec![],
                },
            ],
            a: true,
            none: vec![],
        };
        assert_eq!(
            to_string(&outer).unwrap(),
            "z:\n  - name: web\n    list:\n      - 1\n      - 2\n  - name: \"no\"\n    list: []\na: true\nnone: []\n"
        );
        assert_eq!(to_string(&Vec::<u8>::new()).unwrap(), "[]\n");
    }

    #[test]
    fn ambiguous_text_is_quoted() {
        for (text, expected) in [
            ("running", "running"),
            ("app-web-0", "app-web-0"),
            ("a b", "a b"),
            ("true", "\"true\""),
            ("No", "\"No\""),
            ("1.5", "\"1.5\""),
            ("2026-11-21T11:00:13Z", "\"2026-11-21T11:00:13Z\""),
            ("", "\"\""),
            ("a: b", "\"a: b\""),
            ("a #b", "\"a #b\""),
            ("- a", "\"- a\""),
            ("tab\t", "\"tab\\t\""),
        ] {
            assert_eq!(to_string(&text).unwrap(), format!("{expected}\n"));
        }
    }

    #[test]
    fn text_of_several_lines_is_a_literal_block() {
        let text = to_string(&json!({"compose": "services:\n  web: {}\n\n  db: {}\n"})).unwrap();
        assert_eq!(text, "compose: |\n  services:\n    web: {}\n\n    db: {}\n");
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let text = prop_oneof![
            any::<String>(),
            "[ \n\t:#a-c'\"-]{0,12}",
            "(yes|no|1|1e3|0x1|~|null|<<|=|-)",
        ];
        let leaf = prop_oneof![
            text.clone().prop_map(Value::from),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(text.clone(), inner, 0..4)
                    .prop_map(|map| map.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn written_values_read_back(value in any_value()) {
            let text = to_string(&value).unwrap();
            prop_assert_eq!(read(&text), value, "{}", text);
        }
    }
}
