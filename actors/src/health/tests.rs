//! Three nodes on one state in virtual time, with real actors and a simulated network.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use jaco_engine::fake::FakeEngine;
use jaco_policy::health::{
    core::{HEARTBEAT_INTERVAL, LIVE_FOR},
    fencing::ContactEpoch,
};
use jaco_proto::v1::{NodeStatus, NodeStatusUpdate, command::Payload};
use jaco_raftnode::{ProposeError, RaftStatus, StateReader, testing::MemoryRaft};
use jaco_supervision::{ChildSpec, KillMode, Strategy, SupervisorSpec, Tree};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::{Args, Contact, FailureDetector, HealthActor, NetworkStatus};
use crate::{
    clock::Clock,
    peer::{Heartbeat, HeartbeatHandler, Sender},
};

const HOSTS: [&str; 3] = ["a", "b", "c"];
const SECOND: Duration = Duration::from_secs(1);

struct Node {
    failure_detector: Arc<FailureDetector>,
    status: watch::Sender<RaftStatus>,
    /// Whether the orphans of each contact are cleared at once.
    orphans_cleared: watch::Sender<bool>,
    engine: FakeEngine,
    /// Result of catch-up attempts.
    confirms: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
    tree: Tree,
}

/// Authenticated identity of a member.
fn member(host: &str) -> Sender {
    let at = HOSTS.iter().position(|other| *other == host);
    Sender::new(host, at.map_or(9, |at| at as u64 + 1), [])
}

/// Directed links that are down.
type Cut = Arc<Mutex<BTreeSet<(&'static str, &'static str)>>>;

struct TestCluster {
    raft: MemoryRaft,
    nodes: BTreeMap<&'static str, Node>,
    cut: Cut,
}

impl TestCluster {
    /// Starts three ready nodes that receive each other's heartbeats; `a` leads.
    async fn new() -> Self {
        let raft = MemoryRaft::with_ready_nodes(&HOSTS);
        let mut nodes = BTreeMap::new();
        for host in HOSTS {
            nodes.insert(host, node(&raft, host).await);
        }
        let cluster = Self {
            raft,
            nodes,
            cut: Cut::default(),
        };
        for from in HOSTS {
            for to in HOSTS.into_iter().filter(|to| *to != from) {
                let (cut, sender) = (
                    cluster.cut.clone(),
                    cluster.nodes[from].failure_detector.clone(),
                );
                let receiver = cluster.nodes[to].failure_detector.clone();
                tokio::spawn(async move {
                    loop {
                        sleep(HEARTBEAT_INTERVAL).await;
                        if !cut.lock().unwrap().contains(&(from, to)) {
                            receiver.on_heartbeat(&member(from), sender.next_heartbeat());
                        }
                    }
                });
            }
        }
        cluster.lead("a", 1);
        sleep(4 * HEARTBEAT_INTERVAL).await;
        assert_eq!(cluster.written(), [], "nothing is wrong");
        cluster
    }

    fn lead(&self, leader: &str, term: u64) {
        for (host, node) in &self.nodes {
            node.status.send_modify(|status| {
                status.term = term;
                status.leading = *host == leader;
                status.leader_id = Some(member(leader).raft_id);
            });
        }
    }

    /// Takes down all links of a node, both ways.
    fn cut_off(&self, host: &'static str) {
        let others = HOSTS.into_iter().filter(|other| *other != host);
        let links = others.flat_map(|other| [(host, other), (other, host)]);
        self.cut.lock().unwrap().extend(links);
        self.nodes[host].confirms.store(false, Ordering::Relaxed);
    }

    fn cut_links(&self, links: &[(&'static str, &'static str)]) {
        self.cut.lock().unwrap().extend(links);
    }

    fn heal(&self) {
        self.cut.lock().unwrap().clear();
        for node in self.nodes.values() {
            node.confirms.store(true, Ordering::Relaxed);
        }
    }

