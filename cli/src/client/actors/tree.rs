//! Draws actor paths as a tree.

/// Draws one line for each path, in the order given; parents precede children.
///
/// The parent of a path is the longest path in the list that it continues after a slash, so a list
/// that starts in the middle of a tree is drawn from there.
pub(super) fn draw(paths: &[&str]) -> Vec<String> {
    let parents: Vec<Option<usize>> = paths.iter().map(|path| parent(path, paths)).collect();
    (0..paths.len())
        .map(|at| {
            let name = match parents[at] {
                None => paths[at],
                Some(parent) => &paths[at][paths[parent].len() + 1..],
            };
            format!("{}{name}", branch(at, &parents))
        })
        .collect()
}

fn parent(path: &str, paths: &[&str]) -> Option<usize> {
    let continues = |other: &str| {
        path.strip_prefix(other)
            .is_some_and(|rest| rest.starts_with('/'))
    };
    let found = paths
        .iter()
        .enumerate()
        .filter(|(_, other)| continues(other));
    found.max_by_key(|(_, other)| other.len()).map(|(at, _)| at)
}

/// The lines from the root to a node.
fn branch(at: usize, parents: &[Option<usize>]) -> String {
    let is_last = |at: usize| !parents[at + 1..].contains(&parents[at]);
    let mut pieces = Vec::new();
    let mut current = at;
    while let Some(parent) = parents[current] {
        pieces.push(match (current == at, is_last(current)) {
            (true, true) => "└── ",
            (true, false) => "├── ",
            (false, true) => "    ",
            (false, false) => "│   ",
        });
        current = parent;
    }
    pieces.iter().rev().copied().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn siblings_are_connected_by_lines() {
        let drawn = draw(&["n", "n/a", "n/a/x", "n/a/y", "n/b", "n/b/z", "n/bc"]);
        assert_eq!(
            drawn,
            [
                "n",
                "├── a",
                "│   ├── x",
                "│   └── y",
                "├── b",
                "│   └── z",
                "└── bc"
            ]
        );
    }

    #[test]
    fn subtree_is_drawn_from_its_top() {
        assert_eq!(draw(&["n/a", "n/a/x/deep"]), ["n/a", "└── x/deep"]);
        assert_eq!(draw(&["a", "b"]), ["a", "b"]);
        assert!(draw(&[]).is_empty());
    }

    proptest! {
        #[test]
        fn every_path_gets_one_line(paths in prop::collection::vec("[ab/é]{0,6}", 0..12)) {
            let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
            prop_assert_eq!(draw(&paths).len(), paths.len());
        }
    }
}
