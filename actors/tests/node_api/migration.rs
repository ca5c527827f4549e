//! From JACO's Go implementation: its data directory is recognised, and a restored cluster keeps
//! the containers that it started.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

use std::{fs, sync::Arc};

use jaco_actors::node::restore;
use jaco_proto::{chain, manifest::SpecHasher, v1};
use jaco_raftnode::archive;

use crate::{
    backup::{backup, opened},
    lab::{Lab, until},
};

const COMPOSE: &str = "services:\n  web:\n    image: shop/web:1\n    command: a && b\n";

/// An archive with three replicas on host `two`, as the Go implementation writes it.
async fn go_archive() -> Vec<u8> {
    let lab = Lab::new();
    let (node, _) = lab.bootstrapped().await;
    let client = lab.local();
    let jaco = "deployment: shop\nservices: [{name: web, replicas: 3}]\n";
    client.apply(jaco, COMPOSE).await.unwrap();
    until(&node, "placed replicas", |state| {
        state.replicas_desired.len() == 3
    })
    .await;
    let mut found = opened(&backup(&client).await.unwrap());
    node.stop().await;

    let state = &mut found.state;
    let shop = v1::Deployment::clone(&state.deployments["shop"]);
    let shop = v1::Deployment {
        highest_revision: 0,
        ..shop
    };
    state.deployments.insert("shop".to_owned(), Arc::new(shop));
    let hasher = SpecHasher::new(COMPOSE.as_bytes()).unwrap();
    let hash = hasher.go_hash("web").unwrap().to_vec();
    for (id, row) in state.replicas_desired.clone() {
        let row = v1::ReplicaDesired {
            host: "two".to_owned(),
            spec_hash: hash.clone(),
            ..v1::ReplicaDesired::clone(&row)
        };
        state.replicas_desired.insert(id, Arc::new(row));
    }
    let mut bytes = Vec::new();
    archive::write(&found.meta, &found.state, &mut bytes).unwrap();
    bytes
}

/// The index is in a label of each container, so an unchanged one means that it is kept.
#[tokio::test]
async fn replicas_of_a_go_archive_are_not_reissued() {
    let bytes = go_archive().await;
    let before = opened(&bytes).state;
    let mut lab = Lab::new();
    lab.hostname = None;
    restore(&lab.config(), "two", &*bytes, |_| ()).unwrap();
    let node = lab.start().await;
    // A pass of the scheduler that places these replicas has seen those of the archive, too.
    lab.local()
        .apply("deployment: other\n", "services: {web: {image: i}}\n")
        .await
        .unwrap();
    let after = until(&node, "a pass of the scheduler", |state| {
        state.replicas_desired.contains_key("other-web-0")
    })
    .await;
    for (id, row) in &before.replicas_desired {
        let now = &after.replicas_desired[id];
        assert_eq!(
            (now.raft_index, now.host.as_str()),
            (row.raft_index, "two"),
            "{id}"
        );
    }
    node.stop().await;
}

#[tokio::test]
async fn go_data_directory_is_recognised_and_kept() {
    let bytes = go_archive().await;
    let mut lab = Lab::new();
    lab.hostname = None;
    let files = [
        ("raft/log.db", "bolt"),
        (
            "node/join.json",
            "{\"cluster_id\": \"c\", \"hostname\": \"two\"}",
        ),
        ("node/two.key", "key"),
    ];
    for (name, text) in files {
        let path = lab.data().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    fs::create_dir(lab.data().join("raft/snapshots")).unwrap();

    let started = chain(&lab.try_start().await.err().unwrap());
    let restored = restore(&lab.config(), "two", &*bytes, |_| ()).unwrap_err();
    for text in [started, chain(&restored)] {
        assert!(text.contains("JACO's Go daemon (raft/log.db)"), "{text}");
        assert!(text.contains("refusing to overwrite"), "{text}");
        assert!(text.contains("docs/migration.md"), "{text}");
    }
    for (name, text) in files {
        let found = fs::read_to_string(lab.data().join(name)).unwrap();
        assert_eq!(found, text, "{name}");
    }
    // Moved aside, the directory is free for the restore.
    fs::rename(lab.data(), lab.data().with_extension("go")).unwrap();
    restore(&lab.config(), "two", &*bytes, |_| ()).unwrap();
}
