//! Authorisation of commands submitted by members: a member may only report about itself.

use jaco_proto::{
    Error, ErrorCode, mark,
    v1::{self, AuditEventType, NodeStatus, command::Payload},
};
use jaco_state::{State, command};
use prost_types::Timestamp;

use super::{validate, writers};
use crate::membership::{leaving, timed_out};

/// Checks the command that the member `sender` submitted and returns the command to propose: the
/// same payload, with a writer and a time chosen by the leader.
///
/// # Errors
/// `privilege_denied` with the name of the variant, `validation_failed` for invalid values.
pub fn admit(
    sender: &str,
    submitted: v1::Command,
    state: &State,
    now: Timestamp,
) -> Result<v1::Command, Error> {
    let Some(mut payload) = submitted.payload else {
        return Err(
            Error::new(ErrorCode::ValidationFailed, "the command is empty")
                .with("field", "command"),
        );
    };
    permit(sender, &payload, state)?;
    validate::check(&payload)?;
    let writer = writers::writer(&payload);
    if let Payload::AuditAppend(v1::AuditAppend { event: Some(event) }) = &mut payload {
        // The command carries both.
        event.identity.clear();
        event.ts = None;
    }
    Ok(command(writer, now, payload))
}

/// Whether `command` clears a drain mark; the state it depends on must not change until it is
/// applied.
#[must_use]
pub fn clears_mark(command: &v1::Command) -> bool {
    matches!(
        &command.payload,
        Some(Payload::NodeStatusUpdate(update)) if update.drain_mark == mark::CLEAR
    )
}

/// Whether the member `sender` may submit `payload`.
fn permit(sender: &str, payload: &Payload, state: &State) -> Result<(), Error> {
    let allowed = match payload {
        Payload::NodeUpdateSelf(update) => update.hostname == sender,
        Payload::NodeStatusUpdate(update) => {
            let row = state.nodes.get(sender);
            update.hostname == sender && row.is_some_and(|row| may_report(row, update))
        }
        Payload::ReplicaObservedUpdate(update) => update
            .replica
            .as_ref()
            .is_some_and(|row| row.host == sender),
        Payload::AuditAppend(append) => append
            .event
            .as_ref()
            .is_some_and(|event| is_own_event(sender, event)),
        // Made only by the leader's own handlers and actors; a batch can hold any of them.
        Payload::ClusterInit(_)
        | Payload::NodeJoin(_)
        | Payload::NodeRemove(_)
        | Payload::DeploymentApply(_)
        | Payload::DeploymentRollback(_)
        | Payload::DeploymentDelete(_)
        | Payload::DeploymentStatusUpdate(_)
        | Payload::ReplicaDesiredUpsert(_)
        | Payload::ReplicaDesiredRemove(_)
        | Payload::ReplicaCommandIssue(_)
        | Payload::RolloutPlanUpdate(_)
        | Payload::ReplicaCounterIncrement(_)
        | Payload::RestartCounterUpdate(_)
        | Payload::RouteUpsert(_)
        | Payload::RouteRemove(_)
        | Payload::CertStore(_)
        | Payload::CertLock(_)
        | Payload::CertUnlock(_)
        | Payload::ChallengeTokenStore(_)
        | Payload::CertBlobUpsert(_)
        | Payload::CertBlobRemove(_)
        | Payload::SubnetAllocate(_)
        | Payload::SubnetFree(_)
        | Payload::TokenIssue(_)
        | Payload::TokenRevoke(_)
        | Payload::JoinTokenIssue(_)
        | Payload::JoinTokenConsume(_)
        | Payload::Batch(_)
        | Payload::RegistryCredentialUpsert(_)
        | Payload::RegistryCredentialRemove(_)
        | Payload::ClusterConfigSet(_)
        | Payload::SecretUpsert(_)
        | Payload::SecretRemove(_)
        | Payload::SecretsKeySet(_)
        | Payload::RouteTlsOverrideSet(_)
        | Payload::RouteTlsOverrideRemove(_)
        | Payload::ImportedCertUpsert(_)
        | Payload::ImportedCertRemove(_)
        | Payload::FileContentReseal(_)
        | Payload::ClusterFilePut(_)
        | Payload::ClusterFileRemove(_)
        | Payload::RolloutHoldSet(_) => false,
    };
    if allowed {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode::PrivilegeDenied,
        format!("member {sender:?} may not submit this command"),
    )
    .with("command", payload.op()))
}

