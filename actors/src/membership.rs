//! Who belongs to the cluster, and who of them votes.
//!
//! - [`policy`]: what the leader changes next, as a pure function of what it sees.

pub mod policy;
