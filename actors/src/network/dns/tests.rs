//! The actors in their own supervision tree, with clients and upstream servers on loopback
//! addresses.

mod external;
mod hostile;
mod libc;
mod limits;

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddr},
    sync::atomic::{AtomicU8, Ordering},
};

use hickory_proto::{
    op::{Message, MessageType, OpCode, Query, ResponseCode},
    rr::{Name, RData, RecordType},
};
use jaco_engine::cidr::Cidr;
use jaco_net::dns::{exchange_tcp, exchange_udp};
use jaco_policy::{
    ingress::table::testing::{add_replica, state_with_route},
    network::{dns::wire, names::NetworkId},
};
use jaco_raftnode::State;
use jaco_supervision::{KillMode, Strategy, SupervisorSpec, Tree};
use tokio::{net::UdpSocket, time::timeout};

use super::*;
use crate::{clock::Clock, network::responders::Responders, testing::FakeState};

/// Longest wait for something that must happen.
const PATIENCE: Duration = Duration::from_secs(20);
/// Gateways of two networks; each test has its own.
const FRONT: u8 = 1;
const BACK: u8 = 17;
/// Number of the next test.
static WORLDS: AtomicU8 = AtomicU8::new(0);

struct World {
    tree: Tree,
    directory: Directory,
    state: Arc<FakeState>,
    installed: Installed,
    upstreams: Arc<[Upstream]>,
    fresh: watch::Sender<Hosts>,
    metrics: Metrics,
    number: u8,
    port: u16,
}

/// A port that is free at every loopback address.
async fn free_port() -> u16 {
    let socket = UdpSocket::bind("0.0.0.0:0").await.unwrap();
    socket.local_addr().unwrap().port()
}

fn hosts(names: &[&str]) -> Hosts {
    Arc::new(
        names
            .iter()
            .map(|name| (*name).to_owned())
            .collect::<BTreeSet<_>>(),
    )
}

/// Deployment `shop` with service `web` on networks `front` and `_default`.
fn shop() -> State {
    let mut state = state_with_route();
    add_replica(&mut state, "shop-web-0", "there", "10.1.0.2");
    state
}

async fn world_with(config: DnsConfig, state: State) -> World {
    let port = free_port().await;
    world_at(port, config, state).await
}

async fn world_at(port: u16, config: DnsConfig, state: State) -> World {
    let state = FakeState::new(state);
    let (fresh, watched) = watch::channel(hosts(&["here", "there"]));
    let (directory, metrics) = (Directory::default(), Metrics::new("here", Clock::system()));
    let installed = Installed::default();
    let upstreams = upstream::configured(&config, Pool::default());
    let args = Args {
        host: "here".to_owned(),
        raft: state.clone(),
        fresh: watched,
        pool: Pool::default(),
        config: DnsConfig { port, ..config },
        metrics: metrics.clone(),
        directory: directory.clone(),
        installed: installed.clone(),
    };
    let children = children_with(args, Arc::clone(&upstreams));
    let spec = SupervisorSpec::new(Strategy::OneForOne);
    let spec = children.into_iter().fold(spec, SupervisorSpec::child);
    World {
        tree: Tree::start("network", spec).await.unwrap(),
        directory,
        state,
        installed,
        upstreams,
        fresh,
        metrics,
        number: WORLDS.fetch_add(1, Ordering::SeqCst),
        port,
    }
}

async fn world() -> World {
    let config = DnsConfig {
        resolv_conf: "/dev/null".into(),
        ..DnsConfig::default()
    };
    world_with(config, shop()).await
}