    /// Status updates committed after the setup.
    fn written(&self) -> Vec<(String, NodeStatus)> {
        let commands = self.raft.committed().into_iter().skip(HOSTS.len());
        let updates = commands.filter_map(|command| match command.payload {
            Some(Payload::NodeStatusUpdate(update)) => {
                Some((update.hostname.clone(), update.status()))
            }
            _ => None,
        });
        updates.collect()
    }

    fn status(&self, host: &str) -> NodeStatus {
        self.raft.state().nodes[host].status()
    }

    async fn wait_status(&self, host: &str, status: NodeStatus) -> Duration {
        let began = Instant::now();
        let mut states = self.raft.subscribe();
        let seen = states.wait_for(|state| state.nodes[host].status() == status);
        let seen = tokio::time::timeout(60 * SECOND, seen).await;
        drop(seen.unwrap_or_else(|_| panic!("{host} never became {status:?}")));
        began.elapsed()
    }

    fn fresh(&self, on: &str) -> Vec<String> {
        let fresh = self.nodes[on].failure_detector.fresh().borrow().clone();
        fresh.iter().cloned().collect()
    }

    fn set(&self, host: &str, status: NodeStatus) {
        let update = NodeStatusUpdate {
            hostname: host.to_owned(),
            status: status.into(),
            ..Default::default()
        };
        let payload = Payload::NodeStatusUpdate(update);
        let command = jaco_raftnode::command("test", Default::default(), payload);
        self.raft.apply(command).unwrap();
    }
}

async fn node(raft: &MemoryRaft, host: &str) -> Node {
    let (status, watched) = watch::channel(RaftStatus::default());
    let clock = Clock::system();
    let failure_detector = Arc::new(FailureDetector::new(host, watched, clock.clone()));
    let orphans_cleared = watch::Sender::new(true);
    let engine = FakeEngine::new();
    let confirms = Arc::new(AtomicBool::new(true));
    let asked = Arc::new(AtomicUsize::new(0));
    let (answer, count) = (confirms.clone(), asked.clone());
    let args = Args {
        failure_detector: failure_detector.clone(),
        host: host.to_owned(),
        raft: Arc::new(raft.clone()),
        cluster: Arc::new(raft.clone()),
        confirm: Arc::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
            let answer = answer.clone();
            Box::pin(async move { answer.load(Ordering::Relaxed) })
        }),
        orphans_cleared: cleared_contacts(&failure_detector, &orphans_cleared),
        engine: Arc::new(engine.clone()),
        clock,
        network: NetworkStatus::default(),
    };
    let (spec, _) = ChildSpec::worker::<HealthActor>("health", args);
    let root = SupervisorSpec::new(Strategy::OneForOne).child(spec);
    Node {
        failure_detector,
        status,
        orphans_cleared,
        engine,
        confirms,
        asked,
        tree: Tree::start("node", root).await.unwrap(),
    }
}

/// The last contact of a node during which `cleared` was set.
fn cleared_contacts(
    failure_detector: &FailureDetector,
    cleared: &watch::Sender<bool>,
) -> watch::Receiver<Option<ContactEpoch>> {
    let (sender, receiver) = watch::channel(None);
    let (mut contacts, mut cleared) = (failure_detector.contact_changes(), cleared.subscribe());
    tokio::spawn(async move {
        loop {
            let contact = *contacts.borrow_and_update();
            if *cleared.borrow_and_update() && contact.is_some() {
                sender.send_replace(contact);
            }
            let changed = tokio::select! {
                changed = contacts.changed() => changed,
                changed = cleared.changed() => changed,
            };
            if changed.is_err() {
                return;
            }
        }
    });
    receiver
}

use NodeStatus::{Joining, Offline, Ready, Unhealthy};

