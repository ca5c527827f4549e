//! Keys of the mappings of a compose file, by the effect of their values.
//!
//! The checks, the warnings and the tables in `docs/compose.md` all read these lists.

mod reference;
mod service;

pub(super) use reference::reference;
pub(super) use service::SERVICE;

/// Effect of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Read into the [`Project`](super::Project).
    Kept,
    /// Resolved by `jaco apply` before it sends the document; daemons refuse it.
    Client,
    /// Accepted without an effect; a warning names the key and this reason.
    Noted(&'static str),
    /// Accepted without an effect and without a warning: documentation, or a request for what
    /// happens anyway.
    Silent,
}

/// A key of one kind of mapping.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) effect: Effect,
    /// Description for `docs/compose.md`; empty where the name says it.
    pub(super) about: &'static str,
}

/// Keys that one kind of mapping may have, besides `x-*`, sorted by name.
#[derive(Debug)]
pub(super) struct Keys {
    /// Path of the mapping, for the documentation.
    pub(super) path: &'static str,
    pub(super) keys: &'static [Key],
}

const fn kept(name: &'static str, about: &'static str) -> Key {
    let effect = Effect::Kept;
    Key {
        name,
        effect,
        about,
    }
}

const fn client(name: &'static str, about: &'static str) -> Key {
    let effect = Effect::Client;
    Key {
        name,
        effect,
        about,
    }
}

const fn noted(name: &'static str, reason: &'static str) -> Key {
    Key {
        name,
        effect: Effect::Noted(reason),
        about: reason,
    }
}

const fn silent(name: &'static str, about: &'static str) -> Key {
    let effect = Effect::Silent;
    Key {
        name,
        effect,
        about,
    }
}

impl Keys {
    /// Returns the names of the accepted keys.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.keys.iter().map(|key| key.name)
    }

    /// Whether `key` is accepted.
    pub(super) fn has(&self, key: &str) -> bool {
        key.starts_with("x-") || self.effect(key).is_some()
    }

    /// Returns the effect of a key.
    pub(super) fn effect(&self, key: &str) -> Option<Effect> {
        let found = self.keys.iter().find(|known| known.name == key);
        found.map(|known| known.effect)
    }

    /// Returns the keys without an effect, each with the reason.
    pub(super) fn noted(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.keys.iter().filter_map(|key| match key.effect {
            Effect::Noted(reason) => Some((key.name, reason)),
            Effect::Kept | Effect::Client | Effect::Silent => None,
        })
    }
}

/// Every list, in the order of the documentation.
const ALL: [&Keys; 32] = [
    &TOP_LEVEL,
    &NETWORK,
    &VOLUME,
    &CONFIG,
    &SECRET,
    &SERVICE,
    &SERVICE_NETWORK,
    &DEPENDENCY,
    &HOOK,
    &HEALTHCHECK,
    &LOGGING,
    &BLKIO,
    &BLKIO_WEIGHT,
    &BLKIO_RATE,
    &ULIMIT,
    &DEVICE,
    &GPU,
    &PORT,
    &MOUNT,
    &MOUNT_BIND,
    &MOUNT_VOLUME,
    &MOUNT_TMPFS,
    &MOUNT_IMAGE,
    &FILE_REFERENCE,
    &DEPLOY,
    &PLACEMENT,
    &RESTART_POLICY,
    &UPDATE,
    &ROLLBACK,
    &RESOURCES,
    &LIMITS,
    &RESERVATIONS,
];

const AS_UPDATE: &str = "a rollback follows the `update_config` of the revision that it restores";
const ENGINE_ONLY: &str =
    "containers are reached through JACO's networks, not through the engine's";
const ADDRESSES: &str = "JACO assigns addresses itself";

