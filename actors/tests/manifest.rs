//! Manifests from two files to the engine's create request and the plans of the other parts.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "manifest/body.rs"]
mod body;
#[path = "../../proto/tests/manifest/cases.rs"]
mod cases;
#[path = "manifest/property.rs"]
mod property;
#[path = "manifest/request.rs"]
mod request;
