//! Commands that members submit to the leader.
//!
//! - [`authorize`]: which commands a member may submit.
//! - [`validate`]: which values a node may report.
//! - [`writers`]: identities under which nodes write.

pub mod authorize;
pub mod validate;
pub mod writers;
