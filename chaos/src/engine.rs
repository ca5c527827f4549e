//! The containers that really run, queried from the container engine itself.

use std::{
    collections::{BTreeMap, HashMap},
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use bollard::{
    API_DEFAULT_VERSION, Docker,
    errors::Error,
    models::ContainerSummary,
    query_parameters::{
        CreateImageOptions, InspectContainerOptions, KillContainerOptions, ListContainersOptions,
        ListImagesOptions, ListNetworksOptions, ListVolumesOptions, RemoveContainerOptions,
        RemoveImageOptions, RemoveVolumeOptions,
    },
};
use bytes::Bytes;
use futures::TryStreamExt;
use http_body_util::{Either, Full};

/// Image that holds only this machine's static busybox.
pub const IMAGE: &str = "jaco-test/busybox:1";
/// Label of all objects of a cluster, with its id.
pub const LABEL_CLUSTER: &str = "jaco.cluster_id";
/// Label of a container with its replica's id.
pub const LABEL_REPLICA: &str = "jaco.replica_id";

const BUSYBOX: &str = "/bin/busybox";
const APPLETS: [&str; 6] = ["sh", "sleep", "true", "false", "cat", "echo"];
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The engine's socket: `JACO_DOCKER_SOCKET`, or Docker's default.
#[must_use]
pub fn socket() -> PathBuf {
    std::env::var_os("JACO_DOCKER_SOCKET")
        .map_or_else(|| "/var/run/docker.sock".into(), PathBuf::from)
}

/// A container of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Replica it is labelled with.
    pub replica: String,
    /// Engine id.
    pub id: String,
    /// Start time of its process; equal text means the same process.
    pub started_at: String,
    /// Whether its process runs.
    pub running: bool,
    /// Id of its process; 0 unless it runs.
    pub pid: u32,
    /// Its address on each engine network that it is attached to.
    pub addresses: BTreeMap<String, Ipv4Addr>,
}

/// The container engine of this machine.
#[derive(Clone, Debug)]
pub struct Engine(Docker);

impl Engine {
    /// Connects to the engine, and imports [`IMAGE`] unless it exists.
    ///
    /// # Errors
    /// Without an engine: tests fail then, because a skipped test proves nothing.
    pub async fn connect() -> Result<Self> {
        Self::connect_to(&socket()).await
    }

    /// Connects to the engine behind `socket`, like [`Engine::connect`].
    ///
    /// # Errors
    /// When no engine answers there.
    pub async fn connect_to(socket: &Path) -> Result<Self> {
        let engine = Self::open_at(socket)?;
        engine.import().await.context("import the test image")?;
        Ok(engine)
    }

    fn open() -> Result<Self> {
        Self::open_at(&socket())
    }

    fn open_at(socket: &Path) -> Result<Self> {
        let docker = Docker::connect_with_unix(
            &socket.to_string_lossy(),
            REQUEST_TIMEOUT.as_secs(),
            API_DEFAULT_VERSION,
        );
        Ok(Self(docker.with_context(|| {
            format!("no container engine at {}", socket.display())
        })?))
    }

    async fn docker(&self) -> Result<Docker> {
        self.0
            .clone()
            .negotiate_version()
            .await
            .context("the container engine does not answer")
    }

    async fn import(&self) -> Result<()> {
        // Concurrent tests may both import it, which creates the same image twice.
        if self.docker().await?.inspect_image(IMAGE).await.is_ok() {
            return Ok(());
        }
        self.import_as(IMAGE, "the image of all tests").await
    }

    /// Imports an image of busybox whose file `/about` holds `about`.
    pub(crate) async fn import_as(&self, image: &str, about: &str) -> Result<()> {
        self.import_files(image, about, &BTreeMap::new()).await
    }

    /// Imports an image of busybox with more executable files, by their paths without a leading
    /// slash.
    pub(crate) async fn import_files(
        &self,
        image: &str,
        about: &str,
        files: &BTreeMap<String, Vec<u8>>,
    ) -> Result<()> {
        let docker = self.docker().await?;
        let options = CreateImageOptions {
            from_src: Some("-".to_owned()),
            repo: Some(image.to_owned()),
            changes: vec!["ENV PATH=/bin".to_owned()],
            ..Default::default()
        };
        let body = Either::Left(Full::new(Bytes::from(archive(about, files)?)));
        let progress = docker.create_image(Some(options), Some(body), None);
        progress.try_collect::<Vec<_>>().await?;
        Ok(())
    }

