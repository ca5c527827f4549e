//! Typed form of a compose file, with merges, anchors and short forms resolved.
//!
//! A field that is absent from the file is `None` or empty: the engine's default applies.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use crate::{
    secret::{Environment, SecretString},
    v1::TransportProtocol,
    yaml::Position,
};

/// One compose document.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Project {
    /// Services by name.
    pub services: BTreeMap<String, Service>,
    /// Declared networks by name; the default one is `_default`.
    pub networks: BTreeMap<String, NetworkDeclaration>,
    /// Declared volumes by key.
    pub volumes: BTreeMap<String, VolumeDeclaration>,
    /// Declared configs by key.
    pub configs: BTreeMap<String, FileObject>,
    /// Declared secrets by key.
    pub secrets: BTreeMap<String, FileObject>,
}

/// A top-level `networks:` entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkDeclaration {
    /// Whether its containers reach each other only.
    pub internal: bool,
    /// The name under which deployments share it; `None` if it is the deployment's own.
    pub shared: Option<String>,
}

/// A top-level `configs:` or `secrets:` entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileObject {
    /// Origin of the content; `None` while a variable in it is unresolved.
    pub source: Option<FileSource>,
    /// Position of the key in the file.
    pub at: Position,
}

/// Origin of the content of a config or a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileSource {
    /// A file on the client, by its path.
    File(String),
    /// A variable of the client, by its name.
    Environment(String),
    /// The document itself.
    Content(SecretString),
    /// The cluster, by the name there.
    External(String),
}

/// A config or a secret that a service mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileReference {
    /// Key of the declaration.
    pub source: String,
    /// Cleaned absolute path in the container.
    pub target: String,
    /// Owner of the file.
    pub uid: u32,
    /// Group of the file.
    pub gid: u32,
    /// Permission bits, at most `0o7777`.
    pub mode: u32,
    /// Position of the reference in the file.
    pub at: Position,
}

/// A top-level `volumes:` entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeDeclaration {
    /// Name of the volume in the engine, in place of the generated one.
    pub name: Option<String>,
    /// The volume exists outside the deployment.
    pub external: bool,
    /// Driver of a volume that does not exist yet; empty for the engine's default.
    pub driver: String,
    /// Options of the driver.
    pub driver_opts: BTreeMap<String, String>,
    /// Labels of a volume that does not exist yet.
    pub labels: BTreeMap<String, String>,
}

/// Settings of a service's containers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Service {
    /// Image reference; a service without one cannot be scheduled.
    pub image: Option<String>,
    /// Arguments; `None` keeps the image's.
    pub command: Option<Vec<String>>,
    /// Entry point; `None` keeps the image's.
    pub entrypoint: Option<Vec<String>>,
    /// Environment; a value of `None` is a key without a value and becomes `KEY=`.
    pub environment: Environment,
    /// Container labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations for the container runtime.
    pub annotations: BTreeMap<String, String>,
    /// Whether the container has a terminal.
    pub tty: bool,
    /// Whether the container's standard input stays open.
    pub stdin_open: bool,
    /// Platform of the image, as `os/arch[/variant]`.
    pub platform: Option<String>,
    /// Further name of the service on each of its networks.
    pub container_name: Option<String>,
    /// Names that only this service resolves.
    pub links: Vec<Link>,
    /// Hardware address of the interface on the first network.
    pub mac_address: Option<String>,
    /// Working directory.
    pub working_dir: Option<String>,
    /// `user[:group]`, names or ids.
    pub user: Option<String>,
    /// Host name inside the container.
    pub hostname: Option<String>,
    /// Domain name inside the container.
    pub domainname: Option<String>,
    /// Signal that stops the container; the engine's default is SIGTERM.
    pub stop_signal: Option<String>,
    /// Time between the stop signal and SIGKILL; used in whole seconds, truncated.
    pub stop_grace_period: Option<Duration>,
    /// Health check; `None` also when the file disables it.
    pub healthcheck: Option<Healthcheck>,
    /// Mounts in file order.
    pub volumes: Vec<Mount>,
    /// Services whose volumes a container mounts too, from a replica on the same node.
    pub volumes_from: Vec<VolumesFrom>,
    /// Configs in file order.
    pub configs: Vec<FileReference>,
    /// Secrets in file order.
    pub secrets: Vec<FileReference>,
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
    /// Full access to the host; requires a label and a token flag.
    pub privileged: bool,
    /// Security options; those that widen rights require the same as `privileged`.
    pub security_opt: Vec<String>,
    /// Supplementary groups of the process, names or ids.
    pub group_add: Vec<String>,
    /// Container runtime of the engine, such as `runsc`.
    pub runtime: Option<String>,
    /// Host devices.
    pub devices: Vec<Device>,
    /// Rules of the cgroup's device list, such as `c 1:3 mr`.
    pub device_cgroup_rules: Vec<String>,
    /// Options of the storage driver.
    pub storage_opt: BTreeMap<String, String>,
    /// Accelerators.
    pub gpus: Vec<GpuRequest>,
    /// Networks in attach order: priority descending, then name.
    pub networks: Vec<String>,
    /// Settings of those networks of [`Self::networks`] that have any.
    pub network_settings: BTreeMap<String, NetworkSettings>,
    /// Network namespace in place of networks.
    pub network_mode: Option<NetworkMode>,
    /// Published ports in file order, ranges expanded pairwise.
    pub ports: Vec<Port>,
    /// TCP ports that `expose` names, ranges expanded.
    pub expose: BTreeSet<u16>,
    /// DNS servers in place of JACO's.
    pub dns: Vec<String>,
    /// Resolver search domains.
    pub dns_search: Vec<String>,
    /// Resolver options.
    pub dns_opt: Vec<String>,
    /// `host:ip` lines, sorted.
    pub extra_hosts: Vec<String>,
    /// Whether an init process runs as PID 1; the engine decides if unset.
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
    /// Dependencies by service name.
    pub depends_on: BTreeMap<String, Dependency>,
    /// When the image is pulled.
    pub pull_policy: PullPolicy,
    /// Treatment of a container that has ended; `None` restarts it.
    pub restart: Option<Restart>,
    /// Commands run in order after each start.
    pub post_start: Vec<Hook>,
    /// Commands run in order before the stop signal, for at most the grace period together.
    pub pre_stop: Vec<Hook>,
}

