//! Containers that end on purpose, what waits for them, and commands around a container: through
//! kills, a power cut, and a node that leaves.

use std::{collections::BTreeMap, fs, path::PathBuf};

use jaco_chaos::{Lab, engine::IMAGE, until};
use jaco_proto::v1::{ReplicaDetail, ReplicaState};

use crate::setup::{LIMIT, all_ready, cluster};

const SEED: u64 = 2029;

/// A project whose containers append to one log, on a directory that every node has.
struct Project(tempfile::TempDir);

impl Project {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn compose(&self) -> PathBuf {
        self.0.path().join("compose.yaml")
    }

    /// Writes the file; the job ends with `exit_code`.
    fn write(&self, exit_code: u8) {
        let shared = self.0.path().join("shared");
        let shared = shared.display();
        let note = |word: &str| format!("[/bin/sh, -c, 'echo {word} >> /shared/log']");
        let (up, bye) = (note("up"), note("bye"));
        let common = format!(
            "    image: {IMAGE}\n    pull_policy: never\n    volumes: ['{shared}:/shared']\n"
        );
        let compose = format!(
            "name: jobs\nservices:\n  migrate:\n{common}    restart: 'no'\n    \
             command: [/bin/sh, -c, 'echo migrated >> /shared/log; exit {exit_code}']\n    \
             deploy: {{placement: {{constraints: [node.hostname == n2]}}}}\n  \
             web:\n{common}    command: [sleep, '86400']\n    stop_signal: SIGKILL\n    \
             depends_on: {{migrate: {{condition: service_completed_successfully}}}}\n    \
             post_start: [{{command: {up}}}]\n    pre_stop: [{{command: {bye}}}]\n    \
             deploy: {{placement: {{constraints: [node.hostname == n1]}}}}\n"
        );
        fs::write(self.compose(), compose).unwrap();
    }

    /// Applies the file through n3; returns whether that succeeded, and what it said.
    async fn apply(&self, lab: &Lab) -> (bool, String) {
        let compose = self.compose();
        let words = ["apply", "-f", compose.to_str().unwrap()];
        let ended = lab.node(3).jaco(&words).await.unwrap();
        let shown = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
        let said = shown(&ended.stdout) + &shown(&ended.stderr);
        (ended.status.success(), said)
    }

    /// Lines that the containers have appended so far.
    fn log(&self) -> Vec<String> {
        let text = fs::read_to_string(self.0.path().join("shared/log")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

async fn replicas(lab: &Lab) -> Result<BTreeMap<String, ReplicaDetail>, String> {
    let replicas = lab.node(3).api().replicas("jobs").await;
    let replicas = replicas.map_err(|error| error.to_string())?;
    Ok(replicas.into_iter().map(|it| (it.id.clone(), it)).collect())
}

/// Waits until the job has ended with this code, and the service runs.
async fn settled(lab: &Lab, exit_code: &str) -> BTreeMap<String, ReplicaDetail> {
    until("the job has ended and the service runs", LIMIT, || async {
        let found = replicas(lab).await?;
        let state = |id: &str| found.get(id).map(ReplicaDetail::state);
        let ended = found
            .get("jobs-migrate-0")
            .and_then(|job| job.details.get("exit_code"));
        let is_settled = state("jobs-migrate-0") == Some(ReplicaState::Stopped)
            && ended.is_some_and(|code| code == exit_code)
            && state("jobs-web-0") == Some(ReplicaState::Running);
        match is_settled {
            true => Ok(found),
            false => Err(format!("{found:?}")),
        }
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_job_stays_finished() {
    let mut lab = cluster(3, SEED).await;
    let project = Project::new();
    project.write(0);
    let (succeeded, said) = project.apply(&lab).await;
    assert!(succeeded, "{said}");
    assert!(said.contains("jobs-migrate-0: finished on n2"), "{said}");
    assert_eq!(project.log(), ["migrated", "up"], "in this order");
    let first = settled(&lab, "0").await;
    let shown = ["get", "replica", "jobs-migrate-0"];
    let shown = lab.node(1).jaco(&shown).await.unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(
        shown.contains("STOPPED") && shown.contains("exit 0"),
        "{shown}"
    );

    // Nothing repeats the job or the commands: no daemon's death, no removal of its container.
    for index in 1..=3 {
        lab.node_mut(index).kill().unwrap();
        lab.node_mut(index).start().await.unwrap();
    }
    all_ready(&lab).await;
    let job = &first["jobs-migrate-0"];
    let engine = lab.node(2).engine().await.unwrap();
    engine.remove(&job.container_id).await.unwrap();
    lab.node_mut(2).kill().unwrap();
    lab.node_mut(2).start().await.unwrap();
    all_ready(&lab).await;
    let after = settled(&lab, "0").await;
    let id = |found: &BTreeMap<String, ReplicaDetail>| found["jobs-web-0"].container_id.clone();
    assert_eq!(id(&after), id(&first));
    assert_eq!(project.log(), ["migrated", "up"]);

    // Its machine may be lost, and come back. The other one starts its service again.
    for index in [2, 1] {
        lab.crash(index).unwrap();
        lab.boot(index).await.unwrap();
        all_ready(&lab).await;
    }
    until("the service has started again", LIMIT, || async {
        let log = project.log();
        match log == ["migrated", "up", "up"] {
            true => Ok(()),
            false => Err(format!("{log:?}")),
        }
    })
    .await
    .unwrap();
    settled(&lab, "0").await;
    let (succeeded, said) = project.apply(&lab).await;
    assert!(succeeded, "{said}");
    assert_eq!(project.log(), ["migrated", "up", "up"], "the same again");

    // A failed job fails its apply, which is rolled back: the former job runs again.
    project.write(3);
    for runs in [3, 5] {
        let (succeeded, said) = project.apply(&lab).await;
        let why = "jobs-migrate-0: ended with exit code 3";
        assert!(!succeeded && said.contains("rolled_back"), "{said}");
        assert!(said.contains(why), "{said}");
        settled(&lab, "0").await;
        let log = project.log();
        let migrated = log.iter().filter(|line| *line == "migrated").count();
        assert_eq!(migrated, runs, "{log:?}");
    }

    let deleted = lab.node(1).jaco(&["delete", "jobs"]).await.unwrap();
    assert!(deleted.status.success(), "{deleted:?}");
    until("the command before the stop has run", LIMIT, || async {
        let log = project.log();
        match log.last().is_some_and(|line| line == "bye") {
            true => Ok(()),
            false => Err(format!("{log:?}")),
        }
    })
    .await
    .unwrap();
}
