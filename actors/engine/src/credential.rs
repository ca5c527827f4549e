//! Logins for registries.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use jaco_proto::secret::{REDACTED, SecretString};

/// A login for one registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    /// Account name.
    pub username: String,
    /// Password or token.
    pub secret: SecretString,
    /// Host part of the stored key.
    pub server: String,
}

/// Shortest secret to redact; a shorter one occurs in common words.
const REDACTED_MIN: usize = 4;

impl Credential {
    /// Removes the secret from `text`, both plain and base64-encoded as sent: registries may quote
    /// it.
    #[must_use]
    pub fn redact(&self, text: &str) -> String {
        let secret = self.secret.expose();
        if secret.len() < REDACTED_MIN {
            return text.to_owned();
        }
        let sent = BASE64.encode(format!("{}:{secret}", self.username));
        text.replace(secret, REDACTED).replace(&sent, REDACTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_credential_is_redacted() {
        let login = Credential {
            username: "user-of-docker.io".to_owned(),
            secret: "s3cret".to_owned().into(),
            server: "docker.io".to_owned(),
        };
        let sent = BASE64.encode("user-of-docker.io:s3cret");
        let quoted = format!("bad login s3cret (Basic {sent}) of user-of-docker.io");
        assert_eq!(
            login.redact(&quoted),
            "bad login <redacted> (Basic <redacted>) of user-of-docker.io"
        );
        let short = Credential {
            secret: "a".to_owned().into(),
            ..login
        };
        assert_eq!(short.redact("a manifest"), "a manifest");
    }
}
