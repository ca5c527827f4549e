use super::*;

fn file(kind: v1::FileKind, id: &str) -> v1::MountedFile {
    v1::MountedFile {
        kind: kind.into(),
        name: "tls".into(),
        target: "/tls".into(),
        content_id: id.into(),
        ..Default::default()
    }
}

fn content(id: &str) -> v1::FileContent {
    v1::FileContent {
        deployment: "shop".into(),
        id: id.into(),
        content: b"x".to_vec(),
        size: 1,
        ..Default::default()
    }
}

fn deploy(revision: u64, used: &[&str], sent: &[&str]) -> Payload {
    let files = used.iter().map(|id| file(v1::FileKind::Config, id));
    Payload::DeploymentApply(v1::DeploymentApply {
        deployment: "shop".into(),
        revision,
        services: vec![v1::ServiceSpec {
            name: "web".into(),
            files: files.collect(),
            ..Default::default()
        }],
        contents: sent.iter().map(|id| content(id)).collect(),
        ..Default::default()
    })
}

fn replica(id: &str, used: &[&str]) -> Payload {
    let files = used.iter().map(|id| file(v1::FileKind::Config, id));
    Payload::ReplicaDesiredUpsert(v1::ReplicaDesiredUpsert {
        replica: Some(v1::ReplicaDesired {
            id: id.into(),
            deployment: "shop".into(),
            service: "web".into(),
            files: files.collect(),
            ..Default::default()
        }),
    })
}

fn ids(state: &State) -> Vec<&str> {
    let contents = state.file_contents.values();
    contents.map(|content| &*content.id).collect()
}

#[test]
fn contents_live_as_long_as_revisions_and_replicas() {
    let mut test = TestState::new();
    test.ok(deploy(1, &["a"], &["a"]));
    test.ok(replica("shop-web-0", &["a"]));
    test.ok(deploy(2, &["b"], &["b"]));
    assert_eq!(ids(&test.state), ["a", "b"]);
    test.ok(deploy(3, &["c"], &["c"]));
    assert_eq!(ids(&test.state), ["a", "b", "c"], "a replica has a");
    test.ok(replica("shop-web-0", &["c"]));
    assert_eq!(ids(&test.state), ["b", "c"]);
    test.ok(Payload::DeploymentRollback(v1::DeploymentRollback {
        deployment: "shop".into(),
        revision: 2,
        ..Default::default()
    }));
    assert_eq!(ids(&test.state), ["b", "c"], "a rollback can be undone");
    test.ok(Payload::DeploymentDelete(v1::DeploymentDelete {
        deployment: "shop".into(),
    }));
    assert_eq!(ids(&test.state), [""; 0]);
}

#[test]
fn removed_replica_releases_its_contents() {
    let mut test = TestState::new();
    for (revision, id) in [(1, "a"), (2, "b"), (3, "c")] {
        test.ok(deploy(revision, &[id], &[id]));
        if id == "a" {
            test.ok(replica("shop-web-0", &["a"]));
        }
    }
    test.ok(Payload::ReplicaDesiredRemove(v1::ReplicaDesiredRemove {
        id: "shop-web-0".into(),
    }));
    assert_eq!(ids(&test.state), ["b", "c"]);
}

#[test]
fn apply_without_a_content_is_rejected() {
    let mut test = TestState::new();
    let error = test.rejected(deploy(1, &["a"], &["b"]), ErrorCode::ConfigMissing);
    assert_eq!(error.details["name"], "tls");
    assert_eq!(ids(&test.state), [""; 0]);
    let mut secret = deploy(1, &[], &[]);
    if let Payload::DeploymentApply(apply) = &mut secret {
        apply.services[0].files = vec![file(v1::FileKind::Secret, "a")];
    }
    test.rejected(secret, ErrorCode::SecretMissing);
}

fn put(kind: v1::FileKind, id: &str, sealed: u8) -> Payload {
    Payload::ClusterFilePut(v1::ClusterFilePut {
        file: Some(v1::ClusterFile {
            kind: kind.into(),
            name: "tls".into(),
            content: Some(v1::FileContent {
                id: id.into(),
                sealed: vec![sealed],
                ..Default::default()
            }),
            ..Default::default()
        }),
    })
}

fn removal(kind: v1::FileKind) -> Payload {
    Payload::ClusterFileRemove(v1::ClusterFileRemove {
        kind: kind.into(),
        name: "tls".into(),
    })
}

#[test]
fn cluster_files_are_created_once_and_removed() {
    use v1::FileKind::{Bind, Config, Secret};
    let mut test = TestState::new();
    test.ok(put(Config, "a", 1));
    test.ok(put(Secret, "b", 1));
    test.rejected(put(Config, "b", 1), ErrorCode::FileExists);
    test.rejected(put(Bind, "b", 1), ErrorCode::ValidationFailed);
    // Sealed anew, after the secrets key was replaced.
    test.ok(put(Secret, "b", 2));
    assert_eq!(test.state.cluster_files.len(), 2);
    test.ok(removal(Config));
    test.rejected(removal(Config), ErrorCode::ConfigNotFound);
    test.ok(removal(Secret));
    test.rejected(removal(Secret), ErrorCode::SecretNotFound);
    let audit = test.state.audit.values();
    let types: Vec<_> = audit.map(|event| event.r#type()).collect();
    let created = AuditEventType::ClusterFileCreated;
    let removed = AuditEventType::ClusterFileRemoved;
    assert_eq!(types, [created, created, removed, removed]);
}

#[test]
fn resealed_secret_keeps_its_id() {
    let mut test = TestState::new();
    test.ok(deploy(1, &["a"], &["a"]));
    let resealed = |id: &str| {
        Payload::FileContentReseal(v1::FileContentReseal {
            content: Some(v1::FileContent {
                sealed: vec![9],
                ..content(id)
            }),
        })
    };
    test.ok(resealed("a"));
    test.ok(resealed("gone"));
    let contents = test.state.file_contents.values();
    let sealed: Vec<_> = contents.map(|one| (&*one.id, &*one.sealed)).collect();
    assert_eq!(sealed, [("a", &[9][..])]);
}
