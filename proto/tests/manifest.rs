//! The manifest contract, proved from outside.

#[path = "manifest/cases.rs"]
mod cases;
#[path = "manifest/examples.rs"]
mod examples;
#[path = "manifest/order.rs"]
mod order;
#[path = "manifest/schema.rs"]
mod schema;
#[path = "manifest/table.rs"]
mod table;
