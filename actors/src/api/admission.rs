//! Admission: a pure decision from transport, method and credentials.

use std::collections::BTreeMap;

use jaco_proto::{Error, ErrorCode};
use jaco_state::State;
use subtle::ConstantTimeEq;

use super::{
    forwarded::{Forwarded, TokenHash},
    methods::{Class, Method},
};
use crate::{node::uninitialized, peer::Sender};

pub use crate::identity::{ANONYMOUS, LOCAL, SETUP, Transport, hash};

/// State of the node on which the decision depends.
pub struct AdmissionContext<'a> {
    /// The replicated state; `None` before a cluster exists.
    pub state: Option<&'a State>,
    /// Whether the node belongs to a cluster, even if its state is not open yet.
    pub member: bool,
    /// SHA-256 of the setup token; `None` once a cluster exists.
    pub setup_token: Option<[u8; 32]>,
}

/// Credentials that a call presents.
#[derive(Clone, Copy, Debug, Default)]
pub struct PresentedCredentials<'a> {
    /// The `authorization` metadata.
    pub authorization: Option<&'a [u8]>,
    /// The calling member; only on the peer transport.
    pub sender: Option<&'a Sender>,
    /// Original caller of a request that the member forwards; only on the peer transport.
    pub forwarded: Option<&'a Forwarded>,
}

/// An admitted caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Token identity, [`LOCAL`], [`SETUP`], [`ANONYMOUS`] or the hostname of a member.
    pub identity: String,
    /// Hash of the operator token that authenticated it, if one did.
    pub token: Option<TokenHash>,
}

impl Admitted {
    fn without_token(identity: &str) -> Self {
        Self {
            identity: identity.to_owned(),
            token: None,
        }
    }
}

/// Decides whether a call may proceed, and under which identity.
///
/// # Errors
/// The first failure in the order of the checks: life cycle, transport, credential.
pub fn admit(
    transport: Transport,
    method: Method,
    presented: PresentedCredentials<'_>,
    context: &AdmissionContext<'_>,
) -> Result<Admitted, Error> {
    let class = method.class;
    let sender = match transport {
        Transport::Process | Transport::Local | Transport::Api => None,
        // A call without a sender did not pass the peer handshake.
        Transport::Peer => Some(presented.sender.ok_or_else(peer_only)?),
    };
    if class == Class::Peer && sender.is_none() {
        return Err(peer_only());
    }
    let open_to_setup = class == Class::Setup && !context.member;
    if context.state.is_none() && class != Class::Public && !open_to_setup {
        return Err(if context.member {
            Error::new(ErrorCode::StateUnavailable, "the node is opening its state")
        } else {
            uninitialized()
        });
    }
    match transport {
        Transport::Process | Transport::Local => return Ok(Admitted::without_token(LOCAL)),
        Transport::Peer => {
            // The sender was a member when it connected; the current state decides.
            if sender.is_none_or(|sender| !is_member(sender, context)) {
                return Err(peer_only());
            }
            return match sender {
                Some(sender) if class == Class::Peer => {
                    Ok(Admitted::without_token(&sender.hostname))
                }
                _ => forwarded(class, presented.forwarded, context),
            };
        }
        Transport::Api => {}
    }
    let authorization = presented.authorization;
    match class {
        // A token that is presented is always checked, so that the caller learns if it is invalid.
        Class::Public if authorization.is_some() && context.state.is_some() => {
            operator(hash(bearer(authorization)?), context)
        }
        Class::Public | Class::InBody => Ok(Admitted::without_token(ANONYMOUS)),
        Class::Setup => match context.setup_token {
            Some(expected) => {
                let given = hash(bearer(authorization)?);
                if bool::from(given.ct_eq(&expected)) {
                    Ok(Admitted::without_token(SETUP))
                } else {
                    Err(invalid("the setup token is not valid"))
                }
            }
            // The node is a member: the handler answers with the cluster's id.
            None => operator(hash(bearer(authorization)?), context),
        },
        Class::LocalOperator => Err(Error::new(
            ErrorCode::PrivilegeDenied,
            "this call is served on the node's unix socket only",
        )),
        Class::Operator => operator(hash(bearer(authorization)?), context),
        Class::Peer => Err(peer_only()),
    }
}

/// Whether the state holds `sender` as the member it was when it connected, with a certificate that
/// it presented.
fn is_member(sender: &Sender, context: &AdmissionContext<'_>) -> bool {
    let row = context
        .state
        .and_then(|state| state.nodes.get(&sender.hostname));
    row.is_some_and(|row| {
        row.raft_id == sender.raft_id && sender.has_presented(&row.server_cert_fingerprint)
    })
}

