//! Compiles the `jaco.v1` contract into Rust types and keeps its descriptor set for the
//! contract test.

use std::{env, path::PathBuf};

const FILES: [&str; 6] = ["error", "entities", "events", "commands", "fsm", "services"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let files = FILES.map(|name| format!("proto/jaco/v1/{name}.proto"));
    tonic_prost_build::configure()
        // Equal state must have equal bytes on every node, so maps are sorted.
        .btree_map(".")
        .file_descriptor_set_path(out.join("jaco.v1.bin"))
        .compile_protos(&files, &["proto".to_owned()])?;
    Ok(())
}
