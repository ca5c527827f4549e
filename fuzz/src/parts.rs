//! Several files in one input.

/// Separator of the parts of an input; keeps the corpus readable.
const SEPARATOR: &[u8] = b"\n%%\n";

/// Splits an input at lines that consist of `%%`. Missing parts are empty, and the last part
/// includes further separators.
pub(crate) fn parts<const N: usize>(mut data: &[u8]) -> [&[u8]; N] {
    let mut parts: [&[u8]; N] = [&[]; N];
    for (index, part) in parts.iter_mut().enumerate() {
        let cut = data
            .windows(SEPARATOR.len())
            .position(|window| window == SEPARATOR)
            .filter(|_| index + 1 < N);
        match cut {
            Some(at) => {
                *part = &data[..at];
                data = &data[at + SEPARATOR.len()..];
            }
            None => {
                *part = std::mem::take(&mut data);
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_cut_at_separators() {
        for (data, expected) in [
            ("", ["", ""]),
            ("a", ["a", ""]),
            ("a\n%%\nb", ["a", "b"]),
            ("a\n%%\nb\n%%\nc", ["a", "b\n%%\nc"]),
        ] {
            let found: [&[u8]; 2] = parts(data.as_bytes());
            assert_eq!(found, expected.map(str::as_bytes));
        }
    }
}
