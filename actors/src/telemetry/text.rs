//! Prometheus text format, version 0.0.4.
//!
//! The registry writes OpenMetrics, which differs in three points: the family name of a counter
//! lacks `_total`, the text ends with an EOF marker, and the content type is different.
//!
//! Source: "Exposition formats" of the Prometheus documentation, and the OpenMetrics
//! specification 1.0.

use std::collections::HashSet;

use prometheus_client::{encoding::text::encode, registry::Registry};

/// Content type of [`render`]'s text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Renders everything in `registry`; families without samples are omitted.
#[must_use]
pub fn render(registry: &Registry) -> String {
    let mut open = String::new();
    let _ = encode(&mut open, registry); // writing to a String cannot fail
    classic(&open)
}

fn classic(open: &str) -> String {
    let described = |line: &str| {
        let (kind, rest) = line.strip_prefix("# ")?.split_once(' ')?;
        let (name, text) = rest.split_once(' ')?;
        Some((kind.to_owned(), name.to_owned(), text.to_owned()))
    };
    let counters: HashSet<String> = open
        .lines()
        .filter_map(described)
        .filter(|(kind, _, text)| kind == "TYPE" && text == "counter")
        .map(|(_, name, _)| name)
        .collect();
    let mut text = String::with_capacity(open.len());
    // Descriptions are held back until a sample follows, to omit families without samples.
    let mut waiting = String::new();
    for line in open.lines() {
        match described(line) {
            Some((kind, name, about)) => {
                if kind == "HELP" {
                    waiting.clear();
                }
                let suffix = if counters.contains(&name) {
                    "_total"
                } else {
                    ""
                };
                waiting.push_str(&format!("# {kind} {name}{suffix} {about}\n"));
            }
            None if line.starts_with('#') => {}
            None => {
                text.push_str(&std::mem::take(&mut waiting));
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_end_in_total_empty_families_are_omitted() {
        let open = "# HELP a_b Help of it.\n# TYPE a_b counter\na_b_total{x=\"# y\"} 1\n\
                    # HELP none Nothing.\n# TYPE none gauge\n\
                    # HELP c C.\n# TYPE c gauge\nc 2\n# EOF\n";
        assert_eq!(
            classic(open),
            "# HELP a_b_total Help of it.\n# TYPE a_b_total counter\na_b_total{x=\"# y\"} 1\n\
             # HELP c C.\n# TYPE c gauge\nc 2\n"
        );
    }
}
