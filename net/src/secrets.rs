//! The cluster's secrets key: seals values that the replicated state holds, and derives keys for
//! other uses.
//!
//! The key itself is never replicated: members pass it to each other and keep it in a file.

use std::fmt;

use jaco_proto::secret::{REDACTED, SecretBytes, SecretString};
use ring::{aead, hkdf};
use sha2::{Digest, Sha256};
use zeroize::{Zeroize, Zeroizing};

/// Length of a key, in bytes.
pub const KEY_BYTES: usize = 32;
/// Length of a key's id: hexadecimal digits.
pub const ID_DIGITS: usize = 16;

/// First byte of a sealed value: the format that this module writes.
const FORMAT: u8 = 1;
/// Bytes that sealing adds: format, nonce and tag.
const OVERHEAD: usize = 1 + aead::NONCE_LEN + 16;

/// Error of sealing, opening, or reading a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A key has another length.
    #[error("a secrets key has {KEY_BYTES} bytes")]
    KeyLength,
    /// A text is not a key.
    #[error("a secrets key is written as {} hexadecimal digits", 2 * KEY_BYTES)]
    KeyText,
    /// A sealed value is too short, or of a newer format.
    #[error("the sealed value has an unknown format")]
    Format,
    /// The value was sealed with another key, for another entity or version, or is damaged.
    #[error("the sealed value does not open with this key")]
    Open,
    /// The value cannot be sealed: it has more than 256 GiB.
    #[error("the value is too long to be sealed")]
    TooLong,
    /// The operating system gave no random bytes.
    #[error("the system's random generator failed")]
    Random,
}

/// Key of 32 random bytes. `Debug` shows only its id; it is zeroed on drop.
#[derive(Clone)]
pub struct SecretsKey([u8; KEY_BYTES]);

impl SecretsKey {
    /// Makes a new random key.
    ///
    /// # Errors
    /// [`Error::Random`].
    pub fn generate() -> Result<Self, Error> {
        let mut key = Self([0; KEY_BYTES]);
        getrandom::fill(&mut key.0).map_err(|_| Error::Random)?;
        Ok(key)
    }

    /// Wraps the bytes of a key.
    #[must_use]
    pub fn new(key: [u8; KEY_BYTES]) -> Self {
        Self(key)
    }

    /// Copies a key from a message.
    ///
    /// # Errors
    /// [`Error::KeyLength`].
    pub fn from_slice(bytes: &[u8]) -> Result<Self, Error> {
        bytes.try_into().map(Self).map_err(|_| Error::KeyLength)
    }

    /// Parses the text of a key file: 64 hexadecimal digits, and white space around them.
    ///
    /// # Errors
    /// [`Error::KeyText`].
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut key = Self([0; KEY_BYTES]);
        hex::decode_to_slice(text.trim(), &mut key.0).map_err(|_| Error::KeyText)?;
        Ok(key)
    }

    /// Returns the text of a key file; it is the secret itself.
    #[must_use]
    pub fn to_text(&self) -> SecretString {
        let mut text = hex::encode(self.0);
        text.push('\n');
        SecretString::new(text)
    }

    /// Returns the bytes of the key; they go nowhere but to members and key files.
    #[must_use]
    pub fn expose(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// Returns the public id: the first 16 hexadecimal digits of the key's SHA-256.
    #[must_use]
    pub fn id(&self) -> String {
        let mut id = hex::encode(Sha256::digest(self.0));
        id.truncate(ID_DIGITS);
        id
    }

    /// Derives the key of another use, such as `affinity/v1`; equal on every member.
    ///
    /// HKDF-SHA256 (RFC 5869) without a salt.
    #[must_use]
    pub fn derive(&self, label: &str) -> [u8; KEY_BYTES] {
        let mut derived = [0; KEY_BYTES];
        self.expand(&[b"jaco derive\0", label.as_bytes()], &mut derived);
        derived
    }

    /// Seals `plaintext` as version `version` of `entity`, the row and field that will hold it.
    ///
    /// ChaCha20-Poly1305 (RFC 8439) with a random nonce, under a key of the entity's version, so that
    /// neither can be exchanged for another one. The result is 29 bytes longer than `plaintext`.
    ///
    /// # Errors
    /// [`Error::Random`], [`Error::TooLong`].
    pub fn seal(&self, entity: &str, version: u64, plaintext: &[u8]) -> Result<Vec<u8>, Error> {
        let mut nonce = [0; aead::NONCE_LEN];
        getrandom::fill(&mut nonce).map_err(|_| Error::Random)?;
        // The capacity includes the tag: growing would leave a copy of the plaintext behind.
        let mut value = Zeroizing::new(Vec::with_capacity(plaintext.len() + OVERHEAD));
        value.extend_from_slice(plaintext);
        self.entity_key(entity, version)
            .seal_in_place_append_tag(
                aead::Nonce::assume_unique_for_key(nonce),
                aead::Aad::from(associated_data(entity, version)),
                &mut *value,
            )
            .map_err(|_| Error::TooLong)?;
        Ok([&[FORMAT], nonce.as_slice(), &value].concat())
    }

    /// Opens a value that [`Self::seal`] made for the same entity and version.
    ///
    /// # Errors
    /// [`Error::Format`], [`Error::Open`].
    pub fn open(&self, entity: &str, version: u64, sealed: &[u8]) -> Result<SecretBytes, Error> {
        let Some((&FORMAT, rest)) = sealed.split_first() else {
            return Err(Error::Format);
        };
        let (nonce, ciphertext) = rest
            .split_first_chunk::<{ aead::NONCE_LEN }>()
            .ok_or(Error::Format)?;
        let mut value = Zeroizing::new(ciphertext.to_vec());
        let plaintext = self
            .entity_key(entity, version)
            .open_in_place(
                aead::Nonce::assume_unique_for_key(*nonce),
                aead::Aad::from(associated_data(entity, version)),
                &mut value,
            )
            .map_err(|_| Error::Open)?;
        Ok(SecretBytes::new(plaintext.to_vec()))
    }

    fn entity_key(&self, entity: &str, version: u64) -> aead::LessSafeKey {
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        let data = associated_data(entity, version);
        self.expand(&[b"jaco seal\0", &data], key.as_mut_slice());
        #[expect(clippy::expect_used, reason = "the key has the algorithm's length")]
        let key =
            aead::UnboundKey::new(&aead::CHACHA20_POLY1305, key.as_slice()).expect("32 bytes");
        aead::LessSafeKey::new(key)
    }

    /// HKDF-SHA256 with `info`, whose first part tells the uses apart.
    fn expand(&self, info: &[&[u8]], out: &mut [u8]) {
        let pseudorandom = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(&self.0);
        #[expect(clippy::expect_used, reason = "HKDF gives up to 255 times 32 bytes")]
        pseudorandom
            .expand(info, hkdf::HKDF_SHA256)
            .and_then(|okm| okm.fill(out))
            .expect("32 bytes");
    }
}

/// Version, then entity: the version's fixed length separates them.
fn associated_data(entity: &str, version: u64) -> Vec<u8> {
    [version.to_be_bytes().as_slice(), entity.as_bytes()].concat()
}

impl PartialEq for SecretsKey {
    /// Compares the digests, so that the time does not depend on the keys.
    fn eq(&self, other: &Self) -> bool {
        Sha256::digest(self.0) == Sha256::digest(other.0)
    }
}

impl Eq for SecretsKey {}

impl Drop for SecretsKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for SecretsKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretsKey({REDACTED}, id {})", self.id())
    }
}

#[cfg(test)]
mod tests;
