//! TLS 1.3 handshakes, full and resumed with a ticket (RFC 8446, section 2.2), without requests.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use rustls::{
    HandshakeKind, NamedGroup,
    client::{ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue},
    pki_types::ServerName,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::Notify,
    task::{JoinSet, LocalSet},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{
    Proxy,
    client::{HOST, tls_config},
};

/// Time within which a ticket must come.
const TICKET: Duration = Duration::from_secs(10);

/// Rate and cost of handshakes.
#[derive(Clone, Copy, Debug)]
pub struct Handshakes {
    /// Handshakes per second.
    pub per_second: f64,
    /// Processor time of the proxy per handshake, in microseconds.
    pub cpu_micros: f64,
}

/// Makes handshakes with `proxy` for `time`, `clients` at a time, from `threads` threads.
///
/// # Errors
/// The first handshake that fails, or that is full although it should not be, or the reverse.
pub fn run(
    proxy: &Proxy,
    resumed: bool,
    threads: usize,
    clients: usize,
    time: Duration,
) -> Result<Handshakes> {
    let (before, start) = (proxy.process.cpu()?, Instant::now());
    let mut count = 0;
    let each = clients.div_ceil(threads);
    thread::scope(|scope| {
        let work = || run_thread(proxy, resumed, each, start + time);
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            count += thread.join().map_err(|_| anyhow!("a client panicked"))??;
        }
        Ok::<_, anyhow::Error>(())
    })
    .with_context(|| format!("handshake with {}", proxy.name))?;
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), proxy.process.cpu()? - before);
    Ok(Handshakes {
        per_second: f64::from(count) / seconds,
        cpu_micros: cpu.as_secs_f64() * 1e6 / f64::from(count),
    })
}

fn run_thread(proxy: &Proxy, resumed: bool, clients: usize, end: Instant) -> Result<u32> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, async {
        let mut running = JoinSet::new();
        for _ in 0..clients {
            running.spawn_local(run_client(proxy.https, resumed, end));
        }
        let mut sum = 0;
        while let Some(count) = running.join_next().await {
            sum += count??;
        }
        Ok(sum)
    })
}

/// Makes one handshake after the other until `end`; returns their number.
async fn run_client(port: u16, resumed: bool, end: Instant) -> Result<u32> {
    let tickets = Arc::new(Tickets::default());
    let mut config = tls_config()?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.resumption = Resumption::disabled();
    if resumed {
        config.resumption = Resumption::store(tickets.clone());
    }
    let tls = TlsConnector::from(Arc::new(config));
    if resumed {
        first_ticket(&tls, port).await?;
    }
    let wanted = if resumed {
        HandshakeKind::Resumed
    } else {
        HandshakeKind::Full
    };
    let mut count = 0;
    while Instant::now() < end {
        let mut stream = connect(&tls, port).await?;
        let kind = stream.get_ref().1.handshake_kind();
        ensure!(kind == Some(wanted), "the handshake was {kind:?}");
        if resumed {
            let ticket = tickets.wait(&mut stream);
            let ticket = tokio::time::timeout(TICKET, ticket).await;
            ticket.context("no ticket in time")??;
        }
        stream.shutdown().await?;
        // Its end says that the server has read the last message of the handshake.
        let _ = stream.read(&mut [0]).await;
        count += 1;
    }
    Ok(count)
}

async fn connect(tls: &TlsConnector, port: u16) -> Result<TlsStream<TcpStream>> {
    let tcp = TcpStream::connect(("127.0.0.1", port)).await?;
    tcp.set_nodelay(true)?;
    Ok(tls.connect(ServerName::try_from(HOST)?, tcp).await?)
}

/// Obtains a ticket, which comes with the response to a request at the latest.
async fn first_ticket(tls: &TlsConnector, port: u16) -> Result<()> {
    let mut stream = connect(tls, port).await?;
    let request = format!("GET /1k HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let _ = stream.read_to_end(&mut Vec::new()).await; // the alert at the end may be missing
    Ok(())
}

/// Tickets of one client, each of which is used once. A connection leaves a new one.
#[derive(Default)]
struct Tickets {
    unused: Mutex<VecDeque<Tls13ClientSessionValue>>,
    added: Notify,
}

impl Tickets {
    /// Waits for a ticket; it is read with the first data, of which there is none.
    async fn wait(&self, stream: &mut TlsStream<TcpStream>) -> Result<()> {
        while self.queue().is_empty() {
            let mut nothing = [0];
            tokio::select! {
                biased;
                () = self.added.notified() => {}
                _ = stream.read(&mut nothing) => {
                    ensure!(!self.queue().is_empty(), "the connection ended without a ticket");
                }
            }
        }
        Ok(())
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Tls13ClientSessionValue>> {
        self.unused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tickets({})", self.queue().len())
    }
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, _: ServerName<'static>, _: NamedGroup) {}

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, _: ServerName<'static>, _: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, _: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        self.queue().push_back(ticket);
        self.added.notify_one();
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.queue().pop_front()
    }
}
