//! Variable substitution: `$NAME`, `${NAME}` and `${NAME op word}`.
//!
//! Operators are `:-`, `-`, `:?`, `?`, `:+` and `+`. Words may be nested, must not contain a
//! newline and are expanded only if used. `$$` is a literal dollar sign, and so is `$` before any
//! other character.

use std::{iter::Peekable, str::CharIndices};

/// Maximum nesting of words.
const DEPTH: usize = 64;

/// Maximum length of the expanded text, in bytes; values may double from one variable to the next.
const LENGTH: usize = 4 << 20;

/// Reason why a text cannot be expanded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpandError {
    /// A required variable is not set.
    #[error("required variable {name} is missing a value{}", colon(.hint))]
    Required {
        /// Name of the variable.
        name: String,
        /// Message from the file; may be empty.
        hint: String,
    },
    /// `${` without a valid end.
    #[error("Invalid template: {template:?}")]
    Invalid {
        /// Text from the `${` on.
        template: String,
    },
    /// The expanded text is too long.
    #[error("the text is longer than {limit} bytes after expansion")]
    TooLong {
        /// Limit, in bytes.
        limit: usize,
    },
}

impl ExpandError {
    /// Returns the part of the text with the fault, as `${NAME}` if it has a name.
    pub fn subject(&self) -> String {
        match self {
            Self::Required { name, .. } => format!("${{{name}}}"),
            Self::Invalid { template } => template.clone(),
            Self::TooLong { .. } => "text".to_owned(),
        }
    }
}

fn colon(hint: &str) -> String {
    match hint {
        "" => String::new(),
        hint => format!(": {hint}"),
    }
}

/// Expands `text` with the values of `lookup`; calls `unset` for each variable without a value and
/// without an operator.
pub(super) fn expand(
    text: &str,
    lookup: &dyn Fn(&str) -> Option<String>,
    unset: &mut dyn FnMut(&str),
) -> Result<String, ExpandError> {
    let mut expander = Expander {
        text,
        chars: text.char_indices().peekable(),
        lookup,
        unset,
    };
    let mut out = String::new();
    expander.run(&mut out, true, 0)?;
    Ok(out)
}

struct Expander<'a> {
    text: &'a str,
    chars: Peekable<CharIndices<'a>>,
    lookup: &'a dyn Fn(&str) -> Option<String>,
    unset: &'a mut dyn FnMut(&str),
}

impl Expander<'_> {
    /// Copies text up to the end or, inside a word, to its `}`. `used` is false for a word that is
    /// only scanned for its end.
    fn run(&mut self, out: &mut String, used: bool, depth: usize) -> Result<(), ExpandError> {
        let start = self.offset();
        while let Some((at, c)) = self.chars.next() {
            match c {
                '}' if depth > 0 => return Ok(()),
                '\n' if depth > 0 => break,
                '$' => self.dollar(at, out, used, depth)?,
                other => out.push(other),
            }
            if out.len() > LENGTH {
                return Err(ExpandError::TooLong { limit: LENGTH });
            }
        }
        if depth > 0 {
            return Err(self.invalid(start));
        }
        Ok(())
    }

    /// Expands the `$` at `at`.
    fn dollar(
        &mut self,
        at: usize,
        out: &mut String,
        used: bool,
        depth: usize,
    ) -> Result<(), ExpandError> {
        match self.chars.peek().map(|(_, c)| *c) {
            Some('$') => {
                self.chars.next();
                out.push('$');
            }
            Some('{') => {
                self.chars.next();
                self.braced(at, out, used, depth)?;
            }
            Some(c) if is_name_start(c) => {
                let name = self.name();
                self.plain(&name, out, used);
            }
            Some(_) | None => out.push('$'),
        }
        Ok(())
    }

    fn braced(
        &mut self,
        at: usize,
        out: &mut String,
        used: bool,
        depth: usize,
    ) -> Result<(), ExpandError> {
        let name = self.name();
        if name.is_empty() || depth >= DEPTH {
            return Err(self.invalid(at));
        }
        let colon = self.chars.next_if(|(_, c)| *c == ':').is_some();
        let value = used.then(|| (self.lookup)(&name)).flatten();
        let missing = value.as_ref().is_none_or(|value| colon && value.is_empty());
        let operator = self.chars.next().map(|(_, c)| c);
        let uses_word = match operator {
            Some('}') if !colon => {
                self.plain(&name, out, used);
                return Ok(());
            }
            Some('-' | '?') => missing,
            Some('+') => !missing,
            Some(_) | None => return Err(self.invalid(at)),
        };
        let mut word = String::new();
        self.run(&mut word, used && uses_word, depth + 1)
            .map_err(|fault| match fault {
                ExpandError::Invalid { .. } if depth == 0 => self.invalid(at),
                ExpandError::Invalid { .. }
                | ExpandError::Required { .. }
                | ExpandError::TooLong { .. } => fault,
            })?;
        match operator {
            _ if !used => {}
            Some('?') if missing => return Err(ExpandError::Required { name, hint: word }),
            Some('-') if missing => out.push_str(&word),
            Some('+') if missing => {}
            Some('+') => out.push_str(&word),
            Some(_) | None => out.push_str(&value.unwrap_or_default()),
        }
        Ok(())
    }

    fn plain(&mut self, name: &str, out: &mut String, used: bool) {
        if !used {
            return;
        }
        match (self.lookup)(name) {
            Some(value) => out.push_str(&value),
            None => (self.unset)(name),
        }
    }

    fn name(&mut self) -> String {
        let mut name = String::new();
        while let Some((_, c)) = self
            .chars
            .next_if(|(_, c)| is_name_start(*c) || (!name.is_empty() && c.is_ascii_digit()))
        {
            name.push(c);
        }
        name
    }

    fn offset(&mut self) -> usize {
        self.chars.peek().map_or(self.text.len(), |(at, _)| *at)
    }

    fn invalid(&self, at: usize) -> ExpandError {
        let rest = self.text.get(at..).unwrap_or_default();
        ExpandError::Invalid {
            template: rest
                .lines()
                .next()
                .unwrap_or_default()
                .chars()
                .take(80)
                .collect(),
        }
    }
}

