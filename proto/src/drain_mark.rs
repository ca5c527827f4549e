//! Values of the field `drain_mark` of [`NodeStatusUpdate`](crate::v1::NodeStatusUpdate): its effect
//! on the mark of a node that leaves the cluster.

/// Keeps the mark; the value of an absent field.
pub const KEEP: i32 = 0;
/// Sets the mark.
pub const SET: i32 = 1;
/// Clears the mark.
pub const CLEAR: i32 = 2;
