//! Acceptance checks of `cluster init`, `cluster status` and `backup`.

use std::{ffi::OsStr, fs, os::unix::fs::PermissionsExt};

use crate::lab::{Daemon, Workdir, fingerprint, manifests, until};

#[test]
fn check_10_backup_is_a_private_file() {
    let (daemon, token) = Daemon::initialized();
    for transport in daemon.transports(&token) {
        let workdir = Workdir::new();
        workdir.file("b.tgz", 0o644, "an older one");
        let answer = workdir.jaco(&format!("backup --output b.tgz -o json {transport}"));
        let wrote = answer.json();
        let keys: Vec<&String> = wrote.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["bytes", "path"]);
        let file = fs::metadata(workdir.path("b.tgz")).unwrap();
        assert_eq!(file.permissions().mode() & 0o7777, 0o600);
        assert_eq!(wrote["bytes"], file.len());
        let mut left = fs::read_dir(workdir.path(".")).unwrap();
        let is_ours = |name: &OsStr| name == "b.tgz" || name == "bin";
        assert!(left.all(|entry| is_ours(&entry.unwrap().file_name())));
    }
}

#[test]
fn check_16_status_works_before_init() {
    let daemon = Daemon::start();
    let answer = daemon.jaco("cluster status -o json").ok();
    assert_eq!(
        answer.out,
        "{\n  \"initialized\": false,\n  \"leader\": \"\",\n  \"raft_index\": 0,\n  \"nodes\": []\n}\n"
    );
    let text = daemon.jaco("cluster status").ok().out;
    for word in [
        "Status: uninitialized",
        "jaco cluster init",
        "jaco node join",
    ] {
        assert!(text.contains(word), "{text}");
    }
    daemon
        .jaco("status")
        .fails("cluster_uninitialized", &["  reason=uninitialized"]);
}

#[test]
fn check_19_systemd_never_fails_init() {
    for (script, systemd, stderr_start) in [
        (Some("echo broken >&2; exit 3"), "failed", "warning: "),
        (None, "unavailable", "systemctl"),
        (Some("echo \"$@\" >args"), "enabled", ""),
    ] {
        let daemon = Daemon::start();
        let workdir = Workdir::new();
        if let Some(script) = script {
            workdir.program("systemctl", script);
        }
        let init = format!(
            "cluster init -o json --socket {}",
            daemon.socket().display()
        );
        let answer = workdir.jaco(&init);
        let initialized = answer.json();
        assert_eq!(initialized["operator_token"].as_str().unwrap().len(), 64);
        assert_eq!(initialized["systemd"], systemd);
        assert!(answer.err.starts_with(stderr_start), "{answer:?}");
        assert_eq!(answer.err.is_empty(), stderr_start.is_empty(), "{answer:?}");
        match systemd {
            "failed" => assert!(
                answer.err.contains("sudo systemctl enable jaco"),
                "{answer:?}"
            ),
            "enabled" => {
                let args = fs::read_to_string(workdir.path("args")).unwrap();
                assert_eq!(args, "enable jaco\n");
            }
            _ => {}
        }
        let cluster_id = format!(
            "  cluster_id={}",
            initialized["cluster_id"].as_str().unwrap()
        );
        fs::remove_file(workdir.path("args")).unwrap_or_default();
        let again = workdir.jaco(&init);
        again.fails("cluster_already_initialized", &[&cluster_id]);
        assert!(!workdir.path("args").exists(), "systemctl was called");
    }
}

#[test]
fn systemd_step_can_be_skipped() {
    let daemon = Daemon::start();
    let workdir = Workdir::new();
    workdir.program("systemctl", "exit 3");
    let line = format!(
        "cluster init --no-systemd-enable --socket {}",
        daemon.socket().display()
    );
    let text = workdir.jaco(&line).ok().out;
    assert!(
        text.starts_with("Cluster initialized.\ncluster_id: "),
        "{text}"
    );
    let status = daemon.jaco("cluster status").ok().out;
    assert!(status.contains("Nodes (1):\n- one @ "), "{status}");
    assert!(status.contains(", VOTER]"), "{status}");
    let nodes = daemon.jaco("node list -o json").json();
    assert_eq!(nodes["nodes"][0]["hostname"], "one");
}

