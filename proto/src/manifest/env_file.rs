//! Environment files: `KEY=value` lines with quotes, comments and expansion.

mod fold;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use super::template::{ExpandError, expand};

pub(super) use fold::fold_node;
pub use fold::{FoldError, Folded, ReadFile, fold};

/// Maximum of bytes of all values of one file; each line may double the previous one by expansion.
const LENGTH: usize = 8 << 20;

/// Variables set by a file.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Variables {
    /// Values by key; the last line of a key wins.
    pub values: BTreeMap<String, String>,
    /// Variables that were expanded without a value, sorted.
    pub unset: BTreeSet<String>,
}

/// Omits the values, which may be secret.
impl fmt::Debug for Variables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Variables")
            .field("unset", &self.unset)
            .finish_non_exhaustive()
    }
}

/// Error in a line of the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {kind}")]
pub struct Error {
    /// First line of the statement, from 1.
    pub line: usize,
    /// Kind of the error.
    pub kind: ErrorKind,
}

/// Kind of an error in a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ErrorKind {
    /// The file is not UTF-8.
    #[error("invalid UTF-8")]
    NotUtf8,
    /// The key before the separator is missing.
    #[error("a key is missing before {0:?}")]
    NoKey(char),
    /// A character that is not allowed in keys.
    #[error("unexpected character {0:?} in a key")]
    BadKey(char),
    /// A quote that is never closed.
    #[error("the quote {0} is never closed")]
    OpenQuote(char),
    /// Text after a closing quote.
    #[error("unexpected text after the closing quote")]
    AfterQuote,
    /// A value that cannot be expanded.
    #[error("{0}")]
    Template(ExpandError),
}

/// Parses a file. A variable in a value is resolved by `lookup` first, then by the keys read so
/// far.
///
/// # Errors
/// [`Error`] with the line of the first invalid statement.
pub fn parse(bytes: &[u8], lookup: impl Fn(&str) -> Option<String>) -> Result<Variables, Error> {
    let text = text(bytes)?;
    let mut parser = Parser {
        rest: &text,
        line: 1,
        lookup: &lookup,
        bytes: 0,
        read: Variables::default(),
    };
    while !parser.rest.is_empty() {
        let line = parser.line;
        parser.statement().map_err(|kind| Error { line, kind })?;
    }
    Ok(parser.read)
}

/// Parses a file without quotes, comments behind values and variables: `KEY=value`, as written.
///
/// # Errors
/// [`Error`] with the line of the first invalid key.
///
/// Source: `docker run --env-file`.
pub(super) fn parse_raw(bytes: &[u8]) -> Result<Variables, Error> {
    let mut read = Variables::default();
    for (index, line) in text(bytes)?.lines().enumerate() {
        let start = line.trim_start();
        if start.is_empty() || start.starts_with('#') {
            continue;
        }
        // A bare key takes its value from the environment of the caller; it sets nothing here.
        let Some((key, value)) = start.split_once('=') else {
            continue;
        };
        let fault = match key.chars().find(|c| c.is_whitespace()) {
            Some(space) => Some(ErrorKind::BadKey(space)),
            None => key.is_empty().then_some(ErrorKind::NoKey('=')),
        };
        if let Some(kind) = fault {
            let line = index + 1;
            return Err(Error { line, kind });
        }
        read.values.insert(key.to_owned(), value.to_owned());
    }
    Ok(read)
}

