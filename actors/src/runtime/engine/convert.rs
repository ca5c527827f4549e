//! The engine's answers as the runtime's own types.

use std::collections::HashMap;

use bollard::models::{
    ContainerInspectResponse, ContainerStateStatusEnum, ContainerSummary,
    ContainerSummaryStateEnum, CreateImageInfo, EventMessage, HealthStatusEnum,
};

use super::{EngineError, Event, EventKind, Found, Health, Inspected, Status};
use crate::{
    docker::readable,
    labels::{LABEL_RAFT_INDEX, LABEL_REPLICA},
};

/// One step of a pull, which may be its failure.
pub(super) fn progress(step: CreateImageInfo) -> Result<(), EngineError> {
    let failed = |message: String| EngineError::Api {
        status: 0,
        message: readable(&message),
    };
    if let Some(detail) = step.error_detail {
        let message = detail.message.filter(|message| !message.is_empty());
        return Err(failed(
            message.unwrap_or_else(|| "the pull failed without a reason".to_owned()),
        ));
    }
    // Every step of a pull says what it is about; an error in another form does not.
    if step.status.is_none() && step.id.is_none() && step.progress_detail.is_none() {
        return Err(failed("the engine told of no progress".to_owned()));
    }
    Ok(())
}

pub(super) fn found(summary: ContainerSummary) -> Option<Found> {
    let labels = summary.labels.unwrap_or_default();
    Some(Found {
        id: summary.id?,
        replica_id: labels.get(LABEL_REPLICA).cloned(),
        raft_index: raft_index(&labels),
        status: match summary.state {
            Some(ContainerSummaryStateEnum::RUNNING) => Status::Running,
            Some(ContainerSummaryStateEnum::EXITED) => Status::Exited,
            Some(ContainerSummaryStateEnum::DEAD) => Status::Dead,
            Some(ContainerSummaryStateEnum::CREATED) => Status::Created,
            Some(
                ContainerSummaryStateEnum::EMPTY
                | ContainerSummaryStateEnum::PAUSED
                | ContainerSummaryStateEnum::RESTARTING
                | ContainerSummaryStateEnum::REMOVING
                | ContainerSummaryStateEnum::STOPPING,
            )
            | None => Status::Other,
        },
    })
}

fn raft_index(labels: &HashMap<String, String>) -> Option<u64> {
    labels.get(LABEL_RAFT_INDEX)?.parse().ok()
}

pub(super) fn inspected(id: &str, answer: ContainerInspectResponse) -> Inspected {
    let state = answer.state;
    let addresses = answer
        .network_settings
        .and_then(|settings| settings.networks)
        .unwrap_or_default()
        .into_iter()
        .filter_map(|(network, endpoint)| {
            let address = endpoint.ip_address.filter(|address| !address.is_empty())?;
            Some((network, address))
        })
        .collect();
    Inspected {
        id: answer.id.unwrap_or_else(|| id.to_owned()),
        status: state.as_ref().map(|state| match state.status {
            Some(ContainerStateStatusEnum::RUNNING) => Status::Running,
            Some(ContainerStateStatusEnum::EXITED) => Status::Exited,
            Some(ContainerStateStatusEnum::DEAD) => Status::Dead,
            Some(ContainerStateStatusEnum::CREATED) => Status::Created,
            Some(
                ContainerStateStatusEnum::EMPTY
                | ContainerStateStatusEnum::PAUSED
                | ContainerStateStatusEnum::RESTARTING
                | ContainerStateStatusEnum::REMOVING
                | ContainerStateStatusEnum::STOPPING,
            )
            | None => Status::Other,
        }),
        exit_code: state.as_ref().and_then(|s| s.exit_code).unwrap_or(0),
        oom_killed: state.as_ref().and_then(|s| s.oom_killed).unwrap_or(false),
        health: state
            .and_then(|state| state.health)
            .and_then(|health| match health.status {
                Some(HealthStatusEnum::STARTING) => Some(Health::Starting),
                Some(HealthStatusEnum::HEALTHY) => Some(Health::Healthy),
                Some(HealthStatusEnum::UNHEALTHY) => Some(Health::Unhealthy),
                Some(HealthStatusEnum::EMPTY | HealthStatusEnum::NONE) | None => None,
            }),
        addresses,
    }
}

