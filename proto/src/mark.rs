//! Values of the fields `drain_mark` and `cordon_mark` of
//! [`NodeStatusUpdate`](crate::v1::NodeStatusUpdate): their effect on the mark of a node that leaves the
//! cluster, and on that of one that receives no further replicas.

/// Keeps the mark; the value of an absent field.
pub const KEEP: i32 = 0;
/// Sets the mark.
pub const SET: i32 = 1;
/// Clears the mark.
pub const CLEAR: i32 = 2;