/// A name for another service that only one service resolves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Service in the same file.
    pub service: String,
    /// Name under which it is reached; the service's own without an alias.
    pub alias: String,
}

/// A service whose volumes another one mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumesFrom {
    /// Service in the same file.
    pub service: String,
    /// Whether the volumes are mounted read-only.
    pub read_only: bool,
}

/// Settings of a service on one network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkSettings {
    /// Further names of the service on this network.
    pub aliases: Vec<String>,
    /// Priority as default route; the highest wins.
    pub gateway_priority: Option<i64>,
}

/// Health check of a container; absent durations have the engine's defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Healthcheck {
    /// Test in the engine's form, such as `["CMD-SHELL", "curl -f localhost"]`.
    pub test: Vec<String>,
    /// Time between checks.
    pub interval: Option<Duration>,
    /// Timeout of one check.
    pub timeout: Option<Duration>,
    /// Consecutive failures until the container is unhealthy.
    pub retries: Option<i64>,
    /// Time after the start during which failures do not count.
    pub start_period: Option<Duration>,
}

/// One mount of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Source of the mount.
    pub source: MountSource,
    /// Cleaned absolute path in the container.
    pub target: String,
    /// Whether the mount is read-only.
    pub read_only: bool,
    /// Whether the image's content is not copied into a new volume.
    pub no_copy: bool,
    /// Bind propagation such as `rslave`.
    pub propagation: Option<String>,
    /// SELinux relabelling of a bind, `z` (shared) or `Z` (private).
    pub selinux: Option<String>,
    /// Treatment of mounts below the source of a bind.
    pub recursive: Recursive,
    /// Directory inside the volume or the image.
    pub subpath: Option<String>,
    /// Labels of a volume that does not exist yet.
    pub labels: BTreeMap<String, String>,
    /// Size of a memory file system in bytes.
    pub size: Option<i64>,
    /// Permissions of the root of a memory file system.
    pub mode: Option<u32>,
}

impl Mount {
    /// Creates a mount without further settings.
    pub fn new(source: MountSource, target: impl Into<String>) -> Self {
        Self {
            source,
            target: target.into(),
            read_only: false,
            no_copy: false,
            propagation: None,
            selinux: None,
            recursive: Recursive::default(),
            subpath: None,
            labels: BTreeMap::new(),
            size: None,
            mode: None,
        }
    }
}

/// Treatment of the mounts below the source of a bind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recursive {
    /// Mounted too, read-only ones if the kernel can.
    #[default]
    Enabled,
    /// Not mounted.
    Disabled,
    /// Mounted too, and writable below a read-only bind.
    Writable,
    /// Mounted too; the start fails if the kernel cannot make them read-only.
    ReadOnly,
}

