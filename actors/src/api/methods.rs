//! Table of the methods of `jaco.v1`: credential, serving node and limits of each.

use std::time::Duration;

/// Size limit of a request in bytes; clients send at most 4 MiB, and slightly more is accepted.
pub(super) const REQUEST_BYTES: usize = 5 << 20;
/// Size limit of a request about deployments in bytes, far above that of a manifest, so that a
/// manifest that is too large is refused as such, with the position, and not as an undecodable
/// frame. Only operators may send one.
pub(super) const APPLY_BYTES: usize = 16 << 20;
/// Size limit of a request to join in bytes, which carries its credential: two names and a signing
/// request.
pub(super) const JOIN_BYTES: usize = 64 << 10;
/// Size limit of a report about the networks of a member in bytes.
pub(super) const REPORT_BYTES: usize = 4 << 20;
/// Size limit of a request with a secrets key in bytes.
pub(super) const KEY_BYTES: usize = 1 << 10;
/// Size limit of a request without credentials in bytes; it has no fields.
pub(super) const STATUS_BYTES: usize = 1 << 10;
/// Time limit of a forwarded call.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit of a removal, in which the leader waits for replicas to move; a repeated call waits on.
pub(super) const DRAIN_TIMEOUT: Duration = Duration::from_secs(3600);
/// Limit of concurrent backups; each holds a thread and a state.
const CONCURRENT_BACKUPS: usize = 4;
/// Limit of concurrent checks of domains; each asks up to 16 addresses.
const CONCURRENT_CHECKS: usize = 8;

/// Credential that a method requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// None.
    Public,
    /// None on the unix socket, the setup token over TCP; only before a cluster exists.
    Setup,
    /// An operator's.
    Operator,
    /// An operator's, on the unix socket of this very node.
    LocalOperator,
    /// That of a member of the cluster, over the peer transport only.
    Peer,
    /// A credential inside the request.
    InBody,
}

/// Whether a call changes anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It changes nothing.
    Read,
    /// It changes the cluster, or what a node does.
    Write,
}

/// The node that serves a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServedBy {
    /// The node that received the call.
    Local,
    /// The leader; every other node forwards the whole request to it.
    Leader,
}

/// Request of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestBody {
    /// One message, received completely before the call is served.
    Message {
        /// Size limit in bytes.
        max_bytes: usize,
    },
    /// A stream of messages, which is not read: no served method takes one.
    Unread,
}

/// Response of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseBody {
    /// One message.
    Message,
    /// A stream of messages, which may take any time.
    Stream,
}

/// Limit on the rate of calls from one client address of the TLS listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateLimit {
    /// Only the responses to invalid tokens are delayed, as for every method.
    InvalidTokens,
    /// Also, each call that fails counts as an attempt to join, and too many are refused.
    JoinAttempts,
}

/// Properties of a method that decide how it is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    /// Service and method, such as `Cluster/Init`; empty for an unlisted method.
    pub name: &'static str,
    /// Required credential.
    pub class: Class,
    /// Whether it changes anything.
    pub effect: Effect,
    /// Serving node.
    pub served_by: ServedBy,
    /// Request, with its size limit.
    pub request: RequestBody,
    /// Response.
    pub response: ResponseBody,
    /// Limit on the rate of calls.
    pub rate_limit: RateLimit,
    /// Limit of concurrent calls on one node, if there is one. The handler enforces it, since its
    /// work may outlast the call.
    pub concurrency: Option<usize>,
    /// Time limit of a call that is forwarded to the leader, if the client sets none.
    pub forward_timeout: Duration,
    /// Whether any member sees how the call ends, so that it survives the loss of the leader that
    /// received it.
    pub resumable: bool,
}

impl Method {
    /// A method with a usual request, one message as the response and no limits of its own.
    const fn new(name: &'static str, class: Class, effect: Effect, served_by: ServedBy) -> Self {
        Self {
            name,
            class,
            effect,
            served_by,
            request: RequestBody::Message {
                max_bytes: REQUEST_BYTES,
            },
            response: ResponseBody::Message,
            rate_limit: RateLimit::InvalidTokens,
            concurrency: None,
            forward_timeout: RESPONSE_TIMEOUT,
            resumable: false,
        }
    }

    const fn max_bytes(mut self, max_bytes: usize) -> Self {
        self.request = RequestBody::Message { max_bytes };
        self
    }

