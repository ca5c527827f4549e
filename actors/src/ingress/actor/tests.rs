//! The actor in its own supervision tree, with a state that the tests change.

use std::{io::ErrorKind, net::Ipv6Addr};

use jaco_net::{ingress::Settings, limit::Limits};
use jaco_policy::{
    ingress::{
        ports,
        table::{
            NodeFacts,
            testing::{add_replica, state_with_route},
        },
        view::{DEBOUNCE, MAX_DEBOUNCE},
    },
    network::readiness::MeshStatus,
};
use jaco_proto::v1::{self, TransportProtocol};
use jaco_raftnode::State;
use jaco_supervision::{ChildSpec, Handle, KillMode, Strategy, SupervisorSpec, Tree};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{oneshot, watch},
    time::{Instant, sleep},
};

use super::*;
use crate::{health::Hosts, serving::Serving, testing::FakeState};

struct World {
    proxy: Proxy,
    serving: Serving,
    handle: Handle<Msg>,
    tree: Tree,
}

const PATH: &str = "node/proxy";

async fn start(state: Arc<FakeState>, http_port: u16) -> World {
    // No other host is ever fresh.
    let (_, fresh) = watch::channel(Hosts::default());
    start_with(state, fresh, http_port).await
}

async fn start_with(state: Arc<FakeState>, fresh: watch::Receiver<Hosts>, http_port: u16) -> World {
    start_in(state, fresh, None, None, http_port).await
}

async fn start_in(
    state: Arc<FakeState>,
    fresh: watch::Receiver<Hosts>,
    mesh: Option<watch::Receiver<MeshStatus>>,
    secrets_key: Option<watch::Receiver<Option<Arc<SecretsKey>>>>,
    http_port: u16,
) -> World {
    let facts = NodeFacts {
        hostname: "here".to_owned(),
        https: false,
        mesh: true,
        unreached: Default::default(),
    };
    let (proxy, serving) = (Proxy::new(Settings::default()), Serving::default());
    let mut input = ServingInput::new(state, facts, fresh);
    if let Some(mesh) = mesh {
        input = input.with_mesh(mesh);
    }
    let installed = serving.part(same_input);
    let mut args = ProxyArgs::new(input, installed, http_port, proxy.clone()).with_https(0);
    if let Some(key) = secrets_key {
        args = args.with_secrets_key(key);
    }
    let (child, handle) = ChildSpec::worker::<ProxyActor>("proxy", args);
    let tree = Tree::start(
        "node",
        SupervisorSpec::new(Strategy::OneForOne).child(child),
    );
    let tree = tree.await.unwrap();
    handle.running().await;
    World {
        proxy,
        serving,
        handle,
        tree,
    }
}

impl World {
    async fn listening(&self) -> Option<SocketAddr> {
        self.handle
            .call(Duration::from_secs(60), |reply| {
                Msg::ListenAddr(Scheme::Http, reply)
            })
            .await
            .unwrap()
    }

    async fn restarted(&self, mode: KillMode) {
        self.tree.kill(PATH, mode).unwrap();
        self.restarted_after_kill().await;
    }

    async fn restarted_after_kill(&self) {
        while self.handle.is_running() {
            tokio::task::yield_now().await;
        }
        self.handle.running().await;
    }

    /// Ids of the replicas in the route table.
    fn served(&self) -> Vec<String> {
        self.proxy
            .table()
            .upstreams()
            .map(|upstream| upstream.replica.to_string())
            .collect()
    }
}

#[tokio::test(start_paused = true)]
async fn burst_of_changes_becomes_one_table() {
    let mut state = state_with_route();
    let fake = FakeState::new(state.clone());
    let world = start(fake.clone(), 0).await;
    for n in 0..3 {
        add_replica(&mut state, &format!("web-{n}"), "here", "10.1.0.2");
        fake.set(&state);
        sleep(DEBOUNCE - Duration::from_millis(1)).await;
        assert_eq!(world.served(), [""; 0]);
    }
    sleep(Duration::from_millis(2)).await;
    assert_eq!(world.served(), ["web-0", "web-1", "web-2"]);
}

#[tokio::test(start_paused = true)]
async fn steady_changes_are_applied_within_a_second() {
    let mut state = state_with_route();
    let fake = FakeState::new(state.clone());
    let world = start(fake.clone(), 0).await;
    for n in 0..10 {
        assert_eq!(world.served(), [""; 0]);
        add_replica(&mut state, &format!("web-{n}"), "here", "10.1.0.2");
        fake.set(&state);
        sleep(MAX_DEBOUNCE / 10).await;
    }
    sleep(Duration::from_millis(1)).await;
    assert_eq!(world.served().len(), 10);
}

