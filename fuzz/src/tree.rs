//! Properties of YAML trees.

use jaco_proto::yaml::{self, Document, Node, Position, Resolved, Scalar, Value};

/// Parses a document; an error must have a position in it.
pub(crate) fn read(bytes: &[u8]) -> Option<Document> {
    match yaml::parse(bytes) {
        Ok(document) => Some(document),
        Err(error) => {
            assert_inside(bytes, error.at);
            None
        }
    }
}

/// Emits a tree, and checks that the text parses to the same tree and is emitted as the same text.
///
/// `None` if the text is too long to be parsed again: aliases can expand a small file to a large
/// one.
pub(crate) fn rewritten(root: &Node) -> Option<String> {
    let text = yaml::to_string(root);
    if text.len() > 100_000 {
        return None;
    }
    let again = yaml::parse(text.as_bytes());
    let again = again.unwrap_or_else(|error| panic!("{text:?} does not read back: {error}"));
    assert_eq!(again.next, None, "{text:?} holds a second document");
    let again = again.root.expect("a root was written");
    assert!(same(root, &again), "{root:#?}\nbecame\n{again:#?}");
    assert_eq!(yaml::to_string(&again), text, "not a fixed point");
    Some(text)
}

/// Whether two trees are equal except for positions and spelling.
pub(crate) fn same(a: &Node, b: &Node) -> bool {
    match (&a.value, &b.value) {
        (Value::Scalar(a), Value::Scalar(b)) => same_scalar(a, b),
        (Value::Seq(a), Value::Seq(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Value::Map(a), Value::Map(b)) => {
            a.len() == b.len()
                && a.iter()
                    .zip(b.iter())
                    .all(|((a_key, a), (b_key, b))| a_key.text == b_key.text && same(a, b))
        }
        (Value::Scalar(_) | Value::Seq(_) | Value::Map(_), _) => false,
    }
}

fn same_scalar(a: &Scalar, b: &Scalar) -> bool {
    match (a.resolve(), b.resolve()) {
        (Resolved::Null, Resolved::Null) => true,
        // Compared as text, because NaN is not equal to itself.
        (Resolved::Float(_), Resolved::Float(_)) => a.text == b.text,
        (a_type, b_type) => a_type == b_type && a.text == b.text,
    }
}

/// Checks that a position is in a file, or directly behind its end.
pub(crate) fn assert_inside(file: &[u8], at: Position) {
    let text = String::from_utf8_lossy(file);
    // Parsers differ on whether a carriage return ends a line.
    let lines = 1 + text.matches(['\n', '\r']).count();
    let widest = text.split('\n').map(|line| line.chars().count()).max();
    let (line, col) = (at.line as usize, at.col as usize);
    assert!((1..=lines + 1).contains(&line), "{at} of {lines} lines");
    let widest = widest.unwrap_or(0);
    assert!((1..=widest + 2).contains(&col), "{at} of {widest} columns");
}
