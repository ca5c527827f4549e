//! Configuration of the endpoints.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use quinn::{
    ConnectionId, ConnectionIdGenerator, EndpointConfig, IdleTimeout, ServerConfig,
    TransportConfig, VarInt, crypto::rustls::QuicServerConfig,
};
use rustls::{ServerConfig as TlsConfig, server::NoServerSessionStorage, version::TLS13};

use super::{super::certificates::CertificateStore, steering::Generation};
use crate::tls::provider;

/// Protocol name in the handshake.
const H3: &[u8] = b"h3";
/// Concurrent requests of a connection. Each may hold a head in memory that is not complete.
const MAX_STREAMS: u32 = 100;
/// Unidirectional streams of the client: control, both of QPACK, and some without a meaning.
const MAX_UNIDIRECTIONAL: u32 = 8;
/// Flow control windows in bytes, which bound request bodies in memory.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Bytes sent to a client that are not acknowledged.
const SEND_WINDOW: u64 = 1024 * 1024;
/// A client that does not answer is gone. Idle clients are closed by their own timeout.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
const SILENCE: Duration = Duration::from_secs(60);
/// Connection attempts that quinn queues until they are accepted; it refuses more.
const MAX_QUEUED_ATTEMPTS: usize = 512;
/// Bytes buffered for one queued attempt, and for all of them.
const QUEUED_ATTEMPT_BYTES: (u64, u64) = (16 << 10, 2 << 20);
/// Length of a connection id, of which one byte names the worker.
const ID_LENGTH: usize = 8;

/// Configuration of the endpoint of one worker.
#[derive(Clone, Debug)]
pub(in super::super) struct Http3 {
    pub(super) endpoint: EndpointConfig,
    pub(super) server: ServerConfig,
    /// Whether new clients wait for a successor of this process.
    pub(super) handed_over: Arc<AtomicBool>,
}

/// Place of a worker among the sockets of HTTP/3, which its connection ids name.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Place {
    /// Number of the worker's socket.
    pub(in super::super) number: usize,
    /// Number of sockets in the set.
    pub(in super::super) count: usize,
    /// The set.
    pub(in super::super) generation: Generation,
}

impl Http3 {
    /// The server's side, shared by all workers; `migration` allows clients to change addresses.
    pub(in super::super) fn server_config(
        certificates: Arc<CertificateStore>,
        migration: bool,
    ) -> Result<ServerConfig, rustls::Error> {
        let mut tls = TlsConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])?
            .with_no_client_auth()
            .with_cert_resolver(certificates);
        tls.alpn_protocols = vec![H3.to_vec()];
        // Every handshake is a full one: without early data a ticket saves little.
        tls.session_storage = Arc::new(NoServerSessionStorage {});
        tls.send_tls13_tickets = 0;
        tls.max_early_data_size = 0;
        let crypto = QuicServerConfig::try_from(tls)
            .map_err(|_| rustls::Error::General("no initial cipher suite".into()))?;
        let mut server = ServerConfig::with_crypto(Arc::new(crypto));
        server
            .transport_config(transport())
            .migration(migration)
            .max_incoming(MAX_QUEUED_ATTEMPTS)
            .incoming_buffer_size(QUEUED_ATTEMPT_BYTES.0)
            .incoming_buffer_size_total(QUEUED_ATTEMPT_BYTES.1);
        Ok(server)
    }

    /// The configuration of the worker at `place`.
    pub(in super::super) fn of_worker(
        server: ServerConfig,
        place: Place,
        handed_over: Arc<AtomicBool>,
    ) -> Self {
        let mut endpoint = EndpointConfig::default();
        endpoint.cid_generator(move || Box::new(NumberedIds(place)));
        Self {
            endpoint,
            server,
            handed_over,
        }
    }
}

fn transport() -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    config
        .max_concurrent_bidi_streams(VarInt::from_u32(MAX_STREAMS))
        .max_concurrent_uni_streams(VarInt::from_u32(MAX_UNIDIRECTIONAL))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
        .receive_window(VarInt::from_u32(CONNECTION_WINDOW))
        .send_window(SEND_WINDOW)
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_idle_timeout(IdleTimeout::try_from(SILENCE).ok())
        .datagram_receive_buffer_size(None);
    Arc::new(config)
}

/// Connection ids that lead to a place: they begin with a byte from which the number of the socket
/// follows, and one whose lowest bit names the set; the rest is random.
#[derive(Clone, Copy, Debug)]
struct NumberedIds(Place);

impl ConnectionIdGenerator for NumberedIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let Place {
            number,
            count,
            generation,
        } = self.0;
        let mut id = getrandom::u64().unwrap_or_default().to_be_bytes();
        // The largest multiple of `count` below the random byte keeps it as random as possible.
        let random = usize::from(id[0]);
        let numbered = random - random % count + number;
        // Beyond 255 the last incomplete round is left.
        let numbered = u8::try_from(numbered).or_else(|_| u8::try_from(numbered - count));
        id[0] = numbered.unwrap_or_default();
        id[1] = id[1] & !1 | generation.bit();
        ConnectionId::new(&id)
    }

    fn cid_len(&self) -> usize {
        ID_LENGTH
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_lead_to_their_socket() {
        for count in [1, 2, 3, 7, 255, 256] {
            for number in 0..count {
                for generation in [Generation::Even, Generation::Odd] {
                    let mut ids = NumberedIds(Place {
                        number,
                        count,
                        generation,
                    });
                    for _ in 0..10 {
                        let id = ids.generate_cid();
                        assert_eq!(id.len(), ids.cid_len());
                        assert_eq!(usize::from(id[0]) % count, number);
                        assert_eq!(id[1] & 1, generation.bit());
                    }
                }
            }
        }
    }
}
