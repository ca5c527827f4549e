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
use jaco_proto::v1::{NodeStatus, NodeStatusUpdate, command::Payload};
use jaco_raftnode::{Propose, ProposeError, RaftStatus, testing::MemoryRaft};
use jaco_supervision::{ChildSpec, KillMode, Strategy, SupervisorSpec, Tree};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::{Args, HealthActor, Heart, core::BEAT};
use crate::{
    clock::Clock,
    peer::{Heartbeat, Pulse, Sender},
};

const HOSTS: [&str; 3] = ["a", "b", "c"];
const SECOND: Duration = Duration::from_secs(1);

struct Node {
    heart: Arc<Heart>,
    status: watch::Sender<RaftStatus>,
    settled: watch::Sender<bool>,
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

struct World {
    raft: MemoryRaft,
    nodes: BTreeMap<&'static str, Node>,
    cut: Cut,
}

impl World {
    /// Starts three ready nodes that receive each other's heartbeats; `a` leads.
    async fn new() -> Self {
        let raft = MemoryRaft::with_ready_nodes(&HOSTS);
        let mut nodes = BTreeMap::new();
        for host in HOSTS {
            nodes.insert(host, node(&raft, host).await);
        }
        let world = Self {
            raft,
            nodes,
            cut: Cut::default(),
        };
        for from in HOSTS {
            for to in HOSTS.into_iter().filter(|to| *to != from) {
                let (cut, sender) = (world.cut.clone(), world.nodes[from].heart.clone());
                let receiver = world.nodes[to].heart.clone();
                tokio::spawn(async move {
                    loop {
                        sleep(BEAT).await;
                        if !cut.lock().unwrap().contains(&(from, to)) {
                            receiver.heard(&member(from), sender.beat());
                        }
                    }
                });
            }
        }
        world.lead("a", 1);
        sleep(4 * BEAT).await;
        assert_eq!(world.written(), [], "nothing is wrong");
        world
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

    fn deafen(&self, links: &[(&'static str, &'static str)]) {
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

    async fn becomes(&self, host: &str, status: NodeStatus) -> Duration {
        let began = Instant::now();
        let mut states = self.raft.subscribe();
        let seen = states.wait_for(|state| state.nodes[host].status() == status);
        let seen = tokio::time::timeout(60 * SECOND, seen).await;
        drop(seen.unwrap_or_else(|_| panic!("{host} never became {status:?}")));
        began.elapsed()
    }

    fn fresh(&self, on: &str) -> Vec<String> {
        let fresh = self.nodes[on].heart.fresh().borrow().clone();
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
    let heart = Arc::new(Heart::new(host, watched, clock.clone()));
    let (settled, is_settled) = watch::channel(true);
    let engine = FakeEngine::new();
    let confirms = Arc::new(AtomicBool::new(true));
    let asked = Arc::new(AtomicUsize::new(0));
    let (answer, count) = (confirms.clone(), asked.clone());
    let args = Args {
        heart: heart.clone(),
        host: host.to_owned(),
        raft: Arc::new(raft.clone()),
        cluster: Arc::new(raft.clone()),
        confirm: Arc::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
            let answer = answer.clone();
            Box::pin(async move { answer.load(Ordering::Relaxed) })
        }),
        settled: is_settled,
        engine: Arc::new(engine.clone()),
        clock,
    };
    let (spec, _) = ChildSpec::worker::<HealthActor>("health", args);
    let root = SupervisorSpec::new(Strategy::OneForOne).child(spec);
    Node {
        heart,
        status,
        settled,
        engine,
        confirms,
        asked,
        tree: Tree::start("node", root).await.unwrap(),
    }
}

use NodeStatus::{Joining, Offline, Ready, Unhealthy};

#[tokio::test(start_paused = true)]
async fn partitioned_node_goes_offline_and_returns() {
    let world = World::new().await;
    let caught_up = world.nodes["c"].heart.caught_up();
    assert!(*caught_up.borrow());
    world.cut_off("c");
    let until = world.becomes("c", Unhealthy).await;
    assert!(until < 8 * SECOND, "{until:?}");
    assert_eq!(world.fresh("a"), ["a", "b"]);
    assert!(
        !*caught_up.borrow(),
        "c is fenced before its status is unhealthy"
    );
    let until = until + world.becomes("c", Offline).await;
    assert!(until <= Duration::from_millis(10_250), "{until:?}");
    sleep(60 * SECOND).await;
    assert_eq!(
        world.written(),
        [("c".to_owned(), Unhealthy), ("c".to_owned(), Offline)]
    );
    assert_eq!(world.fresh("b"), ["a", "b"]);
    assert_eq!(world.fresh("c"), ["c"]);

    world.heal();
    world.becomes("c", Ready).await;
    assert!(*caught_up.borrow());
    sleep(60 * SECOND).await;
    assert_eq!(world.written().len(), 3, "{:?}", world.written());
    for host in HOSTS {
        assert_eq!(world.fresh(host), HOSTS, "{host}");
    }
}

#[tokio::test(start_paused = true)]
async fn idle_cluster_proposes_and_confirms_nothing() {
    let world = World::new().await;
    let asked = || -> usize {
        let nodes = world.nodes.values();
        nodes.map(|node| node.asked.load(Ordering::Relaxed)).sum()
    };
    let before = asked();
    sleep(3_600 * SECOND).await;
    assert_eq!((world.written().len(), asked()), (0, before));
}

#[tokio::test(start_paused = true)]
async fn new_leader_keeps_silence_and_live_hosts() {
    let world = World::new().await;
    world.cut_off("a");
    let died = Instant::now();
    sleep(3 * SECOND).await;
    assert_eq!(world.fresh("b"), HOSTS, "too early to drop a");
    world.lead("b", 2);
    world.becomes("a", Offline).await;
    assert!(died.elapsed() <= Duration::from_millis(10_500));
    assert_eq!(world.fresh("c"), ["b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn return_waits_for_log_containers_and_engine() {
    let world = World::new().await;
    let node = &world.nodes["c"];
    world.cut_off("c");
    world.becomes("c", Offline).await;
    node.settled.send_replace(false);
    node.engine.set_down(true);
    world.cut.lock().unwrap().clear();
    sleep(60 * SECOND).await;
    assert_eq!(world.status("c"), Offline, "not caught up");
    node.confirms.store(true, Ordering::Relaxed);
    sleep(60 * SECOND).await;
    assert!(*node.heart.caught_up().borrow());
    assert_eq!(world.status("c"), Offline, "superseded containers run");
    node.settled.send_replace(true);
    sleep(60 * SECOND).await;
    assert_eq!(world.status("c"), Offline, "the engine is down");
    world.raft.fail_next(2, ProposeError::NoLeader);
    node.engine.set_down(false);
    world.becomes("c", Ready).await;
}

#[tokio::test(start_paused = true)]
async fn node_without_outgoing_heartbeats_stays_offline() {
    let world = World::new().await;
    world.deafen(&[("c", "a"), ("c", "b")]);
    world.becomes("c", Offline).await;
    sleep(60 * SECOND).await;
    assert_eq!(world.status("c"), Offline);
    assert_eq!(world.written().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn joining_node_becomes_ready_by_itself() {
    let world = World::new().await;
    world.set("c", Joining);
    world.becomes("c", Ready).await;
}

#[tokio::test(start_paused = true)]
async fn silence_is_kept_across_actor_restarts() {
    let world = World::new().await;
    world.cut_off("c");
    let died = Instant::now();
    for _ in 0..2 {
        sleep(4 * SECOND).await;
        let tree = &world.nodes["a"].tree;
        tree.kill("node/health", KillMode::Kill).unwrap();
    }
    world.becomes("c", Offline).await;
    assert!(died.elapsed() < 12 * SECOND, "{:?}", died.elapsed());
}

#[tokio::test(start_paused = true)]
async fn status_is_committed_despite_proposal_errors() {
    let world = World::new().await;
    world.raft.fail_next(5, ProposeError::Busy);
    world.raft.lose_next_answers(1);
    world.cut_off("c");
    world.becomes("c", Offline).await;
    sleep(10 * SECOND).await;
    assert_eq!(world.written().len(), 2, "{:?}", world.written());
}

#[tokio::test(start_paused = true)]
async fn only_heartbeats_of_current_leader_set_live_hosts() {
    let world = World::new().await;
    let heart = &world.nodes["b"].heart;
    let says = |term, leads, hears: &[&str]| Heartbeat {
        term,
        leads,
        hears: hears.iter().map(|&host| host.to_owned()).collect(),
        ..Default::default()
    };
    world.lead("a", 5);
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
        heart.heard(&from, said.clone());
        assert_eq!(world.fresh("b"), HOSTS, "{from:?} {said:?}");
        assert!(heart.is_listed());
    }
    heart.heard(&member("a"), says(5, true, &["a", "stranger"]));
    assert_eq!(world.fresh("b"), ["a", "b"], "members only, and this node");
    world.lead("c", 6);
    heart.heard(&member("a"), says(5, true, &["a"]));
    heart.heard(&member("c"), says(6, true, &HOSTS));
    assert_eq!(world.fresh("b"), HOSTS);
}

#[tokio::test(start_paused = true)]
async fn heartbeats_of_namesake_do_not_count() {
    let world = World::new().await;
    world.cut_off("c");
    let heart = world.nodes["a"].heart.clone();
    tokio::spawn(async move {
        loop {
            sleep(BEAT).await;
            heart.heard(&Sender::new("c", 7, []), Heartbeat::default());
        }
    });
    world.becomes("c", Offline).await;
}

#[tokio::test(start_paused = true)]
async fn heartbeat_carries_raft_status_and_live_set() {
    let world = World::new().await;
    world.nodes["a"].status.send_modify(|status| {
        status.applied = 42;
        status.term = 7;
    });
    let beat = world.nodes["a"].heart.beat();
    assert_eq!((beat.applied, beat.term, beat.leads), (42, 7, true));
    assert_eq!(Vec::from_iter(beat.hears), HOSTS);
    let beat = world.nodes["b"].heart.beat();
    assert_eq!((beat.leads, beat.hears.len()), (false, 0));
}

#[tokio::test(start_paused = true)]
async fn last_heartbeat_exists_for_live_hosts_only() {
    let world = World::new().await;
    let heart = &world.nodes["b"].heart;
    for host in HOSTS {
        assert!(heart.last_heartbeat(host).is_some(), "{host}");
    }
    assert_eq!(heart.last_heartbeat("stranger"), None);
    world.cut_off("c");
    world.becomes("c", Unhealthy).await;
    sleep(2 * BEAT).await;
    assert_eq!(heart.last_heartbeat("c"), None);
}

#[tokio::test(start_paused = true)]
async fn halted_member_is_unhealthy_until_it_continues() {
    let world = World::new().await;
    let stopped = &world.nodes["c"];
    stopped
        .status
        .send_modify(|status| status.halted = Some("an entry of a later version".to_owned()));
    world.becomes("c", Unhealthy).await;
    // Its heartbeats continue, and it does not report itself ready.
    sleep(20 * BEAT).await;
    assert_eq!(world.status("c"), Unhealthy);
    assert_eq!(world.written(), [("c".to_owned(), Unhealthy)]);
    stopped.status.send_modify(|status| status.halted = None);
    world.becomes("c", Ready).await;
    sleep(20 * BEAT).await;
    assert_eq!(world.status("c"), Ready);
}
