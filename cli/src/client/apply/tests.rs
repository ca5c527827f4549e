use std::fs;

use jaco_proto::v1::{DeploymentStatus, ReplicaState, service_spec::PlacementMode};

use super::*;
use crate::client::fake::{self, AtEnd, Captured, Fake, Script};

struct Project(tempfile::TempDir);

impl Project {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("jaco.yaml"), "deployment: app\n").unwrap();
        let compose = "services:\n  web:\n    image: i\n    ports: [\"80:80\"]\n";
        fs::write(dir.path().join("compose.yml"), compose).unwrap();
        Self(dir)
    }

    fn args(&self) -> Args {
        Args {
            jaco: Some(self.0.path().join("jaco.yaml")),
            sources: Sources::default(),
            compose: None,
            dry_run: false,
            strict: false,
            detach: false,
            timeout: Duration::from_secs(60),
        }
    }
}

async fn apply(
    args: &Args,
    format: Format,
    script: impl FnOnce(&mut Script),
) -> (Result<(), Stop>, Captured, Fake) {
    let server = Fake::start().await;
    server.script(script);
    let (result, output) = fake::capture(format, async |ui| {
        run(args, || Ok(server.client()), ui).await
    })
    .await;
    (result, output, server)
}

fn committed() -> Option<Result<v1::ApplyResponse, jaco_proto::Error>> {
    let diff = v1::Diff {
        adds: vec![
            "deployment app (rev 0→1)".to_owned(),
            "replica app-web-0".to_owned(),
        ],
        updates: vec!["route a.io".to_owned()],
        removes: vec!["tcp_route 5432".to_owned()],
    };
    Some(Ok(v1::ApplyResponse {
        applied_revision: 1,
        diff: Some(diff),
    }))
}

fn status() -> v1::DeployStatusResponse {
    v1::DeployStatusResponse {
        deployments: vec![v1::Deployment {
            name: "app".to_owned(),
            applied_revision: 1,
            status: DeploymentStatus::Active.into(),
            services: vec![v1::ServiceSpec {
                name: "web".to_owned(),
                replicas: 1,
                placement: PlacementMode::Spread.into(),
                ..Default::default()
            }],
            ..Default::default()
        }],
        ..Default::default()
    }
}

fn web(state: ReplicaState, code: &str) -> Vec<v1::ReplicaDetail> {
    vec![v1::ReplicaDetail {
        id: "app-web-0".to_owned(),
        service: "web".to_owned(),
        host: "one".to_owned(),
        image: "i".to_owned(),
        state: state.into(),
        code: code.to_owned(),
        revision: 9,
        ..Default::default()
    }]
}

/// Scripts no replicas before the apply, then one snapshot for each of `states`.
fn script_snapshots(script: &mut Script, states: &[(ReplicaState, &str)]) {
    script.apply = committed();
    script.status = vec![status(); states.len()];
    script.replicas = vec![vec![]];
    script
        .replicas
        .extend(states.iter().map(|(state, code)| web(*state, code)));
    script.at_end = AtEnd::Silence;
}

#[tokio::test]
async fn dry_run_prints_the_servers_diff() {
    let project = Project::new();
    let args = Args {
        dry_run: true,
        ..project.args()
    };
    let (result, output, server) = apply(&args, Format::Table, |s| s.apply = committed()).await;
    assert_eq!(result, Ok(()));
    assert_eq!(
        output.out,
        "+ deployment app (rev 0→1)\n+ replica app-web-0\n~ route a.io\n- tcp_route 5432\n"
    );
    assert!(server.applies()[0].dry_run);
    let (_, output, _) = apply(&args, Format::Table, |_| {}).await;
    assert_eq!(output.out, "No changes\n");
}

