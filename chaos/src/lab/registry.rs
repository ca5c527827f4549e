//! The image registry of a lab, from which all its engines pull.

use std::{
    net::SocketAddr,
    path::Path,
    process::{Child, Stdio},
};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::{netns, network::HUB, node};
use crate::{until, wait::WAIT_TIMEOUT};

/// Port of the registry.
pub(crate) const PORT: u16 = 5000;

/// `host:port`, as in image references.
#[must_use]
pub fn address() -> SocketAddr {
    (HUB, PORT).into()
}

/// Starts Debian's `docker-registry` in a namespace and waits until it listens.
pub(super) async fn start(namespace: &str, dir: &Path) -> Result<Child> {
    let config = json!({
        "version": "0.1",
        "log": {"level": "warn", "accesslog": {"disabled": true}},
        "storage": {"filesystem": {"rootdirectory": dir.join("registry")}},
        "http": {"addr": address(), "secret": "-"},
    });
    // A JSON document is valid YAML.
    let path = dir.join("registry.yml");
    std::fs::write(&path, config.to_string())?;
    let mut command = netns::command(namespace, "docker-registry");
    command.arg("serve").arg(path);
    let mut process = node::run(command, &dir.join("registry.log"))
        .context("docker-registry is needed; install it with `make setup`")?;
    let listens = until("the registry listens", WAIT_TIMEOUT, || async {
        let stream = netns::connect(namespace, address()).await;
        stream.map(drop).map_err(|error| error.to_string())
    });
    if let Err(error) = listens.await {
        let _ = process.kill();
        let _ = process.wait();
        return Err(error);
    }
    Ok(process)
}

/// Pushes an image from an engine to the registry.
pub(super) async fn push(engine: &Path, image: &str) -> Result<()> {
    let output = tokio::process::Command::new("docker")
        .args(["-H", &format!("unix://{}", engine.display())])
        .args(["push", "-q", image])
        .stdin(Stdio::null())
        .output()
        .await?;
    let why = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "push {image}: {why}");
    Ok(())
}
