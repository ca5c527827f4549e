//! Networks of an engine with the Docker API.

use std::{
    collections::{BTreeMap, HashMap},
    future::Future,
    net::Ipv4Addr,
    ops::RangeInclusive,
    sync::Arc,
    time::Duration,
};

use bollard::{
    Docker,
    errors::Error,
    models::{
        EndpointIpamConfig, EndpointSettings, Ipam, IpamConfig, Network, NetworkConnectRequest,
        NetworkCreateRequest, NetworkDisconnectRequest,
    },
    query_parameters::{RemoveContainerOptionsBuilder, StopContainerOptionsBuilder},
};
use futures::{FutureExt, stream::BoxStream};
use serde::Deserialize;
use serde_json::json;

use super::{
    DockerEngine,
    connection::{Connection, REQUEST_TIMEOUT},
    convert,
    projection::endpoint_settings,
};
use crate::{
    Endpoint, EngineError, EngineNetwork, EngineResult, NetworkEngine, NetworkEvent, NetworkSpec,
    NetworkedContainer, cidr::Cidr, labels::LABEL_CLUSTER,
};

/// Key of the reserved address of a network.
const RESERVED: &str = "jaco-reserved";
const BRIDGE_NAME: &str = "com.docker.network.bridge.name";
const MTU: &str = "com.docker.network.driver.mtu";
const PODMAN_CREATE: &str = "/v4.0.0/libpod/networks/create";

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
        let connection = Arc::clone(&self.connection);
        async move {
            let version: Version = connection.document("/version").await?;
            if version.is_podman() {
                let made: Made = connection
                    .post(PODMAN_CREATE, &podman_request(&spec))
                    .await?;
                return Ok(made.id);
            }
            let made =
                connection.call(|docker| async move { docker.create_network(request(spec)).await });
            Ok(made.await?.id)
        }
        .boxed()
    }

    fn remove(&self, id: String) -> EngineResult<()> {
        let removed = self
            .connection
            .call(|docker| async move { docker.remove_network(&id).await });
        removed.map(EngineError::ignore_not_found).boxed()
    }

    fn attached(&self, network: &EngineNetwork) -> EngineResult<Vec<String>> {
        let (connection, filters) = (Arc::clone(&self.connection), attached_to(network));
        async move {
            let found = connection.summaries(&filters).await?;
            Ok(found.into_iter().map(convert::Summary::into_id).collect())
        }
        .boxed()
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

    fn containers(&self, cluster_id: &str) -> EngineResult<Vec<NetworkedContainer>> {
        let filters = json!({ "label": [format!("{LABEL_CLUSTER}={cluster_id}")] });
        let connection = Arc::clone(&self.connection);
        async move {
            let found = connection.summaries(&filters).await?;
            Ok(found.into_iter().map(convert::networked).collect())
        }
        .boxed()
    }

    fn endpoints(&self, network: &EngineNetwork) -> EngineResult<Vec<Endpoint>> {
        let (connection, filters) = (Arc::clone(&self.connection), attached_to(network));
        let name = network.name.clone();
        async move {
            let found = connection.summaries(&filters).await?.into_iter();
            let mut endpoints = Vec::new();
            for container in found.filter(convert::Summary::is_running) {
                match connection.details(&container.into_id()).await {
                    Ok(details) => endpoints.extend(details.endpoint(&name)),
                    Err(EngineError::NotFound(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(endpoints)
        }
        .boxed()
    }

    fn connect(&self, network: &str, endpoint: Endpoint) -> EngineResult<()> {
        let network = network.to_owned();
        let address = endpoint.address.map(|address| EndpointIpamConfig {
            ipv4_address: Some(address.to_string()),
            ..Default::default()
        });
        let request = NetworkConnectRequest {
            container: endpoint.container,
            endpoint_config: Some(EndpointSettings {
                ipam_config: address,
                ..endpoint_settings(&endpoint.config)
            }),
        };
        self.connection
            .call(|docker| async move { docker.connect_network(&network, request).await })
    }

    fn disconnect(&self, network: String, container: String) -> EngineResult<()> {
        let request = NetworkDisconnectRequest {
            container,
            force: Some(true),
        };
        let detached = self
            .connection
            .call(|docker| async move { docker.disconnect_network(&network, request).await });
        detached.map(EngineError::ignore_not_found).boxed()
    }

    fn network_events(&self) -> BoxStream<'static, Result<NetworkEvent, EngineError>> {
        let filters = [("type", "network")];
        self.connection.events(&filters, convert::network_event)
    }
}

/// Filter of a listing for the containers of a network.
fn attached_to(network: &EngineNetwork) -> serde_json::Value {
    // A container that was never started refers to its networks by name only.
    json!({ "network": [network.id, network.name] })
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Version {
    #[serde(default)]
    components: Vec<Component>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Component {
    name: String,
}

impl Version {
    fn is_podman(&self) -> bool {
        let mut names = self.components.iter().map(|component| &component.name);
        names.any(|name| name.contains("Podman"))
    }
}

#[derive(Deserialize)]
struct Made {
    id: String,
}

/// The request of Podman's own API. Only that one can leave out the name server, which listens on
/// the gateway of a network, where the responder does.
///
/// Source: `POST /libpod/networks/create` of the Podman API.
fn podman_request(spec: &NetworkSpec) -> serde_json::Value {
    let mut subnet = json!({
        "subnet": spec.cidr.to_string(),
        "gateway": spec.cidr.gateway().to_string(),
    });
    if let Some(range) = spec.reserved.map(|address| leases(spec.cidr, address)) {
        subnet["lease_range"] = json!({ "start_ip": range.start(), "end_ip": range.end() });
    }
    json!({
        "name": spec.name,
        "driver": "bridge",
        "network_interface": spec.bridge,
        "subnets": [subnet],
        "dns_enabled": false,
        // The same as of networks that are created through the Docker API.
        "options": { "mtu": spec.mtu.to_string(), "isolate": "true" },
        "labels": spec.labels,
    })
}

/// Addresses between the gateway of `block` and the reserved one.
fn leases(block: Cidr, reserved: Ipv4Addr) -> RangeInclusive<Ipv4Addr> {
    let first = u32::from(block.gateway()).saturating_add(1);
    let last = u32::from(reserved).saturating_sub(1);
    first.into()..=last.into()
}

fn request(spec: NetworkSpec) -> NetworkCreateRequest {
    let options = HashMap::from([
        (BRIDGE_NAME.to_owned(), spec.bridge),
        (MTU.to_owned(), spec.mtu.to_string()),
    ]);
    let block = IpamConfig {
        subnet: Some(spec.cidr.to_string()),
        gateway: Some(spec.cidr.gateway().to_string()),
        auxiliary_addresses: spec
            .reserved
            .map(|address| HashMap::from([(RESERVED.to_owned(), address.to_string())])),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn podman_networks_have_no_name_server() {
        let spec = NetworkSpec {
            reserved: Some("10.244.3.254".parse().unwrap()),
            name: "jaco_app_front".into(),
            bridge: "jaco-0000-1111".into(),
            cidr: "10.244.3.0/24".parse().unwrap(),
            mtu: 1420,
            labels: [("jaco.network".to_owned(), "front".to_owned())].into(),
        };
        let request = podman_request(&spec);
        assert_eq!(request["dns_enabled"], false);
        assert_eq!(request["network_interface"], "jaco-0000-1111");
        assert_eq!(request["subnets"][0]["gateway"], "10.244.3.1");
        let leases = json!({ "start_ip": "10.244.3.2", "end_ip": "10.244.3.253" });
        assert_eq!(request["subnets"][0]["lease_range"], leases);
        assert_eq!(request["labels"]["jaco.network"], "front");
    }

    #[test]
    fn podman_is_recognized_by_its_component() {
        for (name, expected) in [("Podman Engine", true), ("Engine", false)] {
            let version = json!({ "Components": [{ "Name": name, "Version": "5" }] });
            let version: Version = serde_json::from_value(version).unwrap();
            assert_eq!(version.is_podman(), expected, "{name}");
        }
        let bare: Version = serde_json::from_value(json!({ "Version": "1" })).unwrap();
        assert!(!bare.is_podman());
    }
}
