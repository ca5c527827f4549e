//! Sizes of tests, which the environment scales.

use std::str::FromStr;

/// Reads a size from the environment variable `name`; `otherwise` if it is not set or unreadable.
pub fn size<T: FromStr>(name: &str, otherwise: T) -> T {
    let given = std::env::var(name).ok();
    given
        .and_then(|text| text.parse().ok())
        .unwrap_or(otherwise)
}
