//! Suppression of repeated log lines.

/// Detects changes of an error, so that a retry loop logs the same error only once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Repeats(Option<String>);

impl Repeats {
    /// Stores `what` and returns whether it differs from the previous value.
    pub(crate) fn is_news(&mut self, what: impl ToString) -> bool {
        let what = Some(what.to_string());
        let news = self.0 != what;
        self.0 = what;
        news
    }

    /// Resets after a success, so that the next error is logged in any case. Returns whether an
    /// error was stored.
    pub(crate) fn clear(&mut self) -> bool {
        self.0.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_error_is_new_after_change_or_clear() {
        let mut repeats = Repeats::default();
        let said: Vec<_> = ["a", "a", "b", "a"].map(|e| repeats.is_news(e)).into();
        assert_eq!(said, [true, false, true, true]);
        assert!(repeats.clear());
        assert!(!repeats.clear());
        assert!(repeats.is_news("a"));
    }
}
