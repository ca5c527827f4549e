//! Who may call what: a pure decision from transport, method and credentials.

use std::collections::BTreeMap;

use jaco_proto::{Error, ErrorCode};
use jaco_raftnode::State;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The listener a connection was accepted on. The address says nothing: a loopback TCP caller
/// is as remote as any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// No listener at all: the program that runs the node.
    Process,
    /// The unix socket: whoever can connect is an operator.
    Local,
    /// The API listener over TLS.
    Api,
}

/// What a method asks of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Anyone.
    Public,
    /// Anyone on the unix socket; the setup token over TCP; only before a cluster exists.
    Setup,
    /// An operator.
    Operator,
    /// An operator on the unix socket of this very node.
    LocalOperator,
    /// A member of the cluster, over the peer transport only.
    Peer,
    /// The credential is inside the request.
    InBody,
}

/// The class of a full method name such as `/jaco.v1.Cluster/Init`.
#[must_use]
pub fn class_of(method: &str) -> Class {
    match method {
        "/jaco.v1.Cluster/Status" => Class::Public,
        "/jaco.v1.Cluster/Init" | "/jaco.v1.Cluster/Join" => Class::Setup,
        "/jaco.v1.Cluster/NodeJoin" => Class::InBody,
        "/jaco.v1.Cluster/KillActor" => Class::LocalOperator,
        other if other.starts_with("/jaco.v1.Internal/") => Class::Peer,
        _ => Class::Operator,
    }
}

/// What the decision needs to know about the node.
pub struct Facts<'a> {
    /// The replicated state; `None` before a cluster exists.
    pub state: Option<&'a State>,
    /// Whether the node belongs to a cluster, even if its state is not open yet.
    pub member: bool,
    /// SHA-256 of the setup token; `None` once a cluster exists.
    pub setup_token: Option<[u8; 32]>,
}

/// Identity of a caller on the unix socket, or of the program around the node.
pub const LOCAL: &str = "local";
/// Identity of a caller with the setup token.
pub const SETUP: &str = "setup";
/// Identity of a caller that proved nothing.
pub const ANONYMOUS: &str = "anonymous";

/// Decides whether a call may proceed, and as whom.
///
/// # Errors
/// The first failure in the order of the checks: life-cycle gate, transport, credential.
pub fn admit(
    transport: Transport,
    method: &str,
    authorization: Option<&[u8]>,
    facts: &Facts<'_>,
) -> Result<String, Error> {
    let class = class_of(method);
    if class == Class::Peer {
        return Err(Error::new(
            ErrorCode::PeerOnly,
            "only members call this, over the peer transport",
        ));
    }
    let open_to_setup = class == Class::Setup && !facts.member;
    if facts.state.is_none() && class != Class::Public && !open_to_setup {
        return Err(if facts.member {
            Error::new(ErrorCode::StateUnavailable, "the node is opening its state")
        } else {
            uninitialized()
        });
    }
    match transport {
        Transport::Process | Transport::Local => return Ok(LOCAL.to_owned()),
        Transport::Api => {}
    }
    match class {
        // Whoever shows a token wants to be known; a bad one is told, not ignored.
        Class::Public if authorization.is_some() && facts.state.is_some() => {
            operator(authorization, facts)
        }
        Class::Public | Class::InBody => Ok(ANONYMOUS.to_owned()),
        Class::Setup => match facts.setup_token {
            Some(expected) => {
                let given = hash(bearer(authorization)?);
                if bool::from(given.ct_eq(&expected)) {
                    Ok(SETUP.to_owned())
                } else {
                    Err(invalid("the setup token is not valid"))
                }
            }
            // The handler answers with the cluster's id.
            None => operator(authorization, facts),
        },
        Class::LocalOperator => Err(Error::new(
            ErrorCode::PrivilegeDenied,
            "this call is served on the node's unix socket only",
        )),
        Class::Operator => operator(authorization, facts),
        Class::Peer => Err(Error::new(ErrorCode::PeerOnly, "only members call this")),
    }
}

/// What a node without a cluster answers to everything that needs one.
pub(crate) fn uninitialized() -> Error {
    Error::new(
        ErrorCode::ClusterUninitialized,
        "this node has no cluster yet; run `jaco cluster init` or `jaco node join`",
    )
    .with("reason", "uninitialized")
}

