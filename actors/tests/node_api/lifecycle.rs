//! Life cycle of a node: from an empty directory to a member, through stops and restarts.

use std::{fs, net::TcpListener, sync::Arc, time::Duration};

use jaco_actors::{Node, StartError, network::ipam::Pool, node::FilesError};
use jaco_proto::{chain, v1};
use jaco_raftnode::StateReader as _;

use super::lab::{Lab, TIMEOUT, state, until};

#[tokio::test]
async fn only_setup_calls_are_served_before_init() {
    let lab = Lab::new();
    let node = lab.start().await;
    let local = lab.local();
    let status = local.status().await.unwrap();
    assert!(!status.initialized && status.nodes.is_empty());
    let refused = local.apply("deployment: d", "services: {}").await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code, "cluster_uninitialized");
    assert_eq!(refused.details["reason"], "uninitialized");
    let request = v1::NodeJoinRequest::default();
    let refused = local.cluster().node_join(request).await.unwrap_err();
    assert_eq!(refused.message(), "cluster_uninitialized");
    node.stop().await;
}

#[tokio::test]
async fn second_init_returns_the_existing_cluster_id() {
    let lab = Lab::new();
    let node = lab.start().await;
    let founded = lab.init().await.unwrap();
    let again = lab.init().await.unwrap_err();
    assert_eq!(again.code, "cluster_already_initialized");
    assert_eq!(again.details["cluster_id"], founded.cluster_id);
    let join = v1::ClusterJoinRequest::default();
    let join = lab.local().cluster().join(join).await.unwrap_err();
    assert_eq!(join.message(), "cluster_already_initialized");
    node.stop().await;
}

#[tokio::test]
async fn one_of_several_concurrent_inits_succeeds() {
    let lab = Lab::new();
    let node = lab.start().await;
    let attempts = (0..6).map(|_| lab.init());
    let results = futures::future::join_all(attempts).await;
    let founded: Vec<_> = results.iter().filter_map(|r| r.as_ref().ok()).collect();
    assert_eq!(founded.len(), 1, "{results:?}");
    let cluster = state(&node).cluster.clone().unwrap();
    assert_eq!(cluster.cluster_id, founded[0].cluster_id);
    for error in results.iter().filter_map(|r| r.as_ref().err()) {
        let code = error.code.as_str();
        assert!(
            ["cluster_already_initialized", "state_unavailable"].contains(&code),
            "{code}"
        );
    }
    node.stop().await;
}

#[tokio::test]
async fn restart_resumes_the_membership() {
    let mut lab = Lab::new();
    let (node, token) = lab.bootstrapped().await;
    let compose = "services: {web: {image: nginx}}";
    lab.local().apply("deployment: d", compose).await.unwrap();
    let scheduled = |state: &jaco_raftnode::State| !state.replicas_desired.is_empty();
    until(&node, "the scheduler placed the replica", scheduled).await;
    let ca = lab.ca();
    node.stop().await;
    let before = state(&node);
    drop(node);

    lab.hostname = None; // the name is stored with the membership
    let node = lab.start().await;
    let after = node.raft().unwrap().state();
    assert_eq!(after.nodes, before.nodes);
    assert_eq!(after.tokens, before.tokens);
    assert_eq!(after.cluster, before.cluster);
    assert_eq!(after.deployments, before.deployments);
    assert_eq!(after.replicas_desired, before.replicas_desired);
    assert_eq!(after.audit, before.audit);
    assert!(after.applied_index >= before.applied_index);
    assert_eq!(lab.ca(), ca);
    let status = lab.pinned(Some(&token)).status().await.unwrap();
    assert_eq!(status.nodes[0].hostname, "one");
    node.stop().await;
}

