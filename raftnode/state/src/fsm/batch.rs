//! Several commands in one entry.

use jaco_proto::v1;

use super::{ApplyError, Tx, dispatch, reject};

/// Maximum nesting of batches, the outermost included.
const MAX_DEPTH: usize = 4;

/// Applies the children in order, each with its own identity and timestamp; one rejection rejects
/// all.
pub(super) fn apply(tx: &mut Tx, batch: &v1::Batch, depth: usize) -> Result<(), ApplyError> {
    if depth >= MAX_DEPTH {
        return Err(reject::invalid("children", "batches are nested too deep").into());
    }
    for child in &batch.children {
        // An empty child is skipped. A child with an identity or timestamp but without a payload is
        // a variant of a newer version.
        if *child != v1::Command::default() {
            dispatch(tx, child, depth + 1)?;
        }
    }
    Ok(())
}
