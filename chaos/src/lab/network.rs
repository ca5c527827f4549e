//! The network between the nodes of a lab, with injected faults.
//!
//! A separate namespace holds a bridge with one port per node. The ports are isolated from each
//! other, and the bridge is the only neighbour of each node, so each packet between two nodes is
//! routed by this namespace. A routing rule per direction drops the packets, or routes them through
//! a TUN interface, whose thread applies an [`Impairment`]; all other packets stay in the kernel.
//! No netem or packet filter is needed.

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
    impair::{Direction, Impairment, PacketQueue},
    netns,
};

/// Network of every lab; labs do not share namespaces, so equal addresses do not conflict. Apart from
/// the mesh network and the default pool of container addresses.
const NETWORK: [u8; 3] = [172, 31, 99];
/// The namespace's own address, where the registry listens.
pub const HUB: Ipv4Addr = Ipv4Addr::new(NETWORK[0], NETWORK[1], NETWORK[2], 254);
/// The interface of each node.
pub const INTERFACE: &str = "eth0";
const BRIDGE: &str = "br0";
const TUN: &str = "fault0";
/// Routing table with a default route to [`TUN`].
const TABLE: u32 = 100;
/// Preferences of the rules; the lower one is matched first, so a cut takes precedence over an
/// impairment.
const CUT_RULE: u32 = 100;
const IMPAIRED_RULE: u32 = 200;
/// Number of packets read from the TUN interface before those that are due are sent.
const BURST: usize = 256;
/// The largest IP packet.
const PACKET_MAX: usize = 65_535;

/// Address of the `index`th node, counted from 1.
#[must_use]
pub fn address(index: u8) -> Ipv4Addr {
    Ipv4Addr::new(NETWORK[0], NETWORK[1], NETWORK[2], index)
}

/// The namespace that connects the others.
#[derive(Debug)]
pub struct LabNetwork {
    namespace: String,
    cut: BTreeSet<Direction>,
    impaired: BTreeMap<Direction, Impairment>,
    seed: u64,
    relay: Option<TunRelay>,
}

impl LabNetwork {
    /// Creates the namespace and its bridge; `seed` decides the outcomes of impaired packets.
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
        // It routes between ports of one interface, and must not send ICMP redirects to the nodes.
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

    /// Removes the interface of [`LabNetwork::attach`]: the kernel would do so only later, when it
    /// removes the other end with its namespace.
    ///
    /// # Errors
    /// When there is no such interface.
    pub fn detach(&self, index: u8) -> Result<()> {
        let line = format!("link delete port{index}");
        netns::batch(Some(&self.namespace), &line)
    }

    /// The namespace's name.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Directions that are cut now.
    #[must_use]
    pub fn cuts(&self) -> &BTreeSet<Direction> {
        &self.cut
    }

    /// Directions that are impaired now, and how.
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

    /// Impairs these directions from now on, in place of their earlier impairment.
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

    /// Removes all faults of these directions. Packets in the queue keep their delays.
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

    /// Removes all faults.
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
            self.relay()?.set(impaired.clone())?;
        }
        if !lines.is_empty() {
            netns::batch(Some(&self.namespace), &lines)?;
        }
        (self.cut, self.impaired) = (cut, impaired);
        Ok(())
    }

    /// Closes the TUN interface, which holds the namespace.
    pub(super) fn close(&mut self) {
        self.relay = None;
    }

    /// The thread behind the TUN interface, started on first use.
    fn relay(&mut self) -> Result<&TunRelay> {
        let relay = match self.relay.take() {
            Some(relay) => relay,
            None => TunRelay::start(&self.namespace, self.seed)?,
        };
        Ok(self.relay.insert(relay))
    }
}

/// Appends the commands of `ip` that replace the rules for `old` by those for `new`.
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
struct TunRelay {
    tun: File,
    queue: Arc<Mutex<PacketQueue>>,
    /// A byte wakes the thread; closing it ends the thread.
    control: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl TunRelay {
    fn start(namespace: &str, seed: u64) -> Result<Self> {
        let tun = netns::within(namespace, || jaco_net::tun::open(TUN))??;
        netns::batch(
            Some(namespace),
            &format!(
                "link set {TUN} txqueuelen 10000 up\n\
                 route add default dev {TUN} table {TABLE}\n"
            ),
        )?;
        let queue = Arc::new(Mutex::new(PacketQueue::new(seed)));
        let (control, woken) = UnixStream::pair()?;
        let (shared, device) = (Arc::clone(&queue), tun.try_clone()?);
        let thread = std::thread::Builder::new()
            .name("lab-relay".to_owned())
            .spawn(move || {
                // An error means that the interface is gone, so no packets are left to relay.
                let _ = relay(device, &woken, &shared);
            })?;
        Ok(Self {
            tun,
            queue,
            control: Some(control),
            thread: Some(thread),
        })
    }

    /// Replaces the impairments; packets that have reached the interface keep the earlier ones.
    fn set(&self, impaired: BTreeMap<Direction, Impairment>) -> io::Result<()> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        while enqueue(&self.tun, &mut queue)? == BURST {}
        queue.set(impaired);
        drop(queue);
        // The thread does not know the due times of the packets that were just queued.
        let mut control = self.control.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        control.write_all(&[0])
    }
}

impl Drop for TunRelay {
    fn drop(&mut self) {
        drop(self.control.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic was printed already
        }
    }
}

/// Queues packets that have reached the interface, at most [`BURST`]; returns their number.
fn enqueue(mut tun: &File, queue: &mut PacketQueue) -> io::Result<usize> {
    let mut packet = [0; PACKET_MAX];
    for count in 0..BURST {
        match tun.read(&mut packet) {
            Ok(length) => queue.handle_packet(Instant::now(), &packet[..length]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(count),
            Err(error) => return Err(error),
        }
    }
    Ok(BURST)
}

/// Relays packets until the other end of `control` is closed.
fn relay(mut tun: File, mut control: &UnixStream, queue: &Mutex<PacketQueue>) -> io::Result<()> {
    loop {
        let due = queue
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
            PollFd::from_borrowed_fd(control.as_fd(), PollFlags::IN),
        ];
        match poll(&mut ready, wait.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !ready[1].revents().is_empty() && control.read(&mut [0; 64])? == 0 {
            return Ok(());
        }
        let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
        enqueue(&tun, &mut queue)?;
        while let Some(packet) = queue.poll_packet(Instant::now()) {
            // The kernel refuses packets that are neither IPv4 nor IPv6; these are dropped.
            let _ = tun.write(&packet);
        }
    }
}
