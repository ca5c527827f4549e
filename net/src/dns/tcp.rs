//! Connections of a server.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};
use tracing::trace;

use super::{Answer, Handler, Limits, Transport};

/// Delay after an error of the listener, such as too many open files.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

pub(super) async fn serve(
    listener: TcpListener,
    handler: Arc<dyn Handler>,
    limits: Limits,
) -> io::Error {
    let mut connections = JoinSet::new();
    let mut clients: HashMap<IpAddr, usize> = HashMap::new();
    loop {
        let (stream, client) = tokio::select! {
            Some(ended) = connections.join_next(), if !connections.is_empty() => {
                if let Ok(client) = ended {
                    release(&mut clients, client);
                }
                continue;
            }
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    trace!(subsystem = "dns", %error, "connection not accepted");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                }
            },
        };
        let of_client = clients.entry(client.ip()).or_default();
        if connections.len() >= limits.connections || *of_client >= limits.connections_per_client {
            trace!(subsystem = "dns", %client, "connection closed: too many");
            if *of_client == 0 {
                clients.remove(&client.ip());
            }
            continue;
        }
        *of_client += 1;
        let (handler, idle) = (Arc::clone(&handler), limits.idle);
        connections.spawn(async move {
            if let Err(error) = converse(stream, client, &*handler, idle).await {
                trace!(subsystem = "dns", %client, %error, "connection ended");
            }
            client.ip()
        });
    }
}

fn release(clients: &mut HashMap<IpAddr, usize>, client: IpAddr) {
    if let Some(count) = clients.get_mut(&client) {
        *count -= 1;
        if *count == 0 {
            clients.remove(&client);
        }
    }
}

/// Answers the messages of one connection, one after another.
async fn converse(
    mut stream: TcpStream,
    client: SocketAddr,
    handler: &dyn Handler,
    idle: Duration,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // The limit covers a whole message: a client that sends single bytes gains nothing.
    while let Some(message) = timeout(idle, read(&mut stream)).await?? {
        let mut ready = Vec::new();
        let answer = match handler.handle(&message, client, Transport::Tcp, &mut ready) {
            Answer::Ready => Some(ready),
            Answer::Pending(answer) => answer.await,
            Answer::None => return Ok(()),
        };
        if let Some(answer) = answer {
            timeout(idle, write(&mut stream, &answer)).await??;
        }
    }
    Ok(())
}

/// Reads one message; `None` at the end of the stream.
pub(super) async fn read(stream: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let length = match stream.read_u16().await {
        Ok(length) => length,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut message = vec![0; usize::from(length)];
    stream.read_exact(&mut message).await?;
    Ok(Some(message))
}

/// Writes one message.
pub(super) async fn write(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let framed = [&length.to_be_bytes(), message].concat();
    stream.write_all(&framed).await
}
