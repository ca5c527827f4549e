//! Requests under load while replicas and nodes are killed, certificates swapped, daemons replaced
//! and replicas withdrawn, in an order that a seed decides.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use jaco_chaos::{Rng, size, upstream::name_of};

use crate::{
    fixture::{NODES, Running, Settings},
    load::{self, Account, Failure, Kind, Load, Way},
    service::{Service, Serving, by_name},
};

const REPLICAS: u32 = 6;
/// Time of the closed loop that measures the capacity.
const MEASURED: Duration = Duration::from_secs(5);
/// Percentage of the capacity that is sent, so that a machine at a third of the measured speed keeps up.
const PERCENT: u32 = 30;
/// A replica that failed again before it has run for five seconds would be given up in the end.
const REST: Duration = Duration::from_secs(9);
/// Time in which every node knows that another one is gone. Until then it may send it requests that
/// must not be repeated.
const LOSS_KNOWN: Duration = Duration::from_secs(12);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    ReplicaKill,
    NodeKill,
    Swap,
    Restart,
    Withdrawal,
}

/// Containers that ended without warning, and when.
struct Kill {
    /// The node, if its power was cut.
    node: Option<u8>,
    /// Containers that ended, by the names in their answers.
    replicas: BTreeSet<String>,
    /// The victim ended at an unknown time between these two: a kill is a call to an engine.
    began: Instant,
    done: Instant,
}

impl Kill {
    /// Whether the victim had the request: it was in flight when the victim ended, or was sent to a
    /// node of whose end its sender could not know yet. GET requests without an answer are
    /// repeated elsewhere.
    fn explains(&self, failure: &Failure) -> bool {
        let (began, unanswered) = (failure.began, failure.replica.is_none());
        let in_flight = began <= self.done && failure.ended >= self.began;
        let at_node = self.node == Some(failure.request.node);
        let at_replica = |name: &String| self.replicas.contains(name);
        let had_it = failure.replica.as_ref().is_some_and(at_replica);
        let post = failure.request.kind == Kind::Post && unanswered;
        // A connection to the published port is the client's with one replica.
        let connected = failure.request.way == Way::Port && unanswered;
        let before_known = self.node.is_some() && began <= self.done + LOSS_KNOWN;
        (in_flight && (at_node || had_it || post || connected)) || (before_known && post)
    }
}

/// Figures of the events of one kind.
#[derive(Debug, Default)]
struct Tally {
    events: u32,
    answered: u64,
    /// Requests without an answer at the kills.
    in_flight: usize,
    /// Failures of requests that a victim had.
    lost_with_victim: usize,
    /// All others.
    unexplained: usize,
    repeated: u64,
    left_out: u64,
    longest: Duration,
}

struct Run {
    running: Running,
    service: Service,
    load: Load,
    rng: Rng,
    serving: Vec<Serving>,
    /// Replicas that were killed, and when.
    killed: BTreeMap<String, Instant>,
    tallies: BTreeMap<Event, Tally>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disruptions_fail_only_requests_of_victims() {
    let mut rng = Rng::announced();
    let running = Running::start(Settings {
        config: "acme_skip_staging: true\n",
        mesh: true,
        seed: Some(rng.number()),
        ..Settings::default()
    })
    .await;
    let service = Service::deploy(&running, REPLICAS).await;
    let target = service.target(&running);
    let (capacity, account) = load::capacity(target.clone(), rng.number(), MEASURED).await;
    println!("capacity: {capacity:.0}/s, longest {:?}", account.longest);
    assert_eq!(account.failed, 0, "at rest: {:?}", account.failures.first());

    let mut events = Vec::new();
    for (event, name, count) in [
        (Event::ReplicaKill, "JACO_REPLICA_KILLS", 3),
        (Event::NodeKill, "JACO_NODE_KILLS", 1),
        (Event::Swap, "JACO_SWAPS", 5),
        (Event::Restart, "JACO_RESTARTS", 2),
    ] {
        events.extend((0..size(name, count)).map(|_| (event, 1)));
    }
    let mut withdrawals: u32 = size("JACO_WITHDRAWALS", 4);
    while withdrawals > 0 {
        // Half of the replicas at most: a roll-out replaces all at once.
        let most = withdrawals.min(REPLICAS / 2);
        let count = u32::try_from(rng.within(1..u64::from(most) + 1)).unwrap();
        events.push((Event::Withdrawal, count));
        withdrawals -= count;
    }
    for at in (1..events.len()).rev() {
        let other = usize::try_from(rng.within(0..u64::try_from(at).unwrap() + 1)).unwrap();
        events.swap(at, other);
    }

    let rate = capacity * f64::from(size("JACO_LOAD_PERCENT", PERCENT)) / 100.0;
    let load = Load::start(target, rng.number(), rate);
    let serving = service.settled(&running, &BTreeSet::new()).await;
    let mut run = Run {
        running,
        service,
        load,
        rng,
        serving,
        killed: BTreeMap::new(),
        tallies: BTreeMap::new(),
    };
    let start = Instant::now();
    for (number, (event, count)) in events.into_iter().enumerate() {
        run.event(number, event, count).await;
    }
    let took = start.elapsed();
    run.load.stop().await;
    println!("sent {rate:.0}/s of {capacity:.0}/s for {took:?}");
    for (event, tally) in &run.tallies {
        println!("{event:?}: {tally:?}");
    }
    let unexplained: usize = run.tallies.values().map(|tally| tally.unexplained).sum();
    assert_eq!(unexplained, 0, "requests failed that no victim had");
}

impl Run {
    async fn event(&mut self, number: usize, event: Event, count: u32) {
        // Some load before it.
        tokio::time::sleep(self.rng.below(Duration::from_millis(300))).await;
        let (start, in_flight) = (Instant::now(), self.load.outstanding());
        let kill = match event {
            Event::ReplicaKill => Some(self.kill_replica().await),
            Event::NodeKill => Some(self.kill_node().await),
            Event::Swap => {
                let through = self.any_node();
                self.service.swap(&self.running, through).await;
                None
            }
            Event::Restart => {
                let node = self.any_node();
                self.running.lab.node_mut(node).replace().await.unwrap();
                None
            }
            Event::Withdrawal => {
                self.withdraw(count).await;
                None
            }
        };
        // The container of a failed replica is replaced; those of a node are started again.
        let failed = kill.as_ref().filter(|kill| kill.node.is_none());
        let ended = |container: &String| {
            failed.is_some_and(|kill| kill.replicas.contains(name_of(container)))
        };
        let containers = self.serving.iter().map(|serving| serving.container.clone());
        let but = containers.filter(ended).collect();
        self.serving = self.service.settled(&self.running, &but).await;
        if let Some(node) = kill.as_ref().and_then(|kill| kill.node) {
            self.service.served(&self.running, node).await;
            self.load.include(node);
        }
        let account = self.load.account().await;
        self.judge(event, count, kill.as_ref(), &account, in_flight);
        println!(
            "{number}: {event:?} {count}, {:?}: {} answered, {} failed, {} repeated, {} left out, longest {:?}, by {:?}",
            start.elapsed(),
            account.answered,
            account.failed,
            account.repeated,
            account.left_out,
            account.longest,
            account.by_replica.len(),
        );
    }

