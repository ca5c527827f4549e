//! Limits of the API.
//!
//! - [`rate_limits`]: rate limits for callers that guess tokens.

pub mod rate_limits;
