//! Certificate fingerprints.

use std::{fmt, str::FromStr};

use sha2::{Digest, Sha256};

use super::Error;

/// SHA-256 over the DER of a certificate; displayed and parsed as `sha256:<64 lower-case hex>`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The fingerprint of a DER certificate.
    #[must_use]
    pub fn of(der: &[u8]) -> Self {
        Self(Sha256::digest(der).into())
    }

    /// A fingerprint from its 32 bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its 32 bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Its 64 lower-case hex digits, without the `sha256:` prefix.
    #[must_use]
    pub fn to_hex(&self) -> String {
        hex::encode(self.0)
    }

    /// Parses 64 hex digits without prefix.
    ///
    /// # Errors
    /// [`Error::Fingerprint`] for anything else.
    pub fn from_hex(text: &str) -> Result<Self, Error> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| Error::Fingerprint)?;
        Ok(Self(bytes))
    }
}

impl FromStr for Fingerprint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::from_hex(text.strip_prefix("sha256:").ok_or(Error::Fingerprint)?)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.to_hex())
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_is_the_sha256_of_the_der() {
        let print = Fingerprint::of(b"abc");
        let text = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(print.to_string(), text);
        assert_eq!(text.parse::<Fingerprint>().unwrap(), print);
        assert!(text.to_uppercase().parse::<Fingerprint>().is_err());
    }

    #[test]
    fn damaged_text_is_refused() {
        let hex = "b".repeat(64);
        for text in [
            hex.clone(),
            format!("sha256:{}", &hex[1..]),
            format!("sha256:é{}", &hex[2..]),
        ] {
            assert!(text.parse::<Fingerprint>().is_err(), "{text}");
        }
    }
}
