//! Typed form of a compose file after merges, anchors and short forms are resolved.
//!
//! A field that the file leaves out is `None` or empty: the engine's default applies.

use std::{collections::BTreeMap, time::Duration};

use crate::{secret::Environment, yaml::Position};

/// One compose document.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Project {
    /// Services by name.
    pub services: BTreeMap<String, Service>,
    /// Declared networks by name; only the names matter.
    pub networks: Vec<String>,
    /// Declared volumes by key.
    pub volumes: BTreeMap<String, VolumeDeclaration>,
}

/// A top-level `volumes:` entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeDeclaration {
    /// Engine volume name that replaces the generated one.
    pub name: Option<String>,
    /// The volume exists outside the deployment.
    pub external: bool,
}

/// What one container of a service is built from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Service {
    /// Image reference; a service without one cannot be scheduled.
    pub image: Option<String>,
    /// Arguments; `None` keeps the image's.
    pub command: Option<Vec<String>>,
    /// Entry point; `None` keeps the image's.
    pub entrypoint: Option<Vec<String>>,
    /// Environment; `None` is a key without a value and becomes `KEY=`.
    pub environment: Environment,
    /// Container labels.
    pub labels: BTreeMap<String, String>,
    /// Working directory.
    pub working_dir: Option<String>,
    /// `user[:group]`, names or ids.
    pub user: Option<String>,
    /// Host name inside the container.
    pub hostname: Option<String>,
    /// Domain name inside the container.
    pub domainname: Option<String>,
    /// Signal that asks the container to stop; the engine's default is SIGTERM.
    pub stop_signal: Option<String>,
    /// Time between the stop signal and SIGKILL; used in whole seconds, truncated.
    pub stop_grace_period: Option<Duration>,
    /// Health check; `None` also when the file disables it.
    pub healthcheck: Option<Healthcheck>,
    /// Mounts in file order.
    pub volumes: Vec<Mount>,
    /// tmpfs options by path.
    pub tmpfs: BTreeMap<String, String>,
    /// Read-only root file system.
    pub read_only: bool,
    /// Capabilities to add.
    pub cap_add: Vec<String>,
    /// Capabilities to drop.
    pub cap_drop: Vec<String>,
    /// Kernel parameters.
    pub sysctls: BTreeMap<String, String>,
    /// Resource limits by name.
    pub ulimits: BTreeMap<String, Ulimit>,
    /// Full access to the host; fenced by a label and a token flag.
    pub privileged: bool,
    /// Security options; fenced like `privileged`.
    pub security_opt: Vec<String>,
    /// Host devices.
    pub devices: Vec<Device>,
    /// Accelerators.
    pub gpus: Vec<GpuRequest>,
    /// Networks in attach order: priority descending, then name.
    pub networks: Vec<String>,
    /// Namespace the container joins instead of networks.
    pub network_mode: Option<NetworkMode>,
    /// Published ports in file order, ranges expanded pairwise.
    pub ports: Vec<Port>,
    /// Resolvers that replace JACO's.
    pub dns: Vec<String>,
    /// Resolver search domains.
    pub dns_search: Vec<String>,
    /// Resolver options.
    pub dns_opt: Vec<String>,
    /// `host:ip` lines, sorted.
    pub extra_hosts: Vec<String>,
    /// Run an init process as PID 1; unset is the engine's choice.
    pub init: Option<bool>,
    /// Size of `/dev/shm` in bytes.
    pub shm_size: Option<i64>,
    /// IPC namespace.
    pub ipc: Option<Namespace>,
    /// PID namespace.
    pub pid: Option<Namespace>,
    /// UTS namespace.
    pub uts: Option<Namespace>,
    /// User namespace mode.
    pub userns_mode: Option<String>,
    /// Parent cgroup.
    pub cgroup_parent: Option<String>,
    /// Cgroup namespace, `host` or `private`.
    pub cgroup: Option<String>,
    /// Logging driver; `None` is the engine's default.
    pub logging: Option<Logging>,
    /// Effective resource limits.
    pub resources: Resources,
    /// Rollout settings and default replica count.
    pub deploy: Deploy,
    /// Services this one waits for, by name.
    pub depends_on: BTreeMap<String, Dependency>,
    /// When the image is pulled.
    pub pull_policy: PullPolicy,
}

/// Container health check; durations the file leaves out are the engine's defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Healthcheck {
    /// Test in the engine's form, such as `["CMD-SHELL", "curl -f localhost"]`.
    pub test: Vec<String>,
    /// Time between checks.
    pub interval: Option<Duration>,
    /// Longest time of one check.
    pub timeout: Option<Duration>,
    /// Failures in a row until the container is unhealthy.
    pub retries: Option<i64>,
    /// Start-up time in which failures do not count.
    pub start_period: Option<Duration>,
}

