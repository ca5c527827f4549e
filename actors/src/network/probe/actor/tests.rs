use std::{sync::Mutex, time::SystemTime};

use futures::future::BoxFuture;
use http::{Request, Response};
use jaco_policy::network::probe::{
    core::{INTERVAL, MISSES},
    drops::{AUDIT_INTERVAL, DropReason},
};
use jaco_proto::v1::NetworkFault;
use jaco_raftnode::{ProposeError, StateReader as _, command, testing::MemoryRaft};
use jaco_supervision::{KillMode, Strategy, SupervisorSpec, Tree};
use prost_types::Timestamp;
use tonic::body::Body;

use super::*;
use crate::{
    clock::Clock,
    lock::lock,
    network::{
        probe::{NoMeshStats, Prober, worker},
        reports::NetworkReports,
    },
    peer::{CallError, Link},
};

/// A host without a kernel.
#[derive(Clone, Default)]
struct FakeHost(Arc<Mutex<Fake>>);

#[derive(Default)]
struct Fake {
    /// Networks with an endpoint.
    ensured: BTreeSet<NetworkId>,
    /// Addresses that answer probes.
    answering: BTreeSet<Ipv4Addr>,
    probes: usize,
    /// Packets that the packet filter dropped.
    dropped: Drops,
    /// Members that a report was sent to.
    sent: Vec<String>,
}

impl Prober for FakeHost {
    fn ensure(&self, network: LocalNetwork) -> BoxFuture<'static, BridgeView> {
        lock(&self.0).ensured.insert(network.id);
        let view = BridgeView {
            bridge: "jaco-1".to_owned(),
            up: true,
            endpoint: Some(jaco_policy::network::probe::endpoint(network.block)),
        };
        Box::pin(std::future::ready(view))
    }

    fn remove(&self, id: &NetworkId) {
        lock(&self.0).ensured.remove(id);
    }

    fn retain(&self, networks: &BTreeMap<NetworkId, LocalNetwork>) {
        let mut fake = lock(&self.0);
        fake.ensured.retain(|id| networks.contains_key(id));
    }

    fn probe(&self, _: &NetworkId, to: Ipv4Addr) -> BoxFuture<'static, Outcome> {
        let mut fake = lock(&self.0);
        fake.probes += 1;
        let outcome = match fake.answering.contains(&to) {
            true => Outcome::Answered(Duration::from_millis(1)),
            false => Outcome::Silent,
        };
        Box::pin(std::future::ready(outcome))
    }
}

impl Link for FakeHost {
    fn call(
        &self,
        host: &str,
        _: Request<Body>,
    ) -> BoxFuture<'static, Result<Response<Body>, CallError>> {
        lock(&self.0).sent.push(host.to_owned());
        let host = host.to_owned();
        let reason = "a fake".to_owned();
        Box::pin(std::future::ready(Err(CallError::NotSent { host, reason })))
    }
}

struct Lab {
    raft: MemoryRaft,
    host: FakeHost,
    reports: NetworkReports,
    tree: Tree,
}

const GATEWAYS: [[u8; 4]; 2] = [[10, 244, 1, 1], [10, 244, 2, 1]];
const OTHER: [u8; 4] = [10, 244, 2, 254];

impl Lab {
    /// Two networks on one host of two, isolated from each other.
    async fn start() -> Self {
        let raft = MemoryRaft::with_ready_nodes(&["n1", "n2"]);
        for (deployment, block) in [("a", "10.244.1.0/24"), ("b", "10.244.2.0/24")] {
            apply(
                &raft,
                Payload::SubnetAllocate(v1::SubnetAllocate {
                    deployment: deployment.to_owned(),
                    network: "_default".to_owned(),
                    host: "n1".to_owned(),
                    cidr: block.to_owned(),
                }),
            );
        }
        let host = FakeHost::default();
        lock(&host.0).answering = GATEWAYS.map(Ipv4Addr::from).into();
        let reports = NetworkReports::default();
        let worker = worker(Args {
            host: "n1".to_owned(),
            cluster: Arc::new(raft.clone()),
            peers: Peers::new(Arc::new(host.clone())),
            reports: reports.clone(),
            mesh: Arc::new(NoMeshStats),
            drops: Arc::new({
                let host = host.clone();
                move || Ok(lock(&host.0).dropped.clone())
            }),
            prober: Arc::new(host.clone()),
            clock: Clock::from_fn(|| SystemTime::UNIX_EPOCH),
        });
        let spec = SupervisorSpec::new(Strategy::OneForOne).child(worker);
        Self {
            raft,
            host,
            reports,
            tree: Tree::start("node", spec).await.unwrap(),
        }
    }

    fn faults(&self) -> Vec<NetworkFault> {
        self.reports.faults(&self.raft.state())
    }

    /// The audit events, as texts.
    fn audited(&self) -> Vec<String> {
        let commands = self.raft.committed().into_iter();
        let events = commands.filter_map(|command| match command.payload {
            Some(Payload::AuditAppend(append)) => append.event,
            _ => None,
        });
        events
            .map(|event| {
                let payload = &event.payload;
                if event.r#type() == AuditEventType::ForgedSource {
                    return format!("{} forged {}", payload["node"], payload["forged_source"]);
                }
                assert_eq!(event.r#type(), AuditEventType::IsolationBreach);
                format!("{} {} {}", payload["node"], payload["from"], payload["to"])
            })
            .collect()
    }

