//! Suppression of repeated log lines.

/// Detects changes of an error, so that a retry loop logs the same error only once.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogDedup(Option<String>);

impl LogDedup {
    /// Stores `what` and returns whether it differs from the previous value.
    pub(crate) fn is_new(&mut self, what: impl ToString) -> bool {
        let what = Some(what.to_string());
        let is_new = self.0 != what;
        self.0 = what;
        is_new
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
        let mut repeats = LogDedup::default();
        let said: Vec<_> = ["a", "a", "b", "a"].map(|e| repeats.is_new(e)).into();
        assert_eq!(said, [true, false, true, true]);
        assert!(repeats.clear());
        assert!(!repeats.clear());
        assert!(repeats.is_new("a"));
    }
}
