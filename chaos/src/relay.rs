//! A unix socket proxy that can be cut or frozen.

use std::{
    io,
    path::{Path, PathBuf},
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
};

/// Size of the buffer per direction.
const CHUNK: usize = 16 * 1024;

/// A proxy between a daemon and its engine, with which a test makes the engine unavailable.
#[derive(Debug)]
pub struct Relay {
    path: PathBuf,
    target: PathBuf,
    task: Option<JoinHandle<()>>,
    frozen: watch::Sender<bool>,
}

impl Relay {
    /// A relay from `path` to `target`, cut at first.
    #[must_use]
    pub fn new(path: &Path, target: &Path) -> Self {
        Self {
            path: path.to_owned(),
            target: target.to_owned(),
            task: None,
            frozen: watch::Sender::new(false),
        }
    }

    /// Listens and forwards connections.
    ///
    /// # Errors
    /// When the socket cannot be created.
    pub fn connect(&mut self) -> io::Result<()> {
        self.cut();
        let listener = UnixListener::bind(&self.path)?;
        let frozen = self.frozen.subscribe();
        self.task = Some(tokio::spawn(serve(listener, self.target.clone(), frozen)));
        Ok(())
    }

    /// Closes every connection and removes the socket.
    pub fn cut(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
        // The socket does not exist if the relay was cut already.
        let _ = std::fs::remove_file(&self.path);
    }

    /// Keeps accepting connections but forwards nothing, like an engine that hangs.
    pub fn freeze(&self) {
        self.frozen.send_replace(true);
    }

    /// Forwards buffered and further data.
    pub fn thaw(&self) {
        self.frozen.send_replace(false);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.cut();
    }
}

/// Accepts connections; they belong to the set, so they end with this task.
async fn serve(listener: UnixListener, target: PathBuf, frozen: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { return };
                connections.spawn(pass_on(client, target.clone(), frozen.clone()));
            }
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
}

/// Forwards one connection, until both directions have ended.
async fn pass_on(client: UnixStream, target: PathBuf, frozen: watch::Receiver<bool>) {
    let Ok(engine) = UnixStream::connect(&target).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_engine, to_engine) = engine.into_split();
    let requests = pump(from_client, to_engine, frozen.clone());
    let _ = tokio::join!(requests, pump(from_engine, to_client, frozen));
}

/// Forwards one direction, including its end.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut frozen: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let length = from.read(&mut chunk).await?;
        if frozen.wait_for(|frozen| !*frozen).await.is_err() {
            return Ok(()); // the relay is gone
        }
        if length == 0 {
            return to.shutdown().await;
        }
        to.write_all(&chunk[..length]).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn echo(path: &Path) {
        let listener = UnixListener::bind(path).unwrap();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    let (mut reader, mut writer) = stream.split();
                    let _ = tokio::io::copy(&mut reader, &mut writer).await;
                });
            }
        });
    }

    #[tokio::test]
    async fn frozen_relay_delivers_after_thaw() {
        let dir = tempfile::tempdir().unwrap();
        let (path, target) = (dir.path().join("relay"), dir.path().join("echo"));
        echo(&target);
        let mut relay = Relay::new(&path, &target);
        relay.connect().unwrap();
        relay.freeze();
        let mut client = UnixStream::connect(&path).await.unwrap();
        client.write_all(b"hello").await.unwrap();
        let mut answer = [0; 5];
        let mut reading = std::pin::pin!(client.read_exact(&mut answer));
        let early = tokio::time::timeout(std::time::Duration::from_millis(50), &mut reading);
        assert!(early.await.is_err());
        relay.thaw();
        reading.await.unwrap();
        assert_eq!(&answer, b"hello");
    }

    #[tokio::test]
    async fn cut_closes_connections_and_connect_restores_service() {
        let dir = tempfile::tempdir().unwrap();
        let (path, target) = (dir.path().join("relay"), dir.path().join("echo"));
        echo(&target);
        let mut relay = Relay::new(&path, &target);
        assert!(UnixStream::connect(&path).await.is_err());

        for _ in 0..2 {
            relay.connect().unwrap();
            let mut client = UnixStream::connect(&path).await.unwrap();
            client.write_all(b"hello").await.unwrap();
            let mut answer = [0; 5];
            client.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"hello");
            relay.cut();
            assert_eq!(client.read(&mut answer).await.unwrap_or(0), 0);
            assert!(UnixStream::connect(&path).await.is_err());
        }
    }
}
