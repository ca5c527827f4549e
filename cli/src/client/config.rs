//! `jaco config`: prints the compose file as it is applied, or manages configs of the cluster.

use std::path::PathBuf;

use serde::Serialize;

use super::{
    cluster_files::ConfigCommand,
    failure::Stop,
    manifests::{Sources, manifests},
    output::{Ui, View},
};

/// Arguments of `config`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<ConfigCommand>,

    /// Deployment manifest [default without -f: jaco.yaml of the directory, if there is one]
    #[arg(value_name = "JACO")]
    jaco: Option<PathBuf>,

    #[command(flatten)]
    sources: Sources,

    /// Fail if there are warnings
    #[arg(long)]
    strict: bool,
}

/// The documents that an apply sends.
#[derive(Serialize)]
struct ConfigView {
    deployment: String,
    jaco_yaml: String,
    compose_yaml: String,
}

impl View for ConfigView {
    fn text(&self) -> String {
        self.compose_yaml.clone()
    }
}

/// Resolves and checks the files, and prints the compose document, byte for byte.
pub(crate) fn run(args: &Args, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let manifests = manifests(args.jaco.as_deref(), &args.sources)?;
    manifests.warn(args.strict, ui)?;
    manifests.check()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ui.data(&ConfigView {
        jaco_yaml: text(&manifests.jaco),
        compose_yaml: text(&manifests.compose),
        deployment: manifests.deployment,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::client::{fake, output::Format};

    #[tokio::test]
    async fn printed_document_is_the_applied_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("compose.yaml");
        fs::write(dir.path().join(".env"), "TAG=1.2\n").unwrap();
        fs::write(&path, "name: shop\nservices:\n  web: {image: 'a:$TAG'}\n").unwrap();
        let args = Args {
            command: None,
            jaco: None,
            sources: Sources {
                files: vec![path],
                ..Sources::default()
            },
            strict: true,
        };
        let (result, output) = fake::capture(Format::Table, async |ui| run(&args, ui)).await;
        assert_eq!((result, output.err.as_str()), (Ok(()), ""));
        let expected = "name: shop\nservices:\n  web:\n    image: \"a:1.2\"\n";
        assert_eq!(output.out, expected);
        let resolved = super::manifests(None, &args.sources).unwrap();
        assert_eq!(resolved.compose, expected.as_bytes());
        let (_, output) = fake::capture(Format::Json, async |ui| run(&args, ui)).await;
        let view: serde_json::Value = serde_json::from_str(&output.out).unwrap();
        assert_eq!(view["deployment"], "shop");
        assert_eq!(view["jaco_yaml"], "deployment: \"shop\"\n");
        assert_eq!(view["compose_yaml"], expected);
    }
}
