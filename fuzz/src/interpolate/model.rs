//! A simple implementation of the substitution grammar: split first, then evaluate.

use std::collections::{BTreeMap, BTreeSet};

/// Maximum nesting of words.
const DEPTH: usize = 64;
/// Maximum length of the text, in bytes.
const LENGTH: usize = 4 << 20;

#[derive(Debug)]
pub(super) enum Fault {
    /// Name of the variable and its message.
    Required(String, String),
    Invalid,
    TooLong,
}

#[derive(Debug, Default)]
pub(super) struct Expanded {
    pub(super) text: String,
    pub(super) unset: BTreeSet<String>,
}

enum Piece<'a> {
    Text(&'a str),
    Variable(&'a str),
    Operation(&'a str, &'a str, Vec<Piece<'a>>),
    /// A syntax error; the pieces before it are evaluated all the same.
    Broken,
}

pub(super) fn expand(text: &str, variables: &BTreeMap<String, String>) -> Result<Expanded, Fault> {
    let (pieces, _) = split(text, 0);
    let mut out = Expanded::default();
    evaluate(&pieces, variables, &mut out)?;
    Ok(out)
}

/// Splits a text, or a word up to its `}`, and returns the pieces and the rest.
fn split(mut rest: &str, depth: usize) -> (Vec<Piece<'_>>, &str) {
    let mut pieces = Vec::new();
    loop {
        let stop: &[char] = if depth > 0 { &['$', '}', '\n'] } else { &['$'] };
        let plain = rest.find(stop).unwrap_or(rest.len());
        pieces.push(Piece::Text(&rest[..plain]));
        rest = &rest[plain..];
        if let Some(after) = rest.strip_prefix("$$") {
            pieces.push(Piece::Text("$"));
            rest = after;
        } else if let Some(after) = rest.strip_prefix("${") {
            let (piece, after) = braced(after, depth);
            let broken = matches!(piece, Piece::Broken);
            pieces.push(piece);
            rest = after;
            if broken {
                return (pieces, "");
            }
        } else if let Some(after) = rest.strip_prefix('$') {
            let (name, after) = after.split_at(name_length(after));
            pieces.push(match name {
                "" => Piece::Text("$"),
                name => Piece::Variable(name),
            });
            rest = after;
        } else if let Some(after) = rest.strip_prefix('}') {
            return (pieces, after);
        } else {
            if depth > 0 {
                pieces.push(Piece::Broken);
            }
            return (pieces, "");
        }
    }
}

fn braced(text: &str, depth: usize) -> (Piece<'_>, &str) {
    let (name, rest) = text.split_at(name_length(text));
    if name.is_empty() || depth >= DEPTH {
        return (Piece::Broken, "");
    }
    if let Some(rest) = rest.strip_prefix('}') {
        return (Piece::Variable(name), rest);
    }
    for operator in [":-", ":?", ":+", "-", "?", "+"] {
        if let Some(word) = rest.strip_prefix(operator) {
            let (word, rest) = split(word, depth + 1);
            return (Piece::Operation(name, operator, word), rest);
        }
    }
    (Piece::Broken, "")
}

fn name_length(text: &str) -> usize {
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return 0;
    }
    text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .unwrap_or(text.len())
}

fn broken(pieces: &[Piece<'_>]) -> bool {
    pieces.iter().any(|piece| match piece {
        Piece::Broken => true,
        Piece::Operation(_, _, word) => broken(word),
        Piece::Text(_) | Piece::Variable(_) => false,
    })
}

fn evaluate(
    pieces: &[Piece<'_>],
    variables: &BTreeMap<String, String>,
    out: &mut Expanded,
) -> Result<(), Fault> {
    for piece in pieces {
        match piece {
            Piece::Text(text) => out.text.push_str(text),
            Piece::Variable(name) => match variables.get(*name) {
                Some(value) => out.text.push_str(value),
                None => {
                    out.unset.insert((*name).to_owned());
                }
            },
            Piece::Operation(name, operator, word) => {
                let value = variables.get(*name);
                let value = value.filter(|value| !operator.starts_with(':') || !value.is_empty());
                let uses_word = operator.ends_with('+') == value.is_some();
                let mut expanded = Expanded::default();
                if uses_word {
                    evaluate(word, variables, &mut expanded)?;
                } else if broken(word) {
                    return Err(Fault::Invalid);
                }
                out.unset.append(&mut expanded.unset);
                match (operator.chars().last(), value) {
                    (Some('?'), None) => {
                        return Err(Fault::Required((*name).to_owned(), expanded.text));
                    }
                    (Some('+') | Some('-'), None) | (Some('+'), Some(_)) => {
                        out.text.push_str(&expanded.text);
                    }
                    (_, Some(value)) => out.text.push_str(value),
                    (_, None) => unreachable!("every operator ends with one of - ? +"),
                }
            }
            Piece::Broken => return Err(Fault::Invalid),
        }
        if out.text.len() > LENGTH {
            return Err(Fault::TooLong);
        }
    }
    Ok(())
}
