//! Networks of an engine with the Docker API.

use std::{
    collections::{BTreeMap, HashMap},
    future::Future,
    sync::Arc,
    time::Duration,
};

use bollard::{
    Docker,
    errors::Error,
    models::{Ipam, IpamConfig, Network, NetworkCreateRequest},
    query_parameters::{
        ListContainersOptionsBuilder, RemoveContainerOptionsBuilder, StopContainerOptionsBuilder,
    },
};
use futures::FutureExt;

use super::{
    DockerEngine,
    connection::{Connection, REQUEST_TIMEOUT},
};
use crate::{EngineError, EngineNetwork, EngineResult, NetworkEngine, NetworkSpec};

const BRIDGE_NAME: &str = "com.docker.network.bridge.name";
const MTU: &str = "com.docker.network.driver.mtu";

impl Connection {
    /// Sends a request in a future that is independent of `self`.
    fn call<T, F>(
        self: &Arc<Self>,
        request: impl FnOnce(Arc<Docker>) -> F + Send + 'static,
    ) -> EngineResult<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send,
    {
        let connection = Arc::clone(self);
        async move {
            let answer = request(connection.client().await?).await;
            connection.map_result(answer)
        }
        .boxed()
    }
}

impl NetworkEngine for DockerEngine {
    fn list(&self) -> EngineResult<Vec<EngineNetwork>> {
        self.connection.call(|docker| async move {
            let networks = docker.list_networks(None).await?;
            Ok(networks.into_iter().map(from_api).collect())
        })
    }

    fn create(&self, spec: NetworkSpec) -> EngineResult<String> {
        self.connection
            .call(|docker| async move { Ok(docker.create_network(request(spec)).await?.id) })
    }

    fn remove(&self, id: String) -> EngineResult<()> {
        let removed = self
            .connection
            .call(|docker| async move { docker.remove_network(&id).await });
        removed.map(EngineError::ignore_not_found).boxed()
    }

    fn attached(&self, network: &EngineNetwork) -> EngineResult<Vec<String>> {
        // A container that was never started refers to its networks by name only.
        let filters = HashMap::from([("network", vec![network.id.clone(), network.name.clone()])]);
        self.connection.call(move |docker| async move {
            let options = ListContainersOptionsBuilder::new()
                .all(true)
                .filters(&filters)
                .build();
            let containers = docker.list_containers(Some(options)).await?;
            Ok(containers
                .into_iter()
                .filter_map(|found| found.id)
                .collect())
        })
    }

    fn evict(&self, container: String, grace: Duration) -> EngineResult<()> {
        let seconds = i32::try_from(grace.as_secs()).unwrap_or(i32::MAX);
        let stop = StopContainerOptionsBuilder::new().t(seconds).build();
        let remove = RemoveContainerOptionsBuilder::new()
            .force(true)
            .v(true)
            .build();
        let (this, id) = (Arc::clone(&self.connection), container.clone());
        let stopped = self.connection.call(move |docker| async move {
            let patient = Docker::clone(&docker).with_timeout(REQUEST_TIMEOUT + grace);
            patient.stop_container(&id, Some(stop)).await
        });
        async move {
            EngineError::ignore_not_found(stopped.await)?;
            let removed = this.call(move |docker| async move {
                docker.remove_container(&container, Some(remove)).await
            });
            EngineError::ignore_not_found(removed.await)
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

fn from_api(network: Network) -> EngineNetwork {
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
