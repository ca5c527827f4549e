//! `jaco get replicas` and `jaco get replica`.

use std::time::Duration;

use jaco_proto::v1::{self, deploy_client::DeployClient};
use serde::Serialize;

use crate::client::{
    connection::{Client, MAX_MESSAGE_BYTES},
    failure::{Failure, Local, Stop},
    output::{
        Ui, View,
        table::{self, col},
        text::time,
    },
    replica::{self, Reason},
};

const DEADLINE: Duration = Duration::from_secs(30);

#[derive(Serialize)]
#[serde(transparent)]
struct ListView(Vec<ReplicaView>);

#[derive(Serialize)]
struct ReplicaView {
    id: String,
    deployment: String,
    service: String,
    index: i32,
    state: String,
    host: String,
    image: String,
    revision: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    container_id: String,
    restart_count: i32,
    #[serde(flatten)]
    reason: Reason,
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_health_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_attempt_at: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    depends_on: Vec<DependencyView>,
}

#[derive(Serialize)]
struct DependencyView {
    service: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    condition: String,
    state: String,
    satisfied: bool,
}

impl From<v1::ReplicaDetail> for ReplicaView {
    fn from(detail: v1::ReplicaDetail) -> Self {
        Self {
            state: replica::state(detail.state()),
            id: detail.id,
            deployment: detail.deployment,
            service: detail.service,
            index: detail.index,
            host: detail.host,
            image: detail.image,
            revision: detail.revision,
            container_id: detail.container_id,
            restart_count: detail.restart_count,
            reason: Reason {
                code: detail.code,
                message: detail.message,
                details: detail.details,
            },
            started_at: detail.started_at.as_ref().map(time),
            last_health_at: detail.last_health_at.as_ref().map(time),
            last_attempt_at: detail.last_attempt_at.as_ref().map(time),
            depends_on: detail
                .depends_on
                .into_iter()
                .map(DependencyView::from)
                .collect(),
        }
    }
}

impl From<v1::DependencyState> for DependencyView {
    fn from(dependency: v1::DependencyState) -> Self {
        Self {
            state: replica::state(dependency.state()),
            service: dependency.service,
            condition: dependency.condition,
            satisfied: dependency.satisfied,
        }
    }
}

impl View for ListView {
    fn text(&self) -> String {
        let columns = [
            "REPLICA_ID",
            "DEPLOYMENT",
            "SERVICE",
            "STATE",
            "HOST",
            "RESTARTS",
            "IMAGE",
        ]
        .map(col);
        let rows = self.0.iter().map(|replica| {
            vec![
                replica.id.clone(),
                replica.deployment.clone(),
                replica.service.clone(),
                replica.state.to_uppercase(),
                replica.host.clone(),
                replica.restart_count.to_string(),
                replica.image.clone(),
            ]
        });
        format!("Replicas:\n{}", table::render(&columns, rows))
    }
}

impl View for ReplicaView {
    fn text(&self) -> String {
        let optional = |value: &Option<String>| value.clone().unwrap_or_default();
        let lines = [
            ("Replica", self.id.clone()),
            ("Deployment", self.deployment.clone()),
            (
                "Service",
                format!("{} (index {})", self.service, self.index),
            ),
            ("State", self.state.to_uppercase()),
            ("Host", self.host.clone()),
            ("Image", self.image.clone()),
            ("Revision", self.revision.to_string()),
            ("Container", self.container_id.clone()),
            ("Restarts", self.restart_count.to_string()),
        ];
        let when_set = [
            ("Last reason", self.reason.text()),
            ("Started at", optional(&self.started_at)),
            ("Last health", optional(&self.last_health_at)),
            ("Last attempt", optional(&self.last_attempt_at)),
        ];
        let when_set = when_set.into_iter().filter(|(_, value)| !value.is_empty());
        let mut text: String = lines
            .into_iter()
            .chain(when_set)
            .map(|(name, value)| format!("{}\n", format!("{name}: {value}").trim_end()))
            .collect();
        if !self.depends_on.is_empty() {
            let rows = self.depends_on.iter().map(|dependency| {
                vec![
                    dependency.service.clone(),
                    dependency.condition.clone(),
                    dependency.state.to_uppercase(),
                    dependency.satisfied.to_string(),
                ]
            });
            let columns = ["SERVICE", "CONDITION", "STATE", "SATISFIED"].map(col);
            text += &format!("\nDepends on:\n{}", table::render(&columns, rows));
        }
        text
    }
}

