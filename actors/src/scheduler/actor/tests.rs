use std::time::{Duration, SystemTime};

use jaco_policy::{COMMIT_BUDGET, scheduler::reconcile::MAX_BATCH_BYTES};
use jaco_proto::v1::{self, command::Payload};
use jaco_raftnode::{
    ProposalGuard, RaftLimits, StateReader, command, propose::ProposeFuture, testing::MemoryRaft,
};
use jaco_supervision::{KillMode, Strategy, SupervisorSpec, Tree};
use prost_types::Timestamp;

use super::*;

const WEB: &str = "services:\n  web:\n    image: nginx\n";

/// Raft whose commits take as long as on a slow disk.
struct Slow {
    raft: MemoryRaft,
    commit: watch::Receiver<Duration>,
}

const COMMIT: Duration = Duration::from_millis(300);

impl StateReader for Slow {
    fn state(&self) -> Arc<State> {
        self.raft.state()
    }

    fn subscribe(&self) -> watch::Receiver<Arc<State>> {
        self.raft.subscribe()
    }
}

impl LeaderProposer for Slow {
    fn leading_term(&self) -> Option<u64> {
        self.raft.leading_term()
    }

    fn propose(&self, _: v1::Command) -> ProposeFuture {
        unreachable!("a pass belongs to a term")
    }

    fn propose_in_term(
        &self,
        term: u64,
        command: v1::Command,
        guard: ProposalGuard,
    ) -> ProposeFuture {
        let (raft, commit) = (self.raft.clone(), *self.commit.borrow());
        // A proposal cannot be withdrawn once it is submitted.
        let decided = tokio::spawn(async move {
            pass(commit).await;
            raft.propose_in_term(term, command, guard).await
        });
        Box::pin(async move {
            let answer = tokio::time::timeout(COMMIT_BUDGET, decided).await;
            let unknown = || Err(ProposeError::Unknown("no answer in time".to_owned()));
            answer.map_or_else(|_| unknown(), Result::unwrap)
        })
    }
}

struct Lab {
    raft: MemoryRaft,
    lead: watch::Sender<bool>,
    /// Duration of a commit.
    commit: watch::Sender<Duration>,
    tree: Tree,
    metrics: Metrics,
}

impl Lab {
    async fn start(leads: bool) -> Self {
        let raft = MemoryRaft::with_ready_nodes(&["n1"]);
        let (lead, is_leader) = watch::channel(leads);
        let (commit, duration) = watch::channel(COMMIT);
        let clock = Clock::from_fn(|| SystemTime::UNIX_EPOCH + Duration::from_secs(1000));
        let metrics = Metrics::new("here", clock.clone());
        let args = Args::new(
            Arc::new(Slow {
                raft: raft.clone(),
                commit: duration,
            }),
            is_leader,
            clock,
            metrics.clone(),
        );
        let (scheduler, _) = crate::scheduler::supervisor(args);
        let spec = SupervisorSpec::new(Strategy::OneForOne).child(scheduler);
        let tree = Tree::start("node", spec).await.unwrap();
        Self {
            raft,
            lead,
            commit,
            tree,
            metrics,
        }
    }

    fn apply(&self, payload: Payload) {
        let ts = Timestamp {
            seconds: 1000,
            nanos: 0,
        };
        self.raft.apply(command("test", ts, payload)).unwrap();
    }

    fn deploy(&self, revision: u64, replicas: i32) {
        self.apply(Payload::DeploymentApply(v1::DeploymentApply {
            deployment: "app".into(),
            revision,
            compose_yaml: WEB.into(),
            services: vec![v1::ServiceSpec {
                name: "web".into(),
                replicas,
                networks: vec!["_default".into()],
                ..Default::default()
            }],
            ..Default::default()
        }));
    }

    async fn replicas(&self, count: usize) {
        let mut states = self.raft.subscribe();
        let settled = states.wait_for(|state| state.replicas_desired.len() == count);
        let waited = tokio::time::timeout(Duration::from_secs(120), settled).await;
        waited.expect("never settled").unwrap();
    }

