//! Search for secrets in places where none may appear.

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use sha2::{Digest, Sha256};

use crate::rng;

/// A set of secrets, and the encodings in which each is looked for.
#[derive(Debug, Default)]
pub struct SecretScanner(Vec<Secret>);

#[derive(Debug)]
struct Secret {
    name: String,
    /// Encodings of the secret.
    encodings: Vec<Encoding>,
}

#[derive(Debug)]
struct Encoding {
    encoding: &'static str,
    needle: Vec<u8>,
    /// Whether the comparison ignores case; the needle is in lower case then.
    folded: bool,
}

impl SecretScanner {
    /// Creates a random secret of letters and digits only, which no quoting changes.
    pub fn generate(&mut self, name: &str) -> String {
        let secret = format!("mark{name}{:016x}{:016x}", rng::unique(), rng::unique());
        self.add(name, secret.as_bytes());
        secret
    }

    /// Adds an existing secret, and its hash.
    pub fn add(&mut self, name: &str, secret: &[u8]) {
        let mut encodings = encodings(secret);
        let digest = Sha256::digest(secret);
        encodings.extend(byte_encodings(&digest, ["hash in hex", "hash in numbers"]));
        self.0.push(Secret {
            name: name.to_owned(),
            encodings,
        });
    }

    /// Occurrences of secrets in `text`, as lines with their name, their encoding and the preceding
    /// text.
    #[must_use]
    pub fn found_in(&self, place: &str, text: &[u8]) -> Vec<String> {
        let folded = text.to_ascii_lowercase();
        let mut found = Vec::new();
        for marker in &self.0 {
            for encoding in &marker.encodings {
                let text = if encoding.folded { &folded } else { text };
                let Some(at) = position(text, &encoding.needle) else {
                    continue;
                };
                let from = at.saturating_sub(200);
                let around = String::from_utf8_lossy(&text[from..at]);
                let (name, encoding) = (&marker.name, encoding.encoding);
                found.push(format!("{name} ({encoding}) in {place}, after: {around}"));
            }
        }
        found
    }
}

fn encodings(secret: &[u8]) -> Vec<Encoding> {
    let mut encodings = vec![Encoding {
        encoding: "plain",
        needle: secret.to_ascii_lowercase(),
        folded: true,
    }];
    encodings.extend(byte_encodings(secret, ["hex", "numbers"]));
    // Within a longer text a secret starts at any of three offsets of a base64 group.
    for offset in 0..3 {
        let padded = [&vec![0; offset][..], secret].concat();
        for (encoding, engine) in [
            ("base64", STANDARD_NO_PAD),
            ("base64 for URLs", URL_SAFE_NO_PAD),
        ] {
            let text = engine.encode(&padded);
            // The first and last characters depend on the neighbouring bytes.
            let from = if offset == 0 { 0 } else { offset + 1 };
            let inner = &text.as_bytes()[from..text.len() - 2];
            encodings.push(Encoding {
                encoding,
                needle: inner.to_vec(),
                folded: false,
            });
        }
    }
    encodings
}

fn byte_encodings(bytes: &[u8], encodings: [&'static str; 2]) -> [Encoding; 2] {
    let [hex, numbers] = encodings;
    let digits = hex::encode(bytes);
    // The format of `Debug` for a byte slice; JSON without spaces after the commas is rare.
    let list = format!("{bytes:?}");
    let list = list.trim_matches(['[', ']']).to_owned();
    [
        Encoding {
            encoding: hex,
            needle: digits.into_bytes(),
            folded: true,
        },
        Encoding {
            encoding: numbers,
            needle: list.into_bytes(),
            folded: false,
        },
    ]
}

fn position(text: &[u8], needle: &[u8]) -> Option<usize> {
    let first = *needle.first()?;
    let mut from = 0;
    while let Some(at) = text[from..].iter().position(|byte| *byte == first) {
        if text[from + at..].starts_with(needle) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planted_secret_is_found_in_every_encoding() {
        let mut scanner = SecretScanner::default();
        let secret = scanner.generate("token");
        scanner.generate("other");
        let hash = Sha256::digest(secret.as_bytes());
        for (encoding, text) in [
            ("plain", format!("a {secret} b")),
            ("plain", format!("a {} b", secret.to_uppercase())),
            ("numbers", format!("Secret({:?})", secret.as_bytes())),
            ("hash in numbers", format!("{hash:?}")),
            ("hash in hex", format!("{hash:X}")),
            ("base64", STANDARD_NO_PAD.encode(&secret)),
            ("base64", STANDARD_NO_PAD.encode(format!("u:{secret}:x"))),
            (
                "base64",
                STANDARD_NO_PAD.encode(format!("{{\"a\":\"{secret}\"}}")),
            ),
            ("base64", STANDARD_NO_PAD.encode(format!("u{secret}"))),
        ] {
            let found = scanner.found_in("log", text.as_bytes());
            let expected = format!("token ({encoding}) in log");
            assert!(
                found.iter().any(|line| line.starts_with(&expected)),
                "{encoding}: {found:?}"
            );
            assert!(
                found.iter().all(|line| !line.starts_with("other")),
                "{found:?}"
            );
        }
    }

    #[test]
    fn harmless_text_yields_no_findings() {
        let mut scanner = SecretScanner::default();
        let secret = scanner.generate("token");
        scanner.add("key", b"-----BEGIN");
        let half = &secret[..secret.len() - 1];
        for text in ["", "mark", half, "[109, 97, 114, 107]", "bWFyaw"] {
            assert_eq!(
                scanner.found_in("log", text.as_bytes()),
                Vec::<String>::new()
            );
        }
    }
}