pub(super) const TOP_LEVEL: Keys = Keys {
    path: "",
    keys: &[
        kept(
            "configs",
            "files that services mount; see configs and secrets",
        ),
        client(
            "include",
            "further compose files, added as projects of their own",
        ),
        noted("jobs", "only services become containers"),
        noted("models", "JACO runs no models"),
        silent("name", "the deployment's name is in `jaco.yaml`"),
        kept("networks", "networks of the deployment"),
        kept(
            "secrets",
            "secret files that services mount; see configs and secrets",
        ),
        kept("services", "the containers"),
        silent("version", "obsolete in compose too"),
        kept("volumes", "named volumes"),
    ],
};

pub(super) const NETWORK: Keys = Keys {
    path: "networks.*",
    keys: &[
        noted("attachable", ENGINE_ONLY),
        noted("driver", ENGINE_ONLY),
        noted("driver_opts", ENGINE_ONLY),
        noted("enable_ipv4", ADDRESSES),
        noted("enable_ipv6", ADDRESSES),
        kept(
            "external",
            "all deployments that name it share the network, which exists as long as one does",
        ),
        kept(
            "internal",
            "its containers reach each other on every node, and nothing else",
        ),
        noted("ipam", ADDRESSES),
        silent("labels", "not copied to the engine's network"),
        kept(
            "name",
            "name of an external one; others are named by their key",
        ),
    ],
};

pub(super) const VOLUME: Keys = Keys {
    path: "volumes.*",
    keys: &[
        kept("driver", "driver of a volume that does not exist yet"),
        kept("driver_opts", "options of the driver"),
        kept("external", "the volume is not named after the deployment"),
        kept("labels", "labels of a volume that does not exist yet"),
        kept("name", "name of the volume in the engine"),
    ],
};

const NO_TEMPLATE: &str = "contents are mounted as they are";
const NO_DRIVER: &str = "the cluster itself stores secrets";

pub(super) const CONFIG: Keys = Keys {
    path: "configs.*",
    keys: &[
        kept("content", "the content itself"),
        kept("environment", "a variable of the client with the content"),
        kept("external", "created with `jaco config create`"),
        kept(
            "file",
            "a file of the client with the content, at most 1 MiB",
        ),
        silent("labels", "no object of the engine has them"),
        silent(
            "name",
            "name of an external one; others are named by their key",
        ),
        noted("template_driver", NO_TEMPLATE),
    ],
};

pub(super) const SECRET: Keys = Keys {
    path: "secrets.*",
    keys: &[
        kept(
            "content",
            "the value itself, which the client takes out of the document",
        ),
        noted("driver", NO_DRIVER),
        noted("driver_opts", NO_DRIVER),
        kept("environment", "a variable of the client with the value"),
        kept("external", "created with `jaco secret create --cluster`"),
        kept("file", "a file of the client with the value, at most 1 MiB"),
        silent("labels", "no object of the engine has them"),
        silent(
            "name",
            "name of an external one; others are named by their key",
        ),
        noted("template_driver", NO_TEMPLATE),
    ],
};

pub(super) const FILE_REFERENCE: Keys = Keys {
    path: "services.*.configs.*",
    keys: &[
        kept("gid", "group of the file, a number; 0 by default"),
        kept("mode", "permissions; `0444` by default"),
        kept("source", "key of the config or secret"),
        kept(
            "target",
            "path in the container; relative to `/`, or to `/run/secrets` for a secret",
        ),
        kept("uid", "owner of the file, a number; 0 by default"),
    ],
};

pub(super) const SERVICE_NETWORK: Keys = Keys {
    path: "services.*.networks.*",
    keys: &[
        kept("aliases", "further names of the service on this network"),
        noted("driver_opts", ENGINE_ONLY),
        kept(
            "gw_priority",
            "the network with the highest is the default route, from engine 28 on",
        ),
        noted("interface_name", "the engine names the interfaces"),
        noted("ipv4_address", ADDRESSES),
        noted("ipv6_address", ADDRESSES),
        noted("link_local_ips", ADDRESSES),
        noted("mac_address", ADDRESSES),
        kept("priority", "order in which networks are attached"),
        noted(
            "use_service_name_alias",
            "a service always has its name on its networks",
        ),
    ],
};

