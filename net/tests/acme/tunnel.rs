//! An HTTP proxy that opens tunnels.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// A running proxy; it ends with this value.
pub(crate) struct TunnelProxy {
    pub(crate) address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
    server: JoinHandle<()>,
}

impl Drop for TunnelProxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl TunnelProxy {
    /// Starts a proxy that answers requests for tunnels with this status line.
    pub(crate) async fn start(status: &'static str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let seen = Arc::clone(&heads);
        let server = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let seen = Arc::clone(&seen);
                tokio::spawn(async move {
                    let _ = serve(socket, status, &seen).await; // either side may hang up
                });
            }
        });
        Self {
            address,
            heads,
            server,
        }
    }

    /// Heads of the requests so far.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

async fn serve(
    mut client: TcpStream,
    status: &str,
    heads: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await?);
    }
    let head = String::from_utf8(head).unwrap();
    let target = head.split(' ').nth(1).unwrap().to_owned();
    heads.lock().unwrap().push(head);
    client
        .write_all(format!("HTTP/1.1 {status}\r\n\r\n").as_bytes())
        .await?;
    if status.starts_with("200") {
        let mut server = TcpStream::connect(target).await?;
        copy_bidirectional(&mut client, &mut server).await?;
    }
    Ok(())
}
