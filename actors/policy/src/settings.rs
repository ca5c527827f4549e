//! The cluster configuration: settings in the replicated state that hold on every node.
//!
//! [`ClusterSettings::of`] is the typed view of a state. [`KEYS`] lists the settings; the API checks a
//! value with [`Key::canonical`] before it is proposed.

mod cidr;
mod keys;
mod values;

use jaco_state::State;

pub use cidr::Cidr;
pub use keys::{KEYS, Key, key};
pub use values::{Limits, PublicAddress};

/// Longest value, in bytes.
pub const VALUE_BYTES: usize = 8 << 10;
/// Largest number of entries in a list.
pub const LIST_ENTRIES: usize = 128;

/// The settings in force. `Default` is a cluster in which nothing is set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterSettings {
    /// Limits of routes that set none of their own: `ingress.limits`.
    pub ingress_limits: Option<Limits>,
    /// Proxies whose `X-Forwarded-For` is believed: `ingress.trusted_proxies`.
    pub trusted_proxies: Vec<Cidr>,
    /// Where domains must point, if not to the nodes: `ingress.public_addresses`.
    pub public_addresses: Vec<PublicAddress>,
}

impl ClusterSettings {
    /// Returns the settings of a state.
    ///
    /// A value that this version cannot read counts as not set: a newer version may have written it.
    #[must_use]
    pub fn of(state: &State) -> Self {
        let mut settings = Self::default();
        for row in state.cluster_config.values() {
            if let Some(key) = key(&row.key) {
                let _ = (key.apply)(&mut settings, &row.value); // see above
            }
        }
        settings
    }
}

#[cfg(test)]
mod tests;
