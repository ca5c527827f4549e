//! Create requests of manifests, for tools that compare them with those of other implementations.
//!
//! Reads a JSON list of `{"jaco": text, "compose": text, "service": name}` from standard input
//! and writes a list of the same length: `{"body": …}` or `{"error": text}` each.

#[expect(
    dead_code,
    clippy::unwrap_used,
    reason = "shared with tests, and asked only about manifests that resolve"
)]
#[path = "../tests/manifest/request.rs"]
mod request;

use std::io::{self, Write as _};

use jaco_proto::manifest;
use serde_json::{Value, json};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let asked: Vec<Value> = serde_json::from_reader(io::stdin().lock())?;
    let answers: Vec<Value> = asked.iter().map(answer).collect();
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, &answers)?;
    Ok(out.flush()?)
}

fn answer(asked: &Value) -> Value {
    let text = |key: &str| asked[key].as_str().unwrap_or_default();
    let (jaco, compose) = (text("jaco"), text("compose"));
    match manifest::resolve(jaco.as_bytes(), compose.as_bytes(), &request::Anything) {
        Ok(_) => json!({ "body": request::start(jaco, compose, text("service")).body }),
        Err(error) => json!({ "error": error.to_string() }),
    }
}
