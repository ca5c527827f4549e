//! `jaco get deployments` and `jaco get deployment`.

use jaco_proto::v1;
use serde::Serialize;

use crate::client::{
    connection::Client,
    failure::{Failure, Local, Stop},
    output::{
        Ui, View,
        table::{self, col, free},
    },
    replica::{self, DeploymentHead},
    status,
};

#[derive(Serialize)]
#[serde(transparent)]
struct ListView(Vec<Row>);

#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    head: DeploymentHead,
    services: Vec<String>,
}

#[derive(Serialize)]
struct DeploymentView {
    #[serde(flatten)]
    head: DeploymentHead,
    #[serde(skip_serializing_if = "String::is_empty")]
    acme_email: String,
    services: Vec<ServiceRow>,
    #[serde(skip_serializing_if = "String::is_empty")]
    jaco_yaml: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    compose_yaml: String,
}

#[derive(Serialize)]
struct ServiceRow {
    name: String,
    replicas: i32,
    placement: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hosts: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    networks: Vec<String>,
}

impl From<Vec<v1::Deployment>> for ListView {
    fn from(deployments: Vec<v1::Deployment>) -> Self {
        let mut rows: Vec<Row> = deployments.into_iter().map(Row::from).collect();
        rows.sort_by(|a, b| a.head.name.cmp(&b.head.name));
        Self(rows)
    }
}

impl From<v1::Deployment> for Row {
    fn from(deployment: v1::Deployment) -> Self {
        Self {
            head: DeploymentHead::from(&deployment),
            services: deployment
                .services
                .into_iter()
                .map(|service| service.name)
                .collect(),
        }
    }
}

impl From<v1::Deployment> for DeploymentView {
    fn from(deployment: v1::Deployment) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            head: DeploymentHead::from(&deployment),
            jaco_yaml: text(&deployment.jaco_yaml),
            compose_yaml: text(&deployment.compose_yaml),
            acme_email: deployment.acme_email,
            services: deployment
                .services
                .into_iter()
                .map(ServiceRow::from)
                .collect(),
        }
    }
}

impl From<v1::ServiceSpec> for ServiceRow {
    fn from(spec: v1::ServiceSpec) -> Self {
        Self {
            placement: replica::placement(spec.placement()),
            name: spec.name,
            replicas: spec.replicas,
            hosts: spec.hosts,
            networks: spec.networks,
        }
    }
}

impl View for ListView {
    fn text(&self) -> String {
        let columns = DeploymentHead::columns(free("SERVICES"));
        let rows = self
            .0
            .iter()
            .map(|row| row.head.cells(row.services.join(",")));
        format!("Deployments:\n{}", table::render(&columns, rows))
    }
}

impl View for DeploymentView {
    fn text(&self) -> String {
        let mut text = format!(
            "Deployment: {}\nRevision: {} (previous {})\nStatus: {}\n",
            self.head.name,
            self.head.applied_revision,
            self.head.previous_revision,
            self.head.status.to_uppercase()
        );
        if !self.acme_email.is_empty() {
            text += &format!("ACME email: {}\n", self.acme_email);
        }
        let columns = [
            col("SERVICE"),
            col("REPLICAS"),
            col("PLACEMENT"),
            free("HOSTS"),
            free("NETWORKS"),
        ];
        let rows = self.services.iter().map(|service| {
            vec![
                service.name.clone(),
                service.replicas.to_string(),
                service.placement.to_uppercase(),
                service.hosts.join(","),
                service.networks.join(","),
            ]
        });
        text += &format!("\nServices:\n{}", table::render(&columns, rows));
        for (name, content) in [
            ("jaco.yaml", &self.jaco_yaml),
            ("compose.yaml", &self.compose_yaml),
        ] {
            if !content.is_empty() {
                text += &format!("\n{name}:\n{}\n", content.trim_end());
            }
        }
        text
    }
}

