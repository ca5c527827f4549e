//! Fuzzes `jacod.yaml`, durations and log filters.

use jaco_proto::{config::DaemonConfig, duration};

use crate::{parts::parts, tree};

/// Input: a `jacod.yaml`, then a duration.
///
/// The configuration is equal for another spelling of its tree, or rejected with a reason. A
/// formatted duration parses to the same duration.
pub fn config(data: &[u8]) {
    let [file, text] = parts(data);
    let parsed = DaemonConfig::parse(file);
    if let Err(error) = &parsed {
        assert!(!error.to_string().is_empty());
    }
    let document = tree::read(file).filter(|document| document.next.is_none());
    if let Some(text) = document
        .and_then(|document| document.root)
        .and_then(|root| tree::rewritten(&root))
    {
        let again = DaemonConfig::parse(text.as_bytes());
        assert_eq!(parsed.ok(), again.ok(), "{text}");
    }
    if let Ok(text) = str::from_utf8(text)
        && let Ok(nanos) = duration::parse(text)
    {
        let written = duration::format(nanos);
        assert_eq!(duration::parse(&written), Ok(nanos), "{written}");
        assert_eq!(
            duration::format(duration::parse(&written).unwrap()),
            written
        );
    }
}
