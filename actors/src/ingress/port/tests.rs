//! The actors in their own supervision tree, with a state that the tests change and servers on the
//! loopback interface.

use std::{io::ErrorKind, net::SocketAddr, time::Duration};

use jaco_policy::ingress::{
    ports::{same_input, testing::put},
    table::{
        NodeFacts,
        testing::{add_replica, state_with_route},
    },
};
use jaco_proto::v1::TcpRoute;
use jaco_raftnode::State;
use jaco_supervision::{
    ActorInfo, ActorState, ChildSpec, KillMode, Strategy, SupervisorSpec, Tree,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    time::sleep,
};

use super::*;
use crate::{health::Hosts, ingress::ServingInput, serving::Serving, testing::FakeState};

/// Longer than the debounce.
const SETTLE: Duration = Duration::from_secs(2);
/// Longer than the delay between attempts to bind.
const RETRY: Duration = Duration::from_secs(31);

struct World {
    state: State,
    fake: Arc<FakeState>,
    serving: Serving,
    fresh: watch::Sender<Hosts>,
    ports: l4::Ports,
    tree: Tree,
}

impl World {
    async fn start() -> Self {
        let fake = FakeState::new(State::default());
        let fresh = watch::Sender::new(Hosts::default());
        let facts = NodeFacts {
            hostname: "here".to_owned(),
            https: false,
            mesh: true,
            unreached: Default::default(),
        };
        let ports = data_plane("here", fresh.subscribe(), Inherited::default());
        let input = ServingInput::new(fake.clone(), facts, fresh.subscribe());
        let serving = Serving::default();
        let installed = serving.part(same_input);
        let args = PortManagerArgs::new(input, installed, ports.clone());
        let (child, handle) = ChildSpec::worker::<PortManager>("ports", args);
        let spec = SupervisorSpec::new(Strategy::OneForOne).child(child);
        let tree = Tree::start("node", spec).await.unwrap();
        handle.running().await;
        let state = state_with_route();
        Self {
            state,
            fake,
            serving,
            fresh,
            ports,
            tree,
        }
    }

    /// Publishes a port of the system's choice for `server`, and returns its address.
    fn publish(&mut self, protocol: TransportProtocol, server: SocketAddr) -> SocketAddr {
        let probe = std::net::TcpListener::bind("[::]:0").unwrap();
        let port = probe.local_addr().unwrap().port();
        let route = TcpRoute {
            published_port: port.into(),
            deployment: "shop".to_owned(),
            service: "web".to_owned(),
            container_port: server.port().into(),
            protocol: protocol.into(),
            proxy_protocol: 0,
        };
        put(&mut self.state, route);
        ([127, 0, 0, 1], port).into()
    }

    fn add_replica(&mut self) {
        add_replica(&mut self.state, "web-0", "here", "127.0.0.1");
    }

    fn remove_replica(&mut self) {
        self.state.replicas_desired.remove("web-0");
    }

    /// Hands the state to the actors and waits until they have acted on it.
    async fn settle(&self) {
        self.fake.set(&self.state);
        sleep(SETTLE).await;
    }

    fn actor(&self, path: &str) -> Option<ActorInfo> {
        let actors = self.tree.describe();
        actors.into_iter().find(|info| info.path == path)
    }
}

fn path(port: SocketAddr, protocol: &str) -> String {
    format!("node/port:{}:{protocol}", port.port())
}

async fn tcp_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await; // the client may reset
            });
        }
    });
    addr
}

async fn echoes(stream: &mut TcpStream) {
    stream.write_all(b"ping").await.unwrap();
    let mut read = [0; 4];
    stream.read_exact(&mut read).await.unwrap();
    assert_eq!(&read, b"ping");
}

async fn connect(port: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(port).await.unwrap();
    echoes(&mut stream).await;
    stream
}