pub(super) const DEPLOY: Keys = Keys {
    path: "services.*.deploy",
    keys: &[
        noted(
            "endpoint_mode",
            "a name always leads to the addresses of the replicas",
        ),
        silent("labels", "labels of the service, which no container has"),
        kept(
            "mode",
            "`replicated` or `global`, unless `jaco.yaml` places the service",
        ),
        kept("placement", "see placement"),
        kept("replicas", "number of replicas unless `jaco.yaml` has one"),
        kept("resources", "limits; see below"),
        kept("restart_policy", "replaces `restart`; see restarts"),
        noted("rollback_config", AS_UPDATE),
        kept("update_config", "rolling updates; see rollouts"),
    ],
};

pub(super) const PLACEMENT: Keys = Keys {
    path: "services.*.deploy.placement",
    keys: &[
        kept("constraints", "conditions on nodes; see placement"),
        kept("max_replicas_per_node", "1 or more"),
        noted("preferences", "replicas are spread over all nodes"),
    ],
};

pub(super) const RESTART_POLICY: Keys = Keys {
    path: "services.*.deploy.restart_policy",
    keys: &[
        kept("condition", "`any`, `on-failure` or `none`"),
        kept("delay", "time before each restart"),
        kept("max_attempts", "restarts in a row, three by default"),
        noted(
            "window",
            "failures are forgotten as soon as the replica runs",
        ),
    ],
};

pub(super) const UPDATE: Keys = Keys {
    path: "services.*.deploy.update_config",
    keys: &[
        kept("delay", "pause after each replica, none by default"),
        kept(
            "failure_action",
            "`rollback` (the default), `pause` or `continue`",
        ),
        noted("max_failure_ratio", "one failed replica ends a rollout"),
        kept(
            "monitor",
            "time for which the first new replica and each last one must run, 5 s by default",
        ),
        noted("order", "the old container is stopped first"),
        kept(
            "parallelism",
            "replicas that are replaced at a time, 1 by default; 0: all of them",
        ),
    ],
};

/// Warnings name this mapping as a whole.
pub(super) const ROLLBACK: Keys = Keys {
    path: "services.*.deploy.rollback_config",
    keys: &[
        noted("delay", AS_UPDATE),
        noted("failure_action", AS_UPDATE),
        noted("max_failure_ratio", AS_UPDATE),
        noted("monitor", AS_UPDATE),
        noted("order", AS_UPDATE),
        noted("parallelism", AS_UPDATE),
    ],
};

pub(super) const RESOURCES: Keys = Keys {
    path: "services.*.deploy.resources",
    keys: &[kept("limits", ""), kept("reservations", "")],
};

pub(super) const LIMITS: Keys = Keys {
    path: "services.*.deploy.resources.limits",
    keys: &[kept("cpus", ""), kept("memory", ""), kept("pids", "")],
};

const NO_RESERVATION: &str = "placement does not count reserved resources";

pub(super) const RESERVATIONS: Keys = Keys {
    path: "services.*.deploy.resources.reservations",
    keys: &[
        noted("cpus", NO_RESERVATION),
        kept("devices", "accelerators, as in `gpus`"),
        noted("generic_resources", NO_RESERVATION),
        kept("memory", ""),
        noted("pids", NO_RESERVATION),
    ],
};

pub(super) const HEALTHCHECK: Keys = Keys {
    path: "services.*.healthcheck",
    keys: &[
        kept("disable", ""),
        kept("interval", ""),
        kept("retries", ""),
        noted("start_interval", "the interval applies from the start on"),
        kept("start_period", ""),
        kept("test", ""),
        kept("timeout", ""),
    ],
};

pub(super) const LOGGING: Keys = Keys {
    path: "services.*.logging",
    keys: &[kept("driver", ""), kept("options", "")],
};

