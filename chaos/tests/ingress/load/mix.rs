//! The seeded mix of requests.

use jaco_chaos::Rng;

/// Shape of a request and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Get,
    /// Answered after a while.
    Slow,
    /// Its head is answered at once, its body slowly.
    Stream,
    /// Must not be sent twice.
    Post,
}

/// Protocol and listener of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Way {
    /// HTTP/1.1 on port 80.
    Plain,
    /// HTTP/1.1 over TLS.
    Tls,
    /// HTTP/2 over TLS; requests share kept connections.
    Http2,
    /// A line that a published port echoes, on a connection of its own.
    Port,
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    /// The node it is sent to, from 1.
    pub(crate) node: u8,
    pub(crate) way: Way,
    /// Whether it has a connection of its own.
    pub(crate) fresh: bool,
}

impl Request {
    /// Draws a request to one of `count` nodes whose bit is set in `used`; `None` without any.
    pub(crate) fn draw(rng: &mut Rng, count: u8, used: u32) -> Option<Self> {
        let nodes: Vec<u8> = (1..=count)
            .filter(|node| used & (1 << (node - 1)) != 0)
            .collect();
        let way = match rng.within(0..100) {
            0..20 => Way::Tls,
            20..40 => Way::Http2,
            40..50 => Way::Port,
            _ => Way::Plain,
        };
        let kind = match rng.within(0..100) {
            _ if way == Way::Port => Kind::Get,
            0..8 => Kind::Slow,
            8..12 => Kind::Stream,
            12..20 => Kind::Post,
            _ => Kind::Get,
        };
        let node = rng.choose(&nodes).copied();
        // A kept connection may be closed while a request is on its way, which only an idempotent
        // one may repeat (RFC 9112, section 9.3.1).
        let fresh = rng.within(0..100) < 20 || kind == Kind::Post || way == Way::Port;
        Some(Self {
            kind,
            node: node?,
            way,
            fresh,
        })
    }
}

#[test]
fn mix_has_every_kind_and_only_used_nodes() {
    let mut rng = Rng::new(1);
    let drawn: Vec<_> = (0..1000)
        .filter_map(|_| Request::draw(&mut rng, 3, 0b101))
        .collect();
    assert_eq!(drawn.len(), 1000);
    for kind in [Kind::Get, Kind::Slow, Kind::Stream, Kind::Post] {
        let of_kind = || drawn.iter().filter(|request| request.kind == kind);
        for way in [Way::Plain, Way::Tls, Way::Http2] {
            assert!(of_kind().any(|r| r.way == way), "{kind:?} {way:?}");
        }
    }
    assert!(drawn.iter().all(|request| request.node != 2));
    let mut over_port = drawn.iter().filter(|request| request.way == Way::Port);
    assert!(over_port.next().is_some());
    assert!(over_port.all(|request| request.fresh && request.kind == Kind::Get));
    assert!(
        drawn
            .iter()
            .all(|request| request.fresh || request.kind != Kind::Post)
    );
    assert!(Request::draw(&mut rng, 3, 0).is_none());
}
