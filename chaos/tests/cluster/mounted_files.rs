//! Configs, secrets and shipped files on every node, through kills, a power cut, changes and a
//! rollback; and no trace of a secret on any disk.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::PathBuf,
};

use jaco_chaos::{Container, Lab, SecretScanner, engine::IMAGE, until};

use crate::{
    client::{Directory, ids, jaco, search},
    setup::{LIMIT, all_ready, cluster},
};

const SEED: u64 = 2026;
const REPLICAS: [&str; 3] = ["files-web-n1", "files-web-n2", "files-web-n3"];

/// A compose project on the disk of the client.
struct Project(Directory);

impl Project {
    fn new(token: &str) -> Self {
        let project = Self(Directory::new());
        let compose = format!(
            "name: files\nservices:\n  web:\n    image: {IMAGE}\n    pull_policy: never\n    \
             command: [sleep, '86400']\n    stop_signal: SIGKILL\n    \
             configs: [site, {{source: motd, target: /etc/motd, mode: 0640, uid: '7'}}]\n    \
             secrets: [key, token, {{source: inline, target: inline}}, shared]\n    \
             volumes: ['./nginx.conf:/etc/nginx/nginx.conf:ro', './conf.d:/etc/nginx/conf.d:ro']\n\
             x-jaco:\n  acme: \"off\"\n  services: [{{name: web, placement: global}}]\n\
             configs:\n  site: {{file: ./site.conf}}\n  motd: {{content: \"welcome to $NAME\\n\"}}\n\
             secrets:\n  key: {{file: ./key}}\n  token: {{environment: TOKEN}}\n  \
             inline: {{content: \"in $TOKEN\"}}\n  shared: {{external: true, name: common}}\n"
        );
        project.write("compose.yaml", &compose);
        project.write(".env", &format!("NAME=jaco\nTOKEN={token}\n"));
        project.write("site.conf", "server {}");
        project.write("nginx.conf", "events {}");
        project.write("conf.d/a.conf", "a");
        project.write("conf.d/sub/b.conf", "b");
        project
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }

    fn write(&self, name: &str, content: &str) {
        self.0.write(name, content);
    }

    async fn apply(&self, lab: &Lab) {
        let compose = self.path("compose.yaml");
        jaco(lab, &["apply", "-f", compose.to_str().unwrap()]).await;
    }
}

/// Content of each file in a container, by its path.
type Files = BTreeMap<&'static str, String>;

fn files(key: &str, token: &str, shared: &str) -> Files {
    [
        ("/site", "server {}".to_owned()),
        ("/etc/motd", "welcome to jaco\n".to_owned()),
        ("/run/secrets/key", key.to_owned()),
        ("/run/secrets/token", token.to_owned()),
        ("/run/secrets/inline", format!("in {token}")),
        ("/run/secrets/shared", shared.to_owned()),
        ("/etc/nginx/nginx.conf", "events {}".to_owned()),
        ("/etc/nginx/conf.d/a.conf", "a".to_owned()),
        ("/etc/nginx/conf.d/sub/b.conf", "b".to_owned()),
    ]
    .into()
}

/// Reads a container's files through the root of its process.
fn found(container: &Container, expected: &Files) -> Files {
    let root = format!("/proc/{}/root", container.pid);
    let read = |path: &'static str| {
        let content = fs::read_to_string(format!("{root}{path}"));
        (path, content.unwrap_or_else(|error| error.to_string()))
    };
    expected.keys().copied().map(read).collect()
}

/// Waits until one container on each node has these files; returns the containers.
async fn each_has(lab: &Lab, expected: &Files) -> Vec<Container> {
    until("the files are in every container", LIMIT, || async {
        let mut containers = Vec::new();
        for node in lab.nodes() {
            let engine = node.engine().await.map_err(|error| error.to_string())?;
            let found = engine.containers(lab.cluster_id()).await;
            let found = found.map_err(|error| error.to_string())?;
            let [container] = <[Container; 1]>::try_from(found)
                .map_err(|found| format!("{} containers on {}", found.len(), node.host()))?;
            if !container.running {
                return Err(format!("{} does not run", container.replica));
            }
            let seen = self::found(&container, expected);
            if seen != *expected {
                return Err(format!("{} has {seen:?}", container.replica));
            }
            containers.push(container);
        }
        Ok(containers)
    })
    .await
    .unwrap()
}

