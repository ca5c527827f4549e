//! Formats errors with their causes.

/// Formats `error` and its causes in one line.
///
/// A cause is left out if the text ends with it already: many libraries repeat their cause.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| {
        let cause = cause.to_string();
        if text.ends_with(&cause) {
            text
        } else {
            format!("{text}: {cause}")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        source: Option<Box<Layer>>,
    }

    fn layers(texts: &[&'static str]) -> Layer {
        let below = texts
            .iter()
            .rev()
            .fold(None, |source, text| Some(Box::new(Layer { text, source })));
        *below.unwrap()
    }

    #[test]
    fn causes_are_joined_without_repetition() {
        for (texts, line) in [
            (&["alone"][..], "alone"),
            (&["outer", "middle", "inner"], "outer: middle: inner"),
            (&["outer: inner", "inner"], "outer: inner"),
            (&["outer", "outer: inner", "inner"], "outer: outer: inner"),
            (&["inner failed", "inner"], "inner failed: inner"),
            (&["a: b", "b", "c"], "a: b: c"),
        ] {
            assert_eq!(chain(&layers(texts)), line, "{texts:?}");
        }
    }
}