#[tokio::test(start_paused = true)]
async fn partitioned_node_goes_offline_and_returns() {
    let cluster = TestCluster::new().await;
    let caught_up = cluster.nodes["c"].failure_detector.contact_changes();
    assert!(caught_up.borrow().is_some());
    cluster.cut_off("c");
    let until = cluster.wait_status("c", Unhealthy).await;
    assert!(until < 8 * SECOND, "{until:?}");
    assert_eq!(cluster.fresh("a"), ["a", "b"]);
    assert!(
        caught_up.borrow().is_none(),
        "c is fenced before its status is unhealthy"
    );
    let until = until + cluster.wait_status("c", Offline).await;
    assert!(until <= Duration::from_millis(10_250), "{until:?}");
    sleep(60 * SECOND).await;
    assert_eq!(
        cluster.written(),
        [("c".to_owned(), Unhealthy), ("c".to_owned(), Offline)]
    );
    assert_eq!(cluster.fresh("b"), ["a", "b"]);
    assert_eq!(cluster.fresh("c"), ["c"]);

    cluster.heal();
    cluster.wait_status("c", Ready).await;
    assert!(caught_up.borrow().is_some());
    sleep(60 * SECOND).await;
    assert_eq!(cluster.written().len(), 3, "{:?}", cluster.written());
    for host in HOSTS {
        assert_eq!(cluster.fresh(host), HOSTS, "{host}");
    }
}

#[tokio::test(start_paused = true)]
async fn contact_ends_before_pause_is_noticed() {
    let leading = RaftStatus {
        leading: true,
        ..Default::default()
    };
    let (_status, raft) = watch::channel(leading);
    let failure_detector = Arc::new(FailureDetector::new("a", raft, Clock::system()));
    let contact = Contact::of(&failure_detector);
    failure_detector.tick();
    assert!(failure_detector.poll_action().is_some(), "a confirmation");
    assert_eq!(contact.now(), None);
    failure_detector.confirmed(1, true);
    let first = contact.now();
    assert!(first.is_some());
    // Nothing runs meanwhile.
    tokio::time::advance(LIVE_FOR).await;
    assert_eq!(contact.now(), None);
    assert_eq!(*contact.changes().borrow(), first, "not noticed yet");
    failure_detector.tick();
    assert_eq!(*contact.changes().borrow(), None);
    failure_detector.confirmed(2, true);
    assert!(contact.now() > first, "another contact");
}

#[tokio::test(start_paused = true)]
async fn idle_cluster_proposes_and_confirms_nothing() {
    let cluster = TestCluster::new().await;
    let asked = || -> usize {
        let nodes = cluster.nodes.values();
        nodes.map(|node| node.asked.load(Ordering::Relaxed)).sum()
    };
    let before = asked();
    sleep(3_600 * SECOND).await;
    assert_eq!((cluster.written().len(), asked()), (0, before));
}

