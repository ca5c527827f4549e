//! Several commands as one entry.

use jaco_proto::v1;

use super::{Refusal, Tx, dispatch, reject};

/// Batches within batches, the outermost included.
const MAX_DEPTH: usize = 4;

/// Applies the children in order, each as who and when it says; one rejection rejects all.
pub(super) fn apply(tx: &mut Tx, batch: &v1::Batch, depth: usize) -> Result<(), Refusal> {
    if depth >= MAX_DEPTH {
        return Err(reject::invalid("children", "batches are nested too deep").into());
    }
    for child in &batch.children {
        // A child that says nothing at all is skipped; one with an envelope around a payload
        // that did not decode is a variant of a newer version.
        if *child != v1::Command::default() {
            dispatch(tx, child, depth + 1)?;
        }
    }
    Ok(())
}
