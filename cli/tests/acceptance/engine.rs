//! Acceptance check with a container engine: waiting, logs and rollback of a running deployment.

use std::{
    fmt::Display,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{
    docker::Docker,
    lab::{Daemon, Workdir, until},
};

fn write_manifests(
    workdir: &Workdir,
    deployment: &str,
    image: &str,
    path: impl Display,
) -> PathBuf {
    let compose = format!(
        "services:\n  web:\n    image: {image}\n    pull_policy: never\n    command:\n      - sh\n      - -c\n      - \
         'echo started; echo odd >&2; exec httpd -f -p 8080 -h /www'\n    stop_grace_period: 1s\n"
    );
    workdir.file("compose.yml", 0o644, &compose);
    let jaco = format!(
        "deployment: {deployment}\nservices:\n  - name: web\n    replicas: 2\nroutes:\n  \
         - domain: app.example\n    service: web\n    port: 8080\n    tls: off\n    \
         path: {path}\n    strip_path: true\n"
    );
    workdir.file("jaco.yaml", 0o644, &jaco)
}

/// Body of the ingress's response, if its status is 200.
fn get(daemon: &Daemon, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(daemon.ingress()).ok()?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: app.example\r\nConnection: close\r\n\r\n"
    )
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.starts_with("HTTP/1.1 200").then(|| body.to_owned())
}

fn wait_until_served(daemon: &Daemon, served: &str, text: &str, gone: &str) {
    until(&format!("{served} serves {text}"), || {
        (get(daemon, served).as_deref() == Some(text)).then_some(())
    });
    until(&format!("{gone} is gone"), || {
        get(daemon, gone).is_none().then_some(())
    });
}

fn check_logs(docker: &Docker, daemon: &Daemon, workdir: &Workdir, app: &str) {
    // A container that runs may not have written yet.
    until("every container has written", || {
        let containers = docker.owned(&["ps"]);
        let lines = |id: &String| {
            let output = docker.command(&["logs", id]).output().unwrap();
            let text = [output.stdout, output.stderr].concat();
            text.iter().filter(|byte| **byte == b'\n').count()
        };
        let written = containers.iter().all(|id| lines(id) == 2);
        (containers.len() == 2 && written).then_some(())
    });
    let socket = daemon.socket();
    let line = |rest: &str| {
        format!(
            "logs {app}/web --since 0 {rest} --socket {}",
            socket.display()
        )
    };
    let table = workdir.jaco(&line("")).ok().out;
    let mut lines: Vec<&str> = table.lines().collect();
    lines.sort_unstable();
    let expected =
        [0, 1].map(|at| ["odd", "started"].map(|text| format!("[{app}-web-{at}@one] {text}")));
    assert_eq!(lines, expected.concat());

    let json = workdir.jaco(&line("-o json")).ok().out;
    let events: Vec<Value> = json
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(events.len(), 4);
    for event in &events {
        let keys: Vec<&String> = event.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["host", "line", "replica_id", "stream", "ts"]);
        let stream = if event["line"] == "odd" {
            "stderr"
        } else {
            "stdout"
        };
        assert_eq!(event["stream"], stream);
    }
    let yaml = workdir.jaco(&line("-o yaml")).ok().out;
    assert_eq!(yaml.matches("---\nreplica_id: ").count(), 4, "{yaml}");

    let mut child = workdir.command(&line("-f")).spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    assert_eq!(out.lines().take(4).map(Result::unwrap).count(), 4);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));

    let unknown = workdir.jaco(&format!("logs {app}/gone --socket {}", socket.display()));
    unknown.fails("unknown_service", &["service=gone"]);
}

fn apply(daemon: &Daemon, file: &Path, flags: &str) -> Value {
    daemon
        .jaco(&format!(
            "apply {} -o json --timeout 2m {flags}",
            file.display()
        ))
        .json()
}

#[test]
fn containers_follow_apply_and_rollback() {
    let mut docker = Docker::new();
    let daemon = Daemon::start_with(Some(&docker.engine()));
    docker.cluster_id = daemon.init()["cluster_id"].as_str().unwrap().to_owned();
    let workdir = Workdir::new();
    let app = format!(
        "cli-{}",
        docker.id.replace(|c: char| !c.is_ascii_alphanumeric(), "")
    );
    let [one, two] = ["one", "two"].map(|text| docker.image(text));

    let applied = apply(&daemon, &write_manifests(&workdir, &app, &one, "/a"), "");
    assert_eq!(
        (&applied["converged"], &applied["applied_revision"]),
        (&true.into(), &1.into())
    );
    let replicas = applied["replicas"].as_array().unwrap();
    assert_eq!(replicas.len(), 2);
    assert!(
        replicas.iter().all(|replica| replica["state"] == "running"),
        "{replicas:?}"
    );
    wait_until_served(&daemon, "/a", "one", "/b");
    check_logs(&docker, &daemon, &workdir, &app);
    let route = daemon.jaco("get route app.example").ok().out;
    assert!(route.contains("2/2"), "{route}");

    let second = write_manifests(&workdir, &app, &two, "/b");
    let preview = apply(&daemon, &second, "--dry-run");
    let diff = &preview["diff"];
    assert_eq!(diff["adds"], serde_json::json!(["route app.example/b"]));
    assert_eq!(diff["removes"], serde_json::json!(["route app.example/a"]));
    assert_eq!(diff["updates"].as_array().unwrap().len(), 3, "{diff}");
    assert_eq!(apply(&daemon, &second, "")["converged"], true);
    wait_until_served(&daemon, "/b", "two", "/a");
    assert_eq!(
        daemon
            .jaco(&format!("apply {} --dry-run", second.display()))
            .ok()
            .out,
        "No changes\n"
    );

    daemon.jaco(&format!("rollback {app}")).ok();
    wait_until_served(&daemon, "/a", "one", "/b");
    daemon.jaco(&format!("rollback {app}")).ok();
    wait_until_served(&daemon, "/b", "two", "/a");

    daemon.jaco(&format!("delete {app}")).ok();
    until("its containers are gone", || {
        docker.owned(&["ps", "-a"]).is_empty().then_some(())
    });
    until("its network is gone", || {
        docker.owned(&["network", "ls"]).is_empty().then_some(())
    });
}