fn is_name_start(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_'
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lookup(name: &str) -> Option<String> {
        match name {
            "V" => Some("value".to_owned()),
            "EMPTY" => Some(String::new()),
            "D" => Some("$V}".to_owned()),
            _ => None,
        }
    }

    fn run(text: &str) -> Result<String, ExpandError> {
        expand(text, &lookup, &mut |_| {})
    }

    #[test]
    fn every_form_expands() {
        for (text, expected) in [
            ("a$$b", "a$b"),
            ("$5", "$5"),
            ("$(x)", "$(x)"),
            ("end$", "end$"),
            ("$", "$"),
            ("$$$$V", "$$V"),
            ("$$$V", "$value"),
            ("$V-$V.x", "value-value.x"),
            ("${V}s", "values"),
            ("$Vs", ""),
            ("${X}", ""),
            ("${X:-w}", "w"),
            ("${X-w}", "w"),
            ("${EMPTY:-w}", "w"),
            ("${EMPTY-w}", ""),
            ("${V:-w}", "value"),
            ("${V:?w}", "value"),
            ("${EMPTY?w}", ""),
            ("${V:+w}", "w"),
            ("${V+w}", "w"),
            ("${EMPTY:+w}", ""),
            ("${EMPTY+w}", "w"),
            ("${X:+w}", ""),
            ("${X:-${Y:-z}}", "z"),
            ("${X:-a${V}b$V}", "avaluebvalue"),
            ("${X:-:-?+{}", ":-?+{"),
            ("${X:-$$}", "$"),
            ("${X:-}", ""),
            ("${V:-${Y:?never}}", "value"),
            ("${D}", "$V}"),
            ("é${V}é", "évalueé"),
            ("}", "}"),
        ] {
            assert_eq!(run(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn faults_name_the_variable_or_the_template() {
        for (text, message) in [
            ("${X:?}", "required variable X is missing a value"),
            (
                "${X?need $V}",
                "required variable X is missing a value: need value",
            ),
            (
                "${EMPTY:?need it}",
                "required variable EMPTY is missing a value: need it",
            ),
            ("a ${", "Invalid template: \"${\""),
            ("a ${X", "Invalid template: \"${X\""),
            ("${1}", "Invalid template: \"${1}\""),
            ("${}", "Invalid template: \"${}\""),
            ("${X:}", "Invalid template: \"${X:}\""),
            ("${X!w}", "Invalid template: \"${X!w}\""),
            ("${X y}", "Invalid template: \"${X y}\""),
            ("${X:-open", "Invalid template: \"${X:-open\""),
            ("${X:-two\nlines}", "Invalid template: \"${X:-two\""),
            ("${V:-${}}", "Invalid template: \"${V:-${}}\""),
        ] {
            assert_eq!(run(text).unwrap_err().to_string(), message, "{text}");
        }
    }

    #[test]
    fn unset_variables_are_reported_only_when_used() {
        let mut unset = Vec::new();
        let text = "$A ${B} ${C:-x} ${V:-$E} ${F:-$G}";
        expand(text, &lookup, &mut |name| unset.push(name.to_owned())).unwrap();
        assert_eq!(unset, ["A", "B", "G"]);
    }

    #[test]
    fn deep_nesting_and_large_expansion_are_rejected() {
        let deep = "${X:-".repeat(500_000);
        assert!(matches!(run(&deep), Err(ExpandError::Invalid { .. })));
        let long = |_: &str| Some("x".repeat(1 << 20));
        let result = expand(&"$A".repeat(100), &long, &mut |_| {});
        assert_eq!(result, Err(ExpandError::TooLong { limit: LENGTH }));
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in "([$V{}:?+\\-Xé\n]|\\$\\{V:-){0,40}") {
            let _ = run(&text);
        }

        #[test]
        fn text_without_dollars_is_unchanged(text in "[^$]{0,40}") {
            prop_assert_eq!(run(&text).unwrap(), text);
        }

        #[test]
        fn doubled_dollars_escape_any_text(text in ".{0,40}") {
            prop_assert_eq!(run(&text.replace('$', "$$")).unwrap(), text);
        }
    }
}
