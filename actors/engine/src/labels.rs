//! Labels on the containers and networks of a cluster.

/// Label that marks a container or a network as part of a cluster.
pub const LABEL_CLUSTER: &str = "jaco.cluster_id";
/// Label with the deployment's name.
pub const LABEL_DEPLOYMENT: &str = "jaco.deployment";
/// Label with the service's name.
pub const LABEL_SERVICE: &str = "jaco.service";
/// Label by which containers are looked up; their names are never parsed.
pub const LABEL_REPLICA: &str = "jaco.replica_id";
/// Label with the replica's decimal index.
pub const LABEL_REPLICA_INDEX: &str = "jaco.replica_index";
/// Label with the log index of the row from which the container was created.
pub const LABEL_RAFT_INDEX: &str = "jaco.raft_index";
/// Label with the engine's requests for the commands that are run before a stop, as JSON. A stop may
/// come when the row and the document are gone.
pub const LABEL_PRE_STOP: &str = "jaco.pre_stop";
/// Label with the name of a network within its deployment.
pub const LABEL_NETWORK: &str = "jaco.network";
/// Label with the address block with which a network was created.
pub const LABEL_SUBNET: &str = "jaco.subnet";
