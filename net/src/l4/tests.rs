//! Ports on the loopback interface, in front of small servers.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::watch,
};

use super::*;

const TCP: Port = Port {
    number: 0,
    protocol: Protocol::Tcp,
};
const UDP: Port = Port {
    number: 0,
    protocol: Protocol::Udp,
};

fn ports() -> Ports {
    Ports::new(Settings::default(), Arc::new(|_: &str| true))
}

/// A server that sends `name` and then echoes.
async fn tcp_server(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                stream.write_all(name.as_bytes()).await.unwrap();
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await; // the client may reset
            });
        }
    });
    addr
}

/// A server that answers each datagram with `name` and the datagram.
async fn udp_server(name: &'static str) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let addr = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = vec![0; 65_535];
        while let Ok((len, from)) = socket.recv_from(&mut buffer).await {
            let answer = [name.as_bytes(), &buffer[..len]].concat();
            let _ = socket.send_to(&answer, from).await; // the answer may be too long
        }
    });
    addr
}

/// An address on which nothing listens.
fn unused(protocol: Protocol) -> SocketAddr {
    match protocol {
        Protocol::Tcp => std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr(),
        Protocol::Udp => std::net::UdpSocket::bind("127.0.0.1:0")
            .unwrap()
            .local_addr(),
    }
    .unwrap()
}

fn to(addrs: &[SocketAddr]) -> Backends {
    let upstreams = addrs.iter().map(|addr| Upstream {
        replica: "web-0".into(),
        host: "here".into(),
        addr: *addr,
    });
    Backends {
        upstreams: upstreams.collect(),
        proxy_v2: false,
    }
}

fn local(addr: SocketAddr) -> SocketAddr {
    ([127, 0, 0, 1], addr.port()).into()
}

async fn open(ports: &Ports, port: Port, backends: Backends) -> SocketAddr {
    local(ports.open(port, backends).await.unwrap())
}

/// Connects and reads the name of the server; empty if the connection ends before.
async fn name_at(addr: SocketAddr) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let mut name = [0; 1];
    let name = match stream.read(&mut name).await {
        Ok(len) => String::from_utf8(name[..len].to_vec()).unwrap(),
        Err(_) => String::new(),
    };
    (stream, name)
}

async fn echoes(stream: &mut TcpStream) {
    stream.write_all(b"ping").await.unwrap();
    let mut read = [0; 4];
    stream.read_exact(&mut read).await.unwrap();
    assert_eq!(&read, b"ping");
}

async fn udp_client(port: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    // Takes datagrams from this address only.
    socket.connect(port).await.unwrap();
    socket
}

async fn ask(client: &UdpSocket, question: &[u8]) -> Vec<u8> {
    client.send(question).await.unwrap();
    let mut buffer = vec![0; 65_535];
    let len = client.recv(&mut buffer).await.unwrap();
    buffer.truncate(len);
    buffer
}

#[tokio::test]
async fn connections_take_turns_and_pass_dead_upstreams() {
    let ports = ports();
    let [a, b] = [tcp_server("a").await, tcp_server("b").await];
    let addr = open(&ports, TCP, to(&[a, unused(Protocol::Tcp), b])).await;
    let mut names = String::new();
    for _ in 0..6 {
        let (mut stream, name) = name_at(addr).await;
        echoes(&mut stream).await;
        names += &name;
    }
    assert_eq!(names, "abbabb");
    let dead = to(&[unused(Protocol::Tcp)]);
    assert_eq!(open(&ports, TCP, dead).await, addr);
    assert_eq!(name_at(addr).await.1, "", "no upstream is left to try");
}

#[tokio::test]
async fn stale_hosts_get_no_connection() {
    let fresh = Arc::new(AtomicBool::new(false));
    let is_fresh = {
        let fresh = fresh.clone();
        Arc::new(move |_: &str| fresh.load(Ordering::Relaxed))
    };
    let ports = Ports::new(Settings::default(), is_fresh);
    let addr = open(&ports, TCP, to(&[tcp_server("a").await])).await;
    assert_eq!(name_at(addr).await.1, "");
    fresh.store(true, Ordering::Relaxed);
    assert_eq!(name_at(addr).await.1, "a");
}

#[tokio::test]
async fn established_stream_outlives_upstreams_and_listener() {
    let ports = ports();
    let addr = open(&ports, TCP, to(&[tcp_server("a").await])).await;
    let (mut stream, _) = name_at(addr).await;
    open(&ports, TCP, to(&[tcp_server("b").await])).await;
    assert_eq!(name_at(addr).await.1, "b");
    echoes(&mut stream).await;
    assert!(ports.close(TCP) && !ports.close(TCP));
    ports.closed(TCP).await;
    assert_eq!(ports.open_ports(), []);
    refuses(addr).await;
    echoes(&mut stream).await;

    // The same port opens again while the stream still uses it.
    let again = Port {
        number: addr.port(),
        ..TCP
    };
    assert_eq!(
        open(&ports, again, to(&[tcp_server("c").await])).await,
        addr
    );
    assert_eq!(name_at(addr).await.1, "c");
    ports.close(again);
    assert_eq!(
        open(&ports, again, to(&[tcp_server("d").await])).await,
        addr
    );
    assert_eq!(name_at(addr).await.1, "d", "open waits for the close");
    echoes(&mut stream).await;
}

