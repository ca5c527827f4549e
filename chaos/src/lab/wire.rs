//! The network between the nodes of a lab, and what is wrong with it.
//!
//! A namespace of its own holds a bridge with one port per node. The ports are isolated from each
//! other, and the nodes know only the bridge as their neighbour, so each packet between two of
//! them passes the routing of this namespace. There a rule per direction drops it, or leads it
//! through a TUN interface where a thread treats it as an [`Impairment`] says; all others take
//! the kernel's way alone. Neither needs netem or a packet filter.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs::File,
    io::{self, Read as _, Write as _},
    net::Ipv4Addr,
    os::{fd::AsFd as _, unix::net::UnixStream},
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
    time::Instant,
};

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{
    impair::{Direction, Impairment, Line},
    netns,
};

/// Network of every lab: labs have namespaces of their own, so they cannot meet.
const NETWORK: [u8; 3] = [10, 99, 0];
/// The namespace's own address, where the registry listens.
pub const HUB: Ipv4Addr = Ipv4Addr::new(NETWORK[0], NETWORK[1], NETWORK[2], 254);
/// The interface of each node.
pub const INTERFACE: &str = "eth0";
const BRIDGE: &str = "br0";
const TUN: &str = "fault0";
/// Routing table that leads everything into [`TUN`].
const TABLE: u32 = 100;
/// Rules in the order in which they are looked at: what is cut is not impaired.
const CUT_RULE: u32 = 100;
const IMPAIRED_RULE: u32 = 200;
/// Most packets that are taken before those that are due are sent.
const BURST: usize = 256;
/// The largest IP packet.
const PACKET_MAX: usize = 65_535;

/// Address of the `index`th node, counted from 1.
#[must_use]
pub fn address(index: u8) -> Ipv4Addr {
    Ipv4Addr::new(NETWORK[0], NETWORK[1], NETWORK[2], index)
}

/// The namespace that joins the others.
#[derive(Debug)]
pub struct Wire {
    namespace: String,
    cut: BTreeSet<Direction>,
    impaired: BTreeMap<Direction, Impairment>,
    seed: u64,
    relay: Option<Relay>,
}

impl Wire {
    /// Makes the namespace and its bridge; `seed` decides the fate of packets.
    ///
    /// # Errors
    /// Without the rights, or when the name is taken.
    pub fn create(namespace: &str, seed: u64) -> Result<Self> {
        netns::create(namespace)?;
        netns::batch(
            Some(namespace),
            &format!(
                "link add {BRIDGE} type bridge\n\
                 link set {BRIDGE} up\n\
                 address add {HUB}/24 dev {BRIDGE}\n"
            ),
        )?;
        // It routes between ports of one interface, and must not tell the nodes of a shorter way.
        for (key, value) in [
            ("ipv4/ip_forward", "1"),
            ("ipv4/conf/br0/send_redirects", "0"),
            ("ipv4/conf/all/send_redirects", "0"),
            ("ipv4/conf/br0/rp_filter", "0"),
            ("ipv4/conf/all/rp_filter", "0"),
            ("ipv4/conf/default/rp_filter", "0"),
        ] {
            netns::set(namespace, key, value)?;
        }
        Ok(Self {
            namespace: namespace.to_owned(),
            cut: BTreeSet::new(),
            impaired: BTreeMap::new(),
            seed,
            relay: None,
        })
    }

    /// Gives a namespace an interface with an address on this network.
    ///
    /// # Errors
    /// When it has one already.
    pub fn attach(&self, namespace: &str, index: u8) -> Result<()> {
        let (address, port) = (address(index), format!("port{index}"));
        netns::batch(
            Some(&self.namespace),
            &format!(
                "link add {port} type veth peer name {INTERFACE} netns {namespace}\n\
                 link set {port} master {BRIDGE}\n\
                 link set {port} type bridge_slave isolated on\n\
                 link set {port} up\n"
            ),
        )?;
        netns::batch(
            Some(namespace),
            &format!(
                "address add {address}/32 dev {INTERFACE}\n\
                 link set {INTERFACE} up\n\
                 route add {HUB} dev {INTERFACE} src {address}\n\
                 route add default via {HUB}\n"
            ),
        )
    }

    /// Takes away what [`Wire::attach`] gave: the kernel would do so later, when it removes the
    /// other end with its namespace.
    ///
    /// # Errors
    /// When there is none.
    pub fn detach(&self, index: u8) -> Result<()> {
        let line = format!("link delete port{index}");
        netns::batch(Some(&self.namespace), &line)
    }

    /// The namespace's name.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// What is cut now.
    #[must_use]
    pub fn cuts(&self) -> &BTreeSet<Direction> {
        &self.cut
    }

    /// What is impaired now.
    #[must_use]
    pub fn impairments(&self) -> &BTreeMap<Direction, Impairment> {
        &self.impaired
    }