async fn assert_refused(port: SocketAddr) {
    let error = TcpStream::connect(port).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[tokio::test(start_paused = true)]
async fn port_listens_while_a_replica_serves_it() {
    let mut world = World::start().await;
    let port = world.publish(TransportProtocol::Tcp, tcp_server().await);
    world.settle().await;
    assert_refused(port).await;
    assert!(world.actor(&path(port, "tcp")).is_some());
    world.add_replica();
    world.settle().await;
    let mut stream = connect(port).await;
    world.remove_replica();
    world.settle().await;
    assert_refused(port).await;
    echoes(&mut stream).await;
    world.add_replica();
    world.settle().await;
    connect(port).await;
    echoes(&mut stream).await;
}

#[tokio::test(start_paused = true)]
async fn removed_port_closes_and_loses_its_actor() {
    let mut world = World::start().await;
    let port = world.publish(TransportProtocol::Tcp, tcp_server().await);
    world.add_replica();
    world.settle().await;
    let mut stream = connect(port).await;
    world.state.tcp_routes.clear();
    world.settle().await;
    assert_refused(port).await;
    assert!(world.actor(&path(port, "tcp")).is_none());
    echoes(&mut stream).await;
}

#[tokio::test(start_paused = true)]
async fn killed_actors_leave_listener_and_streams() {
    let mut world = World::start().await;
    let port = world.publish(TransportProtocol::Tcp, tcp_server().await);
    world.add_replica();
    world.settle().await;
    let mut stream = connect(port).await;
    for (path, mode) in [
        (path(port, "tcp"), KillMode::Kill),
        (path(port, "tcp"), KillMode::Panic),
        ("node/ports".to_owned(), KillMode::Kill),
    ] {
        let restarts = world.actor(&path).unwrap().restarts_in_window;
        world.tree.kill(&path, mode).unwrap();
        connect(port).await;
        let restarted = |info: &ActorInfo| {
            info.state == ActorState::Running && info.restarts_in_window > restarts
        };
        while !world.actor(&path).as_ref().is_some_and(restarted) {
            sleep(Duration::from_millis(10)).await;
        }
        connect(port).await;
        echoes(&mut stream).await;
    }
    world.remove_replica();
    world.settle().await;
    assert_refused(port).await;
    echoes(&mut stream).await;
}

#[tokio::test(start_paused = true)]
async fn taken_port_opens_at_a_later_attempt() {
    let mut world = World::start().await;
    let port = world.publish(TransportProtocol::Tcp, tcp_server().await);
    let other = std::net::TcpListener::bind(("::", port.port())).unwrap();
    world.add_replica();
    world.settle().await;
    assert_eq!(world.ports.open_ports(), []);
    sleep(RETRY).await;
    assert_eq!(world.ports.open_ports(), []);
    drop(other);
    sleep(RETRY).await;
    connect(port).await;
}

#[tokio::test(start_paused = true)]
async fn replica_of_a_silent_host_does_not_serve() {
    let mut world = World::start().await;
    let port = world.publish(TransportProtocol::Tcp, tcp_server().await);
    add_replica(&mut world.state, "web-1", "there", "127.0.0.1");
    world.settle().await;
    assert_refused(port).await;
    let fresh: Hosts = Arc::new(["there".to_owned()].into());
    world.fresh.send_replace(fresh);
    sleep(SETTLE).await;
    connect(port).await;
    world.fresh.send_replace(Hosts::default());
    // Before the table changes, the replica is left out when it would be picked.
    let mut stream = TcpStream::connect(port).await.unwrap();
    assert!(!matches!(stream.read(&mut [0]).await, Ok(1)));
    sleep(SETTLE).await;
    assert_refused(port).await;
}

#[tokio::test(start_paused = true)]
async fn datagrams_pass_on_a_port_of_both_protocols() {
    let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut world = World::start().await;
    let port = world.publish(TransportProtocol::Udp, server.local_addr().unwrap());
    let mut tcp = (**world.state.tcp_routes.values().next().unwrap()).clone();
    tcp.protocol = TransportProtocol::Tcp.into();
    tcp.container_port = tcp_server().await.port().into();
    put(&mut world.state, tcp);
    world.add_replica();
    world.settle().await;
    // A paused clock would jump over the timeout of the session while a datagram is on its way.
    tokio::time::resume();
    let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    client.connect(port).await.unwrap();
    client.send(b"ping").await.unwrap();
    let mut buffer = [0; 8];
    let (len, from) = server.recv_from(&mut buffer).await.unwrap();
    assert_eq!(&buffer[..len], b"ping");
    server.send_to(b"pong", from).await.unwrap();
    let len = client.recv(&mut buffer).await.unwrap();
    assert_eq!(&buffer[..len], b"pong");
    connect(port).await;
    assert!(world.actor(&path(port, "udp")).is_some() && world.actor(&path(port, "tcp")).is_some());
}

#[tokio::test(start_paused = true)]
async fn withdrawn_replica_gets_no_connection_once_reported() {
    let mut world = World::start().await;
    let port = world.publish(TransportProtocol::Tcp, tcp_server().await);
    world.add_replica();
    world.state.applied_index = 7;
    world.settle().await;
    let mut stream = connect(port).await;
    world.remove_replica();
    world.state.applied_index = 8;
    world.fake.set(&world.state);
    assert_eq!(world.serving.reached(&*world.fake, 8).await, 8);
    // The port may still be open for a moment, but leads to no replica.
    if let Ok(mut late) = TcpStream::connect(port).await {
        let _ = late.write_all(b"ping").await;
        assert!(!matches!(late.read(&mut [0]).await, Ok(1)));
    }
    echoes(&mut stream).await;
}
