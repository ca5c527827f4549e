//! Relays between sockets of the loopback interface.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::JoinHandle,
};

use super::*;

/// Two ends of a connection.
async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (near, far) = tokio::join!(TcpStream::connect(addr), listener.accept());
    (near.unwrap(), far.unwrap().0)
}

/// Client and server with a relay between them.
async fn relayed(pipes: Option<Pipes>) -> (TcpStream, TcpStream, JoinHandle<io::Result<()>>) {
    let ((client, near), (far, server)) = (pair().await, pair().await);
    let task = tokio::spawn(async move {
        let pipes = pipes.as_ref();
        let both = tokio::try_join!(forward(&near, &far, pipes), forward(&far, &near, pipes));
        both.map(drop)
    });
    (client, server, task)
}

/// Bytes without a period that a buffer could hide.
fn pattern(len: usize, seed: u32) -> Vec<u8> {
    let mut word = seed;
    let bytes = std::iter::repeat_with(|| {
        word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        word.to_be_bytes()[0]
    });
    bytes.take(len).collect()
}

#[tokio::test]
async fn bytes_arrive_intact_both_ways() {
    for pipes in [Some(Pipes::default()), None] {
        let (mut client, mut server, task) = relayed(pipes).await;
        let (up, down) = (pattern(3 << 20, 1), pattern((5 << 20) + 7, 2));
        let (mut at_server, mut at_client) = (Vec::new(), Vec::new());
        let (mut client_reads, mut client_writes) = client.split();
        let (mut server_reads, mut server_writes) = server.split();
        tokio::try_join!(
            async {
                client_writes.write_all(&up).await?;
                client_writes.shutdown().await
            },
            async {
                server_writes.write_all(&down).await?;
                server_writes.shutdown().await
            },
            server_reads.read_to_end(&mut at_server),
            client_reads.read_to_end(&mut at_client),
        )
        .unwrap();
        assert!(at_server == up && at_client == down);
        task.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn closed_direction_leaves_the_other_open() {
    let (mut client, mut server, task) = relayed(Some(Pipes::default())).await;
    client.write_all(b"ping").await.unwrap();
    client.shutdown().await.unwrap();
    let mut request = String::new();
    server.read_to_string(&mut request).await.unwrap();
    assert_eq!(request, "ping");
    for part in [b"po", b"ng"] {
        server.write_all(part).await.unwrap();
        let mut read = [0; 2];
        client.read_exact(&mut read).await.unwrap();
        assert_eq!(read, *part);
    }
    drop(server);
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    task.await.unwrap().unwrap();
}

#[tokio::test]
async fn reset_is_an_error() {
    let (mut client, server, task) = relayed(Some(Pipes::default())).await;
    client.write_all(b"ping").await.unwrap();
    rustix::net::sockopt::set_socket_linger(&server, Some(std::time::Duration::ZERO)).unwrap();
    drop(server);
    assert!(task.await.unwrap().is_err());
}

#[tokio::test]
async fn idle_connection_holds_no_pipe() {
    let pipes = std::sync::Arc::new(Pipes::default());
    let ((mut client, near), (far, mut server)) = (pair().await, pair().await);
    let task = {
        let pipes = pipes.clone();
        tokio::spawn(async move { relay(&near, &far, &pipes).await })
    };
    let mut read = [0; 4];
    for _ in 0..3 {
        client.write_all(b"ping").await.unwrap();
        server.read_exact(&mut read).await.unwrap();
        server.write_all(b"pong").await.unwrap();
        client.read_exact(&mut read).await.unwrap();
    }
    drop((client, server));
    task.await.unwrap().unwrap();
    let spare = pipes.0.lock().unwrap().len();
    assert!((1..=2).contains(&spare), "{spare} pipes for two directions");
}
