//! Conversions from engine API types to the port's types.

use std::{collections::BTreeMap, time::Duration};

use bollard::models::{CreateImageInfo, EventMessage};
use serde::Deserialize;

use crate::{
    EngineError, Event, EventKind, Found, Health, Inspected, Status,
    labels::{LABEL_RAFT_INDEX, LABEL_REPLICA},
    printable,
};

/// Converts one progress message of a pull, which may carry its failure.
pub(super) fn progress(step: CreateImageInfo) -> Result<(), EngineError> {
    let failed = |message: String| EngineError::Api {
        status: 0,
        message: printable(&message),
    };
    if let Some(detail) = step.error_detail {
        let message = detail.message.filter(|message| !message.is_empty());
        return Err(failed(
            message.unwrap_or_else(|| "the pull failed without a reason".to_owned()),
        ));
    }
    // Every progress message has at least one of these fields; anything else is treated as an error
    // in an unknown format.
    if step.status.is_none() && step.id.is_none() && step.progress_detail.is_none() {
        return Err(failed("the engine told of no progress".to_owned()));
    }
    Ok(())
}

/// Fields read from an entry of a container listing.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Summary {
    id: String,
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    state: String,
}

/// Fields read from an inspected container.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Details {
    id: String,
    state: Option<State>,
    config: Option<Config>,
    network_settings: Option<NetworkSettings>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct State {
    #[serde(default)]
    status: String,
    #[serde(default)]
    exit_code: i64,
    #[serde(default, rename = "OOMKilled")]
    oom_killed: bool,
    health: Option<HealthState>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HealthState {
    #[serde(default)]
    status: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Config {
    stop_timeout: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct NetworkSettings {
    networks: Option<BTreeMap<String, Option<Endpoint>>>,
}

#[derive(Debug, Deserialize)]
struct Endpoint {
    #[serde(default, rename = "IPAddress")]
    address: String,
}

impl Details {
    /// Stop grace period configured in the container.
    pub(super) fn grace(&self) -> Option<Duration> {
        let seconds = self.config.as_ref()?.stop_timeout?;
        Some(Duration::from_secs(seconds))
    }
}

pub(super) fn found(summary: Summary) -> Found {
    let mut labels = summary.labels.unwrap_or_default();
    Found {
        id: summary.id,
        raft_index: labels
            .get(LABEL_RAFT_INDEX)
            .and_then(|index| index.parse().ok()),
        replica_id: labels.remove(LABEL_REPLICA),
        status: status(&summary.state),
    }
}

/// Maps a state word of Docker or Podman; in each pair the second word is Podman's.
fn status(word: &str) -> Status {
    match word {
        "running" => Status::Running,
        "exited" | "stopped" => Status::Exited,
        "dead" => Status::Dead,
        "created" | "configured" => Status::Created,
        _ => Status::Other,
    }
}

pub(super) fn inspected(details: Details) -> Inspected {
    let networks = details
        .network_settings
        .and_then(|settings| settings.networks);
    let addresses = networks
        .unwrap_or_default()
        .into_iter()
        .filter_map(|(network, endpoint)| Some((network, endpoint?.address)))
        .filter(|(_, address)| !address.is_empty())
        .collect();
    let state = details.state.as_ref();
    let health = state.and_then(|state| state.health.as_ref());
    Inspected {
        id: details.id,
        status: state.map(|state| status(&state.status)),
        exit_code: state.map_or(0, |state| state.exit_code),
        oom_killed: state.is_some_and(|state| state.oom_killed),
        health: health.and_then(|health| match health.status.as_str() {
            "starting" => Some(Health::Starting),
            "healthy" => Some(Health::Healthy),
            "unhealthy" => Some(Health::Unhealthy),
            _ => None,
        }),
        addresses,
    }
}

/// `None` for actions that do not affect the runtime.
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
    use bollard::models::EventActor;
    use serde_json::json;

    use super::*;

    fn read<T: serde::de::DeserializeOwned>(document: serde_json::Value) -> T {
        serde_json::from_value(document).unwrap()
    }

    #[test]
    fn pull_message_is_either_progress_or_failure() {
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
    fn unparsable_index_label_is_ignored() {
        for (labels, index) in [
            (json!({ "jaco.raft_index": "12" }), Some(12)),
            (json!({ "jaco.raft_index": "x" }), None),
            (json!({}), None),
            (json!(null), None),
        ] {
            let summary = json!({ "Id": "c1", "Labels": labels, "State": "running" });
            assert_eq!(found(read(summary)).raft_index, index);
        }
    }

    #[test]
    fn docker_and_podman_states_map_to_status() {
        use Status::{Created, Dead, Exited, Other, Running};
        for (word, status) in [
            ("running", Running),
            ("exited", Exited),
            ("stopped", Exited),
            ("dead", Dead),
            ("created", Created),
            ("configured", Created),
            ("paused", Other),
            ("removing", Other),
            ("something new", Other),
        ] {
            let listed = json!({ "Id": "c1", "State": word });
            assert_eq!(found(read(listed)).status, status, "{word}");
            let up_close = json!({ "Id": "c1", "State": { "Status": word } });
            assert_eq!(inspected(read(up_close)).status, Some(status), "{word}");
        }
    }

    #[test]
    fn missing_fields_of_an_inspection_are_tolerated() {
        let seen = inspected(read(json!({
            "Id": "c1",
            "State": {
                "Status": "exited",
                "ExitCode": 137,
                "OOMKilled": true,
                "Health": { "Status": "unhealthy", "Log": null },
            },
            "NetworkSettings": {
                "Networks": { "a": { "IPAddress": "10.0.0.2" }, "b": { "IPAddress": "" }, "c": null },
            },
        })));
        assert_eq!((seen.exit_code, seen.oom_killed), (137, true));
        assert_eq!(seen.addresses, [("a".into(), "10.0.0.2".into())].into());
        assert_eq!(seen.health, Some(Health::Unhealthy));
        let bare = inspected(read(json!({ "Id": "c1" })));
        assert_eq!((bare.status, bare.health), (None, None));
        let grace = |config| read::<Details>(json!({ "Id": "c1", "Config": config })).grace();
        assert_eq!(
            grace(json!({ "StopTimeout": 3 })),
            Some(Duration::from_secs(3))
        );
        assert_eq!(grace(json!({})), None);
    }

    #[test]
    fn events_without_replica_label_are_ignored() {
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