/// Source of a [`Mount`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountSource {
    /// A host path.
    Bind {
        /// Absolute path on the host, or one that starts with `~`.
        path: String,
        /// Whether the path is created as a directory if it is missing.
        create: bool,
    },
    /// A volume, by its compose key.
    Volume(String),
    /// A volume with a name generated by the engine, removed with the container.
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

/// A request for accelerators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuRequest {
    /// Engine driver; empty for the default.
    pub driver: String,
    /// Number of devices; -1 for all; unused if ids are given.
    pub count: i64,
    /// Devices by id.
    pub device_ids: Vec<String>,
    /// Capabilities that a device must have, all of them.
    pub capabilities: Vec<String>,
    /// Driver options.
    pub options: BTreeMap<String, String>,
}

/// Network namespace of a container without networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkMode {
    /// Loopback only.
    None,
    /// The namespace of the node.
    Host,
    /// The namespace of a running replica of this service on the same node.
    Service(String),
}

/// An IPC, PID or UTS namespace other than the container's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Namespace {
    /// A mode of the engine, such as `host`; passed through.
    Engine(String),
    /// The namespace of a running replica of this service on the same node. The service is a
    /// different one in the same file, and a required dependency in [`Service::depends_on`].
    Service(String),
}

impl Namespace {
    /// Returns the service whose replica shares the namespace.
    pub fn service(&self) -> Option<&str> {
        match self {
            Self::Service(name) => Some(name),
            Self::Engine(_) => None,
        }
    }
}

/// A port that every node listens on; displayed as `53/udp`, or `5432` for TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listener {
    /// Published port, 1 to 65535.
    pub port: u16,
    /// Transport protocol.
    pub protocol: TransportProtocol,
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            TransportProtocol::Tcp => write!(f, "{}", self.port),
            TransportProtocol::Udp => write!(f, "{}/udp", self.port),
        }
    }
}

/// One published port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Container port, 1 to 65535.
    pub target: u16,
    /// Cluster-wide listener, if the entry creates one.
    pub listener: Option<Listener>,
    /// Host port as written, for messages.
    pub published: Option<String>,
    /// `tcp`, `udp` or `sctp`.
    pub protocol: String,
    /// Address the entry is bound to; empty for all.
    pub host_ip: String,
    /// Position of the entry in the file.
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

/// Resource limits, after `deploy.resources` or the flat keys were selected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// CPU limit in 10⁻⁹ cores.
    pub nano_cpus: Option<i64>,
    /// Memory limit in bytes.
    pub memory: Option<i64>,
    /// Memory reservation in bytes.
    pub memory_reservation: Option<i64>,
    /// Maximum number of processes.
    pub pids: Option<i64>,
    /// Relative CPU weight.
    pub cpu_shares: Option<i64>,
    /// CPUs the container may use.
    pub cpuset: Option<String>,
    /// Period of the CPU quota in microseconds.
    pub cpu_period: Option<i64>,
    /// CPU time per period in microseconds.
    pub cpu_quota: Option<i64>,
    /// Period of the real-time scheduler in microseconds.
    pub cpu_rt_period: Option<i64>,
    /// Time per period of the real-time scheduler in microseconds.
    pub cpu_rt_runtime: Option<i64>,
    /// Limit of memory and swap together in bytes; -1 for none.
    pub memory_swap: Option<i64>,
    /// Tendency of the kernel to swap, 0 to 100.
    pub memory_swappiness: Option<i64>,
    /// Preference of the out-of-memory killer, -1000 to 1000.
    pub oom_score_adj: Option<i64>,
    /// Whether the out-of-memory killer spares the container.
    pub oom_kill_disable: Option<bool>,
    /// Weights and limits of block devices.
    pub blkio: Blkio,
}

/// Weights and limits of block devices, by path of the device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blkio {
    /// Relative weight, 10 to 1000.
    pub weight: Option<u16>,
    /// Relative weight of single devices.
    pub weight_device: Vec<(String, u16)>,
    /// Bytes read per second.
    pub read_bps: Vec<(String, i64)>,
    /// Read operations per second.
    pub read_iops: Vec<(String, i64)>,
    /// Bytes written per second.
    pub write_bps: Vec<(String, i64)>,
    /// Write operations per second.
    pub write_iops: Vec<(String, i64)>,
}