/// One mount of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// What is mounted.
    pub source: MountSource,
    /// Cleaned absolute path in the container.
    pub target: String,
    /// Mounted read-only.
    pub read_only: bool,
    /// Do not copy the image's content into a new volume.
    pub no_copy: bool,
    /// Bind propagation such as `rslave`.
    pub propagation: Option<String>,
    /// SELinux relabelling of a bind, `z` (shared) or `Z` (private).
    pub selinux: Option<String>,
}

/// What a [`Mount`] mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountSource {
    /// A host path; created as a directory when missing if the flag is set.
    Bind {
        /// Absolute path on the host, or one that starts with `~`.
        path: String,
        /// Create the path when it is missing.
        create: bool,
    },
    /// A volume by its compose key.
    Volume(String),
    /// A volume the engine names, removed with the container.
    Anonymous,
    /// A memory file system.
    Tmpfs,
    /// Another engine mount type, passed through with its source.
    Other {
        /// Engine mount type such as `npipe` or `cluster`.
        kind: String,
        /// Source as written.
        source: String,
    },
}

/// Soft and hard value of one resource limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ulimit {
    /// Soft limit.
    pub soft: i64,
    /// Hard limit.
    pub hard: i64,
}

/// A host device in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Path on the host.
    pub source: String,
    /// Path in the container.
    pub target: String,
    /// Any of `r`, `w`, `m`.
    pub permissions: String,
}

/// One request for accelerators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuRequest {
    /// Engine driver; empty for the default.
    pub driver: String,
    /// How many; -1 for all; unused when ids are given.
    pub count: i64,
    /// Devices by id.
    pub device_ids: Vec<String>,
    /// Capabilities that all must be present.
    pub capabilities: Vec<String>,
    /// Driver options.
    pub options: BTreeMap<String, String>,
}

/// Network namespace of a container that joins no network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkMode {
    /// Loopback only.
    None,
    /// The namespace of a running replica of this service on the same node.
    Service(String),
}

/// An IPC, PID or UTS namespace other than the container's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Namespace {
    /// A mode in the engine's words, such as `host`; passed on as it is.
    Engine(String),
    /// The namespace of a running replica of this service on the same node. The service exists
    /// in the same file, is another one, and is in [`Service::depends_on`] as required.
    Service(String),
}

impl Namespace {
    /// The service whose replica shares the namespace.
    pub fn service(&self) -> Option<&str> {
        match self {
            Self::Service(name) => Some(name),
            Self::Engine(_) => None,
        }
    }
}

/// One published port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Container port, 1 to 65535.
    pub target: u16,
    /// Cluster-wide listener port, when the entry makes one.
    pub listener: Option<u16>,
    /// Host port text as written, for messages.
    pub published: Option<String>,
    /// `tcp`, `udp` or `sctp`.
    pub protocol: String,
    /// Address the entry is bound to; empty for all.
    pub host_ip: String,
    /// Where the entry starts in the file.
    pub at: Position,
}

/// Logging driver of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Logging {
    /// Engine logging driver; empty for the default.
    pub driver: String,
    /// Driver options.
    pub options: BTreeMap<String, String>,
}

/// Resource limits after the choice between `deploy.resources` and the flat keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// CPU limit in 10⁻⁹ cores.
    pub nano_cpus: Option<i64>,
    /// Memory limit in bytes.
    pub memory: Option<i64>,
    /// Memory reservation in bytes.
    pub memory_reservation: Option<i64>,
    /// Most processes.
    pub pids: Option<i64>,
    /// Relative CPU weight.
    pub cpu_shares: Option<i64>,
    /// CPUs the container may use.
    pub cpuset: Option<String>,
}

/// Rollout settings of a service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Deploy {
    /// Default replica count, 0 or more.
    pub replicas: Option<i32>,
    /// How a rolling update proceeds.
    pub update: UpdateConfig,
}

/// `deploy.update_config`; fields the file leaves out take the rollout's defaults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UpdateConfig {
    /// Replicas replaced at a time.
    pub parallelism: Option<u32>,
    /// Pause between steps.
    pub delay: Option<Duration>,
    /// How long a new replica is watched.
    pub monitor: Option<Duration>,
    /// Start the new container before or after the old one leaves.
    pub order: Option<UpdateOrder>,
    /// What happens when a step fails.
    pub failure_action: Option<FailureAction>,
}

/// Order of a replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateOrder {
    /// The old container stops first.
    StopFirst,
    /// The new container runs before the old one stops.
    StartFirst,
}

/// Reaction to a failed rollout step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureAction {
    /// Stop and keep what is.
    Pause,
    /// Go on.
    Continue,
    /// Return to the previous revision.
    Rollback,
}

/// A wait on another service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dependency {
    /// What must hold.
    pub condition: Condition,
    /// Whether an unmet dependency blocks the start.
    pub required: bool,
}

/// Condition of a [`Dependency`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// One replica is running or degraded.
    ServiceStarted,
    /// One replica is running.
    ServiceHealthy,
}

/// When the image of a service is pulled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PullPolicy {
    /// Ask the registry before each create.
    #[default]
    Always,
    /// Never ask; a missing image fails the create.
    Never,
}