#[tokio::test]
async fn settings_without_effect_are_warned_about() {
    let project = Project::new();
    let dir = project.0.path();
    let jaco = "deployment: app\nroutes: [{domain: a.io, service: web, port: 80}]\n";
    fs::write(dir.join("jaco.yaml"), jaco).unwrap();
    let compose = "services: {web: {image: i, ports: ['127.0.0.1:9001:80']}}\n";
    fs::write(dir.join("compose.yml"), compose).unwrap();
    let args = Args {
        detach: true,
        ..project.args()
    };
    for format in [Format::Table, Format::Json, Format::Yaml] {
        let (result, output, _) = apply(&args, format, |s| s.apply = committed()).await;
        assert_eq!(result, Ok(()));
        let warnings: Vec<&str> = output.err.lines().collect();
        let [ports] = warnings.as_slice() else {
            panic!("{warnings:?}");
        };
        let expected = "warning: service \"web\" publishes port 9001, which stays closed";
        assert!(ports.starts_with(expected), "{ports}");
        assert!(!output.out.contains("warning"), "{}", output.out);
    }
    let args = Args {
        strict: true,
        ..args
    };
    let (result, _, server) = apply(&args, Format::Table, |s| s.apply = committed()).await;
    let failure = fake::failure(result);
    assert_eq!(failure.code, "validation_failed");
    assert!(
        failure.message.starts_with("--strict: "),
        "{}",
        failure.message
    );
    assert!(server.applies().is_empty(), "nothing was sent");
}

#[tokio::test]
async fn detach_returns_at_commit() {
    let project = Project::new();
    let args = Args {
        detach: true,
        ..project.args()
    };
    let (result, output, server) = apply(&args, Format::Table, |s| s.apply = committed()).await;
    assert_eq!(
        (result, output.out.as_str()),
        (Ok(()), "Applied revision: 1\n")
    );
    assert!(server.subscriptions().is_empty());

    let (_, output, _) = apply(&args, Format::Json, |s| s.apply = committed()).await;
    assert_eq!(
        output.out,
        r#"{
  "deployment": "app",
  "applied_revision": 1,
  "dry_run": false,
  "diff": {
    "adds": [
      "deployment app (rev 0→1)",
      "replica app-web-0"
    ],
    "updates": [
      "route a.io"
    ],
    "removes": [
      "tcp_route 5432"
    ]
  }
}
"#
    );
}

#[tokio::test]
async fn wait_reports_every_step_until_replicas_run() {
    use ReplicaState::{Pending, Pulling, Running};
    let (result, output, server) = apply(&Project::new().args(), Format::Table, |script| {
        script_snapshots(
            script,
            &[
                (Pulling, "pulling"),
                (Pending, ""),
                (Pending, ""),
                (Running, ""),
            ],
        );
    })
    .await;
    assert_eq!(result, Ok(()));
    assert_eq!(output.out, "Applied revision: 1\n");
    assert_eq!(
        output.err,
        "app-web-0: pulling on one\napp-web-0: pending on one\napp-web-0: running on one\n"
    );
    assert_eq!(server.subscriptions()[0].deployment_filter, "app");
}

#[tokio::test]
async fn finished_replica_converges_by_its_exit_code() {
    for (exit_code, succeeds) in [("0", true), ("3", false)] {
        let (result, output, _) = apply(&Project::new().args(), Format::Table, |script| {
            let ended = (ReplicaState::Stopped, "container_exited");
            script_snapshots(script, &[(ReplicaState::Pending, ""), ended]);
            let last = script.replicas.last_mut().unwrap();
            let details = &mut last[0].details;
            details.insert("exit_code".to_owned(), exit_code.to_owned());
        })
        .await;
        assert_eq!(result.is_ok(), succeeds, "{result:?}");
        let line = "app-web-0: finished on one\n";
        assert_eq!(output.err.contains(line), succeeds, "{}", output.err);
        if let Err(failure) = result {
            let text = format!("{failure:?}");
            assert!(text.contains("exit 3"), "{text}");
        }
    }
}

