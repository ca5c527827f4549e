//! What networks are called, in the engine and in the kernel.

use std::fmt;

use sha1::{Digest, Sha1};

/// Name of the network a service joins when it names none.
pub const DEFAULT_NETWORK: &str = "_default";

/// A network of a deployment; two fields everywhere, since the engine name is ambiguous.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetworkId {
    deployment: String,
    network: String,
}

impl NetworkId {
    /// The network called `network` in `deployment`; `default` is the default network.
    pub fn new(deployment: impl Into<String>, network: impl Into<String>) -> Self {
        let network = network.into();
        Self {
            deployment: deployment.into(),
            network: match network.as_str() {
                "default" => DEFAULT_NETWORK.to_owned(),
                _ => network,
            },
        }
    }

    /// Deployment name.
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

    /// Name of the Linux bridge; another network may share it.
    #[must_use]
    pub fn bridge_name(&self) -> String {
        let deployment = sha1_hex(&self.deployment);
        let network = sha1_hex(&self.network);
        format!("jaco-{:.4}-{:.4}", deployment, network)
    }

    /// Name of the Linux bridge when the short one is taken.
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

fn sha1_hex(text: &str) -> String {
    let digest = Sha1::digest(text.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bridge_names_match_their_vectors() {
        let frontend = NetworkId::new("web", "frontend");
        assert_eq!(frontend.bridge_name(), "jaco-ca84-9ecc");
        assert_eq!(
            NetworkId::new("web", "_default").bridge_name(),
            "jaco-ca84-9e74"
        );
        assert_eq!(frontend.fallback_bridge_name().len(), 14);
    }

    #[test]
    fn both_names_of_the_default_network_are_one_network() {
        let implicit = NetworkId::new("web", "default");
        assert_eq!(implicit, NetworkId::new("web", "_default"));
        assert_eq!(implicit.engine_name(), "jaco_web__default");
    }

    #[test]
    fn engine_names_are_ambiguous_and_ids_are_not() {
        let (a, b) = (NetworkId::new("a", "b_c"), NetworkId::new("a_b", "c"));
        assert_eq!(a.engine_name(), b.engine_name());
        assert_ne!(a, b);
    }
}
