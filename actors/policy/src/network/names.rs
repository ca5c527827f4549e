//! Names of networks in the engine and in the kernel.

use std::fmt;

use jaco_proto::manifest::compose::{SHARED_SCOPE, shared_name};
use sha1::{Digest, Sha1};

/// Network of a service that lists none.
pub const DEFAULT_NETWORK: &str = "_default";

/// Network of a deployment, or one that deployments share. Both fields are needed, because the engine
/// name is ambiguous.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetworkId {
    deployment: String,
    network: String,
}

impl NetworkId {
    /// Creates the id of network `network` in `deployment`; `default` maps to the default network, and
    /// `shared/<name>` to the shared network of this name.
    pub fn new(deployment: impl Into<String>, network: impl Into<String>) -> Self {
        let network = network.into();
        if let Some(name) = shared_name(&network) {
            return Self::new(SHARED_SCOPE, name);
        }
        Self {
            deployment: deployment.into(),
            network: match network.as_str() {
                "default" => DEFAULT_NETWORK.to_owned(),
                _ => network,
            },
        }
    }

    /// Creates the id of the network that deployments share as `name`.
    pub fn shared(name: impl Into<String>) -> Self {
        Self::new(SHARED_SCOPE, name)
    }

    /// Whether deployments share the network.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.deployment == SHARED_SCOPE
    }

    /// Returns the network of `deployment`, or the shared one, that the engine calls `name`.
    #[must_use]
    pub fn of_engine_name(deployment: &str, name: &str) -> Option<Self> {
        let name = name.strip_prefix("jaco_")?;
        let of = |scope: &str| name.strip_prefix(scope)?.strip_prefix('_');
        match (of(deployment), of(SHARED_SCOPE)) {
            (Some(network), _) => Some(Self::new(deployment, network)),
            (None, network) => network.map(Self::shared),
        }
    }

    /// Deployment name, `shared` for a network that deployments share.
    #[must_use]
    pub fn deployment(&self) -> &str {
        &self.deployment
    }

    /// Network name, `_default` for the default network.
    #[must_use]
    pub fn network(&self) -> &str {
        &self.network
    }

    /// Name of the network in the engine.
    #[must_use]
    pub fn engine_name(&self) -> String {
        format!("jaco_{}_{}", self.deployment, self.network)
    }

    /// Preferred name of the Linux bridge; not unique.
    #[must_use]
    pub fn bridge_name(&self) -> String {
        let deployment = sha1_hex(&self.deployment);
        let network = sha1_hex(&self.network);
        format!("jaco-{:.4}-{:.4}", deployment, network)
    }

    /// Name of the Linux bridge if the preferred one is taken.
    #[must_use]
    pub fn fallback_bridge_name(&self) -> String {
        format!(
            "jaco-{:.9}",
            sha1_hex(&format!("{}/{}", self.deployment, self.network))
        )
    }
}

impl fmt::Display for NetworkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.deployment, self.network)
    }
}

pub(super) fn sha1_hex(text: &str) -> String {
    hex::encode(Sha1::digest(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bridge_names_match_test_vectors() {
        let frontend = NetworkId::new("web", "frontend");
        assert_eq!(frontend.bridge_name(), "jaco-ca84-9ecc");
        assert_eq!(
            NetworkId::new("web", "_default").bridge_name(),
            "jaco-ca84-9e74"
        );
        assert_eq!(frontend.fallback_bridge_name().len(), 14);
    }

    #[test]
    fn both_default_network_names_are_equal() {
        let implicit = NetworkId::new("web", "default");
        assert_eq!(implicit, NetworkId::new("web", "_default"));
        assert_eq!(implicit.engine_name(), "jaco_web__default");
    }

    #[test]
    fn shared_networks_are_the_same_for_all_deployments() {
        let proxy = NetworkId::new("web", "shared/proxy");
        assert_eq!(proxy, NetworkId::new("shop", "shared/proxy"));
        assert_eq!(proxy, NetworkId::shared("proxy"));
        assert!(proxy.is_shared() && !NetworkId::new("web", "shared").is_shared());
        assert_eq!(proxy.engine_name(), "jaco_shared_proxy");
        assert_eq!(proxy.to_string(), "shared/proxy");
    }

    #[test]
    fn engine_names_lead_to_their_network() {
        let of = |name| NetworkId::of_engine_name("web", name);
        assert_eq!(
            of("jaco_web__default"),
            Some(NetworkId::new("web", "default"))
        );
        assert_eq!(of("jaco_shared_proxy"), Some(NetworkId::shared("proxy")));
        for other in ["jaco_webshop_front", "jaco_web", "web_front", "bridge"] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn network_ids_distinguish_equal_engine_names() {
        let (a, b) = (NetworkId::new("a", "b_c"), NetworkId::new("a_b", "c"));
        assert_eq!(a.engine_name(), b.engine_name());
        assert_ne!(a, b);
    }
}
