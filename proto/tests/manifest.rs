//! Black-box tests of the manifest contract.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "manifest/cases.rs"]
mod cases;
#[path = "manifest/examples.rs"]
mod examples;
#[path = "manifest/order.rs"]
mod order;
#[path = "manifest/reference.rs"]
mod reference;
#[path = "manifest/schema.rs"]
mod schema;
#[path = "manifest/table.rs"]
mod table;