#[tokio::test]
async fn terminal_shows_one_bar_per_service() {
    let project = Project::new();
    let server = Fake::start().await;
    server.script(|script| {
        script_snapshots(
            script,
            &[(ReplicaState::Pulling, ""), (ReplicaState::Running, "")],
        )
    });
    let (result, output) = fake::capture(Format::Table, async |ui| {
        ui.err_columns = Some(80);
        run(&project.args(), || Ok(server.client()), ui).await
    })
    .await;
    assert_eq!(result, Ok(()));
    let last = output.err.rsplit("\x1b[2K").next().unwrap();
    assert!(
        last.starts_with("web  ████████████████████  1/1  running  "),
        "{last:?}"
    );
    assert!(output.err.contains("0/1  pulling"), "{:?}", output.err);
    assert!(!output.err.contains("app-web-0:"), "bars replace the lines");
}

#[tokio::test]
async fn json_is_one_object_when_converged() {
    let (result, output, _) = apply(&Project::new().args(), Format::Json, |script| {
        script_snapshots(
            script,
            &[(ReplicaState::Pulling, ""), (ReplicaState::Running, "")],
        );
    })
    .await;
    assert_eq!((result, output.err.as_str()), (Ok(()), ""));
    let object: serde_json::Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!(object["converged"], true);
    assert_eq!(
        object["replicas"],
        serde_json::json!([{"id": "app-web-0", "state": "running", "host": "one"}])
    );
}

#[tokio::test]
async fn failed_replica_ends_the_wait() {
    let (result, output, _) = apply(&Project::new().args(), Format::Json, |script| {
        script_snapshots(
            script,
            &[
                (ReplicaState::Pulling, ""),
                (ReplicaState::Failed, "docker_error"),
            ],
        );
    })
    .await;
    let failure = fake::failure(result);
    assert_eq!(failure.code, "not_converged");
    assert_eq!(failure.details["app-web-0"], "failed: docker_error");
    let object: serde_json::Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!(object["converged"], false);
    assert_eq!(object["replicas"][0]["code"], "docker_error");
}

#[tokio::test]
async fn wait_ends_at_its_timeout() {
    let project = Project::new();
    let args = Args {
        timeout: Duration::from_secs(3),
        ..project.args()
    };
    let (result, _, _) = apply(&args, Format::Table, |script| {
        script_snapshots(script, &[(ReplicaState::Pulling, "")]);
    })
    .await;
    let failure = fake::failure(result);
    assert_eq!(failure.code, "timed_out");
    assert!(
        failure.message.ends_with("it did not run within 3s"),
        "{}",
        failure.message
    );
    assert_eq!(failure.details["app-web-0"], "pulling");
}

#[tokio::test]
async fn ended_subscription_is_reopened() {
    use ReplicaState::{Pulling, Running};
    let (result, _, server) = apply(&Project::new().args(), Format::Table, |script| {
        script_snapshots(script, &[(Pulling, "")]);
        script.replicas.push(web(Running, ""));
        script.at_end = AtEnd::Close;
    })
    .await;
    assert_eq!(result, Ok(()));
    assert_eq!(server.subscriptions().len(), 2);
}

#[tokio::test]
async fn server_error_shows_excerpt_of_users_file() {
    let (result, output, _) = apply(&Project::new().args(), Format::Json, |script| {
        script.apply = Some(Err(jaco_proto::Error::new(
            jaco_proto::ErrorCode::ReservedPort,
            "port 80 belongs to the ingress",
        )
        .with("service", "web")
        .with("file", "compose.yaml")
        .with("line", 4)
        .with("col", 13)));
    })
    .await;
    let failure = fake::failure(result);
    assert_eq!(failure.code, "reserved_port");
    assert!(failure.details["file"].ends_with("/compose.yml"));
    assert_eq!(
        failure.excerpt.as_deref(),
        Some(" 4 |     ports: [\"80:80\"]\n   |             ^\n")
    );
    assert_eq!(output.out, "");
}

#[tokio::test]
async fn invalid_files_are_refused_before_dialling() {
    let project = Project::new();
    fs::write(project.0.path().join("jaco.yaml"), "nope: 1\n").unwrap();
    let (result, _) = fake::capture(Format::Table, async |ui| {
        run(&project.args(), || panic!("dialled"), ui).await
    })
    .await;
    assert_eq!(fake::failure(result).code, "validation_failed");
}
