//! Identities under which nodes write to the state.

use jaco_proto::v1::{self, AuditEventType, command::Payload};

/// Identity of the commands by which a node updates its own record.
pub const NODE_UPDATE_SELF: &str = "node-update-self";
/// Identity of the commands about the status of a node.
pub const NODE_HEALTH: &str = "node-health";
/// Identity of the commands with observations of replicas.
pub const RUNTIME: &str = "runtime";

/// Identity under which commands like `payload` are written.
pub(super) fn writer(payload: &Payload) -> &'static str {
    match payload {
        Payload::NodeUpdateSelf(_) => NODE_UPDATE_SELF,
        Payload::NodeStatusUpdate(_) => NODE_HEALTH,
        Payload::ReplicaObservedUpdate(_) => RUNTIME,
        Payload::AuditAppend(append) => append.event.as_ref().map_or("system", audit_writer),
        _ => "system",
    }
}

/// Identity under which events like `event` are written.
pub(super) fn audit_writer(event: &v1::AuditEvent) -> &'static str {
    match event.r#type() {
        AuditEventType::IsolationRulesetReconciled => "firewall",
        _ => "system",
    }
}
