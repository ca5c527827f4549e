//! The membership that the transport checks peers against.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use crate::pki::Fingerprint;

/// A member other than this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its hostname, which its certificate carries.
    pub hostname: String,
    /// Its raft id.
    pub raft_id: u64,
    /// Address to dial; `None` if the member advertised none, or one that does not parse.
    pub address: Option<SocketAddr>,
}

/// The members other than this node. Called during every handshake: implementations must not block,
/// and must return the membership of that moment.
pub trait Roster: fmt::Debug + Send + Sync + 'static {
    /// The member whose certificate has this fingerprint; never this node itself.
    fn member(&self, fingerprint: &Fingerprint) -> Option<Arc<Member>>;

    /// Whether a member is known at this address. Handshakes from such addresses have their own
    /// quota (`Settings::members`), so a flood from other addresses cannot starve them.
    fn has_member_at(&self, address: IpAddr) -> bool;
}
