//! The other end of a netlink socket: WireGuard of a kernel, without packets.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
    os::unix::net::UnixDatagram,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, SystemTime},
};

use netlink_packet_generic::{
    GenlMessage,
    ctrl::{GenlCtrl, GenlCtrlCmd, nlas::GenlCtrlAttrs},
};
use netlink_packet_wireguard::{
    WireguardAddressFamily, WireguardAllowedIp, WireguardAllowedIpAttr, WireguardAttribute,
    WireguardCmd, WireguardDeviceFlags, WireguardMessage, WireguardPeer, WireguardPeerAttribute,
    WireguardPeerFlags, WireguardTimeSpec,
};
use rtnetlink::packet_core::{
    DoneMessage, ErrorMessage, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_MULTIPART, NetlinkHeader,
    NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};

use super::super::changes::Network;
use crate::wireguard::{PrivateKey, PublicKey};

/// Number of the family; the kernel gives out any from 19 up.
pub(super) const FAMILY: u16 = 31;
/// `ENODEV`.
pub(super) const NO_DEVICE: i32 = 19;
/// `ENOENT`.
const NO_ENTRY: i32 = 2;
/// Type of the messages of the family that knows all families.
const CONTROL: u16 = 16;
/// Allowed IPs in one answer, so that many a peer comes in several.
const ALLOWED_IPS_IN_ANSWER: usize = 3;

/// A kernel with one WireGuard link.
pub(super) struct FakeKernel {
    key: PrivateKey,
    state: Arc<Mutex<State>>,
}

/// The device of the link.
#[derive(Default)]
pub(super) struct State {
    name: String,
    pub(super) private_key: Option<[u8; 32]>,
    pub(super) port: u16,
    pub(super) peers: BTreeMap<PublicKey, PeerState>,
    /// Requests that changed something.
    pub(super) writes: usize,
    pub(super) last_write: Vec<u8>,
    /// Whether all peers were ever replaced at once, which ends their sessions.
    pub(super) replaced_peers: bool,
    /// Lists to come that a change interrupts.
    pub(super) interruptions: usize,
    sessions: u64,
}

#[derive(Clone, Default)]
pub(super) struct PeerState {
    /// Number of the session; a peer that is added again has another one.
    session: u64,
    pub(super) endpoint: Option<SocketAddr>,
    pub(super) allowed_ips: BTreeSet<Network>,
    pub(super) keepalive: u16,
    pub(super) last_handshake: Option<SystemTime>,
    pub(super) rx_bytes: u64,
    pub(super) tx_bytes: u64,
}

impl FakeKernel {
    pub(super) fn start(name: &str) -> Self {
        let state = State {
            name: name.to_owned(),
            ..State::default()
        };
        Self {
            key: PrivateKey::generate().unwrap(),
            state: Arc::new(Mutex::new(state)),
        }
    }

    pub(super) fn key(&self) -> PrivateKey {
        self.key.clone()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Opens a socket; a thread serves it until it is closed.
    pub(super) fn connect(&self) -> OwnedFd {
        let (socket, served) = UnixDatagram::pair().unwrap();
        served
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let state = Arc::clone(&self.state);
        std::thread::spawn(move || {
            let mut request = vec![0; 1 << 18];
            while let Ok(length @ 1..) = served.recv(&mut request) {
                for answer in answer(&mut state.lock().unwrap(), &request[..length]) {
                    if served.send(&answer).is_err() {
                        return;
                    }
                }
            }
        });
        socket.into()
    }

    pub(super) fn sessions(&self) -> BTreeMap<PublicKey, u64> {
        let state = self.state();
        let peers = state.peers.iter();
        peers.map(|(key, peer)| (*key, peer.session)).collect()
    }

    /// Moves a peer to another address, as its packets do.
    pub(super) fn roam(&self, key: PublicKey, endpoint: SocketAddr) {
        self.state().peers.get_mut(&key).unwrap().endpoint = Some(endpoint);
    }
}

impl State {
    /// Allowed IPs of a peer in order of their text.
    pub(super) fn networks(&self, key: PublicKey) -> Vec<String> {
        let networks = self.peers[&key].allowed_ips.iter();
        let mut texts: Vec<_> = networks
            .map(|(ip, prefix)| format!("{ip}/{prefix}"))
            .collect();
        texts.sort();
        texts
    }

