//! The lists of keys as tables for the documentation.

use std::fmt::Write as _;

use super::{ALL, Effect, Keys};

/// Returns a table in Markdown per kind of mapping.
pub(in crate::manifest::compose) fn reference() -> String {
    let mut text = String::new();
    for keys in ALL {
        write_table(&mut text, keys);
    }
    text
}

fn write_table(text: &mut String, keys: &Keys) {
    let title = match keys.path {
        "" => "At the top level".to_owned(),
        path => format!("`{path}`"),
    };
    // Writing to a String cannot fail.
    let _ = write!(text, "### {title}\n\n| key | outcome | |\n|---|---|---|\n");
    for key in keys.keys {
        let outcome = match key.effect {
            Effect::Kept => "kept",
            Effect::Client => "kept, by `jaco apply`",
            Effect::Noted(_) => "noted",
            Effect::Silent => "accepted",
        };
        let _ = writeln!(text, "| `{}` | {outcome} | {} |", key.name, key.about);
    }
    text.push('\n');
}
