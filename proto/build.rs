//! Compiles the `jaco.v1` contract to Rust types, and writes its descriptor set for the contract
//! test. The compiler is a crate: no `protoc` has to be installed.

use std::{env, fs, path::PathBuf};

use prost::Message as _;
use tonic_prost_build::Config;

const FILES: [&str; 9] = [
    "error", "entities", "events", "commands", "fsm", "hosting", "network", "platform", "services",
];

/// Messages without a derived `Debug`; `src/redacted.rs` implements a redacted one.
const REDACTED: [&str; 37] = [
    ".jaco.v1.Command",
    ".jaco.v1.ApplyRequest",
    ".jaco.v1.AuditEvent",
    ".jaco.v1.BackupChunk",
    ".jaco.v1.BootstrapResponse",
    ".jaco.v1.Cert",
    ".jaco.v1.CertBlob",
    ".jaco.v1.CertImportRequest",
    ".jaco.v1.CertStore",
    ".jaco.v1.ChallengeToken",
    ".jaco.v1.ClusterFileCreateRequest",
    ".jaco.v1.ClusterInit",
    ".jaco.v1.ClusterInitResponse",
    ".jaco.v1.ClusterJoinRequest",
    ".jaco.v1.ClusterMeta",
    ".jaco.v1.Deployment",
    ".jaco.v1.DeploymentApply",
    ".jaco.v1.DeploymentRevision",
    ".jaco.v1.FileContent",
    ".jaco.v1.FileValue",
    ".jaco.v1.ImportKeyRequest",
    ".jaco.v1.ImportedCert",
    ".jaco.v1.IssueJoinTokenResponse",
    ".jaco.v1.JoinToken",
    ".jaco.v1.JoinTokenConsume",
    ".jaco.v1.JoinTokenIssue",
    ".jaco.v1.LogLine",
    ".jaco.v1.NodeJoinRequest",
    ".jaco.v1.RegistryCredential",
    ".jaco.v1.RegistryCredentialAddRequest",
    ".jaco.v1.Secret",
    ".jaco.v1.SecretSetRequest",
    ".jaco.v1.SecretsKey",
    ".jaco.v1.SubmitRequest",
    ".jaco.v1.Token",
    ".jaco.v1.TokenIssue",
    ".jaco.v1.TokenIssueResponse",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo:rerun-if-changed=proto");
    let files = FILES.map(|name| format!("jaco/v1/{name}.proto"));
    let descriptors = protox::compile(files, ["proto"])?;
    fs::write(out.join("jaco.v1.bin"), descriptors.encode_to_vec())?;
    let mut config = Config::new();
    config.skip_debug(REDACTED);
    // Equal state must have equal bytes on every node, so maps are sorted.
    config.btree_map(["."]);
    config.type_attribute(".", "#[allow(clippy::all)]");
    let services = env::var_os("CARGO_FEATURE_GRPC").is_some();
    tonic_prost_build::configure()
        .build_client(services)
        .build_server(services)
        .compile_fds_with_config(descriptors, config)?;
    let generated = fs::read_to_string(out.join("jaco.v1.rs"))?;
    fs::write(out.join("messages.rs"), messages(&generated))?;
    Ok(())
}

/// Generates a table of all messages with their `Debug` output, for the test of redaction.
fn messages(generated: &str) -> String {
    let entries: String = generated
        .lines()
        .filter_map(|line| line.strip_prefix("pub struct "))
        .filter_map(|line| line.split([' ', ';', '<']).next())
        .map(|name| format!("    (\"{name}\", shown::<{name}>),\n"))
        .collect();
    format!("const MESSAGES: &[(&str, Show)] = &[\n{entries}];\n")
}
