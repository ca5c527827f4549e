//! `deploy.placement`: conditions on the nodes of replicas.

use crate::{
    Error,
    manifest::compose::{Attribute, Constraint, Deploy, keys::PLACEMENT, reader::Reader},
    yaml::Node,
};

/// Longest key or value of a constraint, in bytes.
const MAX_TEXT: usize = 256;

const WANT: &str = "node.hostname, node.labels.<key>, node.platform.os or node.platform.arch, == or \
                    !=, and a value";

/// Reads `deploy.placement`.
pub(super) fn read(
    reader: &Reader<'_>,
    deploy: &mut Deploy,
    field: &str,
    node: &Node,
) -> Result<(), Error> {
    let Some(map) = reader.map(field, node, &PLACEMENT)? else {
        return Ok(());
    };
    if let Some(node) = map.get("constraints") {
        let field = format!("{field}.constraints");
        for item in reader.seq(&field, node)? {
            deploy
                .constraints
                .extend(reader.parsed(&field, item, WANT, constraint)?);
        }
    }
    if let Some(node) = map.get("max_replicas_per_node") {
        let field = format!("{field}.max_replicas_per_node");
        let most = reader.int_within(&field, node, 0..=i64::from(i32::MAX))?;
        let most = most.and_then(|most| i32::try_from(most).ok());
        deploy.max_replicas_per_node = most.filter(|most| *most > 0);
    }
    if let Some(node) = map.get("preferences") {
        reader.seq(&format!("{field}.preferences"), node)?;
    }
    Ok(())
}

fn constraint(text: &str) -> Option<Constraint> {
    let equal = text.split_once("==").map(|pair| (pair, false));
    let ((attribute, value), excludes) = equal.or_else(|| Some((text.split_once("!=")?, true)))?;
    let (attribute, value) = (attribute.trim(), value.trim());
    let is_text = |text: &str| {
        !text.is_empty() && text.len() <= MAX_TEXT && !text.chars().any(char::is_control)
    };
    let attribute = match attribute {
        "node.hostname" => Attribute::Hostname,
        "node.platform.os" => Attribute::Os,
        "node.platform.arch" => Attribute::Arch,
        "node.role" => Attribute::Role,
        other => {
            let key = other.strip_prefix("node.labels.")?;
            let is_key = is_text(key) && !key.contains(char::is_whitespace);
            Attribute::Label(is_key.then(|| key.to_owned())?)
        }
    };
    is_text(value).then(|| Constraint {
        attribute,
        excludes,
        value: value.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constraints_are_an_attribute_and_a_value() {
        let label = |key: &str| Attribute::Label(key.to_owned());
        for (text, expected) in [
            ("node.hostname==a", Some((Attribute::Hostname, false, "a"))),
            (
                "node.hostname != a b ",
                Some((Attribute::Hostname, true, "a b")),
            ),
            (
                "node.labels.zone == eu-1",
                Some((label("zone"), false, "eu-1")),
            ),
            (
                "node.labels.a.b/c==1==2",
                Some((label("a.b/c"), false, "1==2")),
            ),
            (
                "node.platform.os == linux",
                Some((Attribute::Os, false, "linux")),
            ),
            (
                "node.platform.arch==arm64",
                Some((Attribute::Arch, false, "arm64")),
            ),
            (
                "node.role == manager",
                Some((Attribute::Role, false, "manager")),
            ),
            ("node.hostname", None),
            ("node.hostname =", None),
            ("node.hostname ==", None),
            ("node.labels. == a", None),
            ("node.labels.a b == a", None),
            ("node.id == a", None),
            ("engine.labels.a == b", None),
            ("node.hostname == a\u{1b}", None),
            ("", None),
        ] {
            let found = constraint(text);
            let found = found.map(|one| (one.attribute, one.excludes, one.value));
            let expected = expected.map(|(a, excludes, value)| (a, excludes, value.to_owned()));
            assert_eq!(found, expected, "{text:?}");
        }
    }
}