    const fn unread(mut self) -> Self {
        self.request = RequestBody::Unread;
        self
    }

    const fn streaming(mut self) -> Self {
        self.response = ResponseBody::Stream;
        self
    }

    const fn rate_limit(mut self, limit: RateLimit) -> Self {
        self.rate_limit = limit;
        self
    }

    const fn concurrency(mut self, limit: usize) -> Self {
        self.concurrency = Some(limit);
        self
    }

    const fn forward_timeout(mut self, limit: Duration) -> Self {
        self.forward_timeout = limit;
        self
    }

    const fn resumable(mut self) -> Self {
        self.resumable = true;
        self
    }
}

/// Every method of the contract, in the contract's order.
pub const METHODS: &[Method] = {
    use Class::{InBody, LocalOperator, Operator, Peer, Public, Setup};
    use Effect::{Read, Write};
    use ServedBy::{Leader, Local};
    &[
        Method::new("Cluster/Init", Setup, Write, Local).max_bytes(JOIN_BYTES),
        Method::new("Cluster/Join", Setup, Write, Local).max_bytes(JOIN_BYTES),
        Method::new("Cluster/Bootstrap", Operator, Read, Local),
        Method::new("Cluster/IssueJoinToken", Operator, Write, Leader),
        Method::new("Cluster/NodeJoin", InBody, Write, Leader)
            .max_bytes(JOIN_BYTES)
            .rate_limit(RateLimit::JoinAttempts),
        Method::new("Cluster/NodeRemove", Operator, Write, Leader)
            .forward_timeout(DRAIN_TIMEOUT)
            .resumable(),
        Method::new("Cluster/NodeCordon", Operator, Write, Leader),
        Method::new("Cluster/NodeList", Operator, Read, Local),
        // A read, but only the leader can write its record in the audit trail.
        Method::new("Cluster/Backup", Operator, Read, Leader)
            .streaming()
            .concurrency(CONCURRENT_BACKUPS),
        Method::new("Cluster/Restore", Operator, Read, Local).unread(),
        Method::new("Cluster/Status", Public, Read, Local).max_bytes(STATUS_BYTES),
        Method::new("Cluster/Actors", Operator, Read, Local),
        Method::new("Cluster/KillActor", LocalOperator, Write, Local),
        Method::new("Cluster/Digest", Operator, Read, Local),
        Method::new("Cluster/NetworkStatus", Operator, Read, Local),
        Method::new("Deploy/Apply", Operator, Write, Leader).max_bytes(APPLY_BYTES),
        Method::new("Deploy/Rollback", Operator, Write, Leader).max_bytes(APPLY_BYTES),
        Method::new("Deploy/Delete", Operator, Write, Leader).max_bytes(APPLY_BYTES),
        Method::new("Deploy/Status", Operator, Read, Local).max_bytes(APPLY_BYTES),
        Method::new("Deploy/Logs", Operator, Read, Local)
            .max_bytes(APPLY_BYTES)
            .streaming(),
        Method::new("Deploy/GetReplicas", Operator, Read, Local).max_bytes(APPLY_BYTES),
        Method::new("Deploy/GetRoute", Operator, Read, Local).max_bytes(APPLY_BYTES),
        Method::new("Deploy/SetTls", Operator, Write, Leader).max_bytes(APPLY_BYTES),
        Method::new("Deploy/ControlRollout", Operator, Write, Leader).max_bytes(APPLY_BYTES),
        Method::new("Tokens/Issue", Operator, Write, Leader),
        Method::new("Tokens/Revoke", Operator, Write, Leader),
        Method::new("Tokens/List", Operator, Read, Local),
        Method::new("RegistryCredentials/Add", Operator, Write, Leader),
        Method::new("RegistryCredentials/Remove", Operator, Write, Leader),
        Method::new("RegistryCredentials/List", Operator, Read, Local),
        Method::new("Config/Get", Operator, Read, Local),
        Method::new("Config/Set", Operator, Write, Leader),
        Method::new("Config/List", Operator, Read, Local),
        Method::new("Secrets/Set", Operator, Write, Leader),
        Method::new("Secrets/List", Operator, Read, Local),
        Method::new("Secrets/Remove", Operator, Write, Leader),
        Method::new("Secrets/ExportKey", LocalOperator, Read, Local),
        Method::new("Secrets/ImportKey", Operator, Write, Leader),
        Method::new("Secrets/RotateKey", Operator, Write, Leader),
        Method::new("ClusterFiles/Create", Operator, Write, Leader),
        Method::new("ClusterFiles/List", Operator, Read, Local),
        Method::new("ClusterFiles/Remove", Operator, Write, Leader),
        Method::new("Certs/CheckDomain", Operator, Read, Local).concurrency(CONCURRENT_CHECKS),
        Method::new("Certs/Import", Operator, Write, Leader),
        Method::new("Certs/List", Operator, Read, Local),
        Method::new("Certs/Remove", Operator, Write, Leader),
        Method::new("Audit/Query", Operator, Read, Local).streaming(),
        Method::new("Watch/Subscribe", Operator, Read, Local).streaming(),
        Method::new("Internal/Submit", Peer, Write, Local),
        Method::new("Internal/SignNodeCert", Peer, Write, Local),
        Method::new("Internal/Logs", Peer, Read, Local).streaming(),
        Method::new("Internal/EnsureSubnet", Peer, Write, Local),
        Method::new("Internal/StateDigest", Peer, Read, Local),
        Method::new("Internal/AwaitRouting", Peer, Read, Local),
        Method::new("Internal/ReportNetwork", Peer, Write, Local).max_bytes(REPORT_BYTES),
        Method::new("Internal/StoreSecretsKey", Peer, Write, Local).max_bytes(KEY_BYTES),
        Method::new("Internal/FetchSecretsKey", Peer, Read, Local).max_bytes(KEY_BYTES),
    ]
};