#[tokio::test(start_paused = true)]
async fn unrelated_changes_do_not_delay_a_table() {
    let mut state = state_with_route();
    let fake = FakeState::new(state.clone());
    let world = start(fake.clone(), 0).await;
    add_replica(&mut state, "web-0", "here", "10.1.0.2");
    for n in 0..4 {
        state.applied_index = n;
        fake.set(&state);
        sleep(DEBOUNCE / 4).await;
    }
    sleep(Duration::from_millis(1)).await;
    assert_eq!(world.served(), ["web-0"]);
}

#[tokio::test(start_paused = true)]
async fn port_opens_with_first_route_and_stays_open() {
    let fake = FakeState::new(State::default());
    let world = start(fake.clone(), 0).await;
    assert_eq!(world.listening().await, None);

    fake.set(&state_with_route());
    sleep(DEBOUNCE * 2).await;
    let opened = world.listening().await;
    assert!(opened.is_some());

    fake.set(&State::default());
    sleep(DEBOUNCE * 2).await;
    assert!(world.proxy.table().is_empty());
    assert_eq!(world.listening().await, opened);

    world.restarted(KillMode::Kill).await;
    assert_eq!(world.listening().await, opened, "also after a restart");
}

#[tokio::test(start_paused = true)]
async fn published_tcp_port_opens_the_ingress() {
    let mut state = State::default();
    ports::testing::publish(&mut state, 5353, TransportProtocol::Udp);
    let fake = FakeState::new(state.clone());
    let world = start(fake.clone(), 0).await;
    assert_eq!(world.listening().await, None);

    ports::testing::publish(&mut state, 5432, TransportProtocol::Tcp);
    fake.set(&state);
    sleep(DEBOUNCE * 2).await;
    let opened = world.listening().await;
    assert!(opened.is_some());

    fake.set(&State::default());
    sleep(DEBOUNCE * 2).await;
    assert_eq!(world.listening().await, opened);
}

#[tokio::test(start_paused = true)]
async fn port_in_use_is_retried() {
    let holder = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).await.unwrap();
    let port = holder.local_addr().unwrap().port();
    let world = start(FakeState::new(state_with_route()), port).await;
    assert_eq!(world.listening().await, None);
    drop(holder);
    sleep(BIND_RETRY - Duration::from_millis(1)).await;
    assert_eq!(world.listening().await, None);
    sleep(Duration::from_millis(2)).await;
    assert_eq!(world.listening().await.unwrap().port(), port);
}

#[tokio::test(start_paused = true)]
async fn busy_port_does_not_affect_the_other() {
    let holder = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).await.unwrap();
    let port = holder.local_addr().unwrap().port();
    let world = start(FakeState::new(state_with_route()), port).await;
    assert_eq!(world.listening().await, None);
    let secure = world.proxy.listening(Scheme::Https).unwrap();
    TcpStream::connect(("127.0.0.1", secure.port()))
        .await
        .unwrap();
}