/// Whether the member of `row` may report `update` about itself. It cannot cancel its own removal:
/// a compromised member could otherwise stay for ever. Operators decide whether it is cordoned.
fn may_report(row: &v1::Node, update: &v1::NodeStatusUpdate) -> bool {
    if update.cordon_mark != mark::KEEP {
        return false;
    }
    match update.drain_mark {
        // Only the leader sets the mark.
        mark::SET => return false,
        // A restart ends a drain that timed out, and no other.
        mark::CLEAR => return timed_out(row) && update.status() != NodeStatus::DrainTimeout,
        _ => {}
    }
    match update.status() {
        NodeStatus::DrainTimeout => false,
        // Without the mark this status ends with it only. A report sent before the timeout would
        // else resume a drain that no operator asked for again.
        NodeStatus::Ready => row.status() != NodeStatus::DrainTimeout,
        // The mark stays, and so does the removal it causes.
        NodeStatus::Unspecified => true,
        NodeStatus::Joining
        | NodeStatus::Unhealthy
        | NodeStatus::Offline
        | NodeStatus::IsolationUnavailable => !leaving(row),
    }
}

/// Whether `event` is of a kind that nodes write, about the node `sender` and in its writer's name.
fn is_own_event(sender: &str, event: &v1::AuditEvent) -> bool {
    let kind = matches!(
        event.r#type(),
        AuditEventType::IsolationRulesetReconciled
            | AuditEventType::IsolationBreach
            | AuditEventType::ForgedSource
            | AuditEventType::UpgradeSucceeded
            | AuditEventType::UpgradeFailed
            | AuditEventType::NetworkRepaired
    ) || is_export(event);
    let named = ["node", "hostname"]
        .iter()
        .filter_map(|key| event.payload.get(*key));
    let writer = event.identity.is_empty() || event.identity == writers::audit_writer(event);
    kind && writer && named.into_iter().all(|host| host == sender)
}