/// A method that is not in the contract, such as one of a newer version.
const UNLISTED: Method = Method::new("", Class::Operator, Effect::Read, ServedBy::Local);

/// Returns the properties of a method by its full name, such as `/jaco.v1.Cluster/Init`.
///
/// An unlisted method is an operator's read, or a member's in the service `Internal`, served
/// locally.
#[must_use]
pub fn method(name: &str) -> Method {
    let name = name.strip_prefix("/jaco.v1.").unwrap_or_default();
    match METHODS.iter().find(|method| method.name == name) {
        Some(listed) => *listed,
        None if name.starts_with("Internal/") => Method {
            class: Class::Peer,
            ..UNLISTED
        },
        None => UNLISTED,
    }
}

/// Returns the largest size limit in bytes of the requests to a service, by its full name, such as
/// `jaco.v1.Cluster`.
pub(super) fn largest_request(service: &str) -> usize {
    METHODS
        .iter()
        .filter(|method| {
            let own = method.name.split_once('/').map(|(own, _)| own);
            own == service.strip_prefix("jaco.v1.")
        })
        .filter_map(|method| match method.request {
            RequestBody::Message { max_bytes } => Some(max_bytes),
            RequestBody::Unread => None,
        })
        .max()
        .unwrap_or(REQUEST_BYTES)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use jaco_proto::FILE_DESCRIPTOR_SET;
    use prost::Message as _;
    use prost_types::FileDescriptorSet;

    use super::*;

    /// Name, stream of requests and stream of responses of each method of the contract, sorted.
    fn contract() -> Vec<(String, bool, bool)> {
        let set = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
        let services = set.file.iter().flat_map(|file| &file.service);
        let mut methods: Vec<_> = services
            .flat_map(|service| {
                service.method.iter().map(|method| {
                    (
                        format!("{}/{}", service.name(), method.name()),
                        method.client_streaming(),
                        method.server_streaming(),
                    )
                })
            })
            .collect();
        methods.sort();
        methods
    }

    /// Returns the methods of the contract that have a property.
    fn having(which: impl Fn(Method) -> bool) -> BTreeSet<String> {
        contract()
            .into_iter()
            .map(|(name, ..)| name)
            .filter(|name| which(method(&format!("/jaco.v1.{name}"))))
            .collect()
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn each_method_of_the_contract_has_one_row() {
        let mut rows: Vec<_> = METHODS
            .iter()
            .map(|row| {
                let name = row.name.to_owned();
                let unread = row.request == RequestBody::Unread;
                (name, unread, row.response == ResponseBody::Stream)
            })
            .collect();
        rows.sort();
        assert_eq!(rows, contract());
        for row in METHODS {
            assert_eq!(method(&format!("/jaco.v1.{}", row.name)), *row);
        }
    }

    #[test]
    fn only_these_methods_have_limits_of_their_own() {
        let usual = having(|method| method.forward_timeout == RESPONSE_TIMEOUT);
        let others: Vec<_> = METHODS
            .iter()
            .filter(|method| !usual.contains(method.name))
            .map(|method| (method.name, method.forward_timeout.as_secs()))
            .collect();
        assert_eq!(others, [("Cluster/NodeRemove", 3600)]);
        let limited = having(|method| method.rate_limit == RateLimit::JoinAttempts);
        assert_eq!(limited, names(&["Cluster/NodeJoin"]));
        let limited: Vec<_> = METHODS
            .iter()
            .filter_map(|method| Some((method.name, method.concurrency?)))
            .collect();
        assert_eq!(limited, [("Cluster/Backup", 4), ("Certs/CheckDomain", 8)]);
    }

    #[test]
    fn unauthenticated_requests_are_small() {
        for row in METHODS {
            if matches!(row.class, Class::Public | Class::Setup | Class::InBody) {
                let small = |max_bytes| max_bytes <= 64 << 10;
                let limited =
                    matches!(row.request, RequestBody::Message { max_bytes } if small(max_bytes));
                assert!(limited, "{}", row.name);
            }
        }
    }

    #[test]
    fn decoder_accepts_the_largest_request_of_its_service() {
        for (service, bytes) in [
            ("jaco.v1.Cluster", REQUEST_BYTES),
            ("jaco.v1.Deploy", APPLY_BYTES),
            ("jaco.v1.Internal", REQUEST_BYTES),
            ("jaco.v1.Other", REQUEST_BYTES),
        ] {
            assert_eq!(largest_request(service), bytes, "{service}");
        }
    }

    #[test]
    fn client_writes_are_served_by_the_leader() {
        let forwarded = having(|method| method.served_by == ServedBy::Leader);
        let expected = names(&[
            "Certs/Import",
            "Certs/Remove",
            "Cluster/Backup",
            "Cluster/IssueJoinToken",
            "Cluster/NodeCordon",
            "Cluster/NodeJoin",
            "Cluster/NodeRemove",
            "ClusterFiles/Create",
            "ClusterFiles/Remove",
            "Config/Set",
            "Deploy/Apply",
            "Deploy/ControlRollout",
            "Deploy/Delete",
            "Deploy/Rollback",
            "Deploy/SetTls",
            "RegistryCredentials/Add",
            "RegistryCredentials/Remove",
            "Secrets/ImportKey",
            "Secrets/Remove",
            "Secrets/RotateKey",
            "Secrets/Set",
            "Tokens/Issue",
            "Tokens/Revoke",
        ]);
        assert_eq!(forwarded, expected);
    }

    #[test]
    fn other_writes_are_served_locally() {
        let here =
            having(|method| method.effect == Effect::Write && method.served_by == ServedBy::Local);
        let expected = names(&[
            "Cluster/Init",
            "Cluster/Join",
            "Cluster/KillActor",
            "Internal/EnsureSubnet",
            "Internal/ReportNetwork",
            "Internal/SignNodeCert",
            "Internal/StoreSecretsKey",
            "Internal/Submit",
        ]);
        assert_eq!(here, expected);
    }

    #[test]
    fn only_these_methods_differ_from_operator_access() {
        for (class, expected) in [
            (Class::Public, names(&["Cluster/Status"])),
            (Class::Setup, names(&["Cluster/Init", "Cluster/Join"])),
            (
                Class::LocalOperator,
                names(&["Cluster/KillActor", "Secrets/ExportKey"]),
            ),
            (Class::InBody, names(&["Cluster/NodeJoin"])),
        ] {
            assert_eq!(having(|method| method.class == class), expected);
        }
        let internal = having(|method| method.class == Class::Peer);
        assert!(internal.iter().all(|name| name.starts_with("Internal/")));
        assert_eq!(internal.len(), 9);
    }

    #[test]
    fn unlisted_method_requires_an_operator() {
        for name in ["/jaco.v1.Deploy/Anything", "/other/Thing", "", "/"] {
            assert_eq!(method(name).class, Class::Operator, "{name:?}");
            assert_eq!(method(name).served_by, ServedBy::Local, "{name:?}");
            assert_eq!(method(name), UNLISTED, "{name:?}");
        }
        let unheard = method("/jaco.v1.Internal/Anything");
        assert_eq!(unheard.class, Class::Peer);
    }
}
