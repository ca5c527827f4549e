//! Identity of a caller, below the API: transports, reserved identities, tokens and their hash.

use jaco_proto::{Error, ErrorCode, secret::SecretString};
use sha2::{Digest, Sha256};
use zeroize::Zeroize as _;

/// The listener that accepted a connection. The address does not matter: a loopback TCP caller is
/// as remote as any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// No listener: the embedding process.
    Process,
    /// The unix socket: every process that can connect is an operator.
    Local,
    /// The API listener over TLS.
    Api,
    /// The connection of another member, whose certificate was verified.
    Peer,
}

/// Identity of a caller on the unix socket or in the embedding process.
pub const LOCAL: &str = "local";
/// Identity of a caller with the setup token.
pub const SETUP: &str = "setup";
/// Identity of a caller without credentials.
pub const ANONYMOUS: &str = "anonymous";

/// SHA-256 over the text of a token, the only form in which tokens are stored.
#[must_use]
pub fn hash(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

/// Generates a secret: 32 random bytes as 64 lower-case hexadecimal digits.
///
/// # Errors
/// `rand_failed` if the system provides no randomness.
pub(crate) fn random_token() -> Result<SecretString, Error> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::new(ErrorCode::RandFailed, error.to_string()))?;
    // Allocated once, at its full length: growing it would leave copies of the secret behind.
    let text = hex::encode(bytes.as_slice());
    bytes.zeroize();
    Ok(SecretString::new(text))
}
