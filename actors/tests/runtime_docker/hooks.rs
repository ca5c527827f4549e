//! Commands run in containers, and containers that end for good.

use jaco_proto::v1::ReplicaState;

use crate::{FOREVER, lab::Lab};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_run_after_start_and_before_stop() {
    let lab = Lab::new("hooks").await;
    let folder = tempfile::tempdir().expect("a folder");
    let script = "trap 'echo stopped >> /out/log; exit 0' TERM; \
                  while true; do busybox sleep 0.1; done";
    let extra = format!(
        "    stop_grace_period: 10s\n    working_dir: /bin\n    environment: {{NAME: container}}\n    volumes: [\"{}:/out\"]\n    \
         post_start:\n    - command: [/bin/busybox, sh, -c, 'echo $NAME $PWD >> /out/log']\n    \
         - {{command: [/bin/busybox, sh, -c, 'echo $NAME $PWD >> /out/log'], working_dir: /out, \
         environment: [NAME=hook]}}\n    \
         pre_stop:\n    - command: [/bin/busybox, sh, -c, 'echo leaving >> /out/log; exit 4']\n    \
         - command: [/bin/busybox, sh, -c, 'echo left >> /out/log']\n",
        folder.path().display()
    );
    lab.apply(&lab.service(script, &extra), 1).await;
    let seen = lab.running().await;
    assert!(seen.details.contains_key("post_start"), "{seen:?}");
    let log = || std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
    let started = "container /bin\nhook /out\n";
    assert_eq!(log(), started);
    assert_eq!(lab.containers(), [seen.container_id]);
    lab.remove().await;
    lab.until("the container is gone", || lab.containers().is_empty())
        .await;
    assert_eq!(log(), format!("{started}leaving\nleft\nstopped\n"));
    lab.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_command_exhausts_the_budget_with_its_output() {
    let lab = Lab::new("badhook").await;
    let extra = "    restart: on-failure:1\n    post_start:\n    \
                 - command: [/bin/busybox, sh, -c, 'echo no database >&2; exit 7']\n";
    lab.apply(&lab.service(FOREVER, extra), 1).await;
    let seen = lab
        .observed("the budget is spent", |seen| {
            seen.code == "restart_exhausted"
        })
        .await;
    let why = "post_start command 1 failed: exit code 7 (no database)";
    assert!(seen.message.contains(why), "{}", seen.message);
    assert_eq!(seen.details["consecutive_failures"], "2");
    lab.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_command_does_not_prevent_the_stop() {
    let lab = Lab::new("hang").await;
    let extra =
        "    stop_grace_period: 1s\n    pre_stop: [{command: [/bin/busybox, sleep, '600']}]\n";
    lab.apply(&lab.service(FOREVER, extra), 1).await;
    lab.running().await;
    lab.remove().await;
    lab.until("the container is gone", || lab.containers().is_empty())
        .await;
    lab.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_job_is_not_repeated_by_a_daemon() {
    let lab = Lab::new("job").await;
    let ended = lab.run_replica(&[], "exit 3");
    lab.until("the job has ended", || !lab.is_up(&ended)).await;
    lab.apply(&lab.service("exit 3", "    restart: 'no'\n"), 1)
        .await;
    let seen = lab
        .observed("its end is seen", |seen| {
            seen.state() == ReplicaState::Stopped
        })
        .await;
    assert_eq!(seen.finished(), Some(3));
    assert_eq!(lab.containers(), [ended]);
    lab.close().await;
}
