use super::*;

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn bind(count: usize) -> DatagramSockets {
    DatagramSockets::bind(LOOPBACK, NonZeroUsize::new(count).unwrap()).unwrap()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Initial,
    Handshake,
    Short,
}

/// A packet with a connection id that begins with `first`, and with the bit of `generation`.
fn packet(kind: Kind, first: u8, generation: Generation) -> Vec<u8> {
    let second = 0x5a | generation.bit();
    let long = |first_byte| [&[first_byte, 0, 0, 0, 1, 8, first, second][..], &[0; 40]].concat();
    match kind {
        Kind::Initial => long(0xc3),
        Kind::Handshake => long(0xe3),
        Kind::Short => [&[0x40, first, second][..], &[0xff; 40]].concat(),
    }
}

/// Which sockets received a packet; it is read.
fn received(sockets: &DatagramSockets) -> Vec<(Generation, usize)> {
    let mut buffer = [0; 64];
    let mut at = Vec::new();
    for generation in [Generation::Even, Generation::Odd] {
        for (number, socket) in generation.of(&sockets.sets).iter().enumerate() {
            if socket.recv(&mut buffer).is_ok() {
                at.push((generation, number));
            }
        }
    }
    at
}

#[test]
fn packets_reach_the_socket_of_their_connection() {
    let sockets = bind(3);
    assert!(sockets.routes_by_connection());
    let kinds = [Kind::Initial, Kind::Handshake, Kind::Short];
    for newest in [Generation::Even, Generation::Odd] {
        sockets.route_new(newest).unwrap();
        for first in (0..=255_u8).step_by(7) {
            for (kind, named) in kinds
                .into_iter()
                .flat_map(|kind| [(kind, Generation::Even), (kind, Generation::Odd)])
            {
                // Every packet comes from another port, as if its client had moved.
                let client = UdpSocket::bind(LOOPBACK).unwrap();
                let packet = packet(kind, first, named);
                client.send_to(&packet, sockets.local_addr()).unwrap();
                let set = if kind == Kind::Initial { newest } else { named };
                let expected = (set, usize::from(first) % 3);
                assert_eq!(received(&sockets), [expected], "{kind:?} {first} {named:?}");
            }
        }
    }
}

#[test]
fn successors_get_new_connections_and_keep_the_numbers() {
    let mut sockets = bind(2);
    let addr = sockets.local_addr();
    let client = UdpSocket::bind(LOOPBACK).unwrap();
    let stale = packet(Kind::Short, 0, Generation::Odd);
    client.send_to(&stale, addr).unwrap();
    for _ in 0..3 {
        let next = sockets.hand_over().unwrap().unwrap();
        let mut named = next.into_named();
        named.reverse(); // a service manager need not keep the order
        let next = DatagramSockets::inherited(named).unwrap();
        assert_eq!(next.generation(), sockets.generation().next());
        assert_eq!(received(&next), [], "nothing stale is left");
        for number in [0, 1] {
            let running = packet(Kind::Short, number, sockets.generation());
            client.send_to(&running, addr).unwrap();
            let expected = (sockets.generation(), usize::from(number));
            assert_eq!(received(&next), [expected]);
            let new = packet(Kind::Initial, number, sockets.generation());
            client.send_to(&new, addr).unwrap();
            assert_eq!(received(&next), [(next.generation(), usize::from(number))]);
        }
        sockets = next;
    }
}

#[test]
fn incomplete_group_of_sockets_is_not_inherited() {
    let named = || bind(2).hand_over().unwrap().unwrap().into_named();
    DatagramSockets::inherited(named()).unwrap();
    let mut incomplete = named();
    incomplete.pop();
    let mut doubled = named();
    doubled[1].0 = doubled[0].0.clone();
    let mut foreign = named();
    foreign[0].1 = UdpSocket::bind(LOOPBACK).unwrap().into();
    let mut listening = named();
    listening[0].1 = std::net::TcpListener::bind(LOOPBACK).unwrap().into();
    let mut misnamed = named();
    misnamed[0].0.push_str(".1");
    for wrong in [
        Vec::new(),
        incomplete,
        doubled,
        foreign,
        listening,
        misnamed,
    ] {
        let refused = DatagramSockets::inherited(wrong).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    }
}

#[test]
fn sockets_for_other_number_of_workers_are_unused() {
    let first = DatagramSockets::bind_all(0, NonZeroUsize::new(2).unwrap()).unwrap();
    let port = first.local_addr().port();
    let passed = || Inherited::new(first.hand_over().unwrap().unwrap().into_named());
    let open = |count| {
        let count = NonZeroUsize::new(count).unwrap();
        DatagramSockets::open(&passed(), port, count)
    };
    assert_eq!(open(2).unwrap().generation(), Generation::Odd);
    assert_eq!(open(3).unwrap_err().kind(), io::ErrorKind::AddrInUse);
}

#[test]
fn port_of_another_process_is_refused() {
    let first = bind(2);
    let count = NonZeroUsize::new(2).unwrap();
    let again = DatagramSockets::bind(first.local_addr(), count);
    assert_eq!(again.unwrap_err().kind(), io::ErrorKind::AddrInUse);
}
