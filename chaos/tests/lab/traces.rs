//! What a lab leaves behind: nothing.

use std::process::{Command, Stdio};

use jaco_chaos::{
    Engine, Lab,
    daemon::program,
    engine::IMAGE,
    lab::{Name, clean},
    turn, until,
    wait::PATIENCE,
};

#[tokio::test]
async fn two_labs_stand_side_by_side_and_each_leaves_nothing() {
    let _turn = turn::shared().await;
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
async fn a_lab_that_cannot_start_leaves_nothing() {
    let _turn = turn::shared().await;
    let before = clean::list();
    let broken = Lab::builder()
        .nodes(1)
        .config("no_such_key: 1\n")
        .start()
        .await;
    let why = format!("{:#}", broken.unwrap_err());
    assert!(why.contains("no_such_key"), "{why}");
    let mine = clean::list()
        .into_iter()
        .filter(|name| name.owner() == Some(std::process::id()));
    let new: Vec<Name> = mine.filter(|name| !before.contains(name)).collect();
    // Labs of other tests may stand by now, but they are whole.
    assert!(new.iter().all(Name::is_owned), "{new:?}");
}

/// Everything of a lab: engines, containers' control groups, mounts, a relay.
#[tokio::test]
async fn what_a_killed_owner_leaves_is_found_and_removed() {
    let _turn = turn::alone().await;
    let lab = program("jaco-lab").unwrap();
    let mut owner = Command::new(&lab)
        .args(["serve", "1", "--disk", "64"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let name = until("a lab of the owner", PATIENCE, || async {
        let mut labs = clean::list().into_iter();
        let mine = labs.find(|name| name.owner() == Some(owner.id()));
        let name = mine.ok_or("none yet")?;
        let ready = name.dir().join("control").exists();
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