    fn commits(&self) -> usize {
        self.raft.committed().len()
    }
}

/// Advances time by `time` and runs everything that becomes due.
async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

#[tokio::test(start_paused = true)]
async fn leader_creates_replicas_and_then_writes_nothing() {
    let lab = Lab::start(true).await;
    let began = Instant::now();
    lab.deploy(1, 3);
    lab.replicas(3).await;
    assert!(began.elapsed() <= jaco_policy::scheduler::pass_timer::MAX_DEBOUNCE + COMMIT);
    let commits = lab.commits();
    pass(Duration::from_secs(3600)).await;
    assert_eq!(lab.commits(), commits);
    // From the change over the debounce time to the end of the commit.
    let text = lab.metrics.render();
    let lag = "jaco_scheduler_reconcile_lag_seconds";
    for line in [
        format!("{lag}_count{{node=\"here\"}} 1\n"),
        format!("{lag}_bucket{{node=\"here\",le=\"0.25\"}} 0\n"),
        format!("{lag}_bucket{{node=\"here\",le=\"0.5\"}} 1\n"),
    ] {
        assert!(text.contains(&line), "{line} is not in:\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn commands_that_do_not_fit_follow_at_once() {
    let lab = Lab::start(true).await;
    let image = format!("registry.example.com/{}", "a".repeat(600));
    lab.apply(Payload::DeploymentApply(v1::DeploymentApply {
        deployment: "app".into(),
        revision: 1,
        compose_yaml: format!("services:\n  web:\n    image: {image}\n").into(),
        services: vec![v1::ServiceSpec {
            name: "web".into(),
            replicas: 10_000,
            networks: vec!["_default".into()],
            ..Default::default()
        }],
        ..Default::default()
    }));
    let (began, commits) = (Instant::now(), lab.commits());
    lab.replicas(10_000).await;
    let passes = u32::try_from(lab.commits() - commits).unwrap();
    assert!(passes > 1);
    assert!(began.elapsed() <= jaco_policy::scheduler::pass_timer::MAX_DEBOUNCE + COMMIT * passes);
    pass(Duration::from_secs(3600)).await;
    assert_eq!(lab.commits() - commits, passes as usize);
}

#[tokio::test(start_paused = true)]
async fn only_the_leader_schedules() {
    let lab = Lab::start(false).await;
    lab.deploy(1, 1);
    pass(Duration::from_secs(120)).await;
    assert!(lab.raft.state().replicas_desired.is_empty());

    let began = Instant::now();
    lab.lead.send_replace(true);
    lab.replicas(1).await;
    assert!(began.elapsed() < COMMIT * 2);

    lab.lead.send_replace(false);
    pass(Duration::from_millis(1)).await;
    lab.deploy(2, 2);
    pass(Duration::from_secs(120)).await;
    assert_eq!(lab.raft.state().replicas_desired.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn burst_of_changes_is_one_pass() {
    let lab = Lab::start(true).await;
    pass(Duration::from_secs(1)).await;
    for (revision, replicas) in [(1, 1), (2, 2), (3, 3)] {
        lab.deploy(revision, replicas);
        pass(Duration::from_millis(20)).await;
    }
    let commits = lab.commits();
    lab.replicas(3).await;
    pass(Duration::from_secs(60)).await;
    assert_eq!(lab.commits(), commits + 1);
}

#[tokio::test(start_paused = true)]
async fn failed_proposals_are_retried() {
    let lab = Lab::start(true).await;
    for error in [
        ProposeError::NoLeader,
        ProposeError::Busy,
        ProposeError::Unavailable,
    ] {
        lab.raft.fail_next(1, error);
    }
    lab.deploy(1, 2);
    lab.replicas(2).await;
}

#[tokio::test(start_paused = true)]
async fn unknown_outcome_and_crashes_issue_no_replica_twice() {
    let lab = Lab::start(true).await;
    lab.raft.lose_next_answers(1);
    lab.deploy(1, 2);
    lab.replicas(2).await;
    let rows = lab.raft.state().replicas_desired.clone();
    pass(Duration::from_secs(120)).await;
    for mode in [KillMode::Kill, KillMode::Panic] {
        lab.tree.kill("node/scheduler/reconcile", mode).unwrap();
        pass(Duration::from_secs(60)).await;
    }
    assert_eq!(lab.raft.state().replicas_desired, rows);

    lab.deploy(2, 1);
    lab.replicas(1).await;
}

#[tokio::test(start_paused = true)]
async fn stalled_commit_is_not_planned_again() {
    let lab = Lab::start(true).await;
    pass(Duration::from_secs(1)).await;
    lab.commit.send_replace(Duration::from_secs(60));
    let commits = lab.commits();
    lab.deploy(1, 2);
    lab.replicas(2).await;
    let rows = lab.raft.state().replicas_desired.clone();
    pass(Duration::from_secs(300)).await;
    assert_eq!(lab.raft.state().replicas_desired, rows);
    assert_eq!(lab.commits(), commits + 2, "the deployment and one pass");
}

#[tokio::test(start_paused = true)]
async fn scheduler_killed_during_proposal_issues_nothing_twice() {
    for mode in [KillMode::Kill, KillMode::Panic] {
        let lab = Lab::start(true).await;
        pass(Duration::from_secs(1)).await;
        let commits = lab.commits();
        lab.deploy(1, 2);
        pass(jaco_policy::scheduler::pass_timer::DEBOUNCE + COMMIT / 2).await;
        assert_eq!(lab.commits(), commits + 1, "the proposal is in flight");
        lab.tree.kill("node/scheduler/reconcile", mode).unwrap();
        pass(Duration::from_secs(60)).await;
        assert_eq!(lab.raft.state().replicas_desired.len(), 2);
        assert_eq!(lab.commits(), commits + 2);
    }
}

#[tokio::test(start_paused = true)]
async fn unparsable_document_is_reported_once() {
    let lab = Lab::start(true).await;
    lab.apply(Payload::DeploymentApply(v1::DeploymentApply {
        deployment: "app".into(),
        revision: 1,
        compose_yaml: b"services: [".to_vec(),
        ..Default::default()
    }));
    let commits = lab.commits();
    pass(Duration::from_secs(600)).await;
    assert_eq!(lab.commits(), commits + 1);
    let state = lab.raft.state();
    assert!(
        state.deployments["app"].status_details["reason"].starts_with("compose parse failed: ")
    );
}

#[tokio::test(start_paused = true)]
async fn container_failure_counts_once_until_running() {
    let lab = Lab::start(true).await;
    lab.deploy(1, 1);
    lab.replicas(1).await;
    let report = |state: v1::ReplicaState, code: &str, seconds| {
        let row = &lab.raft.state().replicas_desired["app-web-0"];
        lab.apply(Payload::ReplicaObservedUpdate(v1::ReplicaObservedUpdate {
            replica: Some(v1::ReplicaObserved {
                id: row.id.clone(),
                state: state.into(),
                code: code.into(),
                host: row.host.clone(),
                desired_raft_index: row.raft_index,
                last_health_at: Some(Timestamp { seconds, nanos: 0 }),
                ..Default::default()
            }),
        }));
    };
    report(v1::ReplicaState::Failed, "container_exited", 7);
    for _ in 0..2 {
        pass(Duration::from_secs(60)).await;
        let state = lab.raft.state();
        let counter = &state.restart_counters["app-web-0"];
        assert_eq!(counter.consecutive_failures, 1);
        assert_eq!(
            counter.last_attempt_at,
            Some(Timestamp {
                seconds: 7,
                nanos: 0
            })
        );
        lab.tree
            .kill("node/scheduler/reconcile", KillMode::Panic)
            .unwrap();
    }
    report(v1::ReplicaState::Running, "", 8);
    pass(Duration::from_secs(60)).await;
    assert!(lab.raft.state().restart_counters.is_empty());
}

#[test]
fn largest_batch_takes_half_of_a_raft_command() {
    assert!(MAX_BATCH_BYTES <= RaftLimits::default().command_bytes / 2);
}