/// `None` for actions that change nothing the runtime looks at.
pub(super) fn event(message: EventMessage) -> Option<Event> {
    let action = message.action?;
    let kind = match action.split(':').next().unwrap_or_default() {
        "start" | "unpause" => EventKind::Start,
        "die" | "died" | "pause" => EventKind::Die,
        "oom" => EventKind::Oom,
        "health_status" => EventKind::Health,
        "destroy" | "remove" => EventKind::Destroy,
        _ => return None,
    };
    let actor = message.actor?;
    Some(Event {
        container_id: actor.id?,
        replica_id: actor.attributes?.remove(LABEL_REPLICA)?,
        kind,
    })
}

#[cfg(test)]
mod tests {
    use bollard::models::{
        ContainerState, EndpointSettings, EventActor, Health as EngineHealth, NetworkSettings,
    };

    use super::*;

    #[test]
    fn a_step_of_a_pull_is_progress_or_its_failure() {
        for (line, expected) in [
            (r#"{"status":"Pulling from a/b","id":"1"}"#, None),
            (
                r#"{"status":"Downloading","progressDetail":{"current":1,"total":2},"id":"ab"}"#,
                None,
            ),
            (r#"{"progressDetail":{},"id":"ab"}"#, None),
            (
                r#"{"errorDetail":{"message":"no"},"error":"no"}"#,
                Some("no"),
            ),
            (
                r#"{"progressDetail":{},"errorDetail":{"message":"no"},"error":"no"}"#,
                Some("no"),
            ),
            (
                r#"{"errorDetail":{"code":1}}"#,
                Some("the pull failed without a reason"),
            ),
            (
                r#"{"errorDetail":{"message":""}}"#,
                Some("the pull failed without a reason"),
            ),
            (r#"{"error":"no"}"#, Some("the engine told of no progress")),
            ("{}", Some("the engine told of no progress")),
        ] {
            let step = serde_json::from_str(line).unwrap();
            let failure = progress(step).err().map(|error| error.to_string());
            assert_eq!(failure.as_deref(), expected, "{line}");
        }
    }

    #[test]
    fn an_unparsable_index_label_reads_as_none() {
        for (label, index) in [(Some("12"), Some(12)), (Some("x"), None), (None, None)] {
            let labels = label.map(|value| (LABEL_RAFT_INDEX.to_owned(), value.to_owned()));
            let summary = ContainerSummary {
                id: Some("c1".into()),
                labels: Some(labels.into_iter().collect()),
                ..Default::default()
            };
            assert_eq!(found(summary).unwrap().raft_index, index);
        }
    }

    #[test]
    fn networks_without_an_address_are_left_out() {
        let endpoint = |address: &str| EndpointSettings {
            ip_address: Some(address.to_owned()),
            ..Default::default()
        };
        let answer = ContainerInspectResponse {
            network_settings: Some(NetworkSettings {
                networks: Some(
                    [
                        ("a".to_owned(), endpoint("10.0.0.2")),
                        ("b".to_owned(), endpoint("")),
                    ]
                    .into(),
                ),
                ..Default::default()
            }),
            state: Some(ContainerState {
                status: Some(ContainerStateStatusEnum::RUNNING),
                health: Some(EngineHealth {
                    status: Some(HealthStatusEnum::UNHEALTHY),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        };
        let seen = inspected("c1", answer);
        assert_eq!(seen.id, "c1");
        assert_eq!(seen.addresses, [("a".into(), "10.0.0.2".into())].into());
        assert_eq!(seen.health, Some(Health::Unhealthy));
        assert_eq!(
            inspected("c1", ContainerInspectResponse::default()).status,
            None
        );
    }

    #[test]
    fn events_without_a_replica_label_are_ignored() {
        let message = |action: &str, labels: &[(&str, &str)]| EventMessage {
            action: Some(action.to_owned()),
            actor: Some(EventActor {
                id: Some("c1".into()),
                attributes: Some(
                    labels
                        .iter()
                        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                        .collect(),
                ),
            }),
            ..Default::default()
        };
        let ours = [(LABEL_REPLICA, "web-0")];
        assert_eq!(
            event(message("health_status: healthy", &ours))
                .unwrap()
                .kind,
            EventKind::Health
        );
        assert_eq!(event(message("die", &ours)).unwrap().replica_id, "web-0");
        assert_eq!(event(message("die", &[])), None);
        assert_eq!(event(message("exec_start: sh", &ours)), None);
    }
}
