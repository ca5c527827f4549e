//! Names in requests.

use jaco_proto::{Error, ErrorCode};

/// Refuses a request whose `field` has no value, before anything is looked up by it.
///
/// # Errors
/// `validation_failed` with the field.
pub(super) fn require(field: &str, value: &(impl AsRef<[u8]> + ?Sized)) -> Result<(), Error> {
    if !value.as_ref().is_empty() {
        return Ok(());
    }
    let message = format!("{} is required", field.replace('_', " "));
    Err(Error::new(ErrorCode::ValidationFailed, message).with("field", field))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_empty_name_is_refused() {
        assert_eq!(require("hostname", "n1"), Ok(()));
        let error = require("peer_addr", "").unwrap_err();
        assert_eq!(error.code, ErrorCode::ValidationFailed);
        assert_eq!(error.message, "peer addr is required");
        assert_eq!(error.details["field"], "peer_addr");
    }
}
