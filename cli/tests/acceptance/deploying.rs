//! Acceptance checks of applying, showing and rolling back.

use serde_json::Value;

use crate::lab::{Daemon, Workdir, manifests, until};

#[test]
fn check_07_stdout_is_one_document_without_warnings() {
    let (daemon, token) = Daemon::initialized();
    for transport in daemon.transports(&token) {
        let workdir = Workdir::new();
        let file = manifests(&workdir, "'i:${TAG}1'", "");
        let apply = format!("apply {} -o json {transport}", file.display());
        for flag in ["--detach", "--dry-run"] {
            let answer = workdir.jaco(&format!("{apply} {flag}"));
            let applied = answer.json();
            assert_eq!(applied["deployment"], "app");
            assert_eq!(applied["dry_run"], flag == "--dry-run");
            assert!(applied.get("converged").is_none());
            assert_eq!(
                answer.err,
                "warning: variable TAG is not set, so it is empty\n"
            );
            workdir.jaco(&format!("{apply} {flag} -q")).ok();
        }
        // Without an engine no replica runs.
        let answer = workdir.jaco(&format!("{apply} --timeout 500ms"));
        assert_eq!(answer.status, Some(124), "{answer:?}");
        let applied: Value = serde_json::from_str(&answer.out).unwrap();
        assert_eq!(applied["converged"], false);
        assert!(applied["replicas"].is_array());
        let report = answer.err.lines().nth(1).unwrap();
        assert!(report.starts_with("Error: timed_out: "), "{answer:?}");
    }
}

#[test]
fn check_08_details_are_sorted_after_the_error() {
    let (daemon, token) = Daemon::initialized();
    for transport in daemon.transports(&token) {
        let workdir = Workdir::new();
        workdir.file("jaco.yaml", 0o644, "deployment: app\n");
        let compose = "services:\n  web:\n    image: i\n    ports: ['80:80']\n";
        workdir.file("compose.yml", 0o644, compose);
        let answer = workdir.jaco(&format!("apply jaco.yaml {transport}"));
        answer.fails(
            "reserved_port",
            &["\n  entry=80:80\n", "\n  port=80\n", "\n  service=web\n"],
        );
        let details: Vec<&str> = answer.err.lines().skip(1).collect();
        assert!(
            details.iter().all(|line| line.starts_with("  ")),
            "{answer:?}"
        );
        assert!(details.is_sorted(), "{answer:?}");
    }
}

#[test]
fn check_15_catch_all_is_shown_as_slash() {
    let (daemon, token) = Daemon::initialized();
    for transport in daemon.transports(&token) {
        let workdir = Workdir::new();
        let file = manifests(&workdir, "i", "");
        workdir
            .jaco(&format!("apply {} --detach {transport}", file.display()))
            .ok();
        let table = workdir.jaco(&format!("get routes {transport}")).ok().out;
        let cells: Vec<&str> = table.lines().nth(2).unwrap().split_whitespace().collect();
        assert_eq!(cells[..3], ["app.example", "/", "app"]);
        let json = workdir
            .jaco(&format!("get routes -o json {transport}"))
            .ok();
        assert!(json.out.contains("    \"path\": \"\",\n"), "{}", json.out);
        let one = workdir
            .jaco(&format!("get route app.example -o json {transport}"))
            .json();
        assert_eq!(one["routes"][0]["catch_all"], true);
        workdir
            .jaco(&format!("get route gone.example {transport}"))
            .fails("route_not_found", &["  domain=gone.example"]);
    }
}

/// State of a deployment as the client shows it.
#[derive(Debug, PartialEq)]
struct Shown {
    revisions: (u64, u64),
    compose: String,
    paths: Vec<String>,
    images: Vec<String>,
}

fn shown(daemon: &Daemon) -> Shown {
    let texts = |list: &Value, key: &str| {
        let items = list.as_array().unwrap().iter();
        items
            .map(|item| item[key].as_str().unwrap().to_owned())
            .collect()
    };
    let deployment = daemon.jaco("get deployment app -o json").json();
    let revision = |key: &str| deployment[key].as_u64().unwrap();
    Shown {
        revisions: (revision("applied_revision"), revision("previous_revision")),
        compose: deployment["compose_yaml"].as_str().unwrap().to_owned(),
        paths: texts(&daemon.jaco("get routes -o json").json(), "path"),
        images: texts(&daemon.jaco("get replicas -o json").json(), "image"),
    }
}

/// Waits until the deployment is in this state: replicas follow asynchronously after a commit.
fn wait_for(daemon: &Daemon, revisions: (u64, u64), image: &str, path: &str) {
    let expected = Shown {
        revisions,
        compose: format!("services:\n  web:\n    image: {image}\n"),
        paths: vec![path.to_owned()],
        images: vec![image.to_owned(); 2],
    };
    let mut last = None;
    until(&format!("{expected:?}"), || {
        let now = shown(daemon);
        let equal = now == expected;
        // Fields that are committed with the revision must be right immediately.
        assert_eq!(
            (&now.revisions, &now.compose, &now.paths),
            (&expected.revisions, &expected.compose, &expected.paths)
        );
        last = Some(now);
        equal.then_some(())
    });
}

