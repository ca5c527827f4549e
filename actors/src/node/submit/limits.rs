//! What a member may submit: what it knows about itself, and nothing else.

use jaco_proto::{
    Error, ErrorCode,
    v1::{self, AuditEventType, command::Payload},
};

/// Value of `drain_mark` that sets the mark, which only the leader does.
const SET_DRAINING: i32 = 1;

/// Whether the member `sender` may submit `command`.
///
/// # Errors
/// `privilege_denied`, with the name of the variant.
pub(crate) fn permit(sender: &str, command: &v1::Command) -> Result<(), Error> {
    let Some(payload) = &command.payload else {
        return Err(
            Error::new(ErrorCode::ValidationFailed, "the command is empty")
                .with("field", "command"),
        );
    };
    let allowed = match payload {
        Payload::NodeUpdateSelf(update) => update.hostname == sender,
        Payload::NodeStatusUpdate(update) => {
            update.hostname == sender && update.drain_mark != SET_DRAINING
        }
        Payload::ReplicaObservedUpdate(update) => update
            .replica
            .as_ref()
            .is_some_and(|row| row.host == sender),
        Payload::AuditAppend(append) => append
            .event
            .as_ref()
            .is_some_and(|event| tells_of_itself(sender, event)),
        // Only the leader's own handlers and actors make these, and batches of anything.
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
        | Payload::RegistryCredentialRemove(_) => false,
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

/// Whether `event` is one that nodes write, about the node that writes it.
fn tells_of_itself(sender: &str, event: &v1::AuditEvent) -> bool {
    let kind = matches!(
        event.r#type(),
        AuditEventType::IsolationRulesetReconciled
            | AuditEventType::UpgradeSucceeded
            | AuditEventType::UpgradeFailed
    );
    let named = ["node", "hostname"]
        .iter()
        .filter_map(|key| event.payload.get(*key));
    kind && named.into_iter().all(|host| host == sender)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(payload: Payload) -> bool {
        let command = v1::Command {
            payload: Some(payload),
            ..Default::default()
        };
        match permit("n2", &command) {
            Ok(()) => true,
            Err(error) => {
                assert_eq!(error.code, ErrorCode::PrivilegeDenied);
                false
            }
        }
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
    fn a_member_speaks_for_itself() {
        for (payload, expected) in [
            (update_self("n2"), true),
            (update_self("n1"), false),
            (update_self(""), false),
            (status("n2", 0), true),
            (status("n2", 2), true),
            (status("n2", 1), false),
            (status("n1", 0), false),
            (status("n1", 2), false),
            (observed(Some("n2")), true),
            (observed(Some("n1")), false),
            (observed(None), false),
        ] {
            assert_eq!(allowed(payload.clone()), expected, "{payload:?}");
        }
    }

    #[test]
    fn a_member_writes_three_kinds_of_audit_events() {
        for kind in 0..=30 {
            let Ok(kind) = AuditEventType::try_from(kind) else {
                continue;
            };
            let node = matches!(kind as i32, 11 | 15 | 16);
            assert_eq!(allowed(event(kind, &[])), node, "{kind:?}");
            assert!(!allowed(event(kind, &[("node", "n1")])), "{kind:?}");
            assert!(!allowed(event(kind, &[("hostname", "n1")])), "{kind:?}");
            let own = [("node", "n2"), ("hostname", "n2"), ("from", "n1")];
            assert_eq!(allowed(event(kind, &own)), node, "{kind:?}");
        }
        assert!(!allowed(Payload::AuditAppend(v1::AuditAppend::default())));
    }

    #[test]
    fn nobody_submits_a_batch() {
        for children in [
            vec![],
            vec![observed(Some("n2"))],
            vec![update_self("n2"), batch(vec![])],
        ] {
            assert!(!allowed(batch(children)));
        }
    }

    #[test]
    fn everything_else_comes_from_the_leader() {
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
        ] {
            assert!(!allowed(payload.clone()), "{payload:?}");
        }
        let empty = permit("n2", &v1::Command::default()).unwrap_err();
        assert_eq!(empty.code, ErrorCode::ValidationFailed);
    }
}
