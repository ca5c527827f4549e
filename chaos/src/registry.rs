//! A real image registry on this machine: Debian's `docker-registry`, behind the proxy [`Proxy`].
//!
//! It listens on the loopback interface, which engines trust without TLS. Its users are in a
//! `htpasswd` file, which the registry reads again whenever the file changes.

use std::{
    fs::{self, File},
    io::Write as _,
    net::SocketAddr,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use serde_json::json;
use tempfile::TempDir;

use crate::{Engine, engine, rng, until, wait::WAIT_TIMEOUT};

mod fault;
mod proxy;

pub use fault::{Fault, RequestKind};
pub use proxy::{Outcome, Proxy, RecordedRequest};

/// Account for pushing images.
const PUSHER: &str = "pusher";

/// A registry with a directory and a port of its own.
///
/// Dropping it ends the process and removes its images from the engine, so it must outlive the
/// daemon whose containers use them.
#[derive(Debug)]
pub struct Registry {
    dir: TempDir,
    process: Process,
    backend: SocketAddr,
    proxy: Proxy,
    engine: Engine,
    pusher_password: String,
}

impl Registry {
    /// Starts a registry without authentication.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn public() -> Result<Self> {
        Self::start(None).await
    }

    /// Starts a registry with these users and passwords.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn private(users: &[(&str, &str)]) -> Result<Self> {
        Self::start(Some(users)).await
    }

    async fn start(users: Option<&[(&str, &str)]>) -> Result<Self> {
        let engine = Engine::connect().await?;
        let dir = tempfile::Builder::new()
            .prefix("jaco-registry-")
            .tempdir()?;
        let pusher_password = format!("{:016x}", rng::unique());
        let users_path = dir.path().join("htpasswd");
        let mut config = json!({
            "version": "0.1",
            "log": {"level": "info", "accesslog": {"disabled": true}},
            "storage": {"filesystem": {"rootdirectory": dir.path().join("data")}},
            "http": {"addr": "127.0.0.1:0", "secret": "-"},
        });
        if let Some(users) = users {
            fs::write(&users_path, htpasswd(users, &pusher_password)?)?;
            config["auth"] = json!({"htpasswd": {"realm": "jaco", "path": users_path}});
        }
        // A JSON document is valid YAML.
        let config_path = dir.path().join("config.yml");
        fs::write(&config_path, config.to_string())?;
        let log = File::create(dir.path().join("log"))?;
        let process = Command::new("docker-registry")
            .arg("serve")
            .arg(&config_path)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("docker-registry is needed; install it with `make setup`")?;
        let process = Process(process);
        let log = dir.path().join("log");
        let backend = until("the registry listens", WAIT_TIMEOUT, || async {
            listening(&fs::read_to_string(&log).unwrap_or_default())
        })
        .await?;
        let proxy = Proxy::open(backend).await?;
        Ok(Self {
            dir,
            process,
            backend,
            proxy,
            engine,
            pusher_password,
        })
    }

    /// The proxy in front of it, which records requests and injects faults.
    #[must_use]
    pub fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    /// Mutable access to the proxy, to close and to reopen it.
    pub fn proxy_mut(&mut self) -> &mut Proxy {
        &mut self.proxy
    }

    /// `host:port`, as in image references.
    #[must_use]
    pub fn address(&self) -> String {
        self.proxy.address().to_string()
    }

    /// A reference to one of its images; `name` is repository and tag, digest or both.
    #[must_use]
    pub fn image(&self, name: &str) -> String {
        format!("{}/{name}", self.proxy.address())
    }

    /// Replaces the users of a private registry, with effect from the next request.
    ///
    /// # Errors
    /// When `htpasswd` or the disk refuses.
    pub fn set_users(&self, users: &[(&str, &str)]) -> Result<()> {
        let users = htpasswd(users, &self.pusher_password)?;
        fs::write(self.dir.path().join("htpasswd"), users)?;
        Ok(())
    }

    /// Pushes an image of busybox whose file `/about` begins with `about`, not through the proxy,
    /// and returns its digest; the engine does not keep the image.
    ///
    /// # Errors
    /// When the engine or the registry refuses.
    pub async fn push(&self, name: &str, about: &str) -> Result<String> {
        let pushed = format!("{}/{name}", self.backend);
        // An engine fetches no layer that it already has: the layers of two registries must differ.
        let about = format!("{about} of {}", self.backend);
        self.engine.import_as(&pushed, &about).await?;
        let result = self.push_image(&pushed).await;
        self.engine.remove_image(&pushed).await?;
        result
    }

    /// Tags the image `from` as `to` as well, not through the proxy.
    ///
    /// # Errors
    /// When the engine or the registry refuses.
    pub async fn retag(&self, from: &str, to: &str) -> Result<()> {
        let (from, to) = (
            format!("{}/{from}", self.backend),
            format!("{}/{to}", self.backend),
        );
        self.docker(&["pull", "-q", &from]).await?;
        self.docker(&["tag", &from, &to]).await?;
        let result = self.push_image(&to).await;
        for image in [&from, &to] {
            self.engine.remove_image(image).await?;
        }
        result.map(drop)
    }

    async fn push_image(&self, image: &str) -> Result<String> {
        let said = self.docker(&["push", image]).await?;
        let digest = said
            .split_whitespace()
            .find(|word| word.starts_with("sha256:"))
            .with_context(|| format!("no digest in: {said}"))?;
        Ok(digest.to_owned())
    }

    /// Runs the `docker` command as the pusher.
    async fn docker(&self, args: &[&str]) -> Result<String> {
        let login = BASE64.encode(format!("{PUSHER}:{}", self.pusher_password));
        let config = self.dir.path().join("client");
        fs::create_dir_all(&config)?;
        let logins = json!({"auths": {self.backend.to_string(): {"auth": login}}});
        fs::write(config.join("config.json"), logins.to_string())?;
        let output = tokio::process::Command::new("docker")
            .env("DOCKER_CONFIG", &config)
            .args(["-H", &format!("unix://{}", engine::socket().display())])
            .args(args)
            .output()
            .await?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(
            output.status.success(),
            "docker {args:?}: {said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(said)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.process.end();
        // Drop cannot return an error.
        let _ = Engine::remove_images_blocking(self.proxy.address().port());
    }
}

/// A child process that is killed on drop.
#[derive(Debug)]
struct Process(Child);

impl Process {
    fn end(&mut self) {
        // It may have exited by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// Parses the listening address from the registry's log.
fn listening(log: &str) -> Result<SocketAddr> {
    let (_, rest) = log.split_once("listening on ").context(log.to_owned())?;
    let address = rest.split('"').next().unwrap_or_default();
    Ok(address.parse()?)
}

/// Content of a `htpasswd` file.
fn htpasswd(users: &[(&str, &str)], pusher_password: &str) -> Result<Vec<u8>> {
    let mut lines = Vec::new();
    for (user, password) in users.iter().chain([&(PUSHER, pusher_password)]) {
        // Lowest bcrypt cost: each request is verified with it.
        let mut process = Command::new("htpasswd")
            .args(["-n", "-i", "-B", "-C", "4", user])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("htpasswd is needed; install apache2-utils with `make setup`")?;
        let mut stdin = process.stdin.take().context("a pipe")?;
        stdin.write_all(password.as_bytes())?;
        drop(stdin);
        let output = process.wait_with_output()?;
        if !output.status.success() {
            bail!("htpasswd: {}", output.status);
        }
        lines.extend(output.stdout);
    }
    Ok(lines)
}
