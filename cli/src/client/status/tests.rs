use jaco_proto::v1::{DeploymentStatus, ReplicaState};
use prost_types::Timestamp;

use super::*;
use crate::client::{
    fake::{self, AtEnd, Fake},
    output::{json, yaml},
};

const AT: Timestamp = Timestamp {
    seconds: 1_795_174_813,
    nanos: 9,
};

fn text_map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|&(k, v)| (k.to_owned(), v.to_owned()))
        .collect()
}

fn response() -> v1::DeployStatusResponse {
    v1::DeployStatusResponse {
        deployments: vec![
            v1::Deployment {
                name: "app".to_owned(),
                applied_revision: 3,
                previous_revision: 2,
                status: DeploymentStatus::Active.into(),
                ..Default::default()
            },
            v1::Deployment {
                name: "db".to_owned(),
                applied_revision: 1,
                status: DeploymentStatus::Pending.into(),
                status_details: text_map(&[
                    ("missing", "b"),
                    ("reason", "cannot_satisfy_host_placement"),
                ]),
                ..Default::default()
            },
        ],
        replicas: vec![
            v1::ReplicaObserved {
                id: "app-web-0".to_owned(),
                state: ReplicaState::Running.into(),
                host: "one".to_owned(),
                container_id: "c0ffee".to_owned(),
                last_health_at: Some(AT),
                ..Default::default()
            },
            v1::ReplicaObserved {
                id: "app-web-1".to_owned(),
                state: ReplicaState::Failed.into(),
                host: "one".to_owned(),
                code: "container_exited".to_owned(),
                details: text_map(&[("exit_code", "1")]),
                ..Default::default()
            },
        ],
        routes: vec![v1::Route {
            domain: "a.io".to_owned(),
            deployment: "app".to_owned(),
            service: "web".to_owned(),
            port: 80,
            tls_auto: true,
            ..Default::default()
        }],
        network_faults: vec![],
        rollouts: vec![],
        certs: vec![v1::CertState {
            domain: "a.io".to_owned(),
            not_after: Some(AT),
            ..Default::default()
        }],
    }
}

#[test]
fn table_has_four_sections() {
    let text = StatusView::from(response()).text();
    assert_eq!(
        text,
        "\
Deployments:
DEPLOYMENT  REVISION  PREVIOUS  STATUS   DETAILS
app         3         2         ACTIVE
db          1         0         PENDING  cannot_satisfy_host_placement

Replicas:
REPLICA_ID  STATE    HOST  CONTAINER_ID  LAST_HEALTH_AT        REASON
app-web-0   RUNNING  one   c0ffee        2026-11-20T11:40:13Z
app-web-1   FAILED   one                 -                     container_exited (exit 1)

Routes:
DOMAIN  PATH  DEPLOYMENT  SERVICE  PORT  TLS
a.io          app         web      80    auto

Certs:
DOMAIN  ENVIRONMENT  NOT_AFTER             LAST_RENEWAL_AT
a.io    unknown      2026-11-20T11:40:13Z  -
"
    );
}

#[test]
fn empty_status_keeps_its_sections() {
    let view = StatusView::from(v1::DeployStatusResponse::default());
    assert_eq!(view.text().matches(":\n").count(), 3);
    assert_eq!(
        json(&view).unwrap(),
        "{\n  \"deployments\": [],\n  \"replicas\": [],\n  \"routes\": []\n}\n"
    );
}

#[test]
fn json_and_yaml_omit_empty_fields() {
    let mut response = response();
    response.deployments.remove(0);
    response.replicas.remove(0);
    let view = StatusView::from(response);
    assert_eq!(
        json(&view).unwrap(),
        r#"{
  "deployments": [
    {
      "name": "db",
      "applied_revision": 1,
      "previous_revision": 0,
      "status": "pending",
      "status_details": {
        "missing": "b",
        "reason": "cannot_satisfy_host_placement"
      }
    }
  ],
  "replicas": [
    {
      "id": "app-web-1",
      "state": "failed",
      "host": "one",
      "container_id": "",
      "code": "container_exited",
      "details": {
        "exit_code": "1"
      }
    }
  ],
  "routes": [
    {
      "domain": "a.io",
      "path": "",
      "deployment": "app",
      "service": "web",
      "port": 80,
      "tls": "auto",
      "strip_path": false
    }
  ],
  "certs": [
    {
      "domain": "a.io",
      "environment": "unknown",
      "not_after": "2026-11-20T11:40:13Z"
    }
  ]
}
"#
    );
    assert_eq!(
        yaml::to_string(&view).unwrap(),
        r#"deployments:
  - name: db
    applied_revision: 1
    previous_revision: 0
    status: pending
    status_details:
      missing: b
      reason: cannot_satisfy_host_placement
replicas:
  - id: app-web-1
    state: failed
    host: one
    container_id: ""
    code: container_exited
    details:
      exit_code: "1"
routes:
  - domain: a.io
    path: ""
    deployment: app
    service: web
    port: 80
    tls: auto
    strip_path: false
certs:
  - domain: a.io
    environment: unknown
    not_after: "2026-11-20T11:40:13Z"
"#
    );
}

#[test]
fn argument_is_split_at_the_first_slash() {
    assert_eq!(split("app"), ("app", ""));
    assert_eq!(split("app/web/x"), ("app", "web/x"));
}

#[tokio::test]
async fn watch_prints_the_status_after_events() {
    for (format, separator) in [
        (Format::Table, "---\nDeployments:"),
        (Format::Json, "}\n{\n"),
    ] {
        let server = Fake::start().await;
        server.script(|script| {
            script.status = vec![response(), v1::DeployStatusResponse::default()];
        });
        let args = Args {
            what: Some("app".to_owned()),
            watch: true,
            read: ReadArgs::default(),
        };

        let (result, output) =
            fake::capture(format, async |ui| run(&args, &server.client(), ui).await).await;

        assert_eq!(result, Ok(()));
        assert_eq!(output.out.matches(separator).count(), 1, "{}", output.out);
        let asked = server.subscriptions();
        assert_eq!(
            asked[0].entity_types,
            ["deployments", "replicas_observed", "routes"]
        );
        assert_eq!(asked[0].deployment_filter, "app");
    }
}

#[tokio::test]
async fn broken_watch_reports_its_code() {
    let server = Fake::start().await;
    server.script(|script| {
        script.status = vec![response()];
        script.at_end = AtEnd::Fail(jaco_proto::Error::new(
            jaco_proto::ErrorCode::TokenRevoked,
            "the token was revoked",
        ));
    });
    let args = Args {
        what: None,
        watch: true,
        read: ReadArgs::default(),
    };
    let (result, _) = fake::capture(Format::Table, async |ui| {
        run(&args, &server.client(), ui).await
    })
    .await;
    assert!(matches!(result, Err(Stop::Failed(f)) if f.code == "token_revoked"));
}
