//! Keys of the mappings of a compose file, by the effect of their values.

/// Keys that one kind of mapping may have, besides `x-*`.
#[derive(Debug)]
pub(super) struct Keys {
    /// Read into the [`Project`](super::Project).
    pub(super) used: &'static [&'static str],
    /// Accepted without an effect; a warning names each key that is set.
    pub(super) unused: &'static [&'static str],
    /// Accepted without an effect and without a warning: other tools' documentation and labels.
    pub(super) silent: &'static [&'static str],
}

impl Keys {
    /// Keys that all have an effect.
    const fn used(used: &'static [&'static str]) -> Self {
        Self {
            used,
            unused: &[],
            silent: &[],
        }
    }

    /// Returns every accepted key.
    pub(super) fn all(&self) -> impl Iterator<Item = &'static str> {
        let lists = [self.used, self.unused, self.silent].into_iter();
        lists.flatten().copied()
    }

    /// Whether `key` is accepted.
    pub(super) fn has(&self, key: &str) -> bool {
        key.starts_with("x-") || self.all().any(|known| known == key)
    }
}

pub(super) const TOP_LEVEL: Keys = Keys {
    used: &["networks", "services", "volumes"],
    unused: &["configs", "models", "secrets"],
    silent: &["name", "version"],
};

pub(super) const NETWORK: Keys = Keys {
    used: &[],
    unused: &[
        "attachable",
        "driver",
        "driver_opts",
        "enable_ipv4",
        "enable_ipv6",
        "external",
        "internal",
        "ipam",
        "name",
    ],
    silent: &["labels"],
};

pub(super) const VOLUME: Keys = Keys {
    used: &["external", "name"],
    unused: &["driver", "driver_opts"],
    silent: &["labels"],
};

/// Keys of a service that have no effect, `restart` except for its usual values.
pub(super) const SERVICE_UNUSED: [&str; 3] = ["build", "name", "restart"];

pub(super) const DEPLOY: Keys = Keys {
    used: &["replicas", "resources"],
    unused: &[
        "endpoint_mode",
        "labels",
        "mode",
        "placement",
        "restart_policy",
        "rollback_config",
        "update_config",
    ],
    silent: &[],
};

/// Keys of `update_config` and `rollback_config`; warnings name those mappings as a whole.
pub(super) const ROLLOUT: Keys = Keys {
    used: &[],
    unused: &[
        "delay",
        "failure_action",
        "max_failure_ratio",
        "monitor",
        "order",
        "parallelism",
    ],
    silent: &[],
};

pub(super) const RESOURCES: Keys = Keys::used(&["limits", "reservations"]);

pub(super) const LIMITS: Keys = Keys::used(&["cpus", "memory", "pids"]);

pub(super) const RESERVATIONS: Keys = Keys {
    used: &["memory"],
    unused: &["cpus", "devices", "generic_resources", "pids"],
    silent: &[],
};

pub(super) const HEALTHCHECK: Keys = Keys {
    used: &[
        "disable",
        "interval",
        "retries",
        "start_period",
        "test",
        "timeout",
    ],
    unused: &["start_interval"],
    silent: &[],
};

pub(super) const LOGGING: Keys = Keys::used(&["driver", "options"]);

pub(super) const DEPENDENCY: Keys = Keys {
    used: &["condition", "required"],
    unused: &["restart"],
    silent: &[],
};

pub(super) const ULIMIT: Keys = Keys::used(&["hard", "soft"]);

pub(super) const DEVICE: Keys = Keys::used(&["permissions", "source", "target"]);

pub(super) const GPU: Keys =
    Keys::used(&["capabilities", "count", "device_ids", "driver", "options"]);

pub(super) const MOUNT: Keys = Keys {
    used: &["bind", "read_only", "source", "target", "type", "volume"],
    // `driver` is not a key of compose, but named as the replacement of `volume_driver`.
    unused: &["consistency", "driver", "image", "tmpfs"],
    silent: &[],
};

pub(super) const PORT: Keys = Keys {
    used: &["host_ip", "protocol", "published", "target"],
    unused: &["mode"],
    // Documentation of the entry.
    silent: &["app_protocol", "name"],
};

#[cfg(test)]
mod tests;