/// Whether a node reports that its operator exported the secrets key; the leader writes the other
/// events about the key.
fn is_export(event: &v1::AuditEvent) -> bool {
    let action = event.payload.get("action").map(String::as_str);
    event.r#type() == AuditEventType::SecretsKey && action == Some("exported")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const NOW: Timestamp = Timestamp {
        seconds: 7,
        nanos: 0,
    };

    /// Members `n1`, which is ready, and `n2` with the given status and mark.
    fn state(status: NodeStatus, draining: bool) -> State {
        let mut state = State::default();
        for (hostname, status, draining) in
            [("n1", NodeStatus::Ready, false), ("n2", status, draining)]
        {
            let node = v1::Node {
                hostname: hostname.to_owned(),
                status: status.into(),
                draining,
                ..Default::default()
            };
            state.nodes.insert(hostname.to_owned(), Arc::new(node));
        }
        state
    }

    fn submitted(payload: Payload) -> v1::Command {
        let past = Timestamp::default();
        command("ci", past, payload)
    }

    fn allowed_in(state: &State, payload: Payload) -> bool {
        match admit("n2", submitted(payload), state, NOW) {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error.code, ErrorCode::PrivilegeDenied);
                false
            }
        }
    }

    fn allowed(payload: Payload) -> bool {
        allowed_in(&state(NodeStatus::Ready, false), payload)
    }

    fn update_self(hostname: &str) -> Payload {
        Payload::NodeUpdateSelf(v1::NodeUpdateSelf {
            hostname: hostname.to_owned(),
            ..Default::default()
        })
    }

    fn status(hostname: &str, drain_mark: i32) -> Payload {
        Payload::NodeStatusUpdate(v1::NodeStatusUpdate {
            hostname: hostname.to_owned(),
            drain_mark,
            ..Default::default()
        })
    }

    fn cordon(hostname: &str, cordon_mark: i32) -> Payload {
        Payload::NodeStatusUpdate(v1::NodeStatusUpdate {
            hostname: hostname.to_owned(),
            cordon_mark,
            ..Default::default()
        })
    }

    fn observed(host: Option<&str>) -> Payload {
        Payload::ReplicaObservedUpdate(v1::ReplicaObservedUpdate {
            replica: host.map(|host| v1::ReplicaObserved {
                host: host.to_owned(),
                ..Default::default()
            }),
        })
    }

    fn event(kind: AuditEventType, payload: &[(&str, &str)]) -> Payload {
        let payload = payload
            .iter()
            .map(|&(key, value)| (key.to_owned(), value.to_owned()));
        Payload::AuditAppend(v1::AuditAppend {
            event: Some(v1::AuditEvent {
                r#type: kind.into(),
                payload: payload.collect(),
                ..Default::default()
            }),
        })
    }

    fn batch(children: Vec<Payload>) -> Payload {
        let child = |payload| v1::Command {
            payload: Some(payload),
            ..Default::default()
        };
        Payload::Batch(v1::Batch {
            children: children.into_iter().map(child).collect(),
        })
    }

    #[test]
    fn member_reports_only_about_itself() {
        for (payload, expected) in [
            (update_self("n2"), true),
            (update_self("n1"), false),
            (update_self(""), false),
            (status("n2", mark::KEEP), true),
            (status("n2", mark::CLEAR), false),
            (status("n2", mark::SET), false),
            (status("n1", mark::KEEP), false),
            (status("n1", mark::CLEAR), false),
            (cordon("n2", mark::SET), false),
            (cordon("n2", mark::CLEAR), false),
            (observed(Some("n2")), true),
            (observed(Some("n1")), false),
            (observed(None), false),
        ] {
            assert_eq!(allowed(payload.clone()), expected, "{payload:?}");
        }
    }

    #[test]
    fn member_cannot_cancel_its_removal() {
        use NodeStatus::{
            DrainTimeout, IsolationUnavailable, Joining, Offline, Ready, Unhealthy, Unspecified,
        };
        let say = |status: NodeStatus, drain_mark| {
            Payload::NodeStatusUpdate(v1::NodeStatusUpdate {
                hostname: "n2".to_owned(),
                status: status.into(),
                drain_mark,
                ..Default::default()
            })
        };
        type Row = (NodeStatus, bool, NodeStatus, i32, bool);
        let table: &[Row] = &[
            // Status and mark in the row, reported status and mark, whether that is allowed.
            (Ready, true, Unspecified, mark::CLEAR, false),
            (Ready, true, Ready, mark::CLEAR, false),
            (Offline, true, Ready, mark::CLEAR, false),
            (Ready, true, DrainTimeout, mark::KEEP, false),
            (Ready, true, DrainTimeout, mark::CLEAR, false),
            (Ready, false, DrainTimeout, mark::KEEP, false),
            (DrainTimeout, true, DrainTimeout, mark::KEEP, false),
            (Ready, true, IsolationUnavailable, mark::KEEP, false),
            (Ready, true, Joining, mark::KEEP, false),
            (Ready, true, Offline, mark::KEEP, false),
            (Ready, true, Unhealthy, mark::KEEP, false),
            // A returning member is still removed.
            (Offline, true, Ready, mark::KEEP, true),
            (Ready, true, Unspecified, mark::KEEP, true),
            // A late report does not resume a drain.
            (DrainTimeout, true, Ready, mark::KEEP, false),
            (DrainTimeout, true, Unspecified, mark::KEEP, true),
            (DrainTimeout, true, Ready, mark::CLEAR, true),
            (DrainTimeout, true, Unspecified, mark::CLEAR, true),
            (Ready, false, IsolationUnavailable, mark::KEEP, true),
            (Unhealthy, false, Ready, mark::KEEP, true),
        ];
        for &(status, marked, says, mark, expected) in table {
            let row = state(status, marked);
            assert_eq!(
                allowed_in(&row, say(says, mark)),
                expected,
                "{status:?} marked={marked}: {says:?} {mark}"
            );
        }
        assert!(!allowed_in(&State::default(), say(Ready, 0)), "no row");
        // The status follows the heartbeats once the timeout is recorded.
        for (status, mark, expected) in [
            (Offline, mark::CLEAR, true),
            (Offline, mark::KEEP, true),
            (DrainTimeout, mark::KEEP, false),
        ] {
            let mut state = state(status, true);
            let row = Arc::make_mut(state.nodes.get_mut("n2").unwrap());
            row.drain = Some(v1::NodeDrain {
                timed_out: true,
                ..Default::default()
            });
            assert_eq!(allowed_in(&state, say(Ready, mark)), expected, "{status:?}");
        }
        let clear = submitted(say(Ready, mark::CLEAR));
        assert!(clears_mark(&clear) && !clears_mark(&submitted(say(Ready, 0))));
    }

    #[test]
    fn leader_assigns_writer_and_time() {
        let state = state(NodeStatus::Ready, false);
        let own = [("node", "n2")];
        let own_mesh = [("node", "n2"), ("device", "jaco0")];
        let ruleset = AuditEventType::IsolationRulesetReconciled;
        let isolation = |status: NodeStatus, reason: &str| {
            Payload::NodeStatusUpdate(v1::NodeStatusUpdate {
                hostname: "n2".to_owned(),
                status: status.into(),
                details: [("reason".to_owned(), reason.to_owned())].into(),
                ..Default::default()
            })
        };
        let recovered = writers::RELOAD_RECOVERED;
        for (payload, writer) in [
            (isolation(NodeStatus::IsolationUnavailable, "x"), "firewall"),
            (isolation(NodeStatus::Ready, recovered), "firewall"),
            (isolation(NodeStatus::Ready, "x"), "node-health"),
            (update_self("n2"), "node-update-self"),
            (status("n2", mark::KEEP), "node-health"),
            (observed(Some("n2")), "runtime"),
            (event(ruleset, &own), "firewall"),
            (event(AuditEventType::UpgradeFailed, &own), "system"),
            (event(AuditEventType::NetworkRepaired, &own), "bridge"),
            (event(AuditEventType::NetworkRepaired, &own_mesh), "mesh"),
        ] {
            let stamped = admit("n2", submitted(payload.clone()), &state, NOW).unwrap();
            assert_eq!(stamped, command(writer, NOW, payload));
        }
        // Events that carry a writer and a time.
        for (identity, expected) in [("", true), ("firewall", true), ("ci", false), ("n2", false)] {
            let Payload::AuditAppend(mut append) = event(ruleset, &own) else {
                unreachable!()
            };
            let said = append.event.as_mut().unwrap();
            said.identity = identity.to_owned();
            said.ts = Some(Timestamp::default());
            let stamped = admit("n2", submitted(Payload::AuditAppend(append)), &state, NOW);
            assert_eq!(stamped.is_ok(), expected, "{identity}");
            if let Ok(stamped) = stamped {
                assert_eq!(stamped, command("firewall", NOW, event(ruleset, &own)));
            }
        }
    }

    #[test]
    fn member_writes_some_kinds_of_audit_events() {
        for kind in (0..=30).chain(1200..1203) {
            let Ok(kind) = AuditEventType::try_from(kind) else {
                continue;
            };
            let node = matches!(kind as i32, 11 | 15 | 16 | 1200..1203);
            assert_eq!(allowed(event(kind, &[])), node, "{kind:?}");
            assert!(!allowed(event(kind, &[("node", "n1")])), "{kind:?}");
            assert!(!allowed(event(kind, &[("hostname", "n1")])), "{kind:?}");
            let own = [("node", "n2"), ("hostname", "n2"), ("from", "n1")];
            assert_eq!(allowed(event(kind, &own)), node, "{kind:?}");
        }
        assert!(!allowed(Payload::AuditAppend(v1::AuditAppend::default())));
    }

    #[test]
    fn batch_is_refused() {
        for children in [
            vec![],
            vec![observed(Some("n2"))],
            vec![update_self("n2"), batch(vec![])],
        ] {
            assert!(!allowed(batch(children)));
        }
    }

    #[test]
    fn leader_only_commands_are_refused() {
        for payload in [
            Payload::ClusterInit(Default::default()),
            Payload::NodeJoin(Default::default()),
            Payload::NodeRemove(v1::NodeRemove {
                hostname: "n2".to_owned(),
            }),
            Payload::DeploymentApply(Default::default()),
            Payload::DeploymentRollback(Default::default()),
            Payload::DeploymentDelete(Default::default()),
            Payload::DeploymentStatusUpdate(Default::default()),
            Payload::ReplicaDesiredUpsert(v1::ReplicaDesiredUpsert {
                replica: Some(v1::ReplicaDesired {
                    host: "n2".to_owned(),
                    ..Default::default()
                }),
            }),
            Payload::ReplicaDesiredRemove(Default::default()),
            Payload::ReplicaCommandIssue(Default::default()),
            Payload::RolloutPlanUpdate(Default::default()),
            Payload::ReplicaCounterIncrement(Default::default()),
            Payload::RestartCounterUpdate(Default::default()),
            Payload::RouteUpsert(Default::default()),
            Payload::RouteRemove(Default::default()),
            Payload::CertStore(Default::default()),
            Payload::CertLock(Default::default()),
            Payload::CertUnlock(Default::default()),
            Payload::ChallengeTokenStore(Default::default()),
            Payload::CertBlobUpsert(Default::default()),
            Payload::CertBlobRemove(Default::default()),
            Payload::SubnetAllocate(v1::SubnetAllocate {
                host: "n2".to_owned(),
                ..Default::default()
            }),
            Payload::SubnetFree(Default::default()),
            Payload::TokenIssue(Default::default()),
            Payload::TokenRevoke(Default::default()),
            Payload::JoinTokenIssue(Default::default()),
            Payload::JoinTokenConsume(Default::default()),
            Payload::RegistryCredentialUpsert(Default::default()),
            Payload::RegistryCredentialRemove(Default::default()),
            Payload::ClusterConfigSet(Default::default()),
            Payload::SecretsKeySet(Default::default()),
        ] {
            assert!(!allowed(payload.clone()), "{payload:?}");
        }
        let state = State::default();
        let empty = admit("n2", v1::Command::default(), &state, NOW).unwrap_err();
        assert_eq!(empty.code, ErrorCode::ValidationFailed);
    }
}
