//! Names of projects.

/// Returns a directory's name as a name of a project: lower case, without characters that such a name
/// cannot have, and without `-` and `_` at its start. Empty if nothing remains.
///
/// Source: compose-go, `NormalizeProjectName`.
pub fn project_name(directory: &str) -> String {
    let lower = directory.to_lowercase();
    let kept = lower
        .chars()
        .filter(|c| matches!(c, 'a'..='z' | '0'..='9' | '_' | '-'));
    let name: String = kept.collect();
    name.trim_start_matches(['_', '-']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::project_name;

    #[test]
    fn directories_become_names_of_projects() {
        for (directory, name) in [
            ("shop", "shop"),
            ("My Shop.v2", "myshopv2"),
            ("_-a_b-", "a_b-"),
            ("ÄÖ", ""),
            ("", ""),
        ] {
            assert_eq!(project_name(directory), name, "{directory}");
        }
    }
}
