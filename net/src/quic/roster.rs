//! Who is a member, as the transport needs to know it.

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
    /// Where it is dialled; `None` if it never said, or said something that is no address.
    pub address: Option<SocketAddr>,
}

/// The members other than this node. Asked at every handshake, so it must answer at once, and
/// with what holds now.
pub trait Roster: fmt::Debug + Send + Sync + 'static {
    /// The member whose certificate has this fingerprint; never this node itself.
    fn member(&self, fingerprint: &Fingerprint) -> Option<Arc<Member>>;

    /// Whether a member is known to be at this address: it gets a handshake even when
    /// strangers take all that are meant for them.
    fn is_at(&self, address: IpAddr) -> bool;
}
