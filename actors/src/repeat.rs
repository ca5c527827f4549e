//! Errors that repeat.

/// Tells news from what was said before, so that a loop logs an error once until it changes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Repeats(Option<String>);

impl Repeats {
    /// Whether `what` differs from what was said last, which it is from here on.
    pub(crate) fn is_news(&mut self, what: impl ToString) -> bool {
        let what = Some(what.to_string());
        let news = self.0 != what;
        self.0 = what;
        news
    }

    /// It went well: the next error is news whatever it says. Tells whether anything was said.
    pub(crate) fn clear(&mut self) -> bool {
        self.0.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_repeats_is_said_once_until_it_changes_or_ends() {
        let mut repeats = Repeats::default();
        let said: Vec<_> = ["a", "a", "b", "a"].map(|e| repeats.is_news(e)).into();
        assert_eq!(said, [true, false, true, true]);
        assert!(repeats.clear());
        assert!(!repeats.clear());
        assert!(repeats.is_news("a"));
    }
}
