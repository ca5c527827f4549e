//! Construction of manifest errors: message, position, suggestions.

use crate::{
    Error, ErrorCode,
    yaml::{self, Position},
};

/// Creates the error for a violated rule of a schema.
pub(super) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::ValidationFailed, message)
}

/// Detail with the number of a file, of several that make up a document, until its path is known.
pub(super) const FILE_NUMBER: &str = "file_number";

/// Adds a position in the file to an error.
pub(super) trait Located {
    fn at(self, at: Position) -> Self;
    /// Adds a detail, unless `text` is empty.
    fn with_text(self, key: &str, text: &str) -> Self;
}

impl Located for Error {
    fn at(self, at: Position) -> Self {
        let error = self.with("line", at.line).with("col", at.col);
        match at.file {
            0 => error,
            number => error.with(FILE_NUMBER, number),
        }
    }

    fn with_text(self, key: &str, text: &str) -> Self {
        match text {
            "" => self,
            text => self.with(key, text),
        }
    }
}

/// Creates the error for a document that is not valid YAML.
pub(super) fn invalid_yaml(code: ErrorCode, what: &str, error: &yaml::Error) -> Error {
    Error::new(code, format!("{what}: {error}")).at(error.at)
}

/// Truncates text from the file, so that an error fits into a trailer and on a terminal.
pub(super) fn bounded(mut error: Error) -> Error {
    shorten(&mut error.message);
    error.details.values_mut().for_each(shorten);
    error
}

fn shorten(text: &mut String) {
    if let Some((end, _)) = text.char_indices().nth(500) {
        text.truncate(end);
        text.push('…');
    }
}

/// Returns the phrase `, did you mean "x"?` if a candidate is similar to `word`.
pub(super) fn suggestion<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, candidates)
        .map(|near| format!(", did you mean {near:?}?"))
        .unwrap_or_default()
}

fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // The distance costs quadratic time, and a misspelt key is never this long.
    if word.len() > 64 {
        return None;
    }
    let allowed = (word.chars().count() / 3).clamp(1, 3);
    candidates
        .into_iter()
        .filter(|candidate| candidate.len() <= 64)
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min()
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_between_characters() {
        let error = invalid("é".repeat(1000)).with("value", "x".repeat(500));
        let error = bounded(error);
        assert_eq!(error.message, format!("{}…", "é".repeat(500)));
        assert_eq!(error.details["value"].len(), 500);
    }

    #[test]
    fn only_close_words_are_suggested() {
        let keys = ["replicas", "routes", "acme"];
        assert_eq!(suggestion("replcas", keys), ", did you mean \"replicas\"?");
        assert_eq!(suggestion("x", keys), "");
        assert_eq!(suggestion(&"r".repeat(100), keys), "");
    }
}