#[tokio::test]
async fn taken_port_is_an_error_and_stays_closed() {
    let other = std::net::TcpListener::bind("[::]:0").unwrap();
    let port = Port {
        number: other.local_addr().unwrap().port(),
        ..TCP
    };
    let ports = ports();
    let error = ports.open(port, Backends::default()).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    assert_eq!(ports.open_ports(), []);
    drop(other);
    ports.open(port, Backends::default()).await.unwrap();
    assert_eq!(ports.local_addr(port).unwrap().port(), port.number);
}

#[tokio::test]
async fn header_names_the_client() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let backends = Backends {
        proxy_v2: true,
        ..to(&[listener.local_addr().unwrap()])
    };
    let ports = ports();
    let addr = open(&ports, TCP, backends).await;
    let mut client = TcpStream::connect(addr).await.unwrap();
    client.write_all(b"hello").await.unwrap();
    let (mut upstream, _) = listener.accept().await.unwrap();
    let expected = proxy_protocol::header_v2(client.local_addr().unwrap(), addr);
    let mut received = vec![0; expected.len() + 5];
    upstream.read_exact(&mut received).await.unwrap();
    assert_eq!(received, [&expected[..], b"hello"].concat());
}

#[tokio::test]
async fn drain_closes_ports_and_resets_what_stays() {
    let ports = ports();
    let addr = open(&ports, TCP, to(&[tcp_server("a").await])).await;
    open(&ports, UDP, to(&[udp_server("a").await])).await;
    let (mut stream, _) = name_at(addr).await;
    ports.drain(Duration::ZERO).await;
    assert_eq!(ports.open_ports(), []);
    assert!(!matches!(stream.read(&mut [0; 8]).await, Ok(1..)));
    let addr = open(&ports, TCP, to(&[tcp_server("b").await])).await;
    let (mut stream, name) = name_at(addr).await;
    assert_eq!(name, "b", "a port opened later is not affected");
    echoes(&mut stream).await;
}

