//! Excerpts of files at the position of an error.

use super::failure::{Failure, one_line};

/// A text that a failure may point into.
pub(crate) struct Text<'a> {
    /// The name that failures use.
    pub(crate) name: &'a str,
    /// The path that the user gave.
    pub(crate) path: &'a str,
    /// Content of the file.
    pub(crate) bytes: &'a [u8],
}

/// Adds the user's path and the offending line to a failure that names one of `texts`.
pub(crate) fn attach(mut failure: Failure, texts: &[Text<'_>]) -> Failure {
    let file = failure.details.get("file");
    let Some(text) = texts
        .iter()
        .find(|text| file.is_some_and(|file| file == text.name))
    else {
        return failure;
    };
    let number = |key: &str| failure.details.get(key)?.parse::<usize>().ok();
    failure.excerpt = number("line")
        .and_then(|line| excerpt(&String::from_utf8_lossy(text.bytes), line, number("col")));
    failure
        .details
        .insert("file".to_owned(), text.path.to_owned());
    failure
}

/// The line with its number, and a caret under the column; both count from 1.
pub(crate) fn excerpt(text: &str, line: usize, col: Option<usize>) -> Option<String> {
    let source = one_line(text.lines().nth(line.checked_sub(1)?)?.trim_end());
    let number = line.to_string();
    let gutter = " ".repeat(number.len());
    let mut shown = format!(" {number} | {source}\n");
    if let Some(col) = col.filter(|&col| col >= 1 && col <= source.chars().count() + 1) {
        shown.push_str(&format!(" {gutter} | {}^\n", " ".repeat(col - 1)));
    }
    Some(shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::failure::Local;

    #[test]
    fn caret_is_under_the_column() {
        let text = "a: 1\nbé: x\r\n";
        assert_eq!(
            excerpt(text, 2, Some(5)).unwrap(),
            " 2 | bé: x\n   |     ^\n"
        );
        assert_eq!(excerpt(text, 1, None).unwrap(), " 1 | a: 1\n");
        assert_eq!(excerpt(text, 1, Some(99)).unwrap(), " 1 | a: 1\n");
    }

    #[test]
    fn line_outside_the_text_has_no_excerpt() {
        for line in [0, 3, usize::MAX] {
            assert_eq!(excerpt("a\nb\n", line, Some(1)), None);
        }
    }

    #[test]
    fn excerpt_comes_from_the_named_text() {
        let texts = [Text {
            name: "jaco.yaml",
            path: "./my.yaml",
            bytes: b"deployment: 1\n",
        }];
        let fault = |file: &str| {
            Failure::new(Local::UsageError, "m")
                .with("file", file)
                .with("line", 1)
                .with("col", 13)
        };
        let shown = attach(fault("jaco.yaml"), &texts);
        assert_eq!(shown.details["file"], "./my.yaml");
        assert_eq!(
            shown.excerpt.unwrap(),
            " 1 | deployment: 1\n   |             ^\n"
        );
        let other = attach(fault("compose.yaml"), &texts);
        assert_eq!(
            (other.excerpt, other.details["file"].as_str()),
            (None, "compose.yaml")
        );
    }
}