#[tokio::test(start_paused = true)]
async fn new_leader_keeps_silence_and_live_hosts() {
    let cluster = TestCluster::new().await;
    cluster.cut_off("a");
    let died = Instant::now();
    sleep(3 * SECOND).await;
    assert_eq!(cluster.fresh("b"), HOSTS, "too early to drop a");
    cluster.lead("b", 2);
    cluster.wait_status("a", Offline).await;
    assert!(died.elapsed() <= Duration::from_millis(10_500));
    assert_eq!(cluster.fresh("c"), ["b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn return_waits_for_log_containers_and_engine() {
    let cluster = TestCluster::new().await;
    let node = &cluster.nodes["c"];
    cluster.cut_off("c");
    cluster.wait_status("c", Offline).await;
    node.orphans_cleared.send_replace(false);
    node.engine.set_down(true);
    cluster.cut.lock().unwrap().clear();
    sleep(60 * SECOND).await;
    assert_eq!(cluster.status("c"), Offline, "not caught up");
    node.confirms.store(true, Ordering::Relaxed);
    sleep(60 * SECOND).await;
    assert!(node.failure_detector.contact().is_some());
    assert_eq!(cluster.status("c"), Offline, "superseded containers run");
    node.orphans_cleared.send_replace(true);
    sleep(60 * SECOND).await;
    assert_eq!(cluster.status("c"), Offline, "the engine is down");
    cluster.raft.fail_next(2, ProposeError::NoLeader);
    node.engine.set_down(false);
    cluster.wait_status("c", Ready).await;
}

#[tokio::test(start_paused = true)]
async fn orphans_cleared_in_earlier_contact_do_not_count() {
    let cluster = TestCluster::new().await;
    let node = &cluster.nodes["c"];
    // The contact that ends here remains the last one in which orphans were cleared.
    node.orphans_cleared.send_replace(false);
    cluster.cut_off("c");
    cluster.wait_status("c", Offline).await;
    cluster.heal();
    sleep(60 * SECOND).await;
    assert!(node.failure_detector.contact().is_some());
    assert_eq!(cluster.status("c"), Offline);
    node.orphans_cleared.send_replace(true);
    cluster.wait_status("c", Ready).await;
}

#[tokio::test(start_paused = true)]
async fn node_without_outgoing_heartbeats_stays_offline() {
    let cluster = TestCluster::new().await;
    cluster.cut_links(&[("c", "a"), ("c", "b")]);
    cluster.wait_status("c", Offline).await;
    sleep(60 * SECOND).await;
    assert_eq!(cluster.status("c"), Offline);
    assert_eq!(cluster.written().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn joining_node_becomes_ready_by_itself() {
    let cluster = TestCluster::new().await;
    cluster.set("c", Joining);
    cluster.wait_status("c", Ready).await;
}

#[tokio::test(start_paused = true)]
async fn silence_is_kept_across_actor_restarts() {
    let cluster = TestCluster::new().await;
    cluster.cut_off("c");
    let died = Instant::now();
    for _ in 0..2 {
        sleep(4 * SECOND).await;
        let tree = &cluster.nodes["a"].tree;
        tree.kill("node/health", KillMode::Kill).unwrap();
    }
    cluster.wait_status("c", Offline).await;
    assert!(died.elapsed() < 12 * SECOND, "{:?}", died.elapsed());
}

#[tokio::test(start_paused = true)]
async fn status_is_committed_despite_proposal_errors() {
    let cluster = TestCluster::new().await;
    cluster.raft.fail_next(5, ProposeError::Busy);
    cluster.raft.lose_next_answers(1);
    cluster.cut_off("c");
    cluster.wait_status("c", Offline).await;
    sleep(10 * SECOND).await;
    assert_eq!(cluster.written().len(), 2, "{:?}", cluster.written());
}

#[tokio::test(start_paused = true)]
async fn only_heartbeats_of_current_leader_set_live_hosts() {
    let cluster = TestCluster::new().await;
    let failure_detector = &cluster.nodes["b"].failure_detector;
    let says = |term, leads, live: &[&str]| Heartbeat {
        term,
        leads,
        live: live.iter().map(|&host| host.to_owned()).collect(),
        ..Default::default()
    };
    cluster.lead("a", 5);
    let namesake = Sender::new("a", 7, []);
    for (from, said) in [
        (member("stranger"), says(5, true, &["stranger"])),
        // Not this node's leader, whatever its term.
        (member("c"), says(4, true, &["c"])),
        (member("c"), says(5, true, &["c"])),
        (member("c"), says(6, true, &["c"])),
        (member("c"), says(u64::MAX, true, &["c"])),
        (member("c"), says(5, false, &[])),
        (namesake, says(5, true, &["c"])),
        // The leader, with an earlier or a later term.
        (member("a"), says(4, true, &["c"])),
        (member("a"), says(6, true, &["c"])),
    ] {
        failure_detector.on_heartbeat(&from, said.clone());
        assert_eq!(cluster.fresh("b"), HOSTS, "{from:?} {said:?}");
        assert!(failure_detector.is_seen_by_leader());
    }
    failure_detector.on_heartbeat(&member("a"), says(5, true, &["a", "stranger"]));
    assert_eq!(
        cluster.fresh("b"),
        ["a", "b"],
        "members only, and this node"
    );
    cluster.lead("c", 6);
    failure_detector.on_heartbeat(&member("a"), says(5, true, &["a"]));
    failure_detector.on_heartbeat(&member("c"), says(6, true, &HOSTS));
    assert_eq!(cluster.fresh("b"), HOSTS);
}

#[tokio::test(start_paused = true)]
async fn heartbeats_of_namesake_do_not_count() {
    let cluster = TestCluster::new().await;
    cluster.cut_off("c");
    let failure_detector = cluster.nodes["a"].failure_detector.clone();
    tokio::spawn(async move {
        loop {
            sleep(HEARTBEAT_INTERVAL).await;
            failure_detector.on_heartbeat(&Sender::new("c", 7, []), Heartbeat::default());
        }
    });
    cluster.wait_status("c", Offline).await;
}

#[tokio::test(start_paused = true)]
async fn heartbeat_carries_raft_status_and_live_set() {
    let cluster = TestCluster::new().await;
    cluster.nodes["a"].status.send_modify(|status| {
        status.applied = 42;
        status.term = 7;
    });
    let beat = cluster.nodes["a"].failure_detector.next_heartbeat();
    assert_eq!((beat.applied, beat.term, beat.leads), (42, 7, true));
    assert_eq!(Vec::from_iter(beat.live), HOSTS);
    let beat = cluster.nodes["b"].failure_detector.next_heartbeat();
    assert_eq!((beat.leads, beat.live.len()), (false, 0));
}

#[tokio::test(start_paused = true)]
async fn last_heartbeat_exists_for_live_hosts_only() {
    let cluster = TestCluster::new().await;
    let failure_detector = &cluster.nodes["b"].failure_detector;
    for host in HOSTS {
        assert!(failure_detector.last_heartbeat(host).is_some(), "{host}");
    }
    assert_eq!(failure_detector.last_heartbeat("stranger"), None);
    cluster.cut_off("c");
    cluster.wait_status("c", Unhealthy).await;
    sleep(2 * HEARTBEAT_INTERVAL).await;
    assert_eq!(failure_detector.last_heartbeat("c"), None);
}

#[tokio::test(start_paused = true)]
async fn halted_member_is_unhealthy_until_it_continues() {
    let cluster = TestCluster::new().await;
    let stopped = &cluster.nodes["c"];
    stopped
        .status
        .send_modify(|status| status.halted = Some("an entry of a later version".to_owned()));
    cluster.wait_status("c", Unhealthy).await;
    // Its heartbeats continue, and it does not report itself ready.
    sleep(20 * HEARTBEAT_INTERVAL).await;
    assert_eq!(cluster.status("c"), Unhealthy);
    assert_eq!(cluster.written(), [("c".to_owned(), Unhealthy)]);
    stopped.status.send_modify(|status| status.halted = None);
    cluster.wait_status("c", Ready).await;
    sleep(20 * HEARTBEAT_INTERVAL).await;
    assert_eq!(cluster.status("c"), Ready);
}

#[tokio::test(start_paused = true)]
async fn hung_member_fences_itself_then_is_unhealthy() {
    let cluster = TestCluster::new().await;
    let hung = &cluster.nodes["c"];
    let contact = hung.failure_detector.contact_changes();
    assert!(contact.borrow().is_some());
    // Its raft confirms nothing while it hangs.
    hung.confirms.store(false, Ordering::Relaxed);
    let since = Instant::now().into_std();
    hung.status
        .send_modify(|status| status.stalled_since = Some(since));
    sleep(SECOND).await;
    assert!(contact.borrow().is_none());
    sleep(5 * SECOND).await;
    assert_eq!(cluster.status("c"), Ready, "a slow disk is no failure");
    cluster.wait_status("c", Unhealthy).await;
    sleep(20 * HEARTBEAT_INTERVAL).await;
    assert_eq!(cluster.written(), [("c".to_owned(), Unhealthy)]);
    hung.status
        .send_modify(|status| status.stalled_since = None);
    hung.confirms.store(true, Ordering::Relaxed);
    cluster.wait_status("c", Ready).await;
    assert!(contact.borrow().is_some());
}
