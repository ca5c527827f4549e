//! Cleanup of a lab: nothing may be left behind.

use std::{
    fs::Permissions,
    os::unix::{fs::PermissionsExt as _, net::UnixStream},
    path::Path,
    process::{Child, Command, Stdio},
};

use jaco_chaos::{
    Engine, Lab,
    daemon::{proc, program},
    engine::IMAGE,
    lab::{Name, clean},
    test_permits, until,
    wait::WAIT_TIMEOUT,
};
use rustix::process::{Pid, Signal, kill_process};

#[tokio::test]
async fn concurrent_labs_are_cleaned_up_independently() {
    let _permits = test_permits::heavy().await;
    let mut one = Lab::builder().nodes(2).start().await.unwrap();
    let mut two = Lab::builder().nodes(1).start().await.unwrap();
    one.init().await.unwrap();
    two.init().await.unwrap();
    assert_ne!(one.cluster_id(), two.cluster_id());
    let (name_one, name_two) = (one.name().clone(), two.name().clone());
    assert!(
        clean::stale()
            .unwrap()
            .iter()
            .all(|name| *name != name_one && *name != name_two)
    );

    drop(one);
    assert_eq!(clean::leftovers(&name_one), Vec::<String>::new());
    two.node(1).api().status().await.unwrap();
    drop(two);
    assert_eq!(clean::leftovers(&name_two), Vec::<String>::new());
}

#[tokio::test]
async fn failed_lab_is_cleaned_up() {
    let _permits = test_permits::heavy().await;
    let broken = Lab::builder()
        .nodes(1)
        .config("no_such_key: 1\n")
        .start()
        .await;
    let error = broken.unwrap_err();
    // The machine existed: its daemon refused the configuration.
    let why = format!("{error:#}");
    assert!(why.contains("no_such_key"), "{why}");
    let said = error.to_string();
    let name = said.strip_prefix("lab ").and_then(Name::parse).unwrap();
    assert_eq!(clean::leftovers(&name), Vec::<String>::new());
}

/// Starts a lab whose construction never ends, because the daemon of its machine never answers.
async fn building(dir: &Path) -> (Child, Name) {
    let daemon = dir.join("jacod");
    std::fs::write(&daemon, "#!/bin/sh\nexec sleep 86400\n").unwrap();
    std::fs::set_permissions(&daemon, Permissions::from_mode(0o700)).unwrap();
    let up = Command::new(program("jaco-lab").unwrap())
        .args(["up", "1", "--no-engines"])
        .env("JACO_BIN_DIR", dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let name = until(
        "a machine on which something runs",
        WAIT_TIMEOUT,
        || async {
            let mut labs = clean::list().into_iter();
            let parent = |name: &Name| proc::parent(name.owner()?).ok();
            let mine = labs.find(|name| parent(name) == Some(up.id()));
            let name = mine.ok_or("no lab yet")?;
            let left = clean::leftovers(&name).join(", ");
            if left.contains("process") {
                Ok(name)
            } else {
                Err("nothing runs yet")
            }
        },
    );
    let name = name.await.unwrap();
    (up, name)
}

fn send(signal: Signal, pid: u32) {
    let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

#[tokio::test]
async fn lab_interrupted_while_building_is_cleaned_up() {
    let _permits = test_permits::heavy().await;
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let dir = tempfile::tempdir().unwrap();
        let (mut up, name) = building(dir.path()).await;
        send(signal, up.id());
        assert!(!up.wait().unwrap().success());
        assert_eq!(clean::leftovers(&name), Vec::<String>::new(), "{signal:?}");
    }
}

#[tokio::test]
async fn lab_of_owner_killed_while_building_is_removed() {
    let _permits = test_permits::heavy().await;
    let dir = tempfile::tempdir().unwrap();
    let (mut up, name) = building(dir.path()).await;
    send(Signal::KILL, name.owner().unwrap());
    assert!(!up.wait().unwrap().success());
    assert_eq!(clean::leftovers(&name), Vec::<String>::new());
}

/// Covers all resources of a lab: engines, containers' control groups, mounts, a relay.
#[tokio::test]
async fn lab_of_killed_owner_is_found_and_removed() {
    let _permits = test_permits::exclusive().await;
    let lab = program("jaco-lab").unwrap();
    let mut owner = Command::new(&lab)
        .args(["serve", "1", "--disk", "64"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let name = until("a lab of the owner", WAIT_TIMEOUT, || async {
        let mut labs = clean::list().into_iter();
        let mine = labs.find(|name| name.owner() == Some(owner.id()));
        let name = mine.ok_or("none yet")?;
        // The file exists from bind on, and connections are refused until listen.
        let ready = UnixStream::connect(name.dir().join("control")).is_ok();
        if ready {
            Ok(name)
        } else {
            Err("not ready yet")
        }
    })
    .await
    .unwrap();
    let verb = |words: &[&str]| {
        let output = Command::new(&lab)
            .args(["--lab", name.as_str()])
            .args(words)
            .output();
        let output = output.unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(verb(&["status"]).contains("n1"));
    verb(&["init"]);
    verb(&["impair", "n1", "n1", "loss=5%"]);
    let engine = name.dir().join("n1/d");
    Engine::connect_to(&engine).await.unwrap();
    let run = Command::new("docker")
        .args(["-H", &format!("unix://{}", engine.display())])
        .args(["run", "-d", "--network", "none", IMAGE, "sleep", "86400"])
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
    owner.kill().unwrap();
    owner.wait().unwrap();
    assert!(!name.is_owned());
    let left = clean::leftovers(&name).join(", ");
    for kind in [
        "process",
        "namespace",
        "control group",
        "mount",
        "directory",
    ] {
        assert!(left.contains(kind), "{left}");
    }

    let cleaned = Command::new(&lab).arg("clean").output().unwrap();
    assert!(cleaned.status.success(), "{cleaned:?}");
    assert!(
        String::from_utf8(cleaned.stdout)
            .unwrap()
            .contains(name.as_str())
    );
    assert_eq!(clean::leftovers(&name), Vec::<String>::new());
}
