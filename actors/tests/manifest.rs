//! Manifests all the way: from two files to what the engine and the other parts are asked.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "manifest/body.rs"]
mod body;
#[path = "../../proto/tests/manifest/cases.rs"]
mod cases;
#[path = "manifest/property.rs"]
mod property;
#[path = "manifest/request.rs"]
mod request;
