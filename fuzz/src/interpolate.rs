//! Fuzzes `${VAR}` in compose files.

mod model;

use std::collections::BTreeMap;

use jaco_proto::{
    manifest::{
        env_file,
        interpolate::{Error, ExpandError, interpolate as interpolate_file},
    },
    yaml::{self, Node, Position, Resolved, Scalar, Value},
};

use crate::{parts::parts, tree};

type Variables = BTreeMap<String, String>;

/// Input: an environment file, then a compose file.
///
/// A file without `$` is unchanged; scalars without `$` keep their text and type. The output, with
/// its dollars doubled, is unchanged by a second pass. An error has a position in the file. The
/// compose text as one scalar expands like in a second, simple implementation of the grammar.
pub fn interpolate(data: &[u8]) {
    let [environment, compose] = parts(data);
    let variables = env_file::parse(environment, |_| None);
    let variables = variables.map(|read| read.values).unwrap_or_default();
    file(compose, &variables);
    if let Ok(text) = str::from_utf8(compose) {
        scalar(text, &variables);
    }
}

fn file(compose: &[u8], variables: &Variables) {
    let result = interpolate_file(compose, "compose.yml", variables);
    if !compose.contains(&b'$') {
        let same = result.expect("nothing to replace");
        assert_eq!(same.bytes, compose);
        assert!(same.unset.is_empty());
        return;
    }
    let read = match result {
        Ok(read) => read,
        Err(error) => return assert_has_position(compose, &error),
    };
    for name in &read.unset {
        assert!(is_name(name), "{name:?} is no name");
        assert!(!variables.contains_key(name), "{name} is set");
    }
    let before = tree::read(compose).expect("parsed by interpolate").root;
    let after = tree::read(&read.bytes)
        .expect("interpolate emits YAML")
        .root;
    let (Some(before), Some(after)) = (before, after) else {
        assert_eq!(read.bytes, compose);
        return;
    };
    assert_expanded(&before, &after);
    assert_protected(&after);
}

/// Checks that the structure is equal, and that scalars without `$` are unchanged.
fn assert_expanded(before: &Node, after: &Node) {
    match (&before.value, &after.value) {
        (Value::Scalar(before), Value::Scalar(after)) => {
            if before.text.contains('$') {
                assert!(matches!(after.resolve(), Resolved::Str(_)), "{after:?}");
            } else {
                let kept = [before, after]
                    .map(|scalar| Node::new(Value::Scalar(scalar.clone()), Position::START));
                assert!(tree::same(&kept[0], &kept[1]), "{before:?} {after:?}");
            }
        }
        (Value::Seq(before), Value::Seq(after)) => {
            assert_eq!(before.len(), after.len());
            before
                .iter()
                .zip(after)
                .for_each(|(before, after)| assert_expanded(before, after));
        }
        (Value::Map(before), Value::Map(after)) => {
            assert_eq!(before.len(), after.len());
            for ((before_key, before), (after_key, after)) in before.iter().zip(after.iter()) {
                assert!(before_key.text.contains('$') || before_key.text == after_key.text);
                assert_expanded(before, after);
            }
        }
        (Value::Scalar(_) | Value::Seq(_) | Value::Map(_), _) => panic!("the structure changed"),
    }
}

/// Checks that doubling every dollar makes a tree invariant under interpolation.
fn assert_protected(root: &Node) {
    let Some(text) = tree::rewritten(root) else {
        return;
    };
    let doubled = text.replace('$', "$$");
    let again = interpolate_file(doubled.as_bytes(), "compose.yml", &Variables::new());
    let again = again.unwrap_or_else(|error| panic!("{doubled:?}: {error}"));
    assert!(again.unset.is_empty());
    let again = tree::read(&again.bytes).and_then(|document| document.root);
    assert!(tree::same(root, &again.expect("a root was written")));
}

fn assert_has_position(compose: &[u8], error: &Error) {
    let at = match error {
        Error::Yaml { source, .. } => source.at,
        Error::SecondDocument { at, .. }
        | Error::Template { at, .. }
        | Error::DuplicateKey { at, .. } => *at,
    };
    tree::assert_inside(compose, at);
    assert!(error.to_string().starts_with("interpolate compose.yml"));
}

/// Compares the expansion of one scalar with the model.
fn scalar(text: &str, variables: &Variables) {
    let root = Node::new(Value::Scalar(Scalar::string(text)), Position::START);
    let file = yaml::to_string(&root);
    let result = interpolate_file(file.as_bytes(), "compose.yml", variables);
    match (result, model::expand(text, variables)) {
        (Ok(read), Ok(expected)) => {
            let document = tree::read(&read.bytes).expect("interpolate emits YAML");
            let root = document.root.expect("a root was written");
            assert_eq!(root.text(), Some(expected.text.as_str()));
            assert_eq!(read.unset, expected.unset);
        }
        (Err(Error::Template { fault, .. }), Err(expected)) => match (fault, expected) {
            (ExpandError::Required { name, hint }, model::Fault::Required(expected, word)) => {
                assert_eq!((name, hint), (expected, word));
            }
            (ExpandError::Invalid { .. }, model::Fault::Invalid)
            | (ExpandError::TooLong { .. }, model::Fault::TooLong) => {}
            (fault, expected) => panic!("{fault:?} instead of {expected:?}"),
        },
        // The text exceeds the limit on token characters.
        (Err(Error::Yaml { .. }), _) => {}
        (result, expected) => panic!("{result:?} instead of {expected:?}"),
    }
}

fn is_name(text: &str) -> bool {
    let mut chars = text.chars();
    chars
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}
