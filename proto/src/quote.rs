//! Text in double quotes, in the escapes that JSON and YAML share.

/// Appends `text` to `out` in double quotes.
///
/// Quotes, backslashes, line breaks and tabs are escaped in the same way in JSON and in YAML (YAML
/// 1.2.2, 5.7). For every other character, `escape` returns the escape sequence, or `None` to write
/// the character itself.
pub fn write_quoted(out: &mut String, text: &str, escape: impl Fn(char) -> Option<String>) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c => match escape(c) {
                Some(sequence) => out.push_str(&sequence),
                None => out.push(c),
            },
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_escapes_precede_those_of_the_format() {
        let mut out = "-".to_owned();
        let escape = |c: char| c.is_control().then(|| format!("<{:x}>", u32::from(c)));
        write_quoted(&mut out, "a\"\\\n\r\t\u{1b}ü", escape);
        assert_eq!(out, "-\"a\\\"\\\\\\n\\r\\t<1b>ü\"");
    }
}
