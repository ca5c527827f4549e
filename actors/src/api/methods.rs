//! What each method of `jaco.v1` asks of its caller, and which node serves it.

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

/// Whether a call is meant to change something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It changes nothing.
    Read,
    /// It changes the cluster, or what a node does.
    Write,
}

/// Which node serves a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The node that was asked.
    Here,
    /// The leader; the node that was asked passes the whole request on.
    Leader,
}

/// What is to be known about a method before it is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    /// Who may call it.
    pub class: Class,
    /// Whether it changes something.
    pub effect: Effect,
    /// Who serves it.
    pub place: Place,
}

/// The method of a full name such as `/jaco.v1.Cluster/Init`.
///
/// A name that nobody listed is an operator's read, served here.
#[must_use]
pub fn method(name: &str) -> Method {
    use Class::{InBody, LocalOperator, Operator, Peer, Public, Setup};
    use Effect::{Read, Write};
    use Place::{Here, Leader};
    let name = name.strip_prefix("/jaco.v1.").unwrap_or_default();
    let (class, effect, place) = match name {
        "Cluster/Status" => (Public, Read, Here),
        "Cluster/Init" | "Cluster/Join" => (Setup, Write, Here),
        "Cluster/KillActor" => (LocalOperator, Write, Here),
        "Cluster/NodeJoin" => (InBody, Write, Leader),
        // It reads, but its record in the audit trail can be written by the leader only.
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
            (Peer, Write, Here)
        }
        other if other.starts_with("Internal/") => (Peer, Read, Here),
        _ => (Operator, Read, Here),
    };
    Method {
        class,
        effect,
        place,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use jaco_proto::FILE_DESCRIPTOR_SET;
    use prost::Message as _;
    use prost_types::FileDescriptorSet;

    use super::*;

    /// Every method of the contract, by what is known about it.
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
    fn what_changes_the_state_on_behalf_of_a_client_goes_to_the_leader() {
        let forwarded = having(|method| method.place == Place::Leader);
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
    fn the_other_changes_are_made_where_they_were_asked_for() {
        let here = having(|method| method.effect == Effect::Write && method.place == Place::Here);
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
    fn only_these_methods_are_open_to_more_or_fewer_than_operators() {
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
    fn a_method_nobody_listed_needs_an_operator() {
        for name in ["/jaco.v1.Deploy/Anything", "/other/Thing", "", "/"] {
            assert_eq!(method(name).class, Class::Operator, "{name:?}");
            assert_eq!(method(name).place, Place::Here, "{name:?}");
        }
        let unheard = method("/jaco.v1.Internal/Anything");
        assert_eq!(unheard.class, Class::Peer);
    }
}