/// Owner and permissions, and that the container cannot change them.
fn check_modes(container: &Container) {
    let root = format!("/proc/{}/root", container.pid);
    for (path, uid, mode) in [("/etc/motd", 7, 0o640), ("/run/secrets/key", 0, 0o444)] {
        let found = fs::metadata(format!("{root}{path}")).unwrap();
        let modes = found.permissions().mode() & 0o7777;
        assert_eq!((found.uid(), modes), (uid, mode), "{path}");
        let refused = fs::write(format!("{root}{path}"), "x").unwrap_err();
        assert_eq!(
            refused.kind(),
            std::io::ErrorKind::ReadOnlyFilesystem,
            "{path}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mounted_files_survive_kills_power_cut_and_rollback() {
    let mut scanner = SecretScanner::default();
    let [key, token, shared, later] =
        ["key", "token", "shared", "later"].map(|name| scanner.generate(name));
    let mut lab = cluster(3, SEED).await;
    let project = Project::new(&token);
    project.write("key", &key);
    project.write("common", &shared);
    let common = project.path("common");
    let create = [
        "secret",
        "create",
        "--cluster",
        "common",
        common.to_str().unwrap(),
    ];
    jaco(&lab, &create).await;
    project.apply(&lab).await;
    let first = files(&key, &token, &shared);
    let containers = each_has(&lab, &first).await;
    let mut replicas: Vec<_> = containers.iter().map(|one| one.replica.as_str()).collect();
    replicas.sort_unstable();
    assert_eq!(replicas, REPLICAS);
    check_modes(&containers[0]);

    for index in 1..=3 {
        lab.node_mut(index).kill().unwrap();
        lab.node_mut(index).start().await.unwrap();
    }
    all_ready(&lab).await;
    let after_kills = each_has(&lab, &first).await;
    assert_eq!(
        ids(&after_kills),
        ids(&containers),
        "no container was replaced"
    );

    lab.crash(2).unwrap();
    lab.boot(2).await.unwrap();
    all_ready(&lab).await;
    each_has(&lab, &first).await;

    // The same again changes nothing.
    let before = each_has(&lab, &first).await;
    let compose = project.path("compose.yaml");
    let dry_run = ["apply", "--dry-run", "-f", compose.to_str().unwrap()];
    let unchanged = jaco(&lab, &dry_run).await;
    assert!(unchanged.contains("No changes"), "{unchanged}");
    project.write("key", &later);
    project.apply(&lab).await;
    let second = files(&later, &token, &shared);
    let replaced = each_has(&lab, &second).await;
    assert!(ids(&replaced).iter().all(|id| !ids(&before).contains(id)));
    jaco(&lab, &["rollback", "files"]).await;
    each_has(&lab, &first).await;

    let backup = lab.dir().join("archive");
    jaco(&lab, &["backup", "--output", backup.to_str().unwrap()]).await;
    for word in ["config", "get deployment files", "audit"] {
        let mut words: Vec<&str> = word.split(' ').collect();
        if word == "config" {
            words.extend(["-f", compose.to_str().unwrap()]);
        }
        let shown = jaco(&lab, &words).await;
        let leaks = scanner.found_in(word, shown.as_bytes());
        assert!(leaks.is_empty(), "{leaks:?}");
    }
    search(&scanner, &lab.dir(), &[]);
    jaco(&lab, &["delete", "files"]).await;
    until("the files are gone", LIMIT, || async {
        let left = lab.nodes().iter().find(|node| {
            let dir = fs::read_dir(node.path("data/container-files"));
            dir.is_ok_and(|mut dir| dir.next().is_some())
        });
        left.map_or(Ok(()), |node| Err(format!("{} has some", node.host())))
    })
    .await
    .unwrap();
}
