//! Curve25519 keys and their text form.

use std::{fmt, str::FromStr};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use boringtun::x25519;
use zeroize::Zeroizing;

/// Length of a key, in bytes.
const LEN: usize = 32;

/// The text is not a key: not base64 (RFC 4648, section 4), or not 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key is not base64 of 32 bytes")]
pub struct InvalidKey;

/// The secret key of a device; overwritten when it is dropped, and never printed.
#[derive(Clone)]
pub struct PrivateKey(Zeroizing<[u8; LEN]>);

/// The key that names a peer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub [u8; LEN]);

impl PrivateKey {
    /// Draws a key from the random source of the kernel, clamped as `wg genkey` does it.
    ///
    /// # Errors
    /// If the random source of the kernel fails.
    ///
    /// Source: RFC 7748, section 5.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut bytes = Zeroizing::new([0; LEN]);
        getrandom::fill(bytes.as_mut())?;
        bytes[0] &= 0b1111_1000;
        bytes[LEN - 1] &= 0b0111_1111;
        bytes[LEN - 1] |= 0b0100_0000;
        Ok(Self(bytes))
    }

    /// The public half of the key.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey(x25519::PublicKey::from(&self.secret()).to_bytes())
    }

    /// The key as base64, the content of a key file of `wg`.
    #[must_use]
    pub fn to_base64(&self) -> Zeroizing<String> {
        Zeroizing::new(STANDARD.encode(self.0.as_ref()))
    }

    pub(super) fn secret(&self) -> x25519::StaticSecret {
        x25519::StaticSecret::from(*self.0)
    }
}

/// Reads base64; white space around it is ignored.
impl FromStr for PrivateKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        decode(text).map(Self)
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(hidden)")
    }
}

/// Reads base64; white space around it is ignored.
impl FromStr for PublicKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        decode(text).map(|bytes| Self(*bytes))
    }
}

/// Prints base64.
impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

fn decode(text: &str) -> Result<Zeroizing<[u8; LEN]>, InvalidKey> {
    let mut bytes = Zeroizing::new([0; LEN]);
    // The buffer has no room for a longer key, and the length tells a shorter one.
    match STANDARD.decode_slice(text.trim(), bytes.as_mut()) {
        Ok(LEN) => Ok(bytes),
        Ok(_) | Err(_) => Err(InvalidKey),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_key_reads_back() {
        let key = PrivateKey::generate().unwrap();
        let text = key.to_base64();
        let read: PrivateKey = format!(" {}\n", *text).parse().unwrap();
        assert_eq!(read.public(), key.public());
        let public = key.public();
        assert_eq!(public.to_string().parse(), Ok(public));
        assert_eq!(format!("{key:?}"), "PrivateKey(hidden)");
    }

    #[test]
    fn text_of_the_wrong_length_is_refused() {
        for bytes in [0, 1, 31, 33, 48, 64] {
            let text = STANDARD.encode(vec![7; bytes]);
            assert_eq!(text.parse::<PublicKey>(), Err(InvalidKey), "{bytes} bytes");
        }
        for text in ["", "=", "not base64!", "AAAA"] {
            assert!(text.parse::<PrivateKey>().is_err(), "{text}");
        }
    }
}