    fn set(&mut self, attributes: &[WireguardAttribute]) -> Result<(), i32> {
        self.writes += 1;
        for attribute in attributes {
            match attribute {
                WireguardAttribute::IfName(name) if *name == self.name => {}
                WireguardAttribute::IfName(_) => return Err(NO_DEVICE),
                WireguardAttribute::PrivateKey(key) => self.private_key = Some(*key),
                WireguardAttribute::ListenPort(port) => self.port = *port,
                WireguardAttribute::Flags(flags) => {
                    self.replaced_peers |= flags.contains(WireguardDeviceFlags::ReplacePeers);
                }
                WireguardAttribute::Peers(peers) => {
                    for peer in peers {
                        self.set_peer(&peer.0)?;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        Ok(())
    }

    fn set_peer(&mut self, attributes: &[WireguardPeerAttribute]) -> Result<(), i32> {
        use WireguardPeerAttribute as Attribute;
        let (mut key, mut flags) = (None, WireguardPeerFlags::empty());
        for attribute in attributes {
            match attribute {
                Attribute::PublicKey(bytes) => key = Some(PublicKey(*bytes)),
                Attribute::Flags(found) => flags = *found,
                _ => {}
            }
        }
        let key = key.expect("a peer without a key");
        if flags.contains(WireguardPeerFlags::RemoveMe) {
            self.peers.remove(&key);
            return Ok(());
        }
        if !self.peers.contains_key(&key) {
            if flags.contains(WireguardPeerFlags::UpdateOnly) {
                return Ok(());
            }
            self.sessions += 1;
            let session = self.sessions;
            self.peers.insert(
                key,
                PeerState {
                    session,
                    ..PeerState::default()
                },
            );
        }
        let peer = self.peers.get_mut(&key).unwrap();
        if flags.contains(WireguardPeerFlags::ReplaceAllowedIps) {
            peer.allowed_ips.clear();
        }
        for attribute in attributes {
            match attribute {
                Attribute::Endpoint(endpoint) => peer.endpoint = Some(*endpoint),
                Attribute::PersistentKeepalive(seconds) => peer.keepalive = *seconds,
                _ => {}
            }
        }
        let networks = attributes.iter().filter_map(|attribute| match attribute {
            Attribute::AllowedIps(networks) => Some(networks),
            _ => None,
        });
        for network in networks.flatten().map(parse) {
            // A network belongs to one peer: the last one that asked for it.
            for peer in self.peers.values_mut() {
                peer.allowed_ips.remove(&network);
            }
            let peer = self.peers.get_mut(&key).unwrap();
            peer.allowed_ips.insert(network);
        }
        Ok(())
    }

    /// Answers to a request for the device: its own attributes, then each peer in parts.
    fn describe(&self) -> Vec<Vec<WireguardAttribute>> {
        let mut first = vec![
            WireguardAttribute::IfName(self.name.clone()),
            WireguardAttribute::ListenPort(self.port),
        ];
        if let Some(key) = self.private_key {
            let public = boringtun::x25519::StaticSecret::from(key);
            let public = boringtun::x25519::PublicKey::from(&public).to_bytes();
            first.push(WireguardAttribute::PrivateKey(key));
            first.push(WireguardAttribute::PublicKey(public));
        }
        let mut answers = vec![first];
        for (key, peer) in &self.peers {
            let networks: Vec<_> = peer.allowed_ips.iter().map(encode).collect();
            let mut parts = networks.chunks(ALLOWED_IPS_IN_ANSWER);
            let mut whole = describe_peer(*key, peer);
            let part = parts.next().unwrap_or_default().to_vec();
            whole.push(WireguardPeerAttribute::AllowedIps(part));
            let rest = parts.map(|part| {
                vec![
                    WireguardPeerAttribute::PublicKey(key.0),
                    WireguardPeerAttribute::AllowedIps(part.to_vec()),
                ]
            });
            for attributes in std::iter::once(whole).chain(rest) {
                let peer = WireguardAttribute::Peers(vec![WireguardPeer(attributes)]);
                answers.push(vec![WireguardAttribute::IfName(self.name.clone()), peer]);
            }
        }
        answers
    }
}

fn describe_peer(key: PublicKey, peer: &PeerState) -> Vec<WireguardPeerAttribute> {
    use WireguardPeerAttribute as Attribute;
    let at = peer.last_handshake.map(|at| {
        let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        WireguardTimeSpec {
            seconds: since.as_secs().try_into().unwrap(),
            nano_seconds: since.subsec_nanos().into(),
        }
    });
    let mut attributes = vec![
        Attribute::PublicKey(key.0),
        Attribute::PresharedKey([0; 32]),
        Attribute::LastHandshake(at.unwrap_or_default()),
        Attribute::PersistentKeepalive(peer.keepalive),
        Attribute::RxBytes(peer.rx_bytes),
        Attribute::TxBytes(peer.tx_bytes),
        Attribute::ProtocolVersion(1),
    ];
    attributes.extend(peer.endpoint.map(Attribute::Endpoint));
    attributes
}

fn parse(network: &WireguardAllowedIp) -> Network {
    let attributes = &network.0;
    let family = WireguardAllowedIpAttr::Family(WireguardAddressFamily::Ipv4);
    assert!(attributes.contains(&family), "{attributes:?}");
    let found = attributes.iter().find_map(|attribute| match attribute {
        WireguardAllowedIpAttr::IpAddr(IpAddr::V4(ip)) => Some(*ip),
        _ => None,
    });
    let prefix = attributes.iter().find_map(|attribute| match attribute {
        WireguardAllowedIpAttr::Cidr(bits) => Some(*bits),
        _ => None,
    });
    super::super::changes::network(found.unwrap(), prefix.unwrap())
}

fn encode((ip, prefix): &Network) -> WireguardAllowedIp {
    WireguardAllowedIp(vec![
        WireguardAllowedIpAttr::Cidr(*prefix),
        WireguardAllowedIpAttr::Family(WireguardAddressFamily::Ipv4),
        WireguardAllowedIpAttr::IpAddr(IpAddr::V4(*ip)),
    ])
}

/// Serves one request.
fn answer(state: &mut State, request: &[u8]) -> Vec<Vec<u8>> {
    let kind = u16::from_ne_bytes([request[4], request[5]]);
    match kind {
        CONTROL => {
            let request = NetlinkMessage::<GenlMessage<GenlCtrl>>::deserialize(request).unwrap();
            answer_control(request)
        }
        FAMILY => {
            let parsed = NetlinkMessage::<GenlMessage<WireguardMessage>>::deserialize(request);
            let parsed = parsed.unwrap();
            let NetlinkPayload::InnerMessage(message) = parsed.payload else {
                panic!("no request");
            };
            let message = message.payload;
            match message.cmd {
                WireguardCmd::SetDevice => {
                    state.last_write = request.to_vec();
                    let done = state.set(&message.attributes);
                    vec![acknowledge(parsed.header, done)]
                }
                WireguardCmd::GetDevice => answer_get(state, parsed.header, &message.attributes),
                other => panic!("{other:?}"),
            }
        }
        other => panic!("a message of type {other}"),
    }
}

fn answer_control(request: NetlinkMessage<GenlMessage<GenlCtrl>>) -> Vec<Vec<u8>> {
    let NetlinkPayload::InnerMessage(message) = request.payload else {
        panic!("no request");
    };
    let asked = GenlCtrlAttrs::FamilyName("wireguard".to_owned());
    if message.payload.nlas != [asked.clone()] {
        return vec![acknowledge(request.header, Err(NO_ENTRY))];
    }
    let found = GenlMessage::from_payload(GenlCtrl {
        cmd: GenlCtrlCmd::NewFamily,
        nlas: vec![asked, GenlCtrlAttrs::FamilyId(FAMILY)],
    });
    let found = message_of(request.header, 0, NetlinkPayload::InnerMessage(found));
    // Some kernels put both into one datagram.
    vec![[found, acknowledge(request.header, Ok(()))].concat()]
}

fn answer_get(
    state: &mut State,
    request: NetlinkHeader,
    attributes: &[WireguardAttribute],
) -> Vec<Vec<u8>> {
    assert_eq!(request.flags & NLM_F_DUMP, NLM_F_DUMP);
    if attributes != [WireguardAttribute::IfName(state.name.clone())] {
        return vec![acknowledge(request, Err(NO_DEVICE))];
    }
    let interrupted = state.interruptions > 0;
    state.interruptions = state.interruptions.saturating_sub(1);
    let flags = match interrupted {
        true => NLM_F_MULTIPART | NLM_F_DUMP_INTR,
        false => NLM_F_MULTIPART,
    };
    let parts = state.describe().into_iter().map(|attributes| {
        let mut message = GenlMessage::from_payload(WireguardMessage {
            cmd: WireguardCmd::GetDevice,
            attributes,
        });
        message.set_resolved_family_id(FAMILY);
        message_of(request, flags, NetlinkPayload::InnerMessage(message))
    });
    let mut done = DoneMessage::default();
    done.code = 0;
    let done = NetlinkPayload::<GenlMessage<WireguardMessage>>::Done(done);
    let messages: Vec<Vec<u8>> = parts.chain([message_of(request, flags, done)]).collect();
    // Several messages share a datagram of 32 KiB at most.
    let mut datagrams: Vec<Vec<u8>> = Vec::new();
    for message in messages {
        match datagrams.last_mut() {
            Some(last) if last.len() + message.len() <= 32 << 10 => last.extend(message),
            _ => datagrams.push(message),
        }
    }
    datagrams
}

fn acknowledge(request: NetlinkHeader, done: Result<(), i32>) -> Vec<u8> {
    let mut error = ErrorMessage::default();
    error.code = done.err().and_then(|code| std::num::NonZeroI32::new(-code));
    error.header = vec![0; 16];
    let payload = NetlinkPayload::<GenlMessage<WireguardMessage>>::Error(error);
    message_of(request, 0, payload)
}

fn message_of<T: NetlinkSerializable>(
    request: NetlinkHeader,
    flags: u16,
    payload: NetlinkPayload<T>,
) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.sequence_number = request.sequence_number;
    header.flags = flags;
    let mut message = NetlinkMessage::new(header, payload);
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}