#[test]
fn cordoned_node_gets_no_replica() {
    let (daemon, _) = Daemon::initialized();
    let workdir = Workdir::new();
    daemon
        .jaco("node cordon gone")
        .fails("node_not_found", &["  hostname=gone"]);
    let cordoned = daemon.jaco("node cordon one").ok();
    assert_eq!(cordoned.out, "Cordoned node one\n");
    let status = daemon.jaco("cluster status").ok().out;
    assert!(status.contains(", CORDONED, VOTER]"), "{status}");
    let file = manifests(&workdir, "i:1", "");
    let apply = format!("apply {} --detach", file.display());
    daemon.jaco(&apply).ok();
    let shown = || daemon.jaco("status -o json").json();
    until("no node is eligible", || {
        let status = shown();
        let reason = status["deployments"][0]["status_details"]["reason"].as_str()?;
        reason.contains("no eligible hosts").then_some(())
    });
    assert_eq!(
        daemon.jaco("get replicas -o json").json(),
        serde_json::json!([])
    );
    assert_eq!(
        daemon.jaco("node uncordon one -o json").json(),
        serde_json::json!({"hostname": "one", "cordoned": false})
    );
    until("the replica is placed", || {
        let replicas = daemon.jaco("get replicas -o json").json();
        (replicas[0]["host"] == "one").then_some(())
    });
}

#[test]
fn setup_token_initializes_daemon_over_tls() {
    let daemon = Daemon::start();
    let workdir = Workdir::new();
    workdir.program("systemctl", "echo called >called");
    let bootstrap = daemon.setup_token().with_file_name("server.crt");
    let print = fingerprint(&bootstrap);
    let init = format!("cluster init -o json --server {}", daemon.address());
    let pinned = format!("{init} --ca-fingerprint {print} --ca-cert gone");
    let token = daemon.setup_token();
    let token = token.display();

    let setup = format!("--token-file {token}");
    workdir
        .jaco(&format!("{init} {setup} --ca-cert gone"))
        .fails("ca_required", &[]);
    workdir
        .jaco(&pinned)
        .fails("token_required", &["--token or JACO_TOKEN"]);
    let wrong = format!("{pinned} --token {}", "0".repeat(64));
    workdir.jaco(&wrong).fails("token_invalid", &[]);
    let status = format!(
        "cluster status -o json --server {} --ca-cert gone",
        daemon.address()
    );
    let before = workdir
        .jaco(&format!("{status} --ca-fingerprint {print}"))
        .json();
    assert_eq!(before["initialized"], false);

    let by_file = format!("{init} --ca-cert {} {setup}", bootstrap.display());
    let initialized = workdir.jaco(&by_file).ok().json();
    assert_eq!(initialized["systemd"], "skipped");
    assert!(
        !workdir.path("called").exists(),
        "systemctl must not be called for a remote daemon"
    );

    let operator = initialized["operator_token"].as_str().unwrap();
    let print = daemon.fingerprint();
    let remote = format!(
        "--server {} --ca-cert gone --ca-fingerprint {print}",
        daemon.address()
    );
    workdir
        .jaco(&format!("status {remote} --token {operator}"))
        .ok();
    // Without a token the status shows only that the cluster is initialized.
    let anonymous = workdir
        .jaco(&format!("cluster status -o json {remote}"))
        .json();
    assert_eq!(anonymous["initialized"], true);
    assert_eq!(anonymous["nodes"].as_array().unwrap().len(), 0);
    assert!(!daemon.setup_token().exists());
}
