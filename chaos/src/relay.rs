//! A unix socket that passes everything on to another one, until it is cut.

use std::{
    io,
    path::{Path, PathBuf},
};

use tokio::{
    net::{UnixListener, UnixStream},
    task::{JoinHandle, JoinSet},
};

/// Stands between a daemon and its engine, so that a test can take the engine away.
#[derive(Debug)]
pub struct Relay {
    path: PathBuf,
    target: PathBuf,
    task: Option<JoinHandle<()>>,
}

impl Relay {
    /// A relay from `path` to `target` that is still cut.
    #[must_use]
    pub fn new(path: &Path, target: &Path) -> Self {
        Self {
            path: path.to_owned(),
            target: target.to_owned(),
            task: None,
        }
    }

    /// Begins to pass connections on.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn connect(&mut self) -> io::Result<()> {
        self.cut();
        let listener = UnixListener::bind(&self.path)?;
        self.task = Some(tokio::spawn(serve(listener, self.target.clone())));
        Ok(())
    }

    /// Breaks every connection and takes the socket away.
    pub fn cut(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
        // There is none if the relay was cut already.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.cut();
    }
}

/// Its end ends all connections: they belong to the set.
async fn serve(listener: UnixListener, target: PathBuf) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((mut client, _)) = accepted else { return };
                let target = target.clone();
                connections.spawn(async move {
                    let Ok(mut engine) = UnixStream::connect(&target).await else { return };
                    // Either side may go away at any time.
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut engine).await;
                });
            }
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_cut_breaks_connections_and_a_reconnect_serves_again() {
        let dir = tempfile::tempdir().unwrap();
        let (path, target) = (dir.path().join("relay"), dir.path().join("echo"));
        let echo = UnixListener::bind(&target).unwrap();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = echo.accept().await.unwrap();
                tokio::spawn(async move {
                    let (mut reader, mut writer) = stream.split();
                    let _ = tokio::io::copy(&mut reader, &mut writer).await;
                });
            }
        });
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
