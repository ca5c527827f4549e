//! Conversions from engine API types to the port's types.

use std::{collections::BTreeMap, net::Ipv4Addr, time::Duration};

use bollard::models::{CreateImageInfo, EventMessage, ExecConfig};
use serde::Deserialize;

use crate::{
    Endpoint, EngineError, Event, EventKind, Found, Health, Inspected, NetworkEvent,
    NetworkNamespace, NetworkedContainer, Status,
    labels::{LABEL_PRE_STOP, LABEL_RAFT_INDEX, LABEL_REPLICA},
    printable,
    spec::EndpointConfig,
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
    network_settings: Option<NetworkSettings>,
}

impl Summary {
    /// Engine id.
    pub(super) fn into_id(self) -> String {
        self.id
    }

    /// Whether its process runs.
    pub(super) fn is_running(&self) -> bool {
        status(&self.state) == Status::Running
    }
}

/// Fields read from an inspected container.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Details {
    id: String,
    state: Option<State>,
    config: Option<Config>,
    host_config: Option<HostConfig>,
    network_settings: Option<NetworkSettings>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HostConfig {
    #[serde(default)]
    network_mode: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct State {
    #[serde(default)]
    status: String,
    #[serde(default)]
    started_at: String,
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
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct NetworkSettings {
    networks: Option<BTreeMap<String, Option<EndpointSettings>>>,
}

#[derive(Debug, Deserialize)]
struct EndpointSettings {
    #[serde(default, rename = "IPAddress")]
    address: String,
    #[serde(rename = "Aliases")]
    aliases: Option<Vec<String>>,
    /// Only engines from version 28 on have it.
    #[serde(rename = "GwPriority")]
    gateway_priority: Option<i64>,
}

impl NetworkSettings {
    fn endpoints(self) -> impl Iterator<Item = (String, EndpointSettings)> {
        let networks = self.networks.unwrap_or_default().into_iter();
        networks.filter_map(|(network, endpoint)| Some((network, endpoint?)))
    }
}

impl Details {
    /// Stop grace period configured in the container.
    pub(super) fn grace(&self) -> Option<Duration> {
        let seconds = self.config.as_ref()?.stop_timeout?;
        Some(Duration::from_secs(seconds))
    }

    /// Requests for the commands to run before its stop, if it has any and runs.
    pub(super) fn pre_stop(&self) -> Option<serde_json::Result<Vec<ExecConfig>>> {
        let state = self.state.as_ref()?;
        let labels = self.config.as_ref()?.labels.as_ref()?;
        let requests = labels.get(LABEL_PRE_STOP)?;
        let runs = status(&state.status) == Status::Running;
        runs.then(|| serde_json::from_str(requests))
    }

    /// Container whose network namespace it uses.
    pub(super) fn lender(&self) -> Option<&str> {
        let mode = &self.host_config.as_ref()?.network_mode;
        mode.strip_prefix("container:")
    }

    fn has_ended(&self) -> bool {
        let ended = |state: &State| status(&state.status).has_stopped();
        self.state.as_ref().is_none_or(ended)
    }

    /// Its attachment to the network of a name.
    pub(super) fn endpoint(self, network: &str) -> Option<Endpoint> {
        let container = self.id;
        let mut endpoints = self.network_settings?.endpoints();
        let (_, endpoint) = endpoints.find(|(name, _)| name == network)?;
        // The engine adds the short id itself.
        let own = |alias: &String| !container.starts_with(alias.as_str());
        let aliases = endpoint.aliases.unwrap_or_default();
        Some(Endpoint {
            config: EndpointConfig {
                aliases: aliases.into_iter().filter(own).collect(),
                gateway_priority: endpoint.gateway_priority.filter(|priority| *priority != 0),
            },
            address: endpoint.address.parse().ok(),
            container,
        })
    }
}

pub(super) fn networked(summary: Summary) -> NetworkedContainer {
    let networks = summary.network_settings.map(NetworkSettings::endpoints);
    let networks = networks.into_iter().flatten();
    let address = |endpoint: EndpointSettings| endpoint.address.parse::<Ipv4Addr>().ok();
    let mut labels = summary.labels.unwrap_or_default();
    NetworkedContainer {
        running: status(&summary.state) == Status::Running,
        id: summary.id,
        raft_index: labels
            .get(LABEL_RAFT_INDEX)
            .and_then(|index| index.parse().ok()),
        replica_id: labels.remove(LABEL_REPLICA),
        networks: networks
            .map(|(name, found)| (name, address(found)))
            .collect(),
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

/// Container as inspected; `lender` is the container whose network namespace it uses, if that
/// exists.
pub(super) fn inspected(mut details: Details, lender: Option<Details>) -> Inspected {
    let namespace = match (details.lender(), &lender) {
        (None, _) => NetworkNamespace::Own,
        (Some(_), Some(lender)) if !lender.has_ended() => NetworkNamespace::Lent(lender.id.clone()),
        (Some(_), _) => NetworkNamespace::Lost,
    };
    let settings = match &namespace {
        NetworkNamespace::Own => details.network_settings.take(),
        NetworkNamespace::Lent(_) => lender.and_then(|lender| lender.network_settings),
        NetworkNamespace::Lost => None,
    };
    let endpoints = settings.map(NetworkSettings::endpoints);
    let addresses = endpoints
        .into_iter()
        .flatten()
        .map(|(network, endpoint)| (network, endpoint.address))
        .filter(|(_, address)| !address.is_empty())
        .collect();
    let state = details.state.as_ref();
    let health = state.and_then(|state| state.health.as_ref());
    Inspected {
        id: details.id,
        status: state.map(|state| status(&state.status)),
        started_at: state.map_or_else(String::new, |state| state.started_at.clone()),
        exit_code: state.map_or(0, |state| state.exit_code),
        oom_killed: state.is_some_and(|state| state.oom_killed),
        health: health.and_then(|health| match health.status.as_str() {
            "starting" => Some(Health::Starting),
            "healthy" => Some(Health::Healthy),
            "unhealthy" => Some(Health::Unhealthy),
            _ => None,
        }),
        namespace,
        addresses,
    }
}

/// `None` for actions that do not affect a bridge.
pub(super) fn network_event(message: EventMessage) -> Option<NetworkEvent> {
    let action = message.action?;
    let mut attributes = message.actor?.attributes?;
    let name = attributes.remove("name")?;
    match action.as_str() {
        // The second word is Podman's.
        "destroy" | "remove" => Some(NetworkEvent::Destroyed(name)),
        "disconnect" => Some(NetworkEvent::Disconnected(name)),
        _ => None,
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
            assert_eq!(
                inspected(read(up_close), None).status,
                Some(status),
                "{word}"
            );
        }
    }

    #[test]
    fn missing_fields_of_an_inspection_are_tolerated() {
        let seen = inspected(
            read(json!({
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
            })),
            None,
        );
        assert_eq!((seen.exit_code, seen.oom_killed), (137, true));
        assert_eq!(seen.addresses, [("a".into(), "10.0.0.2".into())].into());
        assert_eq!(seen.health, Some(Health::Unhealthy));
        let bare = inspected(read(json!({ "Id": "c1" })), None);
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

    #[test]
    fn borrower_has_the_addresses_of_its_lender() {
        let borrower = json!({
            "Id": "b", "State": { "Status": "running" },
            "HostConfig": { "NetworkMode": "container:l" },
            "NetworkSettings": { "Networks": {} },
        });
        let lender = |state: &str| {
            json!({
                "Id": "l", "State": { "Status": state },
                "HostConfig": { "NetworkMode": "jaco_app_front" },
                "NetworkSettings": { "Networks": { "jaco_app_front": { "IPAddress": "10.0.0.7" } } },
            })
        };
        let details: Details = read(borrower.clone());
        assert_eq!(details.lender(), Some("l"));
        let seen = |lender: Option<Details>| inspected(read(borrower.clone()), lender);
        let lent = seen(Some(read(lender("running"))));
        assert_eq!(lent.namespace, NetworkNamespace::Lent("l".to_owned()));
        assert_eq!(lent.addresses["jaco_app_front"], "10.0.0.7");
        for lost in [seen(None), seen(Some(read(lender("exited"))))] {
            assert_eq!(lost.namespace, NetworkNamespace::Lost);
            assert!(lost.addresses.is_empty());
        }
        let own = inspected(read(lender("running")), None);
        assert_eq!(own.namespace, NetworkNamespace::Own);
        assert_eq!(own.addresses["jaco_app_front"], "10.0.0.7");
    }

    #[test]
    fn endpoint_leaves_out_the_alias_of_the_engine() {
        let details: Details = read(json!({
            "Id": "0123456789abcdef",
            "NetworkSettings": { "Networks": { "n": {
                "IPAddress": "10.0.0.7", "Aliases": ["web", "0123456789ab"], "GwPriority": 3,
            } } },
        }));
        let endpoint = details.endpoint("n").unwrap();
        assert_eq!(endpoint.config.aliases, ["web"]);
        assert_eq!(endpoint.config.gateway_priority, Some(3));
        assert_eq!(endpoint.address, Some([10, 0, 0, 7].into()));
    }

    #[test]
    fn loss_of_networks_and_attachments_is_an_event() {
        let event = |action: &str| {
            let attributes = json!({ "name": "jaco_app_front", "type": "bridge" });
            network_event(read(json!({
                "Type": "network", "Action": action,
                "Actor": { "ID": "n1", "Attributes": attributes },
            })))
        };
        let name = || "jaco_app_front".to_owned();
        for (action, expected) in [
            ("destroy", Some(NetworkEvent::Destroyed(name()))),
            ("remove", Some(NetworkEvent::Destroyed(name()))),
            ("disconnect", Some(NetworkEvent::Disconnected(name()))),
            ("connect", None),
            ("create", None),
        ] {
            assert_eq!(event(action), expected, "{action}");
        }
    }
}