pub(super) const DEPENDENCY: Keys = Keys {
    path: "services.*.depends_on.*",
    keys: &[
        kept(
            "condition",
            "`service_started`, `service_healthy` or `service_completed_successfully`",
        ),
        kept("required", ""),
        noted(
            "restart",
            "a service outlives restarts of those that it depends on",
        ),
    ],
};

/// Keys of an item of `post_start` and `pre_stop`.
pub(super) const HOOK: Keys = Keys {
    path: "services.*.post_start.*",
    keys: &[
        kept("command", "as the service's"),
        kept("environment", "beside that of the container"),
        kept("privileged", "see privileges"),
        kept("user", "the container's by default"),
        kept("working_dir", "the container's by default"),
    ],
};

pub(super) const BLKIO: Keys = Keys {
    path: "services.*.blkio_config",
    keys: &[
        kept("device_read_bps", ""),
        kept("device_read_iops", ""),
        kept("device_write_bps", ""),
        kept("device_write_iops", ""),
        kept("weight", ""),
        kept("weight_device", ""),
    ],
};

pub(super) const BLKIO_WEIGHT: Keys = Keys {
    path: "services.*.blkio_config.weight_device.*",
    keys: &[kept("path", ""), kept("weight", "")],
};

pub(super) const BLKIO_RATE: Keys = Keys {
    path: "services.*.blkio_config.device_*.*",
    keys: &[kept("path", ""), kept("rate", "")],
};

pub(super) const ULIMIT: Keys = Keys {
    path: "services.*.ulimits.*",
    keys: &[kept("hard", ""), kept("soft", "")],
};

pub(super) const DEVICE: Keys = Keys {
    path: "services.*.devices.*",
    keys: &[
        kept("permissions", ""),
        kept("source", ""),
        kept("target", ""),
    ],
};

pub(super) const GPU: Keys = Keys {
    path: "services.*.gpus.*",
    keys: &[
        kept("capabilities", ""),
        kept("count", ""),
        kept("device_ids", ""),
        kept("driver", ""),
        kept("options", ""),
    ],
};

pub(super) const MOUNT: Keys = Keys {
    path: "services.*.volumes.*",
    keys: &[
        kept("bind", ""),
        noted("consistency", "only engines on macOS know it"),
        // Not a key of compose, but named as the replacement of `volume_driver`.
        noted(
            "driver",
            "`driver` of the volume at the top level is its place",
        ),
        kept("image", ""),
        kept("read_only", ""),
        kept("source", ""),
        kept("target", ""),
        kept("tmpfs", ""),
        kept("type", ""),
        kept("volume", ""),
    ],
};

pub(super) const MOUNT_BIND: Keys = Keys {
    path: "services.*.volumes.*.bind",
    keys: &[
        kept("create_host_path", ""),
        kept("propagation", ""),
        kept("recursive", ""),
        kept("selinux", ""),
    ],
};

pub(super) const MOUNT_VOLUME: Keys = Keys {
    path: "services.*.volumes.*.volume",
    keys: &[kept("labels", ""), kept("nocopy", ""), kept("subpath", "")],
};

pub(super) const MOUNT_TMPFS: Keys = Keys {
    path: "services.*.volumes.*.tmpfs",
    keys: &[kept("mode", ""), kept("size", "")],
};

pub(super) const MOUNT_IMAGE: Keys = Keys {
    path: "services.*.volumes.*.image",
    keys: &[kept("subpath", "")],
};

pub(super) const PORT: Keys = Keys {
    path: "services.*.ports.*",
    keys: &[
        silent("app_protocol", "documentation of the entry"),
        kept("host_ip", ""),
        noted("mode", "every node listens on a published port"),
        silent("name", "documentation of the entry"),
        kept("protocol", ""),
        kept("published", ""),
        kept("target", ""),
    ],
};

#[cfg(test)]
mod tests;
