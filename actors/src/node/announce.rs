//! Publishes this node's record in the replicated state when it has changed.
//!
//! The certificate's fingerprint is not part of it: only [`super::renew`] publishes one, since
//! peers reject a node whose published fingerprint is not that of its certificate in force.

use std::{sync::Arc, time::Duration};

use jaco_net::wireguard::PublicKey;
use jaco_policy::node::writers::NODE_UPDATE_SELF;
use jaco_proto::v1::{self, command::Payload};
use jaco_raftnode::{ForwardingProposer as _, ProposeError, StateReader};

use super::{MemberContext, NodeConfig, config::text, platforms};

/// Delay before the next attempt after a failed one.
const RETRY: Duration = Duration::from_secs(1);

/// Returns the fields of this node's record that differ from its configuration; `None` if none
/// does.
///
/// Neither an idle cluster nor a restart without changes writes anything.
fn changes(
    record: &v1::Node,
    config: &NodeConfig,
    mesh_key: Option<PublicKey>,
    traits: Option<&v1::NodeTraits>,
) -> Option<v1::NodeUpdateSelf> {
    let differs = |stored: &str, actual: String| {
        if stored == actual {
            String::new()
        } else {
            actual
        }
    };
    let update = v1::NodeUpdateSelf {
        hostname: record.hostname.clone(),
        grpc_address: differs(&record.grpc_address, text(config.listen_addr)),
        address: differs(&record.address, text(config.cluster_addr)),
        version: differs(&record.version, config.version.clone()),
        wireguard_pubkey: match mesh_key {
            Some(PublicKey(key)) if record.wireguard_pubkey != key => key.to_vec(),
            Some(_) | None => Vec::new(),
        },
        wg_port: match config.mesh.map(|mesh| mesh.port.into()) {
            Some(port) if record.wg_port != port => port,
            Some(_) | None => 0,
        },
        traits: traits
            .filter(|traits| record.traits.as_ref() != Some(traits))
            .cloned(),
        ..Default::default()
    };
    let unchanged = v1::NodeUpdateSelf {
        hostname: record.hostname.clone(),
        ..Default::default()
    };
    (update != unchanged).then_some(update)
}

/// Updates this node's record; returns once it is up to date or the update is rejected.
pub(super) async fn announce(
    node: Arc<MemberContext>,
    config: NodeConfig,
    mesh_key: Option<PublicKey>,
) {
    let traits = v1::NodeTraits {
        platforms: platforms::found(),
        labels: config.labels.clone(),
    };
    let submitter = node.submitter();
    let mut states = node.raft.subscribe();
    loop {
        let state = states.borrow_and_update().clone();
        let Some(record) = state.nodes.get(&node.hostname) else {
            if states.changed().await.is_err() {
                return;
            }
            continue;
        };
        // A member of an older version would lose them.
        let same_version = state
            .nodes
            .values()
            .all(|node| node.version == config.version);
        let announced = same_version.then_some(&traits);
        let Some(update) = changes(record, &config, mesh_key, announced) else {
            if same_version || states.changed().await.is_err() {
                return;
            }
            continue;
        };
        let command = node.command(NODE_UPDATE_SELF, Payload::NodeUpdateSelf(update));
        match submitter.submit(command).await {
            // The next state may ask for more.
            Ok(_) => {}
            Err(ProposeError::Rejected(error)) => {
                tracing::warn!(subsystem = "daemon/grpc", %error, "own record was not updated");
                return;
            }
            Err(
                ProposeError::NoLeader
                | ProposeError::Busy
                | ProposeError::Unavailable
                | ProposeError::Unknown(_),
            ) => tokio::time::sleep(RETRY).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::config::MeshSettings;
    use jaco_proto::config::WgBackend;

    fn config() -> NodeConfig {
        NodeConfig {
            listen_addr: Some(([10, 0, 0, 1], 7000).into()),
            cluster_addr: Some(([10, 0, 0, 1], 7001).into()),
            version: "1.2.3".to_owned(),
            ..NodeConfig::new("/nowhere".into())
        }
    }

    fn record() -> v1::Node {
        v1::Node {
            hostname: "one".to_owned(),
            address: "10.0.0.1:7001".to_owned(),
            grpc_address: "10.0.0.1:7000".to_owned(),
            version: "1.2.3".to_owned(),
            server_cert_fingerprint: vec![7; 32],
            ..Default::default()
        }
    }

    #[test]
    fn unchanged_restart_writes_nothing() {
        assert_eq!(changes(&record(), &config(), None, None), None);
    }

    #[test]
    fn only_changed_fields_are_sent() {
        let moved = v1::Node {
            address: "10.9.9.9:7001".to_owned(),
            version: String::new(),
            ..record()
        };
        let update = changes(&moved, &config(), None, None).unwrap();
        assert_eq!(update.address, "10.0.0.1:7001");
        assert_eq!(update.version, "1.2.3");
        assert_eq!(update.hostname, "one");
        assert!(update.grpc_address.is_empty() && update.server_cert_fingerprint.is_empty());
    }

    #[test]
    fn traits_are_published_when_they_changed() {
        let traits = v1::NodeTraits {
            platforms: vec!["linux/amd64".to_owned()],
            labels: [("zone".to_owned(), "eu".to_owned())].into(),
        };
        let update = changes(&record(), &config(), None, Some(&traits)).unwrap();
        assert_eq!(update.traits.as_ref(), Some(&traits));
        let mut published = v1::Node {
            traits: Some(traits.clone()),
            ..record()
        };
        assert_eq!(changes(&published, &config(), None, Some(&traits)), None);
        published.traits.as_mut().unwrap().labels.clear();
        assert!(changes(&published, &config(), None, Some(&traits)).is_some());
    }

    #[test]
    fn node_without_addresses_publishes_none() {
        let config = NodeConfig {
            version: "1.2.3".to_owned(),
            ..NodeConfig::new("/nowhere".into())
        };
        assert_eq!(changes(&record(), &config, None, None), None);
    }

    #[test]
    fn mesh_key_and_port_are_published_once() {
        let config = NodeConfig {
            mesh: Some(MeshSettings {
                port: 40000,
                backend: WgBackend::Auto,
            }),
            ..config()
        };
        let key = PublicKey([9; 32]);
        let update = changes(&record(), &config, Some(key), None).unwrap();
        assert_eq!(
            (update.wg_port, &update.wireguard_pubkey[..]),
            (40000, &key.0[..])
        );
        assert!(update.address.is_empty() && update.version.is_empty());
        let published = v1::Node {
            wireguard_pubkey: key.0.to_vec(),
            wg_port: 40000,
            ..record()
        };
        assert_eq!(changes(&published, &config, Some(key), None), None);
    }
}