#[tokio::test]
async fn setup_files_survive_restarts_until_init() {
    let lab = Lab::new();
    let node = lab.start().await;
    let (token, trust) = (lab.setup_token(), lab.setup_trust());
    node.stop().await;
    drop(node);
    let node = lab.start().await;
    assert_eq!((lab.setup_token(), lab.setup_trust()), (token, trust));
    lab.init().await.unwrap();
    assert!(!lab.data().join("bootstrap").exists());
    node.stop().await;
}

#[tokio::test]
async fn incomplete_setup_files_are_recreated() {
    let lab = Lab::new();
    lab.start().await.stop().await;
    for missing in ["setup-token", "server.crt", "server.key"] {
        fs::remove_file(lab.data().join("bootstrap").join(missing)).unwrap();
        let node = lab.start().await;
        lab.remote(&lab.setup_trust(), Some(&lab.setup_token()))
            .status()
            .await
            .unwrap();
        node.stop().await;
    }
}

#[tokio::test]
async fn leftovers_of_a_crashed_init_are_no_membership() {
    let lab = Lab::new();
    // A crash between the two renames (identity placed, state not), and one during each of them.
    for (path, text) in [
        ("node/join.json", "{}"),
        ("node/one.key", "key of a cluster that never was"),
        ("node.new/one.key", "half"),
        ("raft.new/CURRENT", "half"),
    ] {
        let path = lab.data().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let node = lab.start().await;
    assert!(!lab.local().status().await.unwrap().initialized);
    let founded = lab.init().await.unwrap();
    let token = Some(founded.operator_token.as_str());
    assert!(lab.pinned(token).status().await.unwrap().initialized);
    node.stop().await;
}

#[tokio::test]
async fn second_daemon_on_a_directory_is_refused() {
    let lab = Lab::new();
    let node = lab.start().await;
    let second = lab.try_start().await.err().unwrap();
    assert!(
        matches!(second, StartError::Files(FilesError::Locked(_))),
        "{second:?}"
    );
    assert!(lab.local().status().await.is_ok(), "the first one suffered");
    node.stop().await;
}

#[tokio::test]
async fn start_under_another_name_is_refused() {
    let mut lab = Lab::new();
    let (node, _) = lab.bootstrapped().await;
    node.stop().await;
    drop(node);
    lab.hostname = Some("two".to_owned());
    match lab.try_start().await.err().unwrap() {
        StartError::Files(FilesError::Renamed { configured, stored }) => {
            assert_eq!((configured.as_str(), stored.as_str()), ("two", "one"));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn start_with_another_pool_is_refused() {
    let lab = Lab::new();
    let (node, _) = lab.bootstrapped().await;
    node.stop().await;
    drop(node);
    let mut config = lab.config();
    config.ipam = Pool::new("10.128.0.0/12".parse().unwrap(), 26).unwrap();
    // A default gives way to the pool of the cluster.
    let node = Node::start(config.clone()).await.unwrap();
    node.stop().await;
    drop(node);
    config.ipam_is_set = true;
    match Node::start(config).await.err().unwrap() {
        StartError::Fatal(reason) => {
            for pool in [
                "10.128.0.0/12 in blocks of /26",
                "10.244.0.0/16 in blocks of /24",
            ] {
                assert!(reason.contains(pool), "{reason}");
            }
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn damaged_files_fail_the_start_by_name() {
    let lab = Lab::new();
    let (node, _) = lab.bootstrapped().await;
    node.stop().await;
    drop(node);
    let raft = fs::read_dir(lab.data().join("raft")).unwrap();
    let manifest = raft
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .find(|name| name.starts_with("MANIFEST"))
        .unwrap();
    for file in [
        "node/join.json",
        "node/one.key",
        "node/one.crt",
        &format!("raft/{manifest}"),
    ] {
        let path = lab.data().join(file);
        let good = fs::read(&path).unwrap();
        for damage in [None, Some("nonsense")] {
            match damage {
                None => fs::remove_file(&path).unwrap(),
                Some(text) => fs::write(&path, text).unwrap(),
            }
            let error = lab
                .try_start()
                .await
                .err()
                .unwrap_or_else(|| panic!("{file} {damage:?}"));
            let text = chain(&error);
            // The error names at least the directory.
            let dir = path.parent().unwrap().to_str().unwrap();
            assert!(text.contains(dir), "{file} {damage:?}: {text}");
        }
        fs::write(&path, good).unwrap();
    }
    let node = lab.start().await; // the failed starts did no damage
    node.stop().await;
}

#[tokio::test]
async fn address_in_use_fails_the_start() {
    let lab = Lab::new();
    let _taken = TcpListener::bind(lab.address()).unwrap();
    let error = chain(&lab.try_start().await.err().unwrap());
    let refused = format!("cannot listen on {}", lab.address());
    assert!(error.contains(&refused), "{error}");
    assert!(!lab.socket().exists(), "the socket file stays behind");
}

#[tokio::test]
async fn two_nodes_in_one_process_are_independent() {
    let (one, two) = (Lab::new(), Lab::new());
    let (first, token) = one.bootstrapped().await;
    let (second, _) = two.bootstrapped().await;
    assert_ne!(state(&first).cluster, state(&second).cluster);
    let refused = two.pinned(Some(&token)).status().await.unwrap_err();
    assert_eq!(refused.code, "token_invalid");
    first.stop().await;
    assert!(two.local().status().await.unwrap().initialized);
    second.stop().await;
}

#[tokio::test]
async fn stop_releases_everything_despite_connected_clients() {
    let lab = Lab::new();
    let (node, token) = lab.bootstrapped().await;
    let (local, remote) = (lab.local(), lab.pinned(Some(&token)));
    let watch = |client: super::lab::Client| async move {
        let request = v1::SubscribeRequest::default();
        client
            .watch()
            .subscribe(request)
            .await
            .unwrap()
            .into_inner()
    };
    let mut streams = [watch(local.clone()).await, watch(remote.clone()).await];
    local.status().await.unwrap();
    let stopped = tokio::time::timeout(TIMEOUT, node.stop());
    stopped.await.expect("clients hold up the stop");
    for stream in &mut streams {
        let end = loop {
            match stream.message().await {
                Ok(Some(_)) => {}
                other => break other,
            }
        };
        assert_eq!(end.unwrap_err().message(), "raft_unavailable");
    }
    drop(node);
    let node = lab.start().await;
    // The same clients reconnect to the next daemon.
    assert!(local.status().await.unwrap().initialized);
    assert!(remote.status().await.unwrap().initialized);
    node.stop().await;
}

#[tokio::test]
async fn stopped_node_is_freed() {
    let lab = Lab::new();
    let (node, token) = lab.bootstrapped().await;
    lab.pinned(Some(&token)).status().await.unwrap();
    let shared = Arc::downgrade(node.shared());
    node.stop().await;
    drop(node);
    let gone = async {
        while shared.strong_count() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let gone = tokio::time::timeout(TIMEOUT, gone).await;
    assert!(gone.is_ok(), "{} owners are left", shared.strong_count());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_during_init_leaves_a_member_or_nothing() {
    for delay in [0, 2, 5, 10, 20, 40] {
        let lab = Lab::new();
        let node = lab.start().await;
        let stop = async {
            tokio::time::sleep(Duration::from_millis(delay)).await;
            node.stop().await;
        };
        let (init, ()) = tokio::join!(lab.init(), stop);
        drop(node);
        let node = lab.start().await;
        let initialized = lab.local().status().await.unwrap().initialized;
        match init {
            Ok(founded) => {
                let operator = lab.pinned(Some(&founded.operator_token));
                assert!(operator.status().await.unwrap().initialized);
            }
            Err(_) if initialized => {
                // The cluster exists, but the answer was lost: the socket still admits an operator.
                lab.local().issue("me", false).await.unwrap();
            }
            Err(_) => {
                lab.init().await.unwrap();
            }
        }
        node.stop().await;
    }
}