/// Returns the text of a file, without a byte order mark and with plain line ends.
fn text(bytes: &[u8]) -> Result<String, Error> {
    let text = str::from_utf8(bytes).map_err(|cause| {
        let before = bytes.get(..cause.valid_up_to()).unwrap_or_default();
        Error {
            line: 1 + before.iter().filter(|&&byte| byte == b'\n').count(),
            kind: ErrorKind::NotUtf8,
        }
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    Ok(text.replace("\r\n", "\n"))
}

struct Parser<'a> {
    rest: &'a str,
    line: usize,
    lookup: &'a dyn Fn(&str) -> Option<String>,
    /// Total length of the values read so far.
    bytes: usize,
    read: Variables,
}

impl<'a> Parser<'a> {
    /// Reads one statement, or skips a line without one.
    fn statement(&mut self) -> Result<(), ErrorKind> {
        let line = self.rest.lines().next().unwrap_or_default();
        let start = line.trim_start();
        if start.is_empty() || start.starts_with('#') {
            self.skip_line();
            return Ok(());
        }
        let indent = line.len() - start.len();
        let exported = start
            .strip_prefix("export")
            .filter(|rest| rest.starts_with([' ', '\t']))
            .map_or(0, |rest| {
                "export".len() + rest.len() - rest.trim_start().len()
            });
        let Some((key, separator)) = key(&start[exported..])? else {
            // A bare key would take its value from the environment of the caller; it sets nothing
            // here.
            self.skip_line();
            return Ok(());
        };
        let key = key.to_owned();
        self.advance(indent + exported + separator);
        let value = self.value()?;
        self.bytes += value.len();
        if self.bytes > LENGTH {
            return Err(ErrorKind::Template(ExpandError::TooLong { limit: LENGTH }));
        }
        self.read.values.insert(key, value);
        Ok(())
    }

    fn value(&mut self) -> Result<String, ErrorKind> {
        let spaces = self.rest.len() - self.rest.trim_start_matches([' ', '\t']).len();
        match self.rest[spaces..].chars().next() {
            Some('\'') => {
                self.advance(spaces + 1);
                self.single_quoted()
            }
            Some('"') => {
                self.advance(spaces + 1);
                self.double_quoted()
            }
            Some(_) | None => {
                let line = self.rest.lines().next().unwrap_or_default();
                let value = line.split(" #").next().unwrap_or_default();
                let value = self.expand(value.trim())?;
                self.skip_line();
                Ok(value)
            }
        }
    }

    fn single_quoted(&mut self) -> Result<String, ErrorKind> {
        let mut value = String::new();
        let mut chars = self.rest.char_indices().peekable();
        while let Some((at, c)) = chars.next() {
            match c {
                '\'' => {
                    self.advance(at + 1);
                    self.end_of_quoted()?;
                    return Ok(value);
                }
                '\\' if chars.next_if(|(_, next)| *next == '\'').is_some() => value.push('\''),
                other => value.push(other),
            }
        }
        Err(ErrorKind::OpenQuote('\''))
    }

    fn double_quoted(&mut self) -> Result<String, ErrorKind> {
        let mut template = String::new();
        let mut chars = self.rest.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    let value = self.expand(&template)?;
                    self.advance(at + 1);
                    self.end_of_quoted()?;
                    return Ok(value);
                }
                '\\' => escape(&mut chars, &mut template),
                other => template.push(other),
            }
        }
        Err(ErrorKind::OpenQuote('"'))
    }

    /// Checks that only blanks and a comment follow a closing quote.
    fn end_of_quoted(&mut self) -> Result<(), ErrorKind> {
        let line = self.rest.lines().next().unwrap_or_default().trim_start();
        if !line.is_empty() && !line.starts_with('#') {
            return Err(ErrorKind::AfterQuote);
        }
        self.skip_line();
        Ok(())
    }

    fn expand(&mut self, template: &str) -> Result<String, ErrorKind> {
        let values = &self.read.values;
        let outer = self.lookup;
        let lookup = |name: &str| outer(name).or_else(|| values.get(name).cloned());
        let unset = &mut self.read.unset;
        let expanded = expand(template, &lookup, &mut |name| {
            unset.insert(name.to_owned());
        });
        expanded.map_err(ErrorKind::Template)
    }

    fn skip_line(&mut self) {
        let end = self.rest.find('\n').map_or(self.rest.len(), |at| at + 1);
        self.advance(end);
    }

    fn advance(&mut self, bytes: usize) {
        let (passed, rest) = self.rest.split_at(bytes);
        self.line += passed.matches('\n').count();
        self.rest = rest;
    }
}

/// Returns the key of a statement and the offset of its value; `None` for a bare key.
fn key(statement: &str) -> Result<Option<(&str, usize)>, ErrorKind> {
    let good = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '-' | '[' | ']');
    let end = statement.find(|c| !good(c)).unwrap_or(statement.len());
    let (key, rest) = statement.split_at(end);
    let after = rest.trim_start_matches([' ', '\t']);
    match after.chars().next() {
        Some(separator @ ('=' | ':')) if key.is_empty() => Err(ErrorKind::NoKey(separator)),
        Some('=' | ':') => Ok(Some((key, statement.len() - after.len() + 1))),
        None => Ok(None),
        // A comment may follow a bare key.
        Some('#') if after.len() < rest.len() => Ok(None),
        Some(bad) if after.len() == rest.len() => Err(ErrorKind::BadKey(bad)),
        Some(_) => Err(ErrorKind::BadKey(' ')),
    }
}

/// Translates a backslash escape in double quotes for the template.
fn escape(chars: &mut std::str::CharIndices<'_>, template: &mut String) {
    let Some((_, c)) = chars.next() else {
        template.push('\\');
        return;
    };
    let plain = match c {
        'a' => '\u{7}',
        'b' => '\u{8}',
        'f' => '\u{c}',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'v' => '\u{b}',
        '\\' => '\\',
        '"' => '"',
        '$' => '$',
        '0' => octal(chars),
        other => {
            template.extend(['\\', other]);
            return;
        }
    };
    // In a template, a doubled dollar sign is a literal one.
    template.push_str(if plain == '$' { "$" } else { "" });
    template.push(plain);
}

/// Reads up to three octal digits after `\0`.
fn octal(chars: &mut std::str::CharIndices<'_>) -> char {
    let mut value = 0;
    for _ in 0..3 {
        let digit = chars.clone().next().and_then(|(_, c)| c.to_digit(8));
        let Some(digit) = digit else { break };
        value = value * 8 + digit;
        chars.next();
    }
    // Three octal digits reach 511, and every such number is a character.
    char::from_u32(value).unwrap_or('\0')
}
