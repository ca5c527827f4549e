//! An authenticated connection to a member, and its streams.

use std::{fmt, net::SocketAddr, sync::Arc, time::Duration};

use quinn::Side;
use rustls_pki_types::CertificateDer;
use tokio::runtime::Handle;

use super::{
    Closed, ConnectError, Kind, Member, Reason, Receiver, Roster, Sender, StreamError,
    io_thread::IoThread, verify,
};
use crate::pki::Fingerprint;

/// Version of the greeting protocol.
const VERSION: u8 = 1;
/// Length of a greeting in bytes: version and incarnation.
const HELLO: usize = 9;

/// A connection to a member. Each side has verified the other's certificate. Clones share the
/// connection.
#[derive(Clone)]
pub struct Connection {
    inner: quinn::Connection,
    io: IoThread,
    member: Arc<Member>,
    fingerprints: Arc<[Fingerprint]>,
    incarnation: u64,
}

impl Connection {
    /// Sends the greeting and waits for the peer's. A server greets only clients that it accepts,
    /// so its greeting tells the client that it was accepted.
    pub(super) async fn greet(
        inner: quinn::Connection,
        io: &IoThread,
        roster: &dyn Roster,
        incarnation: u64,
    ) -> Result<Self, ConnectError> {
        let result = Self::exchange(&inner, roster, incarnation).await;
        let (member, fingerprints, incarnation) = result.inspect_err(|error| {
            let reason = match error {
                ConnectError::NotMember => Reason::NotMember,
                _ => Reason::Protocol,
            };
            inner.close(reason.code(), reason.text().as_bytes());
        })?;
        Ok(Self {
            inner,
            io: io.clone(),
            member,
            fingerprints,
            incarnation,
        })
    }

    async fn exchange(
        inner: &quinn::Connection,
        roster: &dyn Roster,
        incarnation: u64,
    ) -> Result<(Arc<Member>, Arc<[Fingerprint]>, u64), ConnectError> {
        // Second lookup: the roster may have changed since the certificate was verified.
        let fingerprints = peer_fingerprints(inner).ok_or(ConnectError::NotMember)?;
        let member = verify::find_member(roster, &fingerprints).ok_or(ConnectError::NotMember)?;
        let lost = |error: StreamError| match error {
            StreamError::Lost(closed) => ConnectError::Handshake(closed),
            _ => ConnectError::MalformedGreeting,
        };
        let stream = inner.open_uni().await.map_err(|e| lost(e.into()))?;
        let mut sender = Sender::open(stream, Kind::Hello).await.map_err(lost)?;
        let mut hello = vec![VERSION];
        hello.extend(incarnation.to_be_bytes());
        sender.frame(hello).await.map_err(lost)?;
        sender.finish();

        let stream = inner.accept_uni().await.map_err(|e| lost(e.into()))?;
        let mut receiver = Receiver::new(stream);
        if receiver.kind().await.map_err(lost)? != Kind::Hello {
            return Err(ConnectError::MalformedGreeting);
        }
        let hello = receiver.frames(HELLO).next().await.map_err(lost)?;
        // A later protocol version may add frames; this one ignores them.
        match hello.as_deref() {
            Some([VERSION, rest @ ..]) => match <[u8; 8]>::try_from(rest) {
                Ok(theirs) => Ok((member, fingerprints, u64::from_be_bytes(theirs))),
                Err(_) => Err(ConnectError::MalformedGreeting),
            },
            _ => Err(ConnectError::MalformedGreeting),
        }
    }

    /// The member at the other end, as the roster had it when the connection was made.
    #[must_use]
    pub fn member(&self) -> &Arc<Member> {
        &self.member
    }

    /// Fingerprints that identify the peer: of its certificate, and of others that it presented for
    /// the same key.
    #[must_use]
    pub fn fingerprints(&self) -> &Arc<[Fingerprint]> {
        &self.fingerprints
    }

    /// Random number of the peer's endpoint; a different one means that the peer has restarted.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Runtime of the thread that carries the packets, for tasks that are short after each frame:
    /// elsewhere a frame wakes another thread. Work that takes long there delays every packet.
    #[must_use]
    pub fn io(&self) -> &Handle {
        self.io.handle()
    }

    /// Whether this side dialled.
    #[must_use]
    pub fn is_outgoing(&self) -> bool {
        self.inner.side() == Side::Client
    }

    /// Identifies the connection within its endpoint.
    #[must_use]
    pub fn id(&self) -> usize {
        self.inner.stable_id()
    }

    /// Address of the peer.
    #[must_use]
    pub fn remote_address(&self) -> SocketAddr {
        self.inner.remote_address()
    }

    /// Smoothed round-trip time, updated continuously by the transport.
    #[must_use]
    pub fn rtt(&self) -> Duration {
        self.inner.rtt()
    }

    /// Why the connection ended, if it has.
    #[must_use]
    pub fn close_reason(&self) -> Option<Closed> {
        self.inner.close_reason().map(Closed::from)
    }

    /// Waits until the connection ends.
    pub async fn closed(&self) -> Closed {
        self.inner.closed().await.into()
    }

    /// Closes the connection and all of its streams. A connection that has ended keeps its reason.
    pub fn close(&self, reason: Reason) {
        if self.inner.close_reason().is_none() {
            self.inner.close(reason.code(), reason.text().as_bytes());
        }
    }

    /// Opens a unidirectional stream; waits while the peer's stream limit is reached.
    ///
    /// # Errors
    /// [`StreamError::Lost`].
    pub async fn open_uni(&self, kind: Kind) -> Result<Sender, StreamError> {
        Sender::open(self.inner.open_uni().await?, kind).await
    }

    /// Opens a bidirectional stream; waits while the peer's stream limit is reached.
    ///
    /// # Errors
    /// [`StreamError::Lost`].
    pub async fn open_bi(&self, kind: Kind) -> Result<(Sender, Receiver), StreamError> {
        let (send, recv) = self.inner.open_bi().await?;
        Ok((Sender::open(send, kind).await?, Receiver::new(recv)))
    }

    /// Accepts the next unidirectional stream of the peer.
    ///
    /// # Errors
    /// [`Closed`] when the connection has ended.
    pub async fn accept_uni(&self) -> Result<Receiver, Closed> {
        Ok(Receiver::new(self.inner.accept_uni().await?))
    }

    /// Accepts the next bidirectional stream of the peer.
    ///
    /// # Errors
    /// [`Closed`] when the connection has ended.
    pub async fn accept_bi(&self) -> Result<(Sender, Receiver), Closed> {
        let (send, recv) = self.inner.accept_bi().await?;
        Ok((Sender::new(send), Receiver::new(recv)))
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("member", &self.member.hostname)
            .field("address", &self.remote_address())
            .field("is_outgoing", &self.is_outgoing())
            .finish_non_exhaustive()
    }
}

fn peer_fingerprints(connection: &quinn::Connection) -> Option<Arc<[Fingerprint]>> {
    let identity = connection.peer_identity()?;
    let chain = identity.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    let (leaf, rest) = chain.split_first()?;
    Some(verify::fingerprints(leaf, rest).into())
}