/// SHA-256 over the text of a token, the only form in which tokens are kept.
#[must_use]
pub fn hash(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

fn operator(authorization: Option<&[u8]>, facts: &Facts<'_>) -> Result<String, Error> {
    let Some(state) = facts.state else {
        return Err(invalid("no operator token exists yet"));
    };
    let given = hash(bearer(authorization)?);
    // Every row is compared, so the time taken says nothing about which one matched.
    let mut found = None;
    for (identity, token) in &state.tokens {
        if !token.hashed_secret.is_empty() && bool::from(token.hashed_secret.ct_eq(&given)) {
            found = Some((identity, token));
        }
    }
    match found {
        None => Err(invalid("the token is not known")),
        Some((identity, token)) if token.revoked_at.is_some() => {
            Err(Error::new(ErrorCode::TokenRevoked, "the token was revoked")
                .with("identity", identity))
        }
        Some((identity, _)) => Ok(identity.clone()),
    }
}

fn bearer(authorization: Option<&[u8]>) -> Result<&[u8], Error> {
    let Some(header) = authorization else {
        return Err(invalid("no authorization was sent"));
    };
    match header.strip_prefix(b"Bearer ") {
        Some(token) if !token.is_empty() => Ok(token),
        Some(_) => Err(invalid("the bearer token is empty")),
        None => Err(invalid("the authorization scheme is not Bearer")),
    }
}

fn invalid(message: &str) -> Error {
    Error {
        code: ErrorCode::TokenInvalid,
        message: message.to_owned(),
        details: BTreeMap::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jaco_proto::v1;

    use super::*;

    const STATUS: &str = "/jaco.v1.Cluster/Status";
    const INIT: &str = "/jaco.v1.Cluster/Init";
    const APPLY: &str = "/jaco.v1.Deploy/Apply";
    const SUBMIT: &str = "/jaco.v1.Internal/Submit";
    const KILL: &str = "/jaco.v1.Cluster/KillActor";

    fn state() -> State {
        let mut state = State::default();
        for (identity, secret, revoked) in [("ci", "aa", false), ("old", "bb", true)] {
            state.tokens.insert(
                identity.to_owned(),
                Arc::new(v1::Token {
                    identity: identity.to_owned(),
                    hashed_secret: hash(secret.as_bytes()).to_vec(),
                    revoked_at: revoked.then(Default::default),
                    ..Default::default()
                }),
            );
        }
        state.tokens.insert("blank".to_owned(), Arc::default());
        state
    }

    fn call(
        transport: Transport,
        method: &str,
        authorization: Option<&str>,
        initialized: bool,
    ) -> Result<String, ErrorCode> {
        let state = state();
        let facts = Facts {
            state: initialized.then_some(&state),
            member: initialized,
            setup_token: (!initialized).then(|| hash(b"setup")),
        };
        admit(transport, method, authorization.map(str::as_bytes), &facts).map_err(|e| e.code)
    }

    #[test]
    fn each_transport_and_credential_gets_its_answer() {
        use ErrorCode::*;
        use Transport::*;
        type Row = (
            Transport,
            &'static str,
            Option<&'static str>,
            bool,
            Result<&'static str, ErrorCode>,
        );
        let table: &[Row] = &[
            (Local, STATUS, None, false, Ok("local")),
            (Local, INIT, None, false, Ok("local")),
            (Local, APPLY, None, false, Err(ClusterUninitialized)),
            (Local, APPLY, None, true, Ok("local")),
            (Local, APPLY, Some("nonsense"), true, Ok("local")),
            (Local, KILL, None, true, Ok("local")),
            (Local, SUBMIT, None, true, Err(PeerOnly)),
            (Process, INIT, None, false, Ok("local")),
            (Process, APPLY, None, false, Err(ClusterUninitialized)),
            (Process, KILL, None, true, Ok("local")),
            (Process, SUBMIT, None, true, Err(PeerOnly)),
            (Api, SUBMIT, Some("Bearer aa"), true, Err(PeerOnly)),
            (Api, STATUS, None, false, Ok("anonymous")),
            (Api, STATUS, None, true, Ok("anonymous")),
            (Api, STATUS, Some("Bearer setup"), false, Ok("anonymous")),
            (Api, STATUS, Some("Bearer aa"), true, Ok("ci")),
            (Api, STATUS, Some("Bearer cc"), true, Err(TokenInvalid)),
            (Api, INIT, None, false, Err(TokenInvalid)),
            (Api, INIT, Some("Bearer wrong"), false, Err(TokenInvalid)),
            (Api, INIT, Some("Bearer setup"), false, Ok("setup")),
            (Api, INIT, Some("Bearer setup"), true, Err(TokenInvalid)),
            (
                Api,
                APPLY,
                Some("Bearer setup"),
                false,
                Err(ClusterUninitialized),
            ),
            (Api, APPLY, None, true, Err(TokenInvalid)),
            (Api, APPLY, Some(""), true, Err(TokenInvalid)),
            (Api, APPLY, Some("Bearer "), true, Err(TokenInvalid)),
            (Api, APPLY, Some("bearer aa"), true, Err(TokenInvalid)),
            (Api, APPLY, Some("Basic aa"), true, Err(TokenInvalid)),
            (Api, APPLY, Some("Bearer cc"), true, Err(TokenInvalid)),
            (Api, APPLY, Some("Bearer bb"), true, Err(TokenRevoked)),
            (Api, APPLY, Some("Bearer aa"), true, Ok("ci")),
            (Api, KILL, Some("Bearer aa"), true, Err(PrivilegeDenied)),
        ];
        for (transport, method, authorization, initialized, expected) in table {
            assert_eq!(
                call(*transport, method, *authorization, *initialized),
                expected.map(str::to_owned),
                "{transport:?} {method} {authorization:?} initialized={initialized}"
            );
        }
    }

    #[test]
    fn a_member_that_is_still_opening_asks_for_patience() {
        let facts = Facts {
            state: None,
            member: true,
            setup_token: None,
        };
        for (transport, method) in [
            (Transport::Local, APPLY),
            (Transport::Local, INIT),
            (Transport::Api, INIT),
        ] {
            let error = admit(transport, method, None, &facts).unwrap_err();
            assert_eq!(
                error.code,
                ErrorCode::StateUnavailable,
                "{transport:?} {method}"
            );
        }
    }

    #[test]
    fn a_method_nobody_listed_needs_an_operator() {
        assert_eq!(class_of("/jaco.v1.Deploy/Anything"), Class::Operator);
        assert_eq!(class_of("/other/Thing"), Class::Operator);
    }
}
