//! Operator tokens and join tokens; the state holds only their hashes.

use jaco_proto::{
    Error, ErrorCode,
    v1::{self, AuditEventType},
};

use super::{Origin, Tx, audit, reject, time};
use crate::state::join_token_key;

/// Time for which an expired join token stays listed.
const JOIN_TOKEN_KEPT_SECONDS: i64 = 7 * 24 * 3600;

/// Stores the token; it replaces an older token of the same identity, revoked or not.
pub(super) fn issue(
    tx: &mut Tx,
    origin: &Origin<'_>,
    command: &v1::TokenIssue,
) -> Result<(), Error> {
    check_hash(&command.hashed_secret)?;
    // A secret is mapped to its identity by its hash alone.
    let shared = tx.state().tokens.values().any(|token| {
        token.hashed_secret == command.hashed_secret && token.identity != command.identity
    });
    if shared {
        return Err(reject::invalid("hashed_secret", "another identity has it"));
    }
    tx.put(v1::Token {
        identity: command.identity.clone(),
        hashed_secret: command.hashed_secret.clone(),
        issued_at: Some(origin.ts),
        revoked_at: None,
        allows_privileged: command.allows_privileged,
    })?;
    audit::record(
        tx,
        origin,
        AuditEventType::TokenIssue,
        [
            ("identity", command.identity.clone()),
            ("allows_privileged", command.allows_privileged.to_string()),
        ],
    )
}

/// Revokes the token; it stays listed.
pub(super) fn revoke(
    tx: &mut Tx,
    origin: &Origin<'_>,
    command: &v1::TokenRevoke,
) -> Result<(), Error> {
    if let Some(token) = tx.get::<v1::Token>(&command.identity) {
        tx.put(v1::Token {
            revoked_at: Some(origin.ts),
            ..v1::Token::clone(&token)
        })?;
    }
    audit::record(
        tx,
        origin,
        AuditEventType::TokenRevoke,
        [("identity", command.identity.clone())],
    )
}

/// Stores the join token and removes those that expired more than seven days ago.
pub(super) fn issue_join(
    tx: &mut Tx,
    origin: &Origin<'_>,
    command: &v1::JoinTokenIssue,
) -> Result<(), Error> {
    check_hash(&command.hashed_secret)?;
    let key = join_token_key(&command.hashed_secret);
    // Issuing it again would make a consumed token usable.
    if tx.get::<v1::JoinToken>(&key).is_some() {
        return Err(reject::invalid("hashed_secret", "issued before"));
    }
    let now = time::nanos(Some(&origin.ts));
    let kept = time::seconds(JOIN_TOKEN_KEPT_SECONDS);
    tx.remove_where::<v1::JoinToken>(|old| {
        time::nanos(old.expires_at.as_ref()).saturating_add(kept) < now
    });
    tx.put(v1::JoinToken {
        hashed_secret: command.hashed_secret.clone(),
        issued_at: Some(origin.ts),
        expires_at: command.expires_at,
        consumed_at: None,
    })
}

/// Consumes the join token; the second of two racing joins is rejected.
pub(super) fn consume_join(
    tx: &mut Tx,
    origin: &Origin<'_>,
    command: &v1::JoinTokenConsume,
) -> Result<(), Error> {
    let Some(token) = tx.get::<v1::JoinToken>(&join_token_key(&command.hashed_secret)) else {
        return Err(Error::new(
            ErrorCode::JoinTokenInvalid,
            "the join token is not known",
        ));
    };
    if token.consumed_at.is_some() {
        return Err(Error::new(
            ErrorCode::JoinTokenConsumed,
            "the join token was used",
        ));
    }
    if time::is_past(token.expires_at.as_ref(), &origin.ts) {
        let expired = token.expires_at.unwrap_or_default();
        return Err(Error::new(
            ErrorCode::JoinTokenExpired,
            format!("the join token expired at {expired}"),
        )
        .with("expires_at", expired));
    }
    tx.put(v1::JoinToken {
        consumed_at: Some(origin.ts),
        ..v1::JoinToken::clone(&token)
    })
}

/// Rejects an empty hash, which would match a missing secret.
fn check_hash(hash: &[u8]) -> Result<(), Error> {
    if hash.is_empty() {
        Err(reject::invalid("hashed_secret", "empty"))
    } else {
        Ok(())
    }
}
