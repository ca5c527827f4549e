//! Secrets in the environment of containers on every node: new values, kills, a new secrets key, a
//! rollback; and no trace of a value where JACO writes.

use std::{collections::BTreeMap, fs};

use jaco_chaos::{Container, Lab, SecretScanner, engine::IMAGE, until};

use crate::{
    client::{Directory, ids, jaco, search},
    setup::{LIMIT, all_ready, cluster},
};

const SEED: u64 = 2027;

/// Directories of the engine, which holds the environment of containers.
const ENGINE: [&str; 2] = ["engine", "exec"];

/// Values of the secrets by name.
type Values<'a> = BTreeMap<&'a str, &'a str>;

/// A deployment with two services, of which `worker` has `API_KEY` alone.
struct Project(Directory);

impl Project {
    fn new() -> Self {
        let project = Self(Directory::new());
        let service = |name: &str| {
            format!(
                "  {name}:\n    image: {IMAGE}\n    pull_policy: never\n    \
                 command: [sleep, '86400']\n    stop_signal: SIGKILL\n"
            )
        };
        let compose = format!("services:\n{}{}", service("web"), service("worker"));
        project.0.write("compose.yaml", &compose);
        project.write_jaco("");
        project
    }

    fn write_jaco(&self, comment: &str) {
        let jaco = format!(
            "deployment: shop\nacme: \"off\"\nsecrets:\n  DB_PASSWORD: ${{PASSWORD:?}}\n  \
             API_KEY: key-${{KEY}}\nservices:\n  - {{name: web, placement: global}}\n  \
             - {{name: worker, placement: global, secrets: [API_KEY]}}\n# {comment}\n"
        );
        self.0.write("jaco.yaml", &jaco);
    }

    fn write_variables(&self, values: &Values<'_>) {
        let (password, key) = (values["DB_PASSWORD"], &values["API_KEY"]["key-".len()..]);
        let text = format!("PASSWORD={password}\nKEY={key}\n");
        self.0.write("vars.env", &text);
    }

    async fn apply(&self, lab: &Lab, options: &[&str]) -> String {
        let [jaco_yaml, compose, variables] =
            ["jaco.yaml", "compose.yaml", "vars.env"].map(|name| self.0.path(name));
        let mut words = vec!["apply", jaco_yaml.to_str().unwrap()];
        words.extend(["-f", compose.to_str().unwrap()]);
        words.extend(["--env-file", variables.to_str().unwrap()]);
        words.extend(options);
        jaco(lab, &words).await
    }
}

/// Secrets in the environment of a container's process.
fn environment(container: &Container) -> BTreeMap<String, String> {
    let environment = fs::read(format!("/proc/{}/environ", container.pid)).unwrap_or_default();
    let environment = String::from_utf8_lossy(&environment).into_owned();
    let variables = environment.split('\0').filter_map(|it| it.split_once('='));
    variables
        .filter(|(name, _)| matches!(*name, "DB_PASSWORD" | "API_KEY"))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// Containers by service.
struct Containers {
    web: Vec<Container>,
    worker: Vec<Container>,
}

/// Waits until each node runs one container of each service with these values.
async fn each_has(lab: &Lab, values: &Values<'_>) -> Containers {
    let of = |names: &[&str]| -> BTreeMap<String, String> {
        let names = names.iter();
        names
            .map(|name| ((*name).to_owned(), values[name].to_owned()))
            .collect()
    };
    let expected = [of(&["API_KEY", "DB_PASSWORD"]), of(&["API_KEY"])];
    let [web, worker] = until("the values are in every container", LIMIT, || async {
        let mut all = [Vec::new(), Vec::new()];
        for node in lab.nodes() {
            let engine = node.engine().await.map_err(|error| error.to_string())?;
            let found = engine.containers(lab.cluster_id()).await;
            let found = found.map_err(|error| error.to_string())?;
            if found.len() != 2 {
                return Err(format!("{} containers on {}", found.len(), node.host()));
            }
            for container in found {
                let service = usize::from(container.replica.contains("-worker-"));
                if !container.running || environment(&container) != expected[service] {
                    return Err(format!("{} does not run with them", container.replica));
                }
                all[service].push(container);
            }
        }
        Ok(all)
    })
    .await
    .unwrap();
    Containers { web, worker }
}

#[tokio::test(flavor = "multi_thread")]
async fn values_follow_set_and_apply_but_no_rollback() {
    let mut scanner = SecretScanner::default();
    let [password, later, key] = ["password", "later", "key"].map(|name| scanner.generate(name));
    let key = format!("key-{key}");
    let mut lab = cluster(3, SEED).await;
    let project = Project::new();
    let mut values = Values::from([("DB_PASSWORD", &*password), ("API_KEY", &*key)]);
    project.write_variables(&values);
    project.apply(&lab, &[]).await;
    let first = each_has(&lab, &values).await;
    let unchanged = project.apply(&lab, &["--dry-run"]).await;
    assert!(unchanged.contains("No changes"), "{unchanged}");

    for index in 1..=3 {
        lab.node_mut(index).kill().unwrap();
        lab.node_mut(index).start().await.unwrap();
    }
    all_ready(&lab).await;
    jaco(&lab, &["cluster", "secrets-key", "rotate"]).await;
    let kept = each_has(&lab, &values).await;
    assert_eq!(ids(&kept.web), ids(&first.web), "neither replaces one");

    // Another value replaces the containers of one service, also after the key was replaced.
    project.0.write("later", &format!("{later}\n"));
    let file = project.0.path("later");
    let set = ["secret", "set", "shop", "DB_PASSWORD", "--from-file"];
    let set = [&set[..], &[file.to_str().unwrap()]].concat();
    let shown = jaco(&lab, &set).await;
    assert!(
        shown.contains("version 2; new containers for web"),
        "{shown}"
    );
    values.insert("DB_PASSWORD", &later);
    let second = each_has(&lab, &values).await;
    assert!(
        ids(&second.web)
            .iter()
            .all(|id| !ids(&kept.web).contains(id))
    );
    assert_eq!(ids(&second.worker), ids(&first.worker));

    // A node that reboots opens them again.
    lab.crash(2).unwrap();
    lab.boot(2).await.unwrap();
    all_ready(&lab).await;
    each_has(&lab, &values).await;

    project.write_variables(&values);
    project.write_jaco("another revision");
    project.apply(&lab, &[]).await;
    jaco(&lab, &["rollback", "shop"]).await;
    each_has(&lab, &values).await;
    let refused = lab
        .node(1)
        .jaco(&["secret", "rm", "shop", "API_KEY"])
        .await
        .unwrap();
    assert!(!refused.status.success(), "services have it");

    let backup = lab.dir().join("archive");
    jaco(&lab, &["backup", "--output", backup.to_str().unwrap()]).await;
    for words in [
        &["secret", "list", "shop"][..],
        &["get", "deployment", "shop"],
        &["audit"],
    ] {
        let shown = jaco(&lab, words).await;
        let leaks = scanner.found_in(&words.join(" "), shown.as_bytes());
        assert!(leaks.is_empty(), "{leaks:?}");
    }
    search(&scanner, &lab.dir(), &ENGINE);
    jaco(&lab, &["delete", "shop"]).await;
    let left = jaco(&lab, &["secret", "list"]).await;
    assert!(!left.contains("API_KEY"), "{left}");
}