    /// Current tags and digests of the image that a container was created from.
    ///
    /// # Errors
    /// When there is no such container, or its image was removed.
    pub async fn image_names(&self, container: &str) -> Result<Vec<String>> {
        let docker = self.docker().await?;
        let container = docker
            .inspect_container(container, None::<InspectContainerOptions>)
            .await?;
        let image = container.image.context("a container without an image")?;
        let image = docker.inspect_image(&image).await?;
        let names = [image.repo_tags, image.repo_digests].into_iter().flatten();
        Ok(names.flatten().collect())
    }

    /// Pulls an image without credentials.
    ///
    /// # Errors
    /// When the engine or the registry refuses.
    pub async fn pull(&self, image: &str) -> Result<()> {
        let options = CreateImageOptions {
            from_image: Some(image.to_owned()),
            ..Default::default()
        };
        let docker = self.docker().await?;
        let progress = docker.create_image(Some(options), None, None);
        progress.try_collect::<Vec<_>>().await?;
        Ok(())
    }

    /// Removes an image; succeeds if there is none.
    ///
    /// # Errors
    /// When the engine refuses.
    pub async fn remove_image(&self, image: &str) -> Result<()> {
        let options = RemoveImageOptions {
            force: true,
            ..Default::default()
        };
        let docker = self.docker().await?;
        let removed = docker.remove_image(image, Some(options), None);
        match removed.await {
            Ok(_) => Ok(()),
            Err(Error::DockerResponseServerError {
                status_code: 404, ..
            }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes every image of the registry at a port of this machine, for callers that cannot
    /// await, such as a `Drop`.
    ///
    /// # Errors
    /// The first failed removal, after all were tried.
    pub fn remove_images_blocking(port: u16) -> Result<()> {
        let host = format!(":{port}/");
        blocking(async move || {
            let engine = Self::open()?;
            let options = ListImagesOptions {
                all: true,
                digests: true,
                ..Default::default()
            };
            let mut refused = Ok(());
            for image in engine.docker().await?.list_images(Some(options)).await? {
                let mut names = image.repo_tags.iter().chain(&image.repo_digests);
                if names.any(|name| name.contains(&host)) {
                    refused = refused.and(engine.remove_image(&image.id).await);
                }
            }
            refused
        })
    }

    /// All containers of a cluster, sorted by replica and then by id.
    ///
    /// # Errors
    /// When the engine refuses.
    pub async fn containers(&self, cluster_id: &str) -> Result<Vec<Container>> {
        let docker = self.docker().await?;
        let mut found = Vec::new();
        for summary in listed(&docker, cluster_id).await? {
            let labels = summary.labels.unwrap_or_default();
            let (Some(id), Some(replica)) = (summary.id, labels.get(LABEL_REPLICA)) else {
                continue;
            };
            // Skip a container that was removed between the two calls.
            let Ok(seen) = docker
                .inspect_container(&id, None::<InspectContainerOptions>)
                .await
            else {
                continue;
            };
            let state = seen.state.unwrap_or_default();
            let networks = seen.network_settings.and_then(|s| s.networks);
            let addresses = networks.unwrap_or_default().into_iter();
            found.push(Container {
                pid: state.pid.and_then(|pid| pid.try_into().ok()).unwrap_or(0),
                addresses: addresses
                    .filter_map(|(name, end)| Some((name, end.ip_address?.parse().ok()?)))
                    .collect(),
                replica: replica.clone(),
                id,
                started_at: state.started_at.unwrap_or_default(),
                running: state.running.unwrap_or_default(),
            });
        }
        found.sort_by(|a, b| (&a.replica, &a.id).cmp(&(&b.replica, &b.id)));
        Ok(found)
    }

    /// The one container of a replica.
    ///
    /// # Errors
    /// When there is none, or more than one.
    pub async fn container(&self, cluster_id: &str, replica: &str) -> Result<Container> {
        let mut found = self.containers(cluster_id).await?;
        found.retain(|container| container.replica == replica);
        match <[Container; 1]>::try_from(found) {
            Ok([one]) => Ok(one),
            Err(found) => bail!("{} containers of {replica}", found.len()),
        }
    }

    /// Kills the process of a container.
    ///
    /// # Errors
    /// When it does not run.
    pub async fn kill(&self, container: &str) -> Result<()> {
        self.docker()
            .await?
            .kill_container(container, None::<KillContainerOptions>)
            .await?;
        Ok(())
    }

    /// Removes a container behind the daemon's back.
    ///
    /// # Errors
    /// When the engine refuses.
    pub async fn remove(&self, container: &str) -> Result<()> {
        let docker = self.docker().await?;
        Ok(docker.remove_container(container, Some(forced())).await?)
    }

    /// Subnets of the engine's networks.
    ///
    /// # Errors
    /// When the engine refuses.
    pub async fn subnets(&self) -> Result<Vec<String>> {
        let networks = self
            .docker()
            .await?
            .list_networks(None::<ListNetworksOptions>)
            .await?;
        let blocks = networks
            .into_iter()
            .filter_map(|network| network.ipam?.config);
        Ok(blocks.flatten().filter_map(|block| block.subnet).collect())
    }

    /// Removes all objects of a cluster: containers, networks, volumes.
    ///
    /// # Errors
    /// The first failed removal, after all were tried.
    pub async fn sweep(&self, cluster_id: &str) -> Result<()> {
        let docker = self.docker().await?;
        let mut refused = Ok(());
        for summary in listed(&docker, cluster_id).await? {
            let id = summary.id.unwrap_or_default();
            let removed = docker.remove_container(&id, Some(forced())).await;
            refused = refused.and(removed.map_err(anyhow::Error::from));
        }
        let filters = Some(by_cluster(cluster_id));
        let options = ListNetworksOptions { filters };
        for network in docker.list_networks(Some(options)).await? {
            let removed = docker.remove_network(&network.id.unwrap_or_default()).await;
            refused = refused.and(removed.map_err(anyhow::Error::from));
        }
        let options = ListVolumesOptions {
            filters: Some(by_cluster(cluster_id)),
        };
        let volumes = docker.list_volumes(Some(options)).await?.volumes;
        for volume in volumes.unwrap_or_default() {
            let removed = docker
                .remove_volume(&volume.name, None::<RemoveVolumeOptions>)
                .await;
            refused = refused.and(removed.map_err(anyhow::Error::from));
        }
        refused
    }

    /// [`Engine::sweep`] for callers that cannot await, such as a `Drop`.
    ///
    /// # Errors
    /// The errors of [`Engine::sweep`].
    pub fn sweep_blocking(cluster_id: &str) -> Result<()> {
        let cluster_id = cluster_id.to_owned();
        blocking(async move || Self::open()?.sweep(&cluster_id).await)
    }

    pub(crate) async fn client(&self) -> Result<Docker> {
        self.docker().await
    }
}

/// Runs async work where the caller cannot await.
fn blocking(work: impl AsyncFnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    // A runtime cannot be entered from within another one, so this one gets its own thread.
    let working = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(work())
    });
    working
        .join()
        .unwrap_or_else(|_| bail!("cleaning up panicked"))
}

/// Options that remove a container even while it runs, with its anonymous volumes.
fn forced() -> RemoveContainerOptions {
    RemoveContainerOptions {
        force: true,
        v: true,
        link: false,
    }
}

async fn listed(docker: &Docker, cluster_id: &str) -> Result<Vec<ContainerSummary>> {
    let options = ListContainersOptions {
        all: true,
        filters: Some(by_cluster(cluster_id)),
        ..Default::default()
    };
    Ok(docker.list_containers(Some(options)).await?)
}

pub(crate) fn by_cluster(cluster_id: &str) -> HashMap<String, Vec<String>> {
    HashMap::from([(
        "label".to_owned(),
        vec![format!("{LABEL_CLUSTER}={cluster_id}")],
    )])
}

/// A tar archive with `/bin/busybox`, links to it, a file `/about`, and more executable files.
fn archive(about: &str, files: &BTreeMap<String, Vec<u8>>) -> Result<Vec<u8>> {
    let busybox = std::fs::read(BUSYBOX)
        .with_context(|| format!("{BUSYBOX} is needed; install busybox-static"))?;
    let mut tar = Vec::new();
    entry(&mut tar, "about", b'0', "", about.as_bytes());
    entry(&mut tar, "bin/busybox", b'0', "", &busybox);
    for applet in APPLETS {
        entry(&mut tar, &format!("bin/{applet}"), b'2', "busybox", &[]);
    }
    for (path, content) in files {
        entry(&mut tar, path, b'0', "", content);
    }
    entry(&mut tar, "tmp/", b'5', "", &[]);
    tar.resize(tar.len() + 1024, 0);
    Ok(tar)
}

/// Appends one entry in the ustar format (POSIX.1-1988).
fn entry(tar: &mut Vec<u8>, name: &str, kind: u8, link: &str, content: &[u8]) {
    let mut header = [0_u8; 512];
    let mut put =
        |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000755");
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{:011o}", content.len()));
    put(136, "00000000000");
    put(148, "        ");
    put(157, link);
    put(257, "ustar\x0000");
    header[156] = kind;
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    tar.extend_from_slice(&header);
    tar.extend_from_slice(content);
    tar.resize(tar.len().next_multiple_of(512), 0);
}