/// Admits a request that a member forwards: its caller is checked again, against the tokens in the
/// state of this node.
fn forwarded(
    class: Class,
    forwarded: Option<&Forwarded>,
    context: &AdmissionContext<'_>,
) -> Result<Admitted, Error> {
    let Some(forwarded) = forwarded else {
        return Err(invalid("a member passes on no call without its caller"));
    };
    match class {
        Class::InBody => return Ok(Admitted::without_token(ANONYMOUS)),
        Class::Operator => {}
        Class::Public | Class::Setup | Class::LocalOperator | Class::Peer => {
            return Err(Error::new(
                ErrorCode::PrivilegeDenied,
                "this call is served on the node that was asked only",
            ));
        }
    }
    match (forwarded.identity.as_deref(), forwarded.token) {
        (Some(LOCAL), None) => Ok(Admitted::without_token(LOCAL)),
        (Some(identity), Some(TokenHash(given))) => {
            let admitted = operator(given, context)?;
            if admitted.identity == identity {
                Ok(admitted)
            } else {
                Err(invalid("the token belongs to another identity"))
            }
        }
        (Some(_) | None, _) => Err(invalid("the forwarded caller showed no token")),
    }
}

fn peer_only() -> Error {
    Error::new(
        ErrorCode::PeerOnly,
        "only members call this, over the peer transport",
    )
}

