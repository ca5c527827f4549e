//! Labels of nodes, which constraints of services name.

use std::collections::BTreeMap;

/// Largest number of labels of a node.
pub const MAX_LABELS: usize = 64;
/// Longest key or value, in bytes.
pub const MAX_BYTES: usize = 256;

/// Checks the labels of a node: up to [`MAX_LABELS`], keys and values of up to [`MAX_BYTES`], printable,
/// keys without white space.
///
/// # Errors
/// Fault of the first bad one.
pub fn check(labels: &BTreeMap<String, String>) -> Result<(), String> {
    if labels.len() > MAX_LABELS {
        let given = labels.len();
        return Err(format!("there are {given}, more than {MAX_LABELS}"));
    }
    for (key, value) in labels {
        let fits = |text: &str| text.len() <= MAX_BYTES && !text.chars().any(char::is_control);
        if key.is_empty() || key.contains(char::is_whitespace) || !fits(key) {
            return Err(format!(
                "{key:?} is no key: want 1 to {MAX_BYTES} printable bytes without spaces"
            ));
        }
        if !fits(value) {
            return Err(format!(
                "the value of {key:?} is longer than {MAX_BYTES} bytes or not printable"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_few_short_and_printable() {
        let long = "x".repeat(MAX_BYTES + 1);
        for (key, value, valid) in [
            ("zone", "eu-1", true),
            ("a.b/c", "with spaces", true),
            ("disk", "", true),
            ("", "a", false),
            ("a b", "c", false),
            ("a\n", "c", false),
            ("a", "b\u{1b}", false),
            (&long, "a", false),
            ("a", &long, false),
        ] {
            let labels = BTreeMap::from([(key.to_owned(), value.to_owned())]);
            assert_eq!(check(&labels).is_ok(), valid, "{key:?} {value:?}");
        }
        let label = |n: usize| (n.to_string(), String::new());
        assert_eq!(check(&(0..MAX_LABELS).map(label).collect()), Ok(()));
        assert!(check(&(0..=MAX_LABELS).map(label).collect()).is_err());
    }
}