/// Calls `Deploy.GetReplicas`.
pub(in crate::client) async fn fetch(
    client: &Client,
    request: v1::GetReplicasRequest,
) -> Result<Vec<v1::ReplicaDetail>, Failure> {
    let call = async |connection| {
        let mut deploy = DeployClient::new(connection).max_decoding_message_size(MAX_MESSAGE_BYTES);
        deploy.get_replicas(request.clone()).await
    };
    Ok(client.unary(DEADLINE, call).await?.replicas)
}

/// Prints all replicas that match the filters.
pub(super) async fn all(
    deployment: &str,
    service: &str,
    client: &Client,
    ui: &mut Ui<'_>,
) -> Result<(), Stop> {
    let request = v1::GetReplicasRequest {
        deployment_filter: deployment.to_owned(),
        service_filter: service.to_owned(),
        ..Default::default()
    };
    let replicas = fetch(client, request).await?;
    ui.data(&ListView(
        replicas.into_iter().map(ReplicaView::from).collect(),
    ))
}

/// Prints one replica.
pub(super) async fn one(id: &str, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let request = v1::GetReplicasRequest {
        replica_id: id.to_owned(),
        ..Default::default()
    };
    let found = fetch(client, request)
        .await?
        .into_iter()
        .find(|replica| replica.id == id);
    let Some(replica) = found else {
        let failure = Failure::new(Local::ReplicaNotFound, format!("no replica {id:?}"));
        return Err(failure.with("replica_id", id).into());
    };
    ui.data(&ReplicaView::from(replica))
}

#[cfg(test)]
mod tests {
    use jaco_proto::v1::ReplicaState;
    use prost_types::Timestamp;

    use super::*;
    use crate::client::{
        fake::{self, Fake},
        output::{Format, json},
    };

    fn web() -> v1::ReplicaDetail {
        v1::ReplicaDetail {
            id: "app-web-0".to_owned(),
            deployment: "app".to_owned(),
            service: "web".to_owned(),
            host: "one".to_owned(),
            container_id: "c0ffee".to_owned(),
            state: ReplicaState::Failed.into(),
            image: "nginx:1".to_owned(),
            revision: 12,
            restart_count: 3,
            started_at: Some(Timestamp {
                seconds: 1,
                nanos: 0,
            }),
            code: "restart_exhausted".to_owned(),
            message: "gave up".to_owned(),
            depends_on: vec![v1::DependencyState {
                service: "db".to_owned(),
                condition: "service_healthy".to_owned(),
                state: ReplicaState::Degraded.into(),
                satisfied: false,
            }],
            ..Default::default()
        }
    }

    #[test]
    fn replicas_are_printed_as_a_table() {
        let view = ListView(vec![web().into()]);
        assert_eq!(
            view.text(),
            "\
Replicas:
REPLICA_ID  DEPLOYMENT  SERVICE  STATE   HOST  RESTARTS  IMAGE
app-web-0   app         web      FAILED  one   3         nginx:1
"
        );
        assert_eq!(json(&ListView(vec![])).unwrap(), "[]\n");
    }

    #[test]
    fn replica_shows_every_set_field() {
        let view = ReplicaView::from(web());
        assert_eq!(
            view.text(),
            "\
Replica: app-web-0
Deployment: app
Service: web (index 0)
State: FAILED
Host: one
Image: nginx:1
Revision: 12
Container: c0ffee
Restarts: 3
Last reason: restart_exhausted: gave up
Started at: 1970-01-01T00:00:01Z

Depends on:
SERVICE  CONDITION        STATE     SATISFIED
db       service_healthy  DEGRADED  false
"
        );
        assert_eq!(
            json(&view).unwrap(),
            r#"{
  "id": "app-web-0",
  "deployment": "app",
  "service": "web",
  "index": 0,
  "state": "failed",
  "host": "one",
  "image": "nginx:1",
  "revision": 12,
  "container_id": "c0ffee",
  "restart_count": 3,
  "code": "restart_exhausted",
  "message": "gave up",
  "started_at": "1970-01-01T00:00:01Z",
  "depends_on": [
    {
      "service": "db",
      "condition": "service_healthy",
      "state": "degraded",
      "satisfied": false
    }
  ]
}
"#
        );
    }

    #[tokio::test]
    async fn unknown_replica_is_an_error_unlike_empty_list() {
        let server = Fake::start().await;
        let (result, _) = fake::capture(Format::Json, async |ui| {
            one("gone", &server.client(), ui).await
        })
        .await;
        assert!(matches!(result, Err(Stop::Failed(f)) if f.code == "replica_not_found"));
        let (result, output) = fake::capture(Format::Json, async |ui| {
            all("app", "web", &server.client(), ui).await
        })
        .await;
        assert_eq!((result, output.out.as_str()), (Ok(()), "[]\n"));
    }
}