#[tokio::test]
async fn datagrams_of_a_client_stay_with_one_upstream() {
    let ports = ports();
    let upstreams = to(&[udp_server("a").await, udp_server("b").await]);
    let addr = open(&ports, UDP, upstreams).await;
    let [first, second] = [udp_client(addr).await, udp_client(addr).await];
    for _ in 0..3 {
        assert_eq!(ask(&first, b"x").await, b"ax");
        assert_eq!(ask(&second, b"y").await, b"by");
    }
    assert_eq!(ask(&first, b"").await, b"a");
    let long = vec![7; 20_000];
    assert_eq!(ask(&first, &long).await.len(), 1 + long.len());
    ports.close(UDP);
    ports.closed(UDP).await;
    let refused = async {
        loop {
            // The first datagram is lost, and its ICMP message makes the next call fail.
            if let Err(error) = first.send(b"x").await {
                return error.kind();
            }
            tokio::task::yield_now().await;
        }
    };
    assert_eq!(refused.await, io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn session_of_a_refusing_upstream_moves() {
    let ports = ports();
    let upstreams = to(&[unused(Protocol::Udp), udp_server("b").await]);
    let addr = open(&ports, UDP, upstreams).await;
    let client = udp_client(addr).await;
    let mut buffer = [0; 8];
    let answered = async {
        loop {
            client.send(b"x").await.unwrap();
            tokio::task::yield_now().await;
            if let Ok(len) = client.try_recv(&mut buffer) {
                return len;
            }
        }
    };
    let len = answered.await;
    assert_eq!(&buffer[..len], b"bx");
}

#[tokio::test]
async fn oldest_session_ends_at_the_limit() {
    let settings = Settings {
        max_sessions: 2,
        ..Settings::default()
    };
    let ports = Ports::new(settings, Arc::new(|_: &str| true));
    let upstreams = [
        udp_server("a").await,
        udp_server("b").await,
        udp_server("c").await,
    ];
    let addr = open(&ports, UDP, to(&upstreams)).await;
    let clients = [(); 3].map(|()| udp_client(addr));
    let [a, b, c] = clients;
    let (a, b, c) = (a.await, b.await, c.await);
    assert_eq!(ask(&a, b"").await, b"a");
    assert_eq!(ask(&b, b"").await, b"b");
    assert_eq!(ask(&c, b"").await, b"c");
    assert_eq!(ask(&b, b"").await, b"b", "its session is one of the two");
    assert_eq!(ask(&a, b"").await, b"a", "the turn is at the first again");
    assert_eq!(ask(&c, b"").await, b"b", "a new session, at the next turn");
}

/// Opens a port that is free on all addresses.
async fn opened(protocol: Protocol, backends: &Backends) -> (Ports, Port) {
    loop {
        let number = match protocol {
            Protocol::Tcp => std::net::TcpListener::bind("[::]:0").unwrap().local_addr(),
            Protocol::Udp => std::net::UdpSocket::bind("[::]:0").unwrap().local_addr(),
        };
        let number = number.unwrap().port();
        let port = Port { number, protocol };
        let ports = ports();
        // Another test may take the number meanwhile.
        if ports.open(port, backends.clone()).await.is_ok() {
            return (ports, port);
        }
    }
}

/// Waits until a closed port refuses connections: a child that another test forks holds a copy of
/// the listener until it runs its program.
async fn refuses(addr: SocketAddr) {
    let refused = loop {
        match TcpStream::connect(addr).await {
            Ok(_) => tokio::task::yield_now().await,
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn successors_of_a_port_refuse_no_connection() {
    let backends = to(&[tcp_server("x").await]);
    let (mut previous, port) = opened(Protocol::Tcp, &backends).await;
    let addr = SocketAddr::from(([127, 0, 0, 1], port.number));
    let (count, mut served) = watch::channel(0);
    let client = tokio::spawn(async move {
        while !count.is_closed() {
            let mut stream = TcpStream::connect(addr).await.expect("not refused");
            assert_eq!(stream.read_u8().await.expect("not reset"), b'x');
            count.send_modify(|count| *count += 1);
        }
    });
    for _ in 0..20 {
        let inherited = crate::handover::Inherited::new(previous.sockets().unwrap());
        previous.drain(Duration::from_secs(5)).await;
        let fresh = Arc::new(|_: &str| true);
        let next = Ports::inheriting(Settings::default(), fresh, inherited.clone());
        next.open(port, backends.clone()).await.unwrap();
        assert!(inherited.names().is_empty());
        previous = next;
        // One connection may have been answered by the predecessor; the one after it is new.
        for _ in 0..2 {
            if served.changed().await.is_err() {
                client.await.unwrap();
                unreachable!("the client ends with the test");
            }
        }
    }
    drop(served);
    client.await.unwrap();
    previous.close(port);
    previous.closed(port).await;
    refuses(addr).await;
}

#[tokio::test]
async fn datagrams_wait_for_the_successor() {
    let backends = to(&[udp_server("x").await]);
    let (previous, port) = opened(Protocol::Udp, &backends).await;
    let inherited = crate::handover::Inherited::new(previous.sockets().unwrap());
    previous.drain(Duration::ZERO).await;
    previous.closed(port).await;
    let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    client.connect(("127.0.0.1", port.number)).await.unwrap();
    client.send(b"ping").await.unwrap();
    let next = Ports::inheriting(Settings::default(), Arc::new(|_: &str| true), inherited);
    next.open(port, backends).await.unwrap();
    let mut answer = [0; 8];
    let len = client.recv(&mut answer).await.unwrap();
    assert_eq!(&answer[..len], b"xping");
}

#[tokio::test]
async fn inherited_socket_of_another_port_is_not_used() {
    let (previous, _) = opened(Protocol::Tcp, &Backends::default()).await;
    let (other, port) = opened(Protocol::Tcp, &Backends::default()).await;
    other.close(port);
    other.closed(port).await;
    let mut sockets = previous.sockets().unwrap();
    sockets[0].0 = port.socket_name();
    let inherited = crate::handover::Inherited::new(sockets);
    let next = Ports::inheriting(Settings::default(), Arc::new(|_: &str| true), inherited);
    let opened = next.open(port, Backends::default()).await.unwrap();
    assert_eq!(opened.port(), port.number);
}

#[tokio::test]
async fn connections_are_counted_until_they_end() {
    let ports = ports();
    let addr = open(&ports, TCP, to(&[tcp_server("a").await])).await;
    let counts = || ports.tcp_connections();
    assert_eq!(counts(), [(TCP.number, 0)]);
    let connect = async || {
        let mut client = TcpStream::connect(addr).await.unwrap();
        client.read_u8().await.unwrap();
        client
    };
    let (first, second) = (connect().await, connect().await);
    assert_eq!(counts(), [(TCP.number, 2)]);
    drop(first);
    while counts() != [(TCP.number, 1)] {
        tokio::task::yield_now().await;
    }
    // An established connection outlives its listener, and is counted as long.
    ports.close(TCP);
    assert_eq!(counts(), [(TCP.number, 1)]);
    drop(second);
    while !counts().is_empty() {
        tokio::task::yield_now().await;
    }
}
