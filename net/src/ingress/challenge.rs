//! Answers to HTTP-01 challenges of a certificate authority (RFC 8555, section 8.3).

use std::{collections::HashMap, time::SystemTime};

use bytes::Bytes;

/// Path below which challenges are answered.
const PREFIX: &str = "/.well-known/acme-challenge/";

/// One challenge that the authority may ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// Body of the answer.
    pub key_auth: Bytes,
    /// From then on the token is unknown.
    pub expires_at: SystemTime,
}

/// Challenges by token; immutable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChallengeTable(HashMap<String, Challenge>);

impl FromIterator<(String, Challenge)> for ChallengeTable {
    fn from_iter<I: IntoIterator<Item = (String, Challenge)>>(challenges: I) -> Self {
        Self(challenges.into_iter().collect())
    }
}

impl ChallengeTable {
    /// The body of the answer for `token` at `now`; `None` if the token is unknown or expired.
    #[must_use]
    pub fn answer(&self, token: &str, now: SystemTime) -> Option<Bytes> {
        let challenge = self.0.get(token)?;
        let valid = !token.is_empty() && !token.contains('/') && now < challenge.expires_at;
        valid.then(|| challenge.key_auth.clone())
    }
}

/// The token that a request for `path` asks for, if it is the path of a challenge.
pub(super) fn token(path: &str) -> Option<&str> {
    path.strip_prefix(PREFIX)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn tokens_are_answered_until_they_expire() {
        let at = |s| UNIX_EPOCH + Duration::from_secs(s);
        let challenge = Challenge {
            key_auth: "abc.def".into(),
            expires_at: at(10),
        };
        let names = ["abc", "", "a/b"];
        let named = names.map(|name| (name.to_owned(), challenge.clone()));
        let table: ChallengeTable = named.into_iter().collect();
        assert_eq!(table.answer("abc", at(9)), Some("abc.def".into()));
        assert_eq!(table.answer("abc", at(10)), None);
        for refused in ["", "a/b", "ABC", "unknown"] {
            assert_eq!(table.answer(refused, at(0)), None, "{refused}");
        }
        assert_eq!(token("/.well-known/acme-challenge/abc"), Some("abc"));
        assert_eq!(token("/.well-known/acme-challenge"), None);
        assert_eq!(token("/x/.well-known/acme-challenge/abc"), None);
    }
}