// Without a paused clock, which would advance to the end of the grace period at once: the listeners
// close on threads of their own.
#[tokio::test]
async fn stop_closes_the_port() {
    let world = start(FakeState::new(state_with_route()), 0).await;
    let port = world.listening().await.unwrap().port();
    world.tree.stop().await;
    let refused = TcpStream::connect(("127.0.0.1", port)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

async fn ask(port: u16) -> TcpStream {
    let mut client = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let request = b"GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";
    client.write_all(request).await.unwrap();
    client
}

async fn answer(mut client: TcpStream) -> String {
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    answer.split(' ').nth(1).unwrap().to_owned()
}

#[tokio::test]
async fn running_request_survives_its_actor() {
    let replica = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut state = state_with_route();
    add_replica(&mut state, "web-0", "here", "127.0.0.1");
    let key = ("a.example".to_owned(), String::new());
    let mut route = (**state.routes.get(&key).unwrap()).clone();
    route.port = replica.local_addr().unwrap().port().into();
    state.routes.insert(key, Arc::new(route));
    let world = start(FakeState::new(state), 0).await;

    let port = world.listening().await.unwrap().port();
    for mode in [KillMode::Kill, KillMode::Panic] {
        let client = ask(port).await;
        let (mut asked, _) = replica.accept().await.unwrap();
        world.tree.kill(PATH, mode).unwrap();
        // The listener is not the actor's: it accepts before, while and after the actor restarts.
        let next = ask(port).await;
        let (mut asked_next, _) = replica.accept().await.unwrap();
        world.restarted_after_kill().await;
        assert_eq!(world.listening().await.unwrap().port(), port);
        for stream in [&mut asked, &mut asked_next] {
            stream.read_u8().await.unwrap();
            stream
                .write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
                .await
                .unwrap();
        }
        drop((asked, asked_next));
        assert_eq!(answer(client).await, "204");
        assert_eq!(answer(next).await, "204");
    }
    world.tree.stop().await;
}

#[tokio::test]
async fn stop_drains_running_requests() {
    let replica = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut state = state_with_route();
    add_replica(&mut state, "web-0", "here", "127.0.0.1");
    let key = ("a.example".to_owned(), String::new());
    let mut route = (**state.routes.get(&key).unwrap()).clone();
    route.port = replica.local_addr().unwrap().port().into();
    state.routes.insert(key, Arc::new(route));
    let world = start(FakeState::new(state), 0).await;
    let port = world.listening().await.unwrap().port();
    let client = ask(port).await;
    let (mut asked, _) = replica.accept().await.unwrap();
    // A response before its request would count as a failure of the replica.
    asked.read_u8().await.unwrap();

    let (stopped, stop) = oneshot::channel();
    let tree = world.tree.clone();
    tokio::spawn(async move {
        tree.stop().await;
        stopped.send(()).unwrap();
    });
    while TcpStream::connect(("127.0.0.1", port)).await.is_ok() {}
    asked
        .write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
        .await
        .unwrap();
    assert_eq!(answer(client).await, "204");
    stop.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn replicas_serve_only_while_their_host_is_fresh() {
    let mut state = state_with_route();
    add_replica(&mut state, "web-0", "here", "10.1.0.2");
    add_replica(&mut state, "web-1", "there", "10.1.1.2");
    let hosts =
        |hosts: &[&str]| -> Hosts { Arc::new(hosts.iter().map(|&host| host.to_owned()).collect()) };
    let (fresh, watched) = watch::channel(hosts(&["here", "there"]));
    let world = start_with(FakeState::new(state), watched, 0).await;
    assert_eq!(world.served(), ["web-0", "web-1"]);
    for (now, expected) in [
        (&["here"][..], &["web-0"][..]),
        (&["here", "there"], &["web-0", "web-1"]),
        (&[], &["web-0"]),
    ] {
        fresh.send_replace(hosts(now));
        sleep(MAX_DEBOUNCE).await;
        assert_eq!(world.served(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn remote_replicas_serve_while_the_mesh_is_up() {
    let mut state = state_with_route();
    add_replica(&mut state, "web-0", "here", "10.1.0.2");
    add_replica(&mut state, "web-1", "there", "10.1.1.2");
    let fresh: Hosts = Arc::new(["here", "there"].map(str::to_owned).into());
    let down = || MeshStatus::Unavailable("no device".to_owned());
    let without = |block: &str| MeshStatus::Partial {
        reason: "no route".to_owned(),
        unreached: [block.parse().unwrap()].into(),
    };
    let (mesh, watched) = watch::channel(down());
    let fresh = watch::channel(fresh).1;
    let world = start_in(FakeState::new(state), fresh, Some(watched), None, 0).await;
    assert_eq!(world.served(), ["web-0"]);
    for (status, expected) in [
        (MeshStatus::Up, &["web-0", "web-1"][..]),
        (down(), &["web-0"]),
        (without("10.2.0.0/24"), &["web-0", "web-1"]),
        (without("10.1.1.0/24"), &["web-0"]),
    ] {
        mesh.send_replace(status);
        sleep(MAX_DEBOUNCE).await;
        assert_eq!(world.served(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn withdrawal_is_reported_once_the_table_lacks_it() {
    let mut state = state_with_route();
    add_replica(&mut state, "web-0", "here", "10.1.0.2");
    state.applied_index = 7;
    let fake = FakeState::new(state.clone());
    let world = start(fake.clone(), 0).await;
    assert_eq!(world.serving.reached(&*fake, 7).await, 7);

    state.replicas_desired.remove("web-0");
    state.applied_index = 8;
    let reached = tokio::spawn(world.serving.reached(&*fake, 8));
    fake.set(&state);
    sleep(DEBOUNCE - Duration::from_millis(1)).await;
    assert_eq!(world.served(), ["web-0"]);
    assert!(!reached.is_finished());
    assert_eq!(reached.await.unwrap(), 8);
    assert_eq!(world.served(), [""; 0]);

    // An entry without an effect on the routing is in force as soon as it is applied.
    state.applied_index = 9;
    fake.set(&state);
    let now = Instant::now();
    assert_eq!(world.serving.reached(&*fake, 9).await, 9);
    assert_eq!(now.elapsed(), Duration::ZERO);
}

/// An actor with an inherited socket, whose only replica is on a host that `fresh` does not name yet.
struct Waiting {
    proxy: Proxy,
    addr: SocketAddr,
    inherited: Inherited,
    fresh: watch::Sender<Hosts>,
    tree: Tree,
}

async fn waiting() -> Waiting {
    let mut state = state_with_route();
    add_replica(&mut state, "web-1", "there", "10.1.1.2");
    let proxy = Proxy::new(Settings::default());
    let sockets = ListenSockets::bind_all(0, proxy.workers()).unwrap();
    let addr = sockets.local_addr();
    let named = sockets.into_fds().into_iter();
    let named = named.map(|socket| (Scheme::Http.socket_name().to_owned(), socket));
    let inherited = Inherited::new(named);
    let facts = NodeFacts {
        hostname: "here".to_owned(),
        https: false,
        mesh: true,
        unreached: Default::default(),
    };
    let (fresh, watched) = watch::channel(Hosts::default());
    let input = ServingInput::new(FakeState::new(state), facts, watched);
    let installed = Serving::default().part(same_input);
    let args = ProxyArgs::new(input, installed, addr.port(), proxy.clone());
    let args = args.with_inherited(inherited.clone());
    let (child, handle) = ChildSpec::worker::<ProxyActor>("proxy", args);
    let spec = SupervisorSpec::new(Strategy::OneForOne).child(child);
    let tree = Tree::start("node", spec).await.unwrap();
    handle.running().await;
    sleep(SETTLE_TIMEOUT / 2).await;
    assert_eq!(proxy.listening(Scheme::Http), None);
    Waiting {
        proxy,
        addr,
        inherited,
        fresh,
        tree,
    }
}

#[tokio::test(start_paused = true)]
async fn inherited_sockets_wait_for_the_routes() {
    for known in [true, false] {
        let world = waiting().await;
        // Clients connect meanwhile, and wait.
        TcpStream::connect(("127.0.0.1", world.addr.port()))
            .await
            .unwrap();
        if known {
            world
                .fresh
                .send_replace(Arc::new(["there".to_owned()].into()));
            sleep(MAX_DEBOUNCE).await;
        } else {
            sleep(SETTLE_TIMEOUT).await;
        }
        let listening = world.proxy.listening(Scheme::Http);
        assert_eq!(listening, Some(world.addr), "{known}");
        assert!(world.inherited.names().is_empty());
        world.tree.kill("node/proxy", KillMode::Kill).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn sockets_waiting_for_routes_are_passed_on() {
    let world = waiting().await;
    let open = || {
        let sockets = world.proxy.sockets()?.into_iter();
        let named = sockets.flat_map(|(scheme, it)| {
            let name = move |socket| (scheme.socket_name().to_owned(), socket);
            it.into_fds().into_iter().map(name)
        });
        Ok(named.collect())
    };
    let passed = world.inherited.pass_on(open).unwrap();
    assert_eq!(passed.len(), world.proxy.workers().get());
    // The port belongs to the successor: it is not bound a second time.
    sleep(SETTLE_TIMEOUT * 2).await;
    assert_eq!(world.proxy.listening(Scheme::Http), None);
    let sockets = passed.into_iter().map(|(_, socket)| socket).collect();
    let successor = ListenSockets::inherited(sockets).unwrap();
    assert_eq!(successor.local_addr(), world.addr);
    world.tree.kill("node/proxy", KillMode::Kill).unwrap();
}

/// A state with the route changed by `change`.
fn state_with(change: impl FnOnce(&mut v1::Route)) -> State {
    let mut state = state_with_route();
    let key = ("a.example".to_owned(), String::new());
    let route = state.routes.get_mut(&key).unwrap();
    change(Arc::make_mut(route));
    state
}

fn set_config(state: &mut State, key: &str, value: &str) {
    let row = v1::ClusterConfig {
        key: key.to_owned(),
        value: value.to_owned(),
        ..Default::default()
    };
    state.cluster_config.insert(key.to_owned(), Arc::new(row));
}

#[tokio::test(start_paused = true)]
async fn cluster_configuration_changes_limits_and_trust() {
    let mut state = state_with_route();
    let fake = FakeState::new(state.clone());
    let world = start(fake.clone(), 0).await;
    let limits = || {
        let table = world.proxy.table();
        table.routes("a.example")[0].limits().copied()
    };
    let trusts = || {
        world
            .proxy
            .table()
            .trusted_proxies()
            .contains([10, 1, 2, 3].into())
    };
    assert_eq!((limits(), trusts()), (None, false));
    set_config(&mut state, "ingress.limits", "20,5,10");
    set_config(&mut state, "ingress.trusted_proxies", "10.0.0.0/8");
    fake.set(&state);
    sleep(DEBOUNCE * 2).await;
    let expected = Limits {
        rps: 20.0,
        burst: 100,
        connections: 10,
    };
    assert_eq!((limits(), trusts()), (Some(expected), true));
    let mut state = state_with(|route| {
        route.limits = Some(v1::RouteLimits {
            off: true,
            ..Default::default()
        });
    });
    set_config(&mut state, "ingress.limits", "20,5,10");
    fake.set(&state);
    sleep(DEBOUNCE * 2).await;
    assert_eq!((limits(), trusts()), (None, false));
}

#[tokio::test(start_paused = true)]
async fn sticky_sessions_begin_with_their_key() {
    let state = state_with(|route| {
        route.affinity = Some(v1::RouteAffinity {
            cookie: "at".to_owned(),
            ttl_s: 60,
            same_site: "strict".to_owned(),
        });
    });
    let mut state = state;
    add_replica(&mut state, "web-0", "here", "10.1.0.2");
    let (_, fresh) = watch::channel(Hosts::default());
    let (keys, key) = watch::channel(None);
    let world = start_in(FakeState::new(state), fresh, None, Some(key), 0).await;
    let cookie = || {
        let table = world.proxy.table();
        table.routes("a.example")[0].cookie().map(str::to_owned)
    };
    assert_eq!(cookie(), None);
    keys.send_replace(Some(Arc::new(SecretsKey::new([1; 32]))));
    sleep(DEBOUNCE * 2).await;
    assert_eq!(cookie().as_deref(), Some("at"));
    let first = world.proxy.table();
    keys.send_replace(Some(Arc::new(SecretsKey::new([2; 32]))));
    sleep(DEBOUNCE * 2).await;
    assert_eq!(cookie().as_deref(), Some("at"));
    assert!(
        *world.proxy.table() != *first,
        "cookies of the old key name no replica"
    );
    world.restarted(KillMode::Kill).await;
    assert_eq!(cookie().as_deref(), Some("at"), "also after a restart");
}

#[tokio::test]
async fn limited_client_is_refused_by_the_data_plane() {
    let replica = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut state = state_with(|route| {
        route.port = replica.local_addr().unwrap().port().into();
        route.limits = Some(v1::RouteLimits {
            rps: 0.001,
            burst: 1,
            connections: 1,
            ..Default::default()
        });
    });
    add_replica(&mut state, "web-0", "here", "127.0.0.1");
    let world = start(FakeState::new(state), 0).await;
    let port = world.listening().await.unwrap().port();
    let client = ask(port).await;
    let (mut asked, _) = replica.accept().await.unwrap();
    asked.read_u8().await.unwrap();
    asked
        .write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
        .await
        .unwrap();
    assert_eq!(answer(client).await, "204");
    assert_eq!(answer(ask(port).await).await, "429");
    // The counts are not the actor's.
    world.restarted(KillMode::Panic).await;
    assert_eq!(answer(ask(port).await).await, "429");
}

#[tokio::test]
async fn http3_is_served_beside_tls() {
    let world = start(FakeState::new(state_with_route()), 0).await;
    world.listening().await.unwrap();
    let tls = world.proxy.listening(Scheme::Https).unwrap();
    assert_eq!(world.proxy.listening_http3().unwrap().port(), tls.port());
    world.tree.stop().await;
    assert_eq!(world.proxy.listening_http3(), None);
}
