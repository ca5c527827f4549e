use std::{cell::Cell, sync::Arc};

use jaco_proto::{
    manifest::{ClusterView, resolve},
    v1::{ClusterFile, Deployment, TransportProtocol},
};

use super::*;

/// Reverses values, under ids that count up.
#[derive(Default)]
struct Reversing(Cell<u32>);

fn reversed(value: &[u8]) -> Vec<u8> {
    value.iter().rev().copied().collect()
}

impl Sealer for Reversing {
    fn open(&self, content: &FileContent) -> Option<SecretBytes> {
        Some(SecretBytes::new(reversed(&content.sealed)))
    }

    fn seal(&self, _: &FileContent, value: &[u8]) -> Result<Vec<u8>, Error> {
        Ok(reversed(value))
    }

    fn random_id(&self) -> Result<String, Error> {
        self.0.set(self.0.get() + 1);
        Ok(format!("id{}", self.0.get()))
    }
}

struct Anything;

impl ClusterView for Anything {
    fn has_host(&self, _: &str) -> bool {
        true
    }

    fn port_owner(&self, _: u16, _: TransportProtocol) -> Option<String> {
        None
    }

    fn route_owner(&self, _: &str, _: &str) -> Option<String> {
        None
    }

    fn identity(&self) -> &'static str {
        "tester"
    }

    fn allows_privileged(&self) -> bool {
        true
    }
}

const COMPOSE: &str = "\
services:
  web:
    image: nginx
    configs: [site, motd]
    secrets: [key, shared]
    volumes: [/src/conf.d:/etc/conf.d:ro, /srv:/srv]
  db: {image: pg, secrets: [key]}
configs:
  site: {file: /src/site.conf}
  motd: {content: hello}
secrets:
  key: {environment: KEY}
  shared: {external: true, name: common}
";

fn resolved(compose: &str) -> Resolved {
    resolve(b"deployment: shop", compose.as_bytes(), &Anything).unwrap()
}

fn value(kind: FileKind, name: &str, path: &str, content: &[u8]) -> FileValue {
    FileValue {
        kind: kind.into(),
        name: name.into(),
        path: path.into(),
        uid: 7,
        gid: 8,
        mode: 0o640,
        content: content.to_vec(),
    }
}

fn values() -> Vec<FileValue> {
    vec![
        value(FileKind::Config, "site", "", b"server {}"),
        value(FileKind::Secret, "key", "", b"hunter2"),
        value(FileKind::Bind, "/src/conf.d", "a.conf", b"a"),
        value(FileKind::Bind, "/src/conf.d", "sub/b.conf", b"hello"),
        value(FileKind::Config, "unused", "", b"x"),
    ]
}

fn cluster() -> State {
    let mut state = State::default();
    let file = ClusterFile {
        kind: FileKind::Secret.into(),
        name: "common".into(),
        content: Some(FileContent {
            id: "common".into(),
            sealed: b"deraehs".to_vec(),
            size: 7,
            ..Default::default()
        }),
        ..Default::default()
    };
    let key = cluster_file_key(FileKind::Secret, "common");
    state.cluster_files.insert(key, Arc::new(file));
    state
}

/// Stores the outcome of an apply.
fn store(state: &mut State, contents: &[FileContent]) {
    for content in contents {
        let key = (content.deployment.clone(), content.id.clone());
        state.file_contents.insert(key, Arc::new(content.clone()));
    }
}

#[test]
fn every_origin_leads_to_a_content() {
    let (state, sealer) = (cluster(), Reversing::default());
    let mut apply = resolved(COMPOSE);
    let contents = assign(&state, &mut apply, &values(), &sealer).unwrap();
    let of = |id: &str| contents.iter().find(|content| content.id == id).unwrap();
    let web = apply.services.iter().find(|one| one.name == "web").unwrap();
    let shown: Vec<_> = web
        .files
        .iter()
        .map(|file| {
            let content = of(&file.content_id);
            assert_eq!(content.deployment, "shop");
            (
                file.name.as_str(),
                file.target.as_str(),
                file.path.as_str(),
                file.uid,
                content.content.as_slice(),
                content.sealed.as_slice(),
            )
        })
        .collect();
    let expected: [(_, _, _, _, &[u8], &[u8]); 6] = [
        ("site", "/site", "", 0, b"server {}", b""),
        ("motd", "/motd", "", 0, b"hello", b""),
        ("key", "/run/secrets/key", "", 0, b"", b"2retnuh"),
        ("shared", "/run/secrets/shared", "", 0, b"", b"deraehs"),
        ("/src/conf.d", "/etc/conf.d", "a.conf", 7, b"a", b""),
        ("/src/conf.d", "/etc/conf.d", "sub/b.conf", 7, b"hello", b""),
    ];
    assert_eq!(shown, expected);
    // Equal content is one content, of one secret in two services too.
    assert_eq!(contents.len(), 5);
    assert_eq!(sealer.0.get(), 1);
}

