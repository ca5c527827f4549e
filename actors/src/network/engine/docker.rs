//! Networks of an engine that speaks the Docker API.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bollard::{
    API_DEFAULT_VERSION, Docker,
    errors::Error,
    models::{Ipam, IpamConfig, Network, NetworkCreateRequest},
    query_parameters::{
        ListContainersOptionsBuilder, RemoveContainerOptionsBuilder, StopContainerOptionsBuilder,
    },
};
use futures::FutureExt;
use tokio::sync::OnceCell;

use super::{EngineError, EngineNetwork, EngineResult, NetworkEngine, NetworkSpec};

const BRIDGE_NAME: &str = "com.docker.network.bridge.name";
const MTU: &str = "com.docker.network.driver.mtu";
/// Longest time of one request, a stop's grace not included.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);

/// An engine behind a unix socket; connects when it is first needed, and again after that
/// failed, so a daemon may start before its engine.
#[derive(Clone)]
pub struct DockerNetworks {
    socket: PathBuf,
    client: Arc<OnceCell<Docker>>,
}

impl DockerNetworks {
    /// The engine that listens on `socket`.
    pub fn new(socket: impl AsRef<Path>) -> Self {
        Self {
            socket: socket.as_ref().to_owned(),
            client: Arc::default(),
        }
    }

    async fn client(&self) -> Result<Docker, EngineError> {
        let connect = || async {
            let socket = self.socket.to_string_lossy();
            let timeout = REQUEST_TIMEOUT.as_secs();
            let docker = Docker::connect_with_unix(&socket, timeout, API_DEFAULT_VERSION)?;
            docker.negotiate_version().await
        };
        let client = self.client.get_or_try_init(connect).await;
        client.cloned().map_err(engine_error)
    }
}

impl NetworkEngine for DockerNetworks {
    fn list(&self) -> EngineResult<Vec<EngineNetwork>> {
        let this = self.clone();
        async move {
            let networks = this.client().await?.list_networks(None).await;
            Ok(networks
                .map_err(engine_error)?
                .into_iter()
                .map(shown)
                .collect())
        }
        .boxed()
    }

    fn create(&self, spec: NetworkSpec) -> EngineResult<String> {
        let this = self.clone();
        async move {
            let created = this.client().await?.create_network(request(spec)).await;
            Ok(created.map_err(engine_error)?.id)
        }
        .boxed()
    }

    fn remove(&self, id: String) -> EngineResult<()> {
        let this = self.clone();
        async move { absent_is_fine(this.client().await?.remove_network(&id).await) }.boxed()
    }

    fn attached(&self, network: &EngineNetwork) -> EngineResult<Vec<String>> {
        let this = self.clone();
        // A container that was never started knows its networks by name only.
        let filters = HashMap::from([("network", vec![network.id.clone(), network.name.clone()])]);
        async move {
            let options = ListContainersOptionsBuilder::new()
                .all(true)
                .filters(&filters)
                .build();
            let containers = this.client().await?.list_containers(Some(options)).await;
            let containers = containers.map_err(engine_error)?;
            Ok(containers
                .into_iter()
                .filter_map(|found| found.id)
                .collect())
        }
        .boxed()
    }

    fn evict(&self, container: String, grace: Duration) -> EngineResult<()> {
        let this = self.clone();
        async move {
            let docker = this.client().await?;
            let seconds = i32::try_from(grace.as_secs()).unwrap_or(i32::MAX);
            let stop = StopContainerOptionsBuilder::new().t(seconds).build();
            absent_is_fine(docker.stop_container(&container, Some(stop)).await)?;
            let remove = RemoveContainerOptionsBuilder::new()
                .force(true)
                .v(true)
                .build();
            absent_is_fine(docker.remove_container(&container, Some(remove)).await)
        }
        .boxed()
    }
}

fn request(spec: NetworkSpec) -> NetworkCreateRequest {
    let options = HashMap::from([
        (BRIDGE_NAME.to_owned(), spec.bridge),
        (MTU.to_owned(), spec.mtu.to_string()),
    ]);
    let block = IpamConfig {
        subnet: Some(spec.cidr.to_string()),
        gateway: Some(spec.cidr.gateway().to_string()),
        ..Default::default()
    };
    NetworkCreateRequest {
        name: spec.name,
        driver: Some("bridge".to_owned()),
        ipam: Some(Ipam {
            config: Some(vec![block]),
            ..Default::default()
        }),
        options: Some(options),
        labels: Some(spec.labels.into_iter().collect()),
        ..Default::default()
    }
}

fn shown(network: Network) -> EngineNetwork {
    let blocks = network
        .ipam
        .and_then(|ipam| ipam.config)
        .unwrap_or_default();
    EngineNetwork {
        id: network.id.unwrap_or_default(),
        name: network.name.unwrap_or_default(),
        labels: BTreeMap::from_iter(network.labels.unwrap_or_default()),
        subnets: blocks
            .into_iter()
            .filter_map(|block| block.subnet)
            .collect(),
        bridge: network.options.unwrap_or_default().remove(BRIDGE_NAME),
    }
}

fn absent_is_fine(result: Result<(), Error>) -> Result<(), EngineError> {
    match result {
        // 304: a container that has stopped already.
        Err(Error::DockerResponseServerError {
            status_code: 304 | 404,
            ..
        }) => Ok(()),
        other => other.map_err(engine_error),
    }
}

fn engine_error(error: Error) -> EngineError {
    match error {
        Error::DockerResponseServerError {
            status_code,
            message,
        } => EngineError::Refused {
            status: status_code,
            message,
        },
        other => EngineError::Unreachable(other.to_string()),
    }
}