    /// Drops every packet of these directions from now on.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn cut(&mut self, directions: impl IntoIterator<Item = Direction>) -> Result<()> {
        let mut wanted = self.cut.clone();
        wanted.extend(directions);
        self.change(wanted, self.impaired.clone())
    }

    /// Makes these directions bad from now on, instead of how bad they were.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn impair(
        &mut self,
        directions: impl IntoIterator<Item = Direction>,
        how: Impairment,
    ) -> Result<()> {
        let mut wanted = self.impaired.clone();
        wanted.extend(directions.into_iter().map(|direction| (direction, how)));
        self.change(self.cut.clone(), wanted)
    }

    /// Makes these directions whole. Packets under way still arrive when they would have.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn heal(&mut self, directions: impl IntoIterator<Item = Direction>) -> Result<()> {
        let (mut cut, mut impaired) = (self.cut.clone(), self.impaired.clone());
        for direction in directions {
            cut.remove(&direction);
            impaired.remove(&direction);
        }
        self.change(cut, impaired)
    }

    /// [`Wire::heal`] for everything.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn heal_all(&mut self) -> Result<()> {
        self.change(BTreeSet::new(), BTreeMap::new())
    }

    fn change(
        &mut self,
        cut: BTreeSet<Direction>,
        impaired: BTreeMap<Direction, Impairment>,
    ) -> Result<()> {
        let mut lines = String::new();
        rules(&mut lines, CUT_RULE, "blackhole", &self.cut, &cut);
        let through = format!("lookup {TABLE}");
        let pairs = |map: &BTreeMap<_, _>| map.keys().copied().collect::<BTreeSet<Direction>>();
        let (old, new) = (pairs(&self.impaired), pairs(&impaired));
        rules(&mut lines, IMPAIRED_RULE, &through, &old, &new);
        if !impaired.is_empty() || self.relay.is_some() {
            self.relay()?.set(impaired.clone());
        }
        if !lines.is_empty() {
            netns::batch(Some(&self.namespace), &lines)?;
        }
        (self.cut, self.impaired) = (cut, impaired);
        Ok(())
    }

    /// Ends what holds the namespace.
    pub(super) fn close(&mut self) {
        self.relay = None;
    }

    /// The thread behind the TUN interface, started when it is first needed.
    fn relay(&mut self) -> Result<&Relay> {
        let relay = match self.relay.take() {
            Some(relay) => relay,
            None => Relay::start(&self.namespace, self.seed)?,
        };
        Ok(self.relay.insert(relay))
    }
}

/// The lines of `ip` that replace the rules for `old` by those for `new`.
fn rules(
    lines: &mut String,
    preference: u32,
    action: &str,
    old: &BTreeSet<Direction>,
    new: &BTreeSet<Direction>,
) {
    let mut line = |verb: &str, (from, to): &Direction| {
        let _ = writeln!(
            lines,
            "rule {verb} preference {preference} from {from} to {to} iif {BRIDGE} {action}"
        );
    };
    new.difference(old).for_each(|pair| line("add", pair));
    old.difference(new).for_each(|pair| line("delete", pair));
}

/// The thread that reads packets from the TUN interface and writes them back.
#[derive(Debug)]
struct Relay {
    line: Arc<Mutex<Line>>,
    /// Closing it ends the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    fn start(namespace: &str, seed: u64) -> Result<Self> {
        let tun = netns::within(namespace, || jaco_net::tun::open(TUN))??;
        netns::batch(
            Some(namespace),
            &format!(
                "link set {TUN} txqueuelen 10000 up\n\
                 route add default dev {TUN} table {TABLE}\n"
            ),
        )?;
        let line = Arc::new(Mutex::new(Line::new(seed)));
        let (stop, stopped) = UnixStream::pair()?;
        let shared = Arc::clone(&line);
        let thread = std::thread::Builder::new()
            .name("lab-relay".to_owned())
            .spawn(move || {
                // Without the interface there is nothing left to relay.
                let _ = relay(tun, &stopped, &shared);
            })?;
        Ok(Self {
            line,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    fn set(&self, impaired: BTreeMap<Direction, Impairment>) {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        line.set(impaired);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it has nothing to tell
        }
    }
}

/// Passes packets on until the other end of `stopped` is closed.
fn relay(mut tun: File, stopped: &UnixStream, line: &Mutex<Line>) -> io::Result<()> {
    let mut packet = vec![0; PACKET_MAX];
    loop {
        let due = line
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .poll_timeout();
        let wait = due.map(|due| due.saturating_duration_since(Instant::now()));
        let wait = wait.map(|wait| Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(wait.subsec_nanos()),
        });
        let mut ready = [
            PollFd::from_borrowed_fd(tun.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(stopped.as_fd(), PollFlags::IN),
        ];
        match poll(&mut ready, wait.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !ready[1].revents().is_empty() {
            return Ok(());
        }
        let mut line = line.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..BURST {
            match tun.read(&mut packet) {
                Ok(length) => line.handle_packet(Instant::now(), &packet[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        while let Some(packet) = line.poll_packet(Instant::now()) {
            // The kernel refuses what is no IPv4 or IPv6 packet, which nobody misses.
            let _ = tun.write(&packet);
        }
    }
}