fn operator(given: [u8; 32], context: &AdmissionContext<'_>) -> Result<Admitted, Error> {
    let Some(state) = context.state else {
        return Err(invalid("no operator token exists yet"));
    };
    // Compares every row, so that the time does not reveal which one matched.
    let mut found = None;
    for (identity, token) in &state.tokens {
        if !token.hashed_secret.is_empty() && bool::from(token.hashed_secret.ct_eq(&given)) {
            found = Some((identity, token));
        }
    }
    match found {
        None => Err(invalid("the token is not known")),
        Some((identity, token)) if token.revoked_at.is_some() => {
            let message = format!("the token of {identity:?} was revoked");
            Err(Error::new(ErrorCode::TokenRevoked, message).with("identity", identity))
        }
        Some((identity, _)) => Ok(Admitted {
            identity: identity.clone(),
            token: Some(TokenHash(given)),
        }),
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

    use jaco_net::pki::Fingerprint;
    use jaco_proto::v1;

    use super::*;
    use crate::api::methods::method;

    const STATUS: &str = "/jaco.v1.Cluster/Status";
    const INIT: &str = "/jaco.v1.Cluster/Init";
    const APPLY: &str = "/jaco.v1.Deploy/Apply";
    const SUBMIT: &str = "/jaco.v1.Internal/Submit";
    const KILL: &str = "/jaco.v1.Cluster/KillActor";

    /// A member that presented a certificate with this fingerprint, and another for the same key.
    fn sender(hostname: &str, raft_id: u64, print: u8) -> Sender {
        let presented = [0, print].map(|print| Fingerprint::from_bytes([print; 32]));
        Sender::new(hostname, raft_id, presented)
    }

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
        let two = v1::Node {
            hostname: "two".to_owned(),
            raft_id: 2,
            server_cert_fingerprint: vec![2; 32],
            ..Default::default()
        };
        state.nodes.insert("two".to_owned(), Arc::new(two));
        state
    }

    fn call(
        transport: Transport,
        name: &str,
        authorization: Option<&str>,
        initialized: bool,
    ) -> Result<String, ErrorCode> {
        let state = state();
        let context = AdmissionContext {
            state: initialized.then_some(&state),
            member: initialized,
            setup_token: (!initialized).then(|| hash(b"setup")),
        };
        let presented = PresentedCredentials {
            authorization: authorization.map(str::as_bytes),
            ..PresentedCredentials::default()
        };
        admit(transport, method(name), presented, &context)
            .map(|admitted| admitted.identity)
            .map_err(|e| e.code)
    }

    #[test]
    fn transport_and_credential_decide_the_identity() {
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
    fn opening_member_answers_state_unavailable() {
        let context = AdmissionContext {
            state: None,
            member: true,
            setup_token: None,
        };
        for (transport, name) in [
            (Transport::Local, APPLY),
            (Transport::Local, INIT),
            (Transport::Api, INIT),
        ] {
            let error = admit(
                transport,
                method(name),
                PresentedCredentials::default(),
                &context,
            )
            .unwrap_err();
            assert_eq!(
                error.code,
                ErrorCode::StateUnavailable,
                "{transport:?} {name}"
            );
        }
    }

    #[test]
    fn member_acts_for_itself_or_a_forwarded_operator() {
        use ErrorCode::*;
        const NODE_JOIN: &str = "/jaco.v1.Cluster/NodeJoin";
        type Row<'a> = (
            &'a str,
            Option<(Option<&'a str>, Option<&'a str>)>,
            Result<&'a str, ErrorCode>,
        );
        let table: &[Row<'_>] = &[
            (SUBMIT, None, Ok("two")),
            // A forwarded identity does not change which member calls.
            (SUBMIT, Some((Some("local"), None)), Ok("two")),
            (APPLY, None, Err(TokenInvalid)),
            (APPLY, Some((None, None)), Err(TokenInvalid)),
            (APPLY, Some((Some("local"), None)), Ok("local")),
            (APPLY, Some((Some("local"), Some("aa"))), Err(TokenInvalid)),
            (APPLY, Some((Some("ci"), Some("aa"))), Ok("ci")),
            (APPLY, Some((Some("ci"), None)), Err(TokenInvalid)),
            (APPLY, Some((None, Some("aa"))), Err(TokenInvalid)),
            (APPLY, Some((Some("other"), Some("aa"))), Err(TokenInvalid)),
            (APPLY, Some((Some("ci"), Some("cc"))), Err(TokenInvalid)),
            (APPLY, Some((Some("ci"), Some("setup"))), Err(TokenInvalid)),
            (APPLY, Some((Some("old"), Some("bb"))), Err(TokenRevoked)),
            (APPLY, Some((Some("blank"), Some(""))), Err(TokenInvalid)),
            (APPLY, Some((Some("setup"), None)), Err(TokenInvalid)),
            (APPLY, Some((Some("anonymous"), None)), Err(TokenInvalid)),
            (APPLY, Some((Some("two"), None)), Err(TokenInvalid)),
            (NODE_JOIN, None, Err(TokenInvalid)),
            (NODE_JOIN, Some((None, None)), Ok("anonymous")),
            (NODE_JOIN, Some((Some("local"), None)), Ok("anonymous")),
            (STATUS, None, Err(TokenInvalid)),
            (STATUS, Some((Some("local"), None)), Err(PrivilegeDenied)),
            (INIT, Some((Some("local"), None)), Err(PrivilegeDenied)),
            (KILL, Some((Some("local"), None)), Err(PrivilegeDenied)),
        ];
        let state = state();
        let sender = sender("two", 2, 2);
        let context = AdmissionContext {
            state: Some(&state),
            member: true,
            setup_token: None,
        };
        for (name, caller, expected) in table {
            let forwarded = caller.map(|(identity, secret)| Forwarded {
                identity: identity.map(str::to_owned),
                token: secret.map(|secret| TokenHash(hash(secret.as_bytes()))),
            });
            let presented = PresentedCredentials {
                // Ignored on the peer transport, even if it is valid.
                authorization: Some(b"Bearer aa"),
                sender: Some(&sender),
                forwarded: forwarded.as_ref(),
            };
            let admitted = admit(Transport::Peer, method(name), presented, &context);
            let identity = admitted.as_ref().map(|admitted| admitted.identity.as_str());
            assert_eq!(
                identity.map_err(|error| error.code),
                *expected,
                "{name} {caller:?}"
            );
            let token = admitted.ok().and_then(|admitted| admitted.token);
            assert_eq!(token.is_some(), *expected == Ok("ci"), "{name} {caller:?}");
        }
    }

    #[test]
    fn peer_call_without_sender_is_refused() {
        let state = state();
        let context = AdmissionContext {
            state: Some(&state),
            member: true,
            setup_token: None,
        };
        let forwarded = Forwarded {
            identity: Some(LOCAL.to_owned()),
            token: None,
        };
        for name in [SUBMIT, APPLY, STATUS] {
            let presented = PresentedCredentials {
                forwarded: Some(&forwarded),
                ..PresentedCredentials::default()
            };
            let error = admit(Transport::Peer, method(name), presented, &context).unwrap_err();
            assert_eq!(error.code, ErrorCode::PeerOnly, "{name}");
        }
    }

    #[test]
    fn former_member_is_refused() {
        let state = state();
        let context = AdmissionContext {
            state: Some(&state),
            member: true,
            setup_token: None,
        };
        let forwarded = Forwarded {
            identity: Some(LOCAL.to_owned()),
            token: None,
        };
        // A removed member, one replaced by a node of the same name, and one with another
        // certificate.
        for (hostname, raft_id, print) in [("three", 3, 3), ("two", 1, 1), ("two", 2, 9)] {
            let sender = sender(hostname, raft_id, print);
            for name in [SUBMIT, APPLY, "/jaco.v1.Cluster/NodeJoin"] {
                let presented = PresentedCredentials {
                    sender: Some(&sender),
                    forwarded: Some(&forwarded),
                    ..PresentedCredentials::default()
                };
                let error = admit(Transport::Peer, method(name), presented, &context).unwrap_err();
                assert_eq!(error.code, ErrorCode::PeerOnly, "{hostname} {name}");
            }
        }
    }

    #[test]
    fn member_without_state_refuses_peer_calls() {
        let sender = sender("two", 2, 2);
        for (member, code) in [
            (true, ErrorCode::StateUnavailable),
            (false, ErrorCode::ClusterUninitialized),
        ] {
            let context = AdmissionContext {
                state: None,
                member,
                setup_token: None,
            };
            let presented = PresentedCredentials {
                sender: Some(&sender),
                ..PresentedCredentials::default()
            };
            let error = admit(Transport::Peer, method(SUBMIT), presented, &context).unwrap_err();
            assert_eq!(error.code, code);
        }
    }
}
