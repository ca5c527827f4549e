//! Required credential and serving node of each method of `jaco.v1`.

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

/// Properties of a method that decide how it is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    /// Required credential.
    pub class: Class,
    /// Whether it changes anything.
    pub effect: Effect,
    /// Serving node.
    pub served_by: ServedBy,
}

/// Returns the properties of a method by its full name, such as `/jaco.v1.Cluster/Init`.
///
/// An unlisted method is an operator's read, served locally.
#[must_use]
pub fn method(name: &str) -> Method {
    use Class::{InBody, LocalOperator, Operator, Peer, Public, Setup};
    use Effect::{Read, Write};
    use ServedBy::{Leader, Local};
    let name = name.strip_prefix("/jaco.v1.").unwrap_or_default();
    let (class, effect, served_by) = match name {
        "Cluster/Status" => (Public, Read, Local),
        "Cluster/Init" | "Cluster/Join" => (Setup, Write, Local),
        "Cluster/KillActor" => (LocalOperator, Write, Local),
        "Cluster/NodeJoin" => (InBody, Write, Leader),
        // A read, but only the leader can write its record in the audit trail.
        "Cluster/Backup" => (Operator, Read, Leader),
        "Cluster/IssueJoinToken"
        | "Cluster/NodeRemove"
        | "Deploy/Apply"
        | "Deploy/Rollback"
        | "Deploy/Delete"
        | "Tokens/Issue"
        | "Tokens/Revoke"
        | "RegistryCredentials/Add"
        | "RegistryCredentials/Remove" => (Operator, Write, Leader),
        "Internal/Submit" | "Internal/EnsureSubnet" | "Internal/SignNodeCert" => {
            (Peer, Write, Local)
        }
        other if other.starts_with("Internal/") => (Peer, Read, Local),
        _ => (Operator, Read, Local),
    };
    Method {
        class,
        effect,
        served_by,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use jaco_proto::FILE_DESCRIPTOR_SET;
    use prost::Message as _;
    use prost_types::FileDescriptorSet;

    use super::*;

    /// Returns the methods of the contract that have a property.
    fn having(which: impl Fn(Method) -> bool) -> BTreeSet<String> {
        let set = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
        let services = set.file.iter().flat_map(|file| &file.service);
        services
            .flat_map(|service| {
                let names = service.method.iter().map(|method| method.name());
                names.map(|name| format!("{}/{name}", service.name()))
            })
            .filter(|name| which(method(&format!("/jaco.v1.{name}"))))
            .collect()
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn client_writes_are_served_by_the_leader() {
        let forwarded = having(|method| method.served_by == ServedBy::Leader);
        let expected = names(&[
            "Cluster/Backup",
            "Cluster/IssueJoinToken",
            "Cluster/NodeJoin",
            "Cluster/NodeRemove",
            "Deploy/Apply",
            "Deploy/Delete",
            "Deploy/Rollback",
            "RegistryCredentials/Add",
            "RegistryCredentials/Remove",
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
            "Internal/SignNodeCert",
            "Internal/Submit",
        ]);
        assert_eq!(here, expected);
    }

    #[test]
    fn only_these_methods_differ_from_operator_access() {
        for (class, expected) in [
            (Class::Public, names(&["Cluster/Status"])),
            (Class::Setup, names(&["Cluster/Init", "Cluster/Join"])),
            (Class::LocalOperator, names(&["Cluster/KillActor"])),
            (Class::InBody, names(&["Cluster/NodeJoin"])),
        ] {
            assert_eq!(having(|method| method.class == class), expected);
        }
        let internal = having(|method| method.class == Class::Peer);
        assert!(internal.iter().all(|name| name.starts_with("Internal/")));
        assert_eq!(internal.len(), 5);
    }

    #[test]
    fn unlisted_method_requires_an_operator() {
        for name in ["/jaco.v1.Deploy/Anything", "/other/Thing", "", "/"] {
            assert_eq!(method(name).class, Class::Operator, "{name:?}");
            assert_eq!(method(name).served_by, ServedBy::Local, "{name:?}");
        }
        let unheard = method("/jaco.v1.Internal/Anything");
        assert_eq!(unheard.class, Class::Peer);
    }
}