    fn answer(&self, answers: bool) {
        let mut fake = lock(&self.host.0);
        match answers {
            true => fake.answering.insert(OTHER.into()),
            false => fake.answering.remove(&OTHER.into()),
        };
    }
}

fn apply(raft: &MemoryRaft, payload: Payload) {
    raft.apply(command("test", Timestamp::default(), payload))
        .unwrap();
}

async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

#[tokio::test(start_paused = true)]
async fn breach_is_reported_and_audited_once() {
    let lab = Lab::start().await;
    pass(INTERVAL * 3).await;
    assert!(lab.faults().is_empty());
    assert!(lab.audited().is_empty());
    lab.answer(true);
    pass(INTERVAL * 5).await;
    let [fault] = &lab.faults()[..] else {
        panic!("{:?}", lab.faults());
    };
    assert_eq!(fault.code, "isolation_breach");
    assert_eq!(
        (fault.hostname.as_str(), fault.deployment.as_str()),
        ("n1", "a")
    );
    assert_eq!(lab.audited(), ["n1 a/_default b/_default"]);
    lab.answer(false);
    pass(INTERVAL * (MISSES + 1)).await;
    assert!(lab.faults().is_empty());
    lab.answer(true);
    pass(INTERVAL * 2).await;
    assert_eq!(lab.audited().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn refused_audit_event_is_written_later() {
    let lab = Lab::start().await;
    lab.raft.fail_next(1, ProposeError::NoLeader);
    lab.answer(true);
    pass(REPORT_INTERVAL * 5).await;
    assert_eq!(lab.audited(), ["n1 a/_default b/_default"]);
}

#[tokio::test(start_paused = true)]
async fn unchanged_report_is_sent_rarely() {
    let lab = Lab::start().await;
    pass(REPORT_INTERVAL * 4).await;
    lock(&lab.host.0).sent.clear();
    pass(LONGEST_SILENCE * 10).await;
    let sent = std::mem::take(&mut lock(&lab.host.0).sent);
    assert!(sent.iter().all(|host| host == "n2"));
    assert!((9..=11).contains(&sent.len()), "{}", sent.len());
    // A new verdict is sent without that delay.
    lab.answer(true);
    pass(INTERVAL * 2).await;
    assert!(!lock(&lab.host.0).sent.is_empty());
}

#[tokio::test(start_paused = true)]
async fn removed_network_is_no_longer_probed() {
    let lab = Lab::start().await;
    pass(INTERVAL * 2).await;
    assert_eq!(lock(&lab.host.0).ensured.len(), 2);
    for deployment in ["a", "b"] {
        apply(
            &lab.raft,
            Payload::SubnetFree(v1::SubnetFree {
                deployment: deployment.to_owned(),
                network: "_default".to_owned(),
                host: "n1".to_owned(),
            }),
        );
    }
    pass(INTERVAL).await;
    let probes = lock(&lab.host.0).probes;
    assert!(lock(&lab.host.0).ensured.is_empty());
    pass(INTERVAL * 5).await;
    assert_eq!(lock(&lab.host.0).probes, probes);
    assert!(lab.reports.live().is_empty());
}

#[tokio::test(start_paused = true)]
async fn network_removed_during_a_restart_is_released() {
    for mode in [KillMode::Kill, KillMode::Panic] {
        let lab = Lab::start().await;
        pass(INTERVAL).await;
        // The killed actor had it, its successor never sees it.
        let removed = NetworkId::new("removed", "_default");
        lock(&lab.host.0).ensured.insert(removed.clone());
        lab.tree.kill("node/network-probe", mode).unwrap();
        pass(INTERVAL).await;
        let ensured = lock(&lab.host.0).ensured.clone();
        assert!(!ensured.contains(&removed));
        assert_eq!(ensured.len(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_packets_are_reported_and_forgeries_audited() {
    let lab = Lab::start().await;
    let drop = |packets| {
        let mut host = lock(&lab.host.0);
        *host.dropped.entry(DropReason::ForgedSource).or_default() += packets;
    };
    let reported = || -> Vec<(String, u64)> {
        let status = lab.reports.status(&lab.raft.state());
        let drops = status.nodes[0].drops.iter();
        drops
            .map(|dropped| (dropped.reason.clone(), dropped.packets))
            .collect()
    };
    pass(REPORT_INTERVAL * 2).await;
    assert_eq!(reported(), []);
    drop(3);
    pass(REPORT_INTERVAL * 2).await;
    assert_eq!(reported(), [("forged_source".to_owned(), 3)]);
    assert_eq!(lab.audited(), ["n1 forged 3"]);
    drop(1);
    pass(REPORT_INTERVAL * 2).await;
    drop(1);
    assert_eq!(lab.audited().len(), 1, "too soon");
    pass(AUDIT_INTERVAL).await;
    assert_eq!(lab.audited(), ["n1 forged 3", "n1 forged 2"]);
}