#[test]
fn unchanged_files_add_no_contents() {
    let (mut state, sealer) = (cluster(), Reversing::default());
    let mut first = resolved(COMPOSE);
    let contents = assign(&state, &mut first, &values(), &sealer).unwrap();
    store(&mut state, &contents);
    let mut again = resolved(COMPOSE);
    let new = assign(&state, &mut again, &values(), &sealer).unwrap();
    assert_eq!((new.len(), &again.services), (0, &first.services));
    let mut changed = values();
    changed[1].content = b"hunter3".to_vec();
    let mut third = resolved(COMPOSE);
    let new = assign(&state, &mut third, &changed, &sealer).unwrap();
    assert_eq!(new.len(), 1);
    assert_ne!(third.services, first.services);
}

fn refusal(compose: &str, state: &State, values: &[FileValue]) -> Error {
    let mut apply = resolved(compose);
    assign(state, &mut apply, values, &Reversing::default()).unwrap_err()
}

#[test]
fn missing_values_are_named() {
    let state = cluster();
    for (left_out, code, name) in [
        ("site", ErrorCode::ConfigMissing, "site"),
        ("key", ErrorCode::SecretMissing, "key"),
    ] {
        let mut some = values();
        some.retain(|value| value.name != left_out);
        let error = refusal(COMPOSE, &state, &some);
        assert_eq!((error.code, error.details["name"].as_str()), (code, name));
    }
    let error = refusal(COMPOSE, &State::default(), &values());
    assert_eq!(error.code, ErrorCode::SecretMissing);
    assert_eq!(error.details["external"], "common");
    let create = "jaco secret create --cluster common";
    assert!(error.message.contains(create), "{error}");
}

/// The value of a secret in the document would be stored in the clear.
#[test]
fn secret_in_the_document_is_not_used() {
    let inline = COMPOSE.replace("{environment: KEY}", "{content: hunter2}");
    let mut without = values();
    without.retain(|value| value.name != "key");
    let error = refusal(&inline, &cluster(), &without);
    assert_eq!(error.code, ErrorCode::SecretMissing);
    assert!(!error.to_string().contains("hunter2"));
}

#[test]
fn sizes_and_paths_out_of_range_are_refused() {
    let state = cluster();
    let with = |value: FileValue| {
        let mut all = values();
        all.push(value);
        refusal(COMPOSE, &state, &all)
    };
    let mebibyte = vec![b'x'; MAX_FILE_BYTES];
    let over = [&mebibyte[..], b"x"].concat();
    let error = with(value(FileKind::Config, "unused2", "", &over));
    assert_eq!(error.details["limit"], MAX_FILE_BYTES.to_string());
    for path in ["../x", "/x", "a//b", "a/./b", "a\0b"] {
        let error = with(value(FileKind::Bind, "/src/conf.d", path, b"x"));
        assert_eq!(error.code, ErrorCode::ValidationFailed, "{path:?}");
    }
    for (kind, name, path) in [
        (FileKind::Config, "site", ""),
        (FileKind::Config, "other", "path"),
        (FileKind::Bind, "/src/conf.d", ""),
    ] {
        let error = with(value(kind, name, path, b"x"));
        assert_eq!(error.code, ErrorCode::ValidationFailed, "{name}");
    }
    let mut all = values();
    for number in 0..5 {
        let content = [&[number][..], &mebibyte[1..]].concat();
        let path = format!("{number}.conf");
        all.push(value(FileKind::Bind, "/src/conf.d", &path, &content));
    }
    let error = refusal(COMPOSE, &state, &all);
    assert_eq!(error.details["limit"], MAX_TOTAL.to_string());
    assert!(error.details.contains_key("bytes"));
}

#[test]
fn users_of_cluster_files_are_listed() {
    let mut state = cluster();
    let mut apply = resolved(COMPOSE);
    assign(&state, &mut apply, &values(), &Reversing::default()).unwrap();
    let deployment = Deployment {
        name: "shop".into(),
        compose_yaml: COMPOSE.into(),
        services: apply.services,
        ..Default::default()
    };
    state
        .deployments
        .insert("shop".into(), Arc::new(deployment));
    let users = users(&state);
    let common = &users[&(FileKind::Secret, "common".to_owned())];
    assert_eq!((users.len(), common.len()), (1, 1));
}
