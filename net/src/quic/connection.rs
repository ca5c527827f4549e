//! A proven connection to a member, and its streams.

use std::{fmt, net::SocketAddr, sync::Arc, time::Duration};

use quinn::Side;
use rustls_pki_types::CertificateDer;

use super::{
    Closed, ConnectError, Kind, Member, Reason, Receiver, Roster, Sender, StreamError, verify,
};
use crate::pki::Fingerprint;

/// Version of the greeting.
const VERSION: u8 = 1;
/// Bytes of a greeting: version and incarnation.
const HELLO: usize = 9;

/// A connection to a member: its certificate was verified, and it has verified ours. A clone is
/// the same connection.
#[derive(Clone)]
pub struct Connection {
    inner: quinn::Connection,
    member: Arc<Member>,
    shown: Arc<[Fingerprint]>,
    incarnation: u64,
}

impl Connection {
    /// Greets the other side and waits for its greeting. A server greets only clients that it
    /// accepts, so a client that hears it knows that it is one.
    pub(super) async fn greet(
        inner: quinn::Connection,
        roster: &dyn Roster,
        incarnation: u64,
    ) -> Result<Self, ConnectError> {
        let result = Self::exchange(&inner, roster, incarnation).await;
        let (member, shown, incarnation) = result.inspect_err(|error| {
            let reason = match error {
                ConnectError::Stranger => Reason::NotMember,
                _ => Reason::Protocol,
            };
            inner.close(reason.code(), reason.text().as_bytes());
        })?;
        Ok(Self {
            inner,
            member,
            shown,
            incarnation,
        })
    }

    async fn exchange(
        inner: &quinn::Connection,
        roster: &dyn Roster,
        incarnation: u64,
    ) -> Result<(Arc<Member>, Arc<[Fingerprint]>, u64), ConnectError> {
        // Asked again: the roster may have changed since the certificate was verified.
        let shown = shown_by(inner).ok_or(ConnectError::Stranger)?;
        let member = verify::known(roster, &shown).ok_or(ConnectError::Stranger)?;
        let lost = |error: StreamError| match error {
            StreamError::Lost(closed) => ConnectError::Handshake(closed),
            _ => ConnectError::Greeting,
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
            return Err(ConnectError::Greeting);
        }
        let hello = receiver.frames(HELLO).next().await.map_err(lost)?;
        // A later version may say more, in frames that this one does not read.
        match hello.as_deref() {
            Some([VERSION, rest @ ..]) => match <[u8; 8]>::try_from(rest) {
                Ok(theirs) => Ok((member, shown, u64::from_be_bytes(theirs))),
                Err(_) => Err(ConnectError::Greeting),
            },
            _ => Err(ConnectError::Greeting),
        }
    }

    /// The member on the other side, as the roster had it when the connection was made.
    #[must_use]
    pub fn member(&self) -> &Arc<Member> {
        &self.member
    }

    /// What it proved to be known by: its certificate, and others that it showed for the same
    /// key.
    #[must_use]
    pub fn shown(&self) -> &Arc<[Fingerprint]> {
        &self.shown
    }

    /// A number of the other side's endpoint: another one says that it was started again.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Whether this side dialled.
    #[must_use]
    pub fn dialled_here(&self) -> bool {
        self.inner.side() == Side::Client
    }

    /// Tells connections of one endpoint apart.
    #[must_use]
    pub fn id(&self) -> usize {
        self.inner.stable_id()
    }

    /// Where the other side is.
    #[must_use]
    pub fn remote_address(&self) -> SocketAddr {
        self.inner.remote_address()
    }

    /// Smoothed time to the other side and back, as the transport measures it all the time.
    #[must_use]
    pub fn rtt(&self) -> Duration {
        self.inner.rtt()
    }

    /// How it ended, if it did.
    #[must_use]
    pub fn close_reason(&self) -> Option<Closed> {
        self.inner.close_reason().map(Closed::from)
    }

    /// Waits for its end.
    pub async fn closed(&self) -> Closed {
        self.inner.closed().await.into()
    }

    /// Ends it and everything on it. One that has ended keeps the reason it has.
    pub fn close(&self, reason: Reason) {
        if self.inner.close_reason().is_none() {
            self.inner.close(reason.code(), reason.text().as_bytes());
        }
    }

    /// Opens a stream without an answer; waits while the other side allows no more.
    ///
    /// # Errors
    /// [`StreamError::Lost`].
    pub async fn open_uni(&self, kind: Kind) -> Result<Sender, StreamError> {
        Sender::open(self.inner.open_uni().await?, kind).await
    }

    /// Opens a stream with an answer; waits while the other side allows no more.
    ///
    /// # Errors
    /// [`StreamError::Lost`].
    pub async fn open_bi(&self, kind: Kind) -> Result<(Sender, Receiver), StreamError> {
        let (send, recv) = self.inner.open_bi().await?;
        Ok((Sender::open(send, kind).await?, Receiver::new(recv)))
    }

    /// The next stream without an answer that the other side opened.
    ///
    /// # Errors
    /// [`Closed`] when there will be none.
    pub async fn accept_uni(&self) -> Result<Receiver, Closed> {
        Ok(Receiver::new(self.inner.accept_uni().await?))
    }

    /// The next stream with an answer that the other side opened.
    ///
    /// # Errors
    /// [`Closed`] when there will be none.
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
            .field("dialled_here", &self.dialled_here())
            .finish_non_exhaustive()
    }
}

fn shown_by(connection: &quinn::Connection) -> Option<Arc<[Fingerprint]>> {
    let identity = connection.peer_identity()?;
    let chain = identity.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    let (leaf, rest) = chain.split_first()?;
    Some(verify::shown(leaf, rest).into())
}