/// Prints all deployments.
pub(super) async fn all(client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let response = status::fetch(client, "", "").await?;
    ui.data(&ListView::from(response.deployments))
}

/// Prints one deployment.
pub(super) async fn one(name: &str, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let response = status::fetch(client, name, "").await?;
    let found = response
        .deployments
        .into_iter()
        .find(|deployment| deployment.name == name);
    let Some(deployment) = found else {
        let failure = Failure::new(Local::DeploymentNotFound, format!("no deployment {name:?}"));
        return Err(failure.with("deployment", name).into());
    };
    ui.data(&DeploymentView::from(deployment))
}

#[cfg(test)]
mod tests {
    use jaco_proto::v1::{DeploymentStatus, service_spec::PlacementMode};

    use super::*;
    use crate::client::{
        fake::{self, Fake},
        output::{Format, json, yaml},
    };

    fn app() -> v1::Deployment {
        v1::Deployment {
            name: "app".to_owned(),
            applied_revision: 2,
            previous_revision: 1,
            status: DeploymentStatus::Active.into(),
            acme_email: "a@b.io".to_owned(),
            jaco_yaml: b"deployment: app\n".to_vec(),
            compose_yaml: b"services:\n  web: {image: i}\n".to_vec(),
            services: vec![
                v1::ServiceSpec {
                    name: "db".to_owned(),
                    replicas: 1,
                    placement: PlacementMode::Hosts.into(),
                    hosts: vec!["one".to_owned()],
                    ..Default::default()
                },
                v1::ServiceSpec {
                    name: "web".to_owned(),
                    replicas: 2,
                    placement: PlacementMode::Spread.into(),
                    networks: vec!["_default".to_owned(), "back".to_owned()],
                    ..Default::default()
                },
            ],
            ..Default::default()
        }
    }

    #[test]
    fn deployments_are_listed_by_name() {
        let other = v1::Deployment {
            name: "aaa".to_owned(),
            ..Default::default()
        };
        let view = ListView::from(vec![app(), other]);
        assert_eq!(
            view.text(),
            "\
Deployments:
DEPLOYMENT  REVISION  PREVIOUS  STATUS       SERVICES
aaa         0         0         UNSPECIFIED
app         2         1         ACTIVE       db,web
"
        );
        assert_eq!(
            yaml::to_string(&view).unwrap(),
            "\
- name: aaa
  applied_revision: 0
  previous_revision: 0
  status: unspecified
  services: []
- name: app
  applied_revision: 2
  previous_revision: 1
  status: active
  services:
    - db
    - web
"
        );
        assert_eq!(json(&ListView::from(vec![])).unwrap(), "[]\n");
    }

    #[test]
    fn deployment_shows_its_services_and_manifests() {
        let view = DeploymentView::from(app());
        assert_eq!(
            view.text(),
            "\
Deployment: app
Revision: 2 (previous 1)
Status: ACTIVE
ACME email: a@b.io

Services:
SERVICE  REPLICAS  PLACEMENT  HOSTS  NETWORKS
db       1         HOSTS      one
web      2         SPREAD            _default,back

jaco.yaml:
deployment: app

compose.yaml:
services:
  web: {image: i}
"
        );
        let bare = DeploymentView::from(v1::Deployment {
            name: "d".to_owned(),
            ..Default::default()
        });
        assert_eq!(
            json(&bare).unwrap(),
            r#"{
  "name": "d",
  "applied_revision": 0,
  "previous_revision": 0,
  "status": "unspecified",
  "services": []
}
"#
        );
    }

    #[tokio::test]
    async fn an_unknown_deployment_is_an_error() {
        let server = Fake::start().await;
        let (result, output) = fake::capture(Format::Json, async |ui| {
            one("gone", &server.client(), ui).await
        })
        .await;
        assert!(matches!(result, Err(Stop::Failed(f)) if f.code == "deployment_not_found"));
        assert_eq!(output.out, "");
    }
}
