//! Publishes this node's record in the replicated state when it has changed.
//!
//! The certificate's fingerprint is not part of it: only [`super::renew`] publishes one, since
//! peers reject a node whose published fingerprint is not that of its certificate in force.

use std::{sync::Arc, time::Duration};

use jaco_policy::node::writers::NODE_UPDATE_SELF;
use jaco_proto::v1::{self, command::Payload};
use jaco_raftnode::{ForwardingProposer as _, ProposeError, StateReader};

use super::{MemberContext, NodeConfig, config::text};

/// Delay before the next attempt after a failed one.
const RETRY: Duration = Duration::from_secs(1);

/// Returns the fields of this node's record that differ from its configuration; `None` if none
/// does.
///
/// Neither an idle cluster nor a restart without changes writes anything.
fn changes(record: &v1::Node, config: &NodeConfig) -> Option<v1::NodeUpdateSelf> {
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
        ..Default::default()
    };
    let unchanged = v1::NodeUpdateSelf {
        hostname: record.hostname.clone(),
        ..Default::default()
    };
    (update != unchanged).then_some(update)
}

/// Updates this node's record; returns once it is up to date or the update is rejected.
pub(super) async fn announce(node: Arc<MemberContext>, config: NodeConfig) {
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
        let Some(update) = changes(record, &config) else {
            return;
        };
        let command = node.command(NODE_UPDATE_SELF, Payload::NodeUpdateSelf(update));
        match submitter.submit(command).await {
            Ok(_) => return,
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
        assert_eq!(changes(&record(), &config()), None);
    }

    #[test]
    fn only_changed_fields_are_sent() {
        let moved = v1::Node {
            address: "10.9.9.9:7001".to_owned(),
            version: String::new(),
            ..record()
        };
        let update = changes(&moved, &config()).unwrap();
        assert_eq!(update.address, "10.0.0.1:7001");
        assert_eq!(update.version, "1.2.3");
        assert_eq!(update.hostname, "one");
        assert!(update.grpc_address.is_empty() && update.server_cert_fingerprint.is_empty());
    }

    #[test]
    fn node_without_addresses_publishes_none() {
        let config = NodeConfig {
            version: "1.2.3".to_owned(),
            ..NodeConfig::new("/nowhere".into())
        };
        assert_eq!(changes(&record(), &config), None);
    }
}
