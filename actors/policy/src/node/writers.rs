//! Identities under which nodes write to the state.

use jaco_proto::v1::{self, AuditEventType, NodeStatus, command::Payload};

/// Identity of the commands by which a node updates its own record.
pub const NODE_UPDATE_SELF: &str = "node-update-self";
/// Identity of the commands about the status of a node.
pub const NODE_HEALTH: &str = "node-health";
/// Identity of the commands with observations of replicas.
pub const RUNTIME: &str = "runtime";
/// Identity of the commands about the isolation of a node.
pub const FIREWALL: &str = "firewall";

/// Reason in the status details of a node that isolates deployments again.
pub const RELOAD_RECOVERED: &str = "isolation_reload_recovered";
/// Identity of the audit events about repaired networks.
pub const BRIDGE: &str = "bridge";
/// Identity of the audit events about a repaired mesh.
pub const MESH: &str = "mesh";

/// Identity of the commands about the secrets key, unless an operator asked for them.
pub const SECRETS: &str = "secrets";
/// Identity of the audit events about probed paths.
pub const NETWORK_PROBE: &str = "network-probe";

/// Identity under which commands like `payload` are written.
pub(super) fn writer(payload: &Payload) -> &'static str {
    match payload {
        Payload::NodeUpdateSelf(_) => NODE_UPDATE_SELF,
        Payload::NodeStatusUpdate(update) => status_writer(update),
        Payload::ReplicaObservedUpdate(_) => RUNTIME,
        Payload::AuditAppend(append) => append.event.as_ref().map_or("system", audit_writer),
        _ => "system",
    }
}

/// Identity under which status updates like `update` are written.
fn status_writer(update: &v1::NodeStatusUpdate) -> &'static str {
    let recovered = update.details.get("reason").map(String::as_str) == Some(RELOAD_RECOVERED);
    match update.status() {
        NodeStatus::IsolationUnavailable => FIREWALL,
        NodeStatus::Ready | NodeStatus::Joining if recovered => FIREWALL,
        NodeStatus::Ready
        | NodeStatus::Unspecified
        | NodeStatus::Joining
        | NodeStatus::Unhealthy
        | NodeStatus::Offline
        | NodeStatus::DrainTimeout => NODE_HEALTH,
    }
}

/// Identity under which events like `event` are written.
pub(super) fn audit_writer(event: &v1::AuditEvent) -> &'static str {
    match event.r#type() {
        AuditEventType::IsolationRulesetReconciled => FIREWALL,
        AuditEventType::NetworkRepaired if event.payload.contains_key("device") => MESH,
        AuditEventType::NetworkRepaired => BRIDGE,
        AuditEventType::IsolationBreach | AuditEventType::ForgedSource => NETWORK_PROBE,
        AuditEventType::SecretsKey => SECRETS,
        _ => "system",
    }
}
