use std::{os::unix::fs::symlink, path::PathBuf};

use super::*;
use crate::client::manifests::{Manifests, Sources, manifests};

/// Directory of a project.
struct Project(tempfile::TempDir);

impl Project {
    fn of(compose: &str) -> Self {
        let project = Self(tempfile::tempdir().unwrap());
        project.write("compose.yaml", compose.as_bytes());
        project
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(name)
    }

    fn write(&self, name: &str, content: &[u8]) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn manifests(&self) -> Manifests {
        let sources = Sources {
            files: vec![self.path("compose.yaml")],
            ..Sources::default()
        };
        manifests(None, &sources).unwrap()
    }

    /// Name below the project, path and content of each file that is sent.
    fn sent(&self) -> Vec<(String, String, String)> {
        let files = self.manifests().files().unwrap();
        let root = format!("{}/", self.path("").display());
        let root = root.trim_end_matches('/').to_owned() + "/";
        files
            .into_iter()
            .map(|file| {
                let name = file
                    .name
                    .strip_prefix(&root)
                    .unwrap_or(&file.name)
                    .to_owned();
                (name, file.path, String::from_utf8(file.content).unwrap())
            })
            .collect()
    }
}

fn entry(name: &str, path: &str, content: &str) -> (String, String, String) {
    (name.to_owned(), path.to_owned(), content.to_owned())
}

fn binding(mount: &str) -> String {
    format!("name: shop\nservices: {{web: {{image: a, volumes: ['{mount}']}}}}\n")
}

#[test]
fn configs_and_secrets_are_read() {
    let project = Project::of(
        "name: shop\nservices:\n  web: {image: a, configs: [site, motd], secrets: [key, inline]}\n\
         configs: {site: {file: ./site.conf}, motd: {content: hi}, unused: {file: ./no}}\n\
         secrets: {key: {environment: KEY}, inline: {content: $KEY}}\n",
    );
    project.write("site.conf", b"server {}");
    project.write(".env", b"KEY=hunter2\n");
    let expected = [
        entry("site", "", "server {}"),
        entry("inline", "", "hunter2"),
        entry("key", "", "hunter2"),
    ];
    assert_eq!(project.sent(), expected);
    let manifests = project.manifests();
    let document = String::from_utf8(manifests.compose.clone()).unwrap();
    assert!(!document.contains("hunter2"), "{document}");
    assert_eq!(manifests.warnings, [""; 0]);
}

#[test]
fn missing_values_are_named() {
    let compose = "name: shop\nservices: {web: {image: a, secrets: [key]}}\nsecrets: {key: {@}}\n";
    for (origin, code) in [
        ("file: ./gone", "file_error"),
        ("environment: JACO_TEST_NOT_SET", "secret_missing"),
        ("file: ./large", "validation_failed"),
    ] {
        let project = Project::of(&compose.replace('@', origin));
        project.write("large", &vec![b'x'; MAX_FILE_BYTES + 1]);
        let failure = project.manifests().files().unwrap_err();
        assert_eq!(failure.code, code, "{origin}: {}", failure.message);
    }
}

#[test]
fn relative_files_are_shipped_with_owner_and_mode() {
    let project = Project::of(&binding("./nginx.conf:/etc/nginx/nginx.conf:ro"));
    project.write("nginx.conf", b"events {}");
    let path = project.path("nginx.conf");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(project.sent(), [entry("nginx.conf", "", "events {}")]);
    let manifests = project.manifests();
    let file = &manifests.files().unwrap()[0];
    assert_eq!(file.mode, 0o640);
    assert_eq!(file.uid, fs::metadata(&path).unwrap().uid());
    assert_eq!(manifests.warnings, [""; 0]);
    let document = String::from_utf8(manifests.compose).unwrap();
    assert!(document.contains(&format!("{}:/etc/nginx", path.display())));
}

#[test]
fn small_read_only_directory_is_shipped() {
    let project = Project::of(&binding("./conf:/etc/app:ro"));
    project.write("conf/a.conf", b"a");
    project.write("conf/sub/b.conf", b"b");
    symlink("a.conf", project.path("conf/link.conf")).unwrap();
    let expected = [
        entry("conf", "a.conf", "a"),
        entry("conf", "link.conf", "a"),
        entry("conf", "sub/b.conf", "b"),
    ];
    assert_eq!(project.sent(), expected);
}

#[test]
fn other_relative_paths_stay_on_each_machine() {
    type Fill = fn(&Project);
    let fill: [(&str, Fill); 6] = [
        ("./gone:/x", |_| {}),
        ("./dir:/x", |project| project.write("dir/a", b"a")),
        ("./dir:/x:ro", |project| {
            for number in 0..=MAX_DIRECTORY_FILES {
                project.write(&format!("dir/{number}"), b"a");
            }
        }),
        ("./dir:/x:ro", |project| {
            project.write("dir/a", &vec![0; MAX_FILE_BYTES]);
            project.write("dir/b", b"b");
        }),
        ("./dir:/x:ro", |project| {
            project.write("dir/a", b"a");
            symlink(".", project.path("dir/loop")).unwrap();
        }),
        ("./file:/x:ro", |project| {
            project.write("file", &vec![0; MAX_FILE_BYTES + 1]);
        }),
    ];
    for (mount, fill) in fill {
        let project = Project::of(&binding(mount));
        fill(&project);
        let manifests = project.manifests();
        assert!(manifests.files().unwrap().is_empty(), "{mount}");
        let warning = &manifests.warnings[0];
        assert!(warning.contains("bind paths are local"), "{warning}");
    }
}

#[test]
fn writable_copy_is_warned_about() {
    let project = Project::of(&binding("./nginx.conf:/etc/nginx.conf"));
    project.write("nginx.conf", b"events {}");
    let warnings = project.manifests().warnings;
    let [warning] = &warnings[..] else {
        panic!("{warnings:?}");
    };
    assert!(warning.contains("cannot write to"), "{warning}");
}
