use std::sync::Arc;

use tokio::sync::watch;

use super::*;

fn file(kind: FileKind, name: &str, target: &str, path: &str, id: &str) -> MountedFile {
    MountedFile {
        kind: kind.into(),
        name: name.into(),
        target: target.into(),
        path: path.into(),
        uid: 7,
        gid: 8,
        mode: 0o440,
        content_id: id.into(),
    }
}

fn row(files: Vec<MountedFile>) -> ReplicaDesired {
    ReplicaDesired {
        id: "shop-web-0".into(),
        deployment: "shop".into(),
        files,
        ..Default::default()
    }
}

fn state(contents: Vec<FileContent>) -> State {
    let mut state = State::default();
    for content in contents {
        let key = ("shop".to_owned(), content.id.clone());
        state.file_contents.insert(key, Arc::new(content));
    }
    state
}

fn plain(id: &str, content: &str) -> FileContent {
    FileContent {
        id: id.into(),
        content: content.into(),
        ..Default::default()
    }
}

fn mounts(root: &Path, key: Option<SecretsKey>) -> FileMounts {
    let keys = watch::channel(key.map(Arc::new)).1;
    FileMounts::in_directory(root, keys)
}

fn mode(path: impl AsRef<Path>) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[tokio::test]
async fn files_have_content_owner_and_mode() {
    let dir = tempfile::tempdir().unwrap();
    let files = mounts(&dir.path().join("root"), None);
    let state = state(vec![plain("a", "one"), plain("b", "two")]);
    let row = row(vec![
        file(FileKind::Config, "site", "/site", "", "a"),
        file(FileKind::Bind, "/src", "/etc/app", "x/y.conf", "b"),
        file(FileKind::Bind, "/src", "/etc/app", "z.conf", "a"),
    ]);
    let written = files.write(&state, &row).await.unwrap();
    let [directory, single] = &written[..] else {
        panic!("{written:?}");
    };
    assert_eq!((single.target.as_str(), &single.replaces), ("/site", &None));
    assert_eq!(fs::read(&single.source).unwrap(), b"one");
    let found = fs::metadata(&single.source).unwrap();
    assert_eq!((found.uid(), found.gid()), (7, 8));
    assert_eq!(mode(&single.source), 0o440);
    assert_eq!(directory.target, "/etc/app");
    assert_eq!(directory.replaces.as_deref(), Some("/src"));
    let inside = Path::new(&directory.source);
    assert_eq!(fs::read(inside.join("x/y.conf")).unwrap(), b"two");
    assert_eq!(mode(inside.join("x")), 0o755);
    assert_eq!(mode(dir.path().join("root/shop-web-0")), 0o700);
}

#[tokio::test]
async fn unchanged_files_stay_and_others_go() {
    let dir = tempfile::tempdir().unwrap();
    let files = mounts(dir.path(), None);
    let state = state(vec![plain("a", "one"), plain("b", "two"), plain("c", "x")]);
    let site = |id: &str| file(FileKind::Config, "site", "/site", "", id);
    let other = file(FileKind::Config, "other", "/other", "", "c");
    let both = row(vec![site("a"), other.clone()]);
    let first = files.write(&state, &both).await.unwrap();
    let inode = |path: &str| fs::metadata(path).unwrap().ino();
    let before = inode(&first[0].source);
    let changed = row(vec![site("b"), other]);
    let second = files.write(&state, &changed).await.unwrap();
    assert_eq!(second[0], first[0]);
    assert_eq!(inode(&second[0].source), before, "a container may have it");
    assert_eq!(fs::read(&second[1].source).unwrap(), b"two");
    assert!(fs::metadata(&first[1].source).is_err());
    // Damaged, as after a crash in the middle.
    fs::write(&second[1].source, "tw").unwrap();
    let repaired = files.write(&state, &changed).await.unwrap();
    assert_eq!(fs::read(&repaired[1].source).unwrap(), b"two");
    files.retain(|replica| replica == "other").unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn secrets_open_with_the_key_of_the_cluster() {
    let key = SecretsKey::new([7; 32]);
    let content = FileContent {
        id: "a".into(),
        ..Default::default()
    };
    let (entity, version) = sealed_as(&content);
    let sealed = key.seal(&entity, version, b"hunter2").unwrap();
    let state = state(vec![FileContent { sealed, ..content }]);
    let row = row(vec![file(FileKind::Secret, "key", "/key", "", "a")]);
    let dir = tempfile::tempdir().unwrap();
    let written = mounts(dir.path(), Some(key)).write(&state, &row).await;
    let written = written.unwrap();
    assert_eq!(fs::read(&written[0].source).unwrap(), b"hunter2");
    for other in [None, Some(SecretsKey::new([8; 32]))] {
        let refused = mounts(dir.path(), other).write(&state, &row).await;
        let Err(PrepareError::SecretClosed { name, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(name, "key");
    }
}

#[tokio::test]
async fn missing_content_is_retried() {
    let dir = tempfile::tempdir().unwrap();
    let row = row(vec![file(FileKind::Config, "site", "/site", "", "a")]);
    let refused = mounts(dir.path(), None)
        .write(&State::default(), &row)
        .await;
    assert!(
        matches!(refused, Err(PrepareError::Retry(_))),
        "{refused:?}"
    );
}