    fn judge(
        &mut self,
        event: Event,
        count: u32,
        kill: Option<&Kill>,
        account: &Account,
        in_flight: usize,
    ) {
        let tally = self.tallies.entry(event).or_default();
        tally.events += count;
        tally.answered += account.answered;
        tally.repeated += account.repeated;
        tally.left_out += account.left_out;
        tally.longest = tally.longest.max(account.longest);
        if kill.is_some() {
            tally.in_flight += in_flight;
        }
        let nodes = by_name(&self.serving);
        let mut shown = 0;
        for failure in &account.failures {
            if kill.is_some_and(|kill| kill.explains(failure)) {
                tally.lost_with_victim += 1;
                continue;
            }
            tally.unexplained += 1;
            shown += 1;
            if shown <= 10 {
                let since =
                    kill.map(
                        |kill| match failure.began.checked_duration_since(kill.done) {
                            Some(after) => format!("{after:?} after"),
                            None => format!("{:?} before", kill.done - failure.began),
                        },
                    );
                println!(
                    "  {:?} took {:?}, began {since:?} the kill, by {:?} of {:?}: {}",
                    failure.request,
                    failure.ended - failure.began,
                    failure.replica,
                    failure.replica.as_ref().and_then(|name| nodes.get(name)),
                    failure.why,
                );
            }
        }
        tally.unexplained += usize::try_from(account.failed).unwrap() - account.failures.len();
    }

    fn any_node(&mut self) -> u8 {
        u8::try_from(self.rng.within(1..u64::from(NODES) + 1)).unwrap()
    }

    async fn kill_replica(&mut self) -> Kill {
        let victim = loop {
            let rested = |s: &&Serving| {
                self.killed
                    .get(&s.replica)
                    .is_none_or(|at| at.elapsed() > REST)
            };
            let rested: Vec<Serving> = self.serving.iter().filter(rested).cloned().collect();
            match self.rng.choose(&rested) {
                Some(victim) => break victim.clone(),
                None => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        };
        let engine = self.running.lab.node(victim.node).engine().await.unwrap();
        let began = Instant::now();
        engine.kill(&victim.container).await.unwrap();
        let done = Instant::now();
        self.killed.insert(victim.replica.clone(), done);
        Kill {
            node: None,
            replicas: [name_of(&victim.container).to_owned()].into(),
            began,
            done,
        }
    }

    /// Cuts the power of a node, and turns it on after a while.
    async fn kill_node(&mut self) -> Kill {
        let node = self.any_node();
        let there = self.serving.iter().filter(|serving| serving.node == node);
        let replicas = there
            .map(|serving| name_of(&serving.container).to_owned())
            .collect();
        self.load.exclude(node);
        let began = Instant::now();
        self.running.lab.crash(node).unwrap();
        let done = Instant::now();
        let away = Duration::from_secs(1) + self.rng.below(Duration::from_secs(9));
        println!("n{node} is off for {away:?}");
        tokio::time::sleep(away).await;
        self.running.lab.boot(node).await.unwrap();
        self.running
            .lab
            .wait_members(usize::from(NODES))
            .await
            .unwrap();
        self.running.all_ready().await;
        Kill {
            node: Some(node),
            replicas,
            began,
            done,
        }
    }

    /// Stops `count` replicas on purpose, and starts them again.
    async fn withdraw(&mut self, count: u32) {
        let none = BTreeSet::new();
        self.service.scale(&self.running, REPLICAS - count).await;
        self.serving = self.service.settled(&self.running, &none).await;
        self.service.scale(&self.running, REPLICAS).await;
    }
}