#[test]
fn rollouts_are_paused_resumed_and_aborted() {
    let (daemon, _) = Daemon::initialized();
    let workdir = Workdir::new();
    let apply = |image: &str| {
        let file = manifests(&workdir, image, "");
        daemon
            .jaco(&format!("apply {} --detach", file.display()))
            .ok();
    };
    for action in ["pause", "resume", "abort"] {
        daemon
            .jaco(&format!("rollout {action} app"))
            .fails("deployment_not_found", &["  deployment=app"]);
    }
    apply("i:1");
    daemon
        .jaco("rollout abort app")
        .fails("rollout_not_found", &["  deployment=app"]);
    until("the replicas of the first revision are placed", || {
        let replicas = daemon.jaco("get replicas -o json").json();
        (replicas.as_array().unwrap().len() == 2).then_some(())
    });
    apply("i:2");
    let state = || daemon.jaco("rollout status app -o json").json()["rollouts"][0].clone();
    until("the rollout begins", || {
        (state()["state"] == "in_progress" && state()["revision"] == 2).then_some(())
    });
    let paused = daemon.jaco("rollout pause app").ok();
    assert_eq!(paused.out, "Rollouts of app (revision 2): paused\n");
    until("the rollout is shown as paused", || {
        (state()["state"] == "paused").then_some(())
    });
    let status = daemon.jaco("rollout status app -o json").json();
    assert_eq!(status["paused"][0]["by"], "local");
    let shown = daemon.jaco("status app").ok().out;
    assert!(shown.contains("rollouts are paused: local"), "{shown}");
    let resumed = daemon.jaco("rollout resume app").ok();
    assert_eq!(resumed.out, "Rollouts of app (revision 2): resumed\n");
    let aborted = daemon.jaco("rollout abort app").ok();
    assert_eq!(aborted.out, "Rolled back to revision: 1\n");
    until("the revision is shown as rolled back", || {
        let status = daemon.jaco("rollout status app -o json").json();
        let failed = &status["rolled_back"][0];
        (failed["revision"] == 2 && failed["reason"] == "aborted by local").then_some(())
    });
}

#[test]
fn rollback_restores_the_previous_manifests() {
    let (daemon, _) = Daemon::initialized();
    let workdir = Workdir::new();
    let apply = |image: &str, path: &str| {
        let file = manifests(&workdir, image, &format!("    path: {path}\n"));
        daemon
            .jaco(&format!("apply {} --detach -o json", file.display()))
            .json()["applied_revision"]
            .as_u64()
            .unwrap()
    };
    daemon
        .jaco("rollback app")
        .fails("deployment_not_found", &["  deployment=app"]);
    assert_eq!(apply("i:1", "/one"), 1);
    wait_for(&daemon, (1, 0), "i:1", "/one");
    daemon
        .jaco("rollback app")
        .fails("no_previous_revision", &["  deployment=app"]);
    assert_eq!(apply("i:2", "/two"), 2);
    wait_for(&daemon, (2, 1), "i:2", "/two");

    let back = daemon.jaco("rollback app -o json").json();
    assert_eq!(back["revision"], 1);
    wait_for(&daemon, (1, 2), "i:1", "/one");
    let forth = daemon.jaco("rollback app").ok();
    assert_eq!(forth.out, "Rolled back to revision: 2\n");
    wait_for(&daemon, (2, 1), "i:2", "/two");
    daemon.jaco("rollback app -q").ok();
    wait_for(&daemon, (1, 2), "i:1", "/one");

    assert_eq!(apply("i:3", "/three"), 3);
    wait_for(&daemon, (3, 1), "i:3", "/three");
    let deleted = daemon.jaco("delete app").ok();
    assert_eq!(deleted.out, "Deleted deployment: app\n");
    daemon
        .jaco("get deployment app")
        .fails("deployment_not_found", &["  deployment=app"]);
    daemon.jaco("delete app").ok();
}

#[test]
fn unknown_names_fail_only_in_single_lookups() {
    let (daemon, token) = Daemon::initialized();
    for transport in daemon.transports(&token) {
        let workdir = Workdir::new();
        let call = |line: &str| workdir.jaco(&format!("{line} {transport}"));
        call("get replica gone").fails("replica_not_found", &["replica_id=gone"]);
        call("get deployment gone").fails("deployment_not_found", &["deployment=gone"]);
        call("logs gone/web").fails("deployment_not_found", &["deployment=gone"]);
        assert_eq!(
            call("get replicas --deployment gone -o json").ok().out,
            "[]\n"
        );
        assert_eq!(call("get routes --domain gone -o yaml").ok().out, "[]\n");
        let status = call("status gone/web -o json").json();
        assert_eq!(status["deployments"].as_array().unwrap().len(), 0);
    }
}