/// Scheduling and rollout settings of a service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Deploy {
    /// Default replica count, 0 or more.
    pub replicas: Option<i32>,
    /// How replicas are counted.
    pub mode: Option<DeployMode>,
    /// Conditions on the nodes of replicas.
    pub constraints: Vec<Constraint>,
    /// Replicas that a node may have at most, 1 or more.
    pub max_replicas_per_node: Option<i32>,
    /// Policy in place of [`Service::restart`].
    pub restart_policy: Option<Restart>,
    /// Settings of rolling updates.
    pub update: UpdateConfig,
}

/// `deploy.mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeployMode {
    /// A number of replicas.
    Replicated,
    /// One replica on every node.
    Global,
}

/// An entry of `deploy.placement.constraints`.
///
/// Source: swarmkit, `manager/constraint/constraint.go`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constraint {
    /// Attribute of the node.
    pub attribute: Attribute,
    /// Whether nodes with the value are excluded, instead of those without it.
    pub excludes: bool,
    /// Value, compared without regard to case.
    pub value: String,
}

impl Constraint {
    /// Whether it is on the role of the node, and so has no effect.
    #[must_use]
    pub fn is_role(&self) -> bool {
        self.attribute == Attribute::Role
    }
}

/// Attribute of a node that a [`Constraint`] names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// `node.hostname`.
    Hostname,
    /// `node.labels.<key>`, the key without the prefix.
    Label(String),
    /// `node.platform.os`.
    Os,
    /// `node.platform.arch`.
    Arch,
    /// `node.role`, which has no effect: every node may be a manager.
    Role,
}

/// `deploy.update_config`; absent fields have the rollout's defaults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UpdateConfig {
    /// Replicas replaced at a time.
    pub parallelism: Option<u32>,
    /// Pause between steps.
    pub delay: Option<Duration>,
    /// Time for which a new replica is monitored.
    pub monitor: Option<Duration>,
    /// Whether the new container starts before or after the old one stops.
    pub order: Option<UpdateOrder>,
    /// Reaction to a failed step.
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
    /// Stops the rollout and keeps the current state.
    Pause,
    /// Continues with the next step.
    Continue,
    /// Restores the previous revision.
    Rollback,
}

/// A dependency on another service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dependency {
    /// Condition to wait for.
    pub condition: Condition,
    /// Whether an unmet dependency blocks the start.
    pub required: bool,
}

/// Condition of a [`Dependency`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// One replica is running or degraded, or has ended for good.
    ServiceStarted,
    /// One replica is running.
    ServiceHealthy,
    /// Every replica has ended with exit code 0.
    ServiceCompletedSuccessfully,
}

impl Condition {
    /// Every condition.
    pub const ALL: [Self; 3] = [
        Self::ServiceStarted,
        Self::ServiceHealthy,
        Self::ServiceCompletedSuccessfully,
    ];

    /// Returns the word in a compose file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ServiceStarted => "service_started",
            Self::ServiceHealthy => "service_healthy",
            Self::ServiceCompletedSuccessfully => "service_completed_successfully",
        }
    }
}

/// Treatment of a container that has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restart {
    /// When it starts again.
    pub condition: RestartCondition,
    /// Restarts in a row after which the replica is given up, at least 1; the host's default if
    /// unset.
    pub attempts: Option<u32>,
    /// Time before each restart; grows with the failures in a row if unset.
    pub delay: Option<Duration>,
}

impl Restart {
    /// Whether a container that ended with this code starts again.
    #[must_use]
    pub fn restarts_after(&self, exit_code: i64) -> bool {
        match self.condition {
            RestartCondition::Always => true,
            RestartCondition::OnFailure => exit_code != 0,
            RestartCondition::Never => false,
        }
    }
}

/// When a container that has ended starts again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RestartCondition {
    /// After every end.
    #[default]
    Always,
    /// After an exit code other than 0.
    OnFailure,
    /// Not at all.
    Never,
}

/// Command run in a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hook {
    /// Program and arguments.
    pub command: Vec<String>,
    /// `user[:group]`; `None` is the container's.
    pub user: Option<String>,
    /// Full access to the host.
    pub privileged: bool,
    /// Working directory; `None` is the container's.
    pub working_dir: Option<String>,
    /// Environment beside that of the container.
    pub environment: Environment,
}

/// When the image of a service is pulled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PullPolicy {
    /// Queries the registry before each container is created.
    #[default]
    Always,
    /// Never pulls; a missing image fails the creation.
    Never,
}
