//! The text of a join token.

use jaco_net::pki::Fingerprint;
use jaco_proto::secret::SecretString;

/// First field of every join token.
const VERSION: &str = "jaco1";

/// Not a text of the form `jaco1.<64 hex secret>.<64 hex CA digest>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a join token is jaco1, 64 hex digits and 64 hex digits, with dots between")]
pub(crate) struct Malformed;

/// A credential that admits one node, and names the authority of its cluster.
#[derive(Clone)]
pub(crate) struct JoinToken {
    /// 64 lower-case hexadecimal digits.
    pub(crate) secret: SecretString,
    /// SHA-256 of the authority's certificate.
    pub(crate) ca: Fingerprint,
}

impl JoinToken {
    /// Parses a token; surrounding blanks are ignored.
    pub(crate) fn parse(text: &SecretString) -> Result<Self, Malformed> {
        let mut fields = text.expose().trim().split('.');
        let (version, secret, ca) = (fields.next(), fields.next(), fields.next());
        let (Some(VERSION), Some(secret), Some(ca), None) = (version, secret, ca, fields.next())
        else {
            return Err(Malformed);
        };
        let lower = |text: &str| {
            let digits = text.bytes();
            text.len() == 64
                && digits
                    .into_iter()
                    .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        };
        if !lower(secret) || !lower(ca) {
            return Err(Malformed);
        }
        Ok(Self {
            secret: SecretString::new(secret.to_owned()),
            ca: Fingerprint::from_hex(ca).map_err(|_| Malformed)?,
        })
    }

    /// Text of the token, as it is handed out.
    pub(crate) fn to_text(&self) -> SecretString {
        let (secret, ca) = (self.secret.expose(), self.ca.to_hex());
        SecretString::new(format!("{VERSION}.{secret}.{ca}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<JoinToken, Malformed> {
        JoinToken::parse(&SecretString::new(text.to_owned()))
    }

    #[test]
    fn token_round_trips() {
        let (secret, ca) = ("ab".repeat(32), "0f".repeat(32));
        let text = format!("jaco1.{secret}.{ca}");
        let token = parse(&format!(" {text}\n")).unwrap();
        assert_eq!(token.secret.expose(), secret);
        assert_eq!(token.ca.to_hex(), ca);
        assert_eq!(token.to_text().expose(), text);
    }

    #[test]
    fn malformed_token_is_refused() {
        let hex = "ab".repeat(32);
        for bad in [
            String::new(),
            hex.clone(), // without the digest, as older clients have it
            format!("jaco1.{hex}"),
            format!("jaco1.{hex}."),
            format!("jaco2.{hex}.{hex}"),
            format!("jaco1.{hex}.{hex}.x"),
            format!("jaco1.{}.{hex}", &hex[1..]),
            format!("jaco1.{}.{hex}", hex.to_uppercase()),
            format!("jaco1.{hex}.{}", hex.replace('a', "g")),
        ] {
            assert_eq!(parse(&bad).map(|_| ()), Err(Malformed), "{bad:?}");
        }
    }
}