fn query(name: &str, kind: RecordType) -> Message {
    let mut message = Message::new(0x4a43, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    let mut name = Name::from_ascii(name).unwrap();
    name.set_fqdn(true);
    message.add_query(Query::query(name, kind));
    message
}

impl World {
    /// Address of a gateway; every address of the loopback network exists.
    fn at(&self, gateway: u8) -> SocketAddr {
        (Ipv4Addr::new(127, 53, self.number, gateway), self.port).into()
    }

    /// Asks a responder once.
    async fn try_ask(&self, gateway: u8, message: &Message, tcp: bool) -> Option<Message> {
        let query = message.to_vec().unwrap();
        let accept = |reply: &[u8]| wire::answers(&query, reply);
        let reply = if tcp {
            exchange_tcp(self.at(gateway), &query, accept).await
        } else {
            exchange_udp(self.at(gateway), &query, accept).await
        };
        reply.ok().map(|reply| Message::from_vec(&reply).unwrap())
    }

    /// Asks a responder once it listens.
    async fn ask(&self, gateway: u8, message: &Message, tcp: bool) -> Message {
        let asked = async {
            loop {
                self.listens(gateway, true).await;
                // One that was killed may have listened until now.
                if let Some(reply) = self.try_ask(gateway, message, tcp).await {
                    return reply;
                }
            }
        };
        timeout(PATIENCE, asked).await.unwrap()
    }

    /// Waits until a responder listens at a gateway, or none does.
    async fn listens(&self, gateway: u8, expected: bool) {
        let mut listening = self.directory.listening();
        let is_expected =
            |all: &directory::Listening| all.contains_key(&self.at(gateway)) == expected;
        let changed = timeout(PATIENCE, listening.wait_for(is_expected)).await;
        changed.unwrap().unwrap();
    }

    async fn addresses(&self, gateway: u8, name: &str) -> Vec<String> {
        let reply = self.ask(gateway, &query(name, RecordType::A), false).await;
        let found = reply.answers.iter().map(|record| match &record.data {
            RData::A(address) => address.to_string(),
            other => panic!("{other}"),
        });
        let mut found: Vec<_> = found.collect();
        found.sort();
        found
    }

    /// Asserts that a name has exactly these addresses once the newest state is in force.
    async fn resolves(&self, gateway: u8, name: &str, expected: &[&str]) {
        let newest = self.state.state();
        let is_newest = |state: &Option<Arc<State>>| {
            state
                .as_deref()
                .is_some_and(|state| same_input(state, &newest))
        };
        let mut installed = self.installed.subscribe();
        let changed = timeout(PATIENCE, installed.wait_for(is_newest)).await;
        changed.unwrap().unwrap();
        assert_eq!(self.addresses(gateway, name).await, expected);
    }

    fn ensure(&self, network: &str, gateway: u8) {
        let base = Ipv4Addr::new(127, 53, self.number, gateway - 1);
        let network = NetworkId::new("shop", network);
        self.directory
            .ensure(&network, Cidr::new(base, 28).unwrap());
    }

    /// Ends an actor, which may be about to start.
    async fn kill(&self, path: &str, mode: KillMode) {
        let killed = async {
            while self.tree.kill(path, mode).is_err() {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, killed).await.unwrap();
    }
}

#[tokio::test]
async fn each_network_has_its_own_names() {
    let world = world().await;
    world.ensure("front", FRONT);
    world.ensure("back", BACK);
    for tcp in [false, true] {
        for (gateway, name, kind, code, answers) in [
            (FRONT, "WeB", RecordType::A, ResponseCode::NoError, 1),
            (
                FRONT,
                "web.shop.jaco.internal",
                RecordType::A,
                ResponseCode::NoError,
                1,
            ),
            (FRONT, "web", RecordType::AAAA, ResponseCode::NoError, 0),
            (FRONT, "nothing", RecordType::A, ResponseCode::NXDomain, 0),
            (BACK, "web", RecordType::A, ResponseCode::NXDomain, 0),
            (
                FRONT,
                "www.example",
                RecordType::A,
                ResponseCode::ServFail,
                0,
            ),
        ] {
            let asked = query(name, kind);
            let reply = world.ask(gateway, &asked, tcp).await;
            assert_eq!(reply.metadata.response_code, code, "{name} {kind}");
            assert_eq!(reply.answers.len(), answers, "{name} {kind}");
            assert_eq!(reply.queries, asked.queries);
            assert_eq!(reply.queries[0].name().to_string(), format!("{name}."));
            assert_eq!(reply.metadata.authoritative, name != "www.example");
            assert!(reply.metadata.recursion_available);
        }
    }
    let text = world.metrics.render();
    let line = r#"jaco_dns_queries_total{node="here",kind="service",rcode="NXDOMAIN"} 4"#;
    assert!(text.contains(line), "{text}");
}

#[tokio::test]
async fn answers_follow_the_state_and_liveness() {
    let world = world().await;
    world.ensure("front", FRONT);
    world.resolves(FRONT, "web", &["10.1.0.2"]).await;
    let mut state = shop();
    add_replica(&mut state, "shop-web-1", "elsewhere", "10.2.0.2");
    add_replica(&mut state, "shop-web-2", "there", "10.1.0.3");
    world.state.set(&state);
    world
        .resolves(FRONT, "web", &["10.1.0.2", "10.1.0.3"])
        .await;
    world
        .fresh
        .send_replace(hosts(&["here", "there", "elsewhere"]));
    let all = ["10.1.0.2", "10.1.0.3", "10.2.0.2"];
    assert_eq!(world.addresses(FRONT, "web").await, all);
    world.fresh.send_replace(hosts(&[]));
    assert_eq!(world.addresses(FRONT, "web").await, [""; 0]);
    add_replica(&mut state, "shop-web-3", "here", "10.0.0.2");
    world.state.set(&state);
    world.resolves(FRONT, "web", &["10.0.0.2"]).await;
    world.fresh.send_replace(hosts(&["here", "there"]));
    assert_eq!(
        world.addresses(FRONT, "web").await,
        ["10.0.0.2"],
        "local first"
    );
}

#[tokio::test]
async fn responder_moves_with_its_gateway() {
    let world = world().await;
    world.ensure("front", FRONT);
    world.resolves(FRONT, "web", &["10.1.0.2"]).await;
    world.ensure("front", BACK);
    world.resolves(BACK, "web", &["10.1.0.2"]).await;
    let asked = query("web", RecordType::A);
    assert!(world.try_ask(FRONT, &asked, true).await.is_none());
    world.directory.remove(&NetworkId::new("shop", "front"));
    world.listens(BACK, false).await;
    assert!(world.try_ask(BACK, &asked, true).await.is_none());
}

#[tokio::test]
async fn responder_waits_for_its_address() {
    let world = world().await;
    let taken = UdpSocket::bind(world.at(FRONT)).await.unwrap();
    world.ensure("front", FRONT);
    world.ensure("back", BACK);
    // The other responder is not delayed.
    world.resolves(BACK, "nothing", &[]).await;
    drop(taken);
    world.resolves(FRONT, "web", &["10.1.0.2"]).await;
}

#[tokio::test]
async fn killed_actors_leave_names_intact() {
    let world = world().await;
    world.ensure("front", FRONT);
    world.resolves(FRONT, "web", &["10.1.0.2"]).await;
    for path in [
        "network/dns-records",
        "network/responders",
        "network/dns:shop:front",
    ] {
        for mode in [KillMode::Panic, KillMode::Kill] {
            world.kill(path, mode).await;
            world.resolves(FRONT, "web", &["10.1.0.2"]).await;
        }
    }
    let mut state = shop();
    add_replica(&mut state, "shop-web-0", "there", "10.1.0.9");
    world.state.set(&state);
    world.resolves(FRONT, "web", &["10.1.0.9"]).await;
    // The next manager knows the requests.
    world.ensure("front", BACK);
    world.resolves(BACK, "web", &["10.1.0.9"]).await;
}
