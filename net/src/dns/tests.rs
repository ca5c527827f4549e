use std::{io, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UdpSocket},
    task::AbortHandle,
};

use super::*;

/// Returns messages reversed; those that begin with `p` later, and those with `n` never.
struct Reverse;

impl Handler for Reverse {
    fn handle(&self, message: &[u8], _: SocketAddr, _: Transport, answer: &mut Vec<u8>) -> Answer {
        let reversed: Vec<u8> = message.iter().rev().copied().collect();
        match message.first() {
            Some(b'n') => Answer::None,
            Some(b'p') => Answer::Pending(Box::pin(async move {
                tokio::task::yield_now().await;
                Some(reversed)
            })),
            Some(b'h') => Answer::Pending(Box::pin(std::future::pending())),
            Some(_) | None => {
                answer.extend(reversed);
                Answer::Ready
            }
        }
    }
}

struct Served {
    address: SocketAddr,
    task: AbortHandle,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(limits: Limits) -> Served {
    let server = Server::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
    let address = server.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let error = server.serve(Arc::new(Reverse), limits).await;
        panic!("{error}");
    });
    let task = task.abort_handle();
    Served { address, task }
}

fn any(_: &[u8]) -> bool {
    true
}

#[tokio::test]
async fn both_transports_answer_at_one_address() {
    let served = serve(Limits::default()).await;
    for message in ["abc", "pending"] {
        let reversed: Vec<u8> = message.bytes().rev().collect();
        let answer = exchange_udp(served.address, message.as_bytes(), any).await;
        assert_eq!(answer.unwrap(), reversed);
        let answer = exchange_tcp(served.address, message.as_bytes(), any).await;
        assert_eq!(answer.unwrap(), reversed);
    }
}

#[tokio::test]
async fn bound_address_is_refused_a_second_time() {
    let served = serve(Limits::default()).await;
    let error = Server::bind(served.address).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    let error = Server::bind(([203, 0, 113, 1], 53).into()).await;
    assert_eq!(error.unwrap_err().kind(), io::ErrorKind::AddrNotAvailable);
}

#[tokio::test]
async fn connection_carries_several_messages_in_pieces() {
    let served = serve(Limits::default()).await;
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    for piece in [&b"\0"[..], b"\x03a", b"bc\0\x03", b"pqr\0\0"] {
        stream.write_all(piece).await.unwrap();
        stream.flush().await.unwrap();
        tokio::task::yield_now().await;
    }
    let mut answers = [0; 12];
    stream.read_exact(&mut answers).await.unwrap();
    assert_eq!(&answers, b"\0\x03cba\0\x03rqp\0\0");
}

#[tokio::test]
async fn idle_connection_is_closed() {
    let idle = Duration::from_millis(20);
    let served = serve(Limits {
        idle,
        ..Limits::default()
    })
    .await;
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    stream.write_all(b"\0\x05ab").await.unwrap();
    assert_eq!(stream.read(&mut [0; 8]).await.unwrap(), 0);
}

#[tokio::test]
async fn connections_beyond_the_limits_are_closed() {
    for limits in [
        Limits {
            connections: 2,
            ..Limits::default()
        },
        Limits {
            connections_per_client: 2,
            ..Limits::default()
        },
    ] {
        let served = serve(limits).await;
        let mut kept = Vec::new();
        for _ in 0..2 {
            let mut stream = TcpStream::connect(served.address).await.unwrap();
            stream.write_all(b"\0\x01a").await.unwrap();
            stream.read_exact(&mut [0; 3]).await.unwrap();
            kept.push(stream);
        }
        let mut refused = TcpStream::connect(served.address).await.unwrap();
        assert!(matches!(refused.read(&mut [0; 8]).await, Ok(0) | Err(_)));
        drop(kept);
        // Once the server has seen the end of the others, there is room again.
        loop {
            if exchange_tcp(served.address, b"ab", any).await.is_ok() {
                break;
            }
        }
    }
}

#[tokio::test]
async fn pending_answers_are_bounded() {
    let served = serve(Limits {
        pending: 3,
        ..Limits::default()
    })
    .await;
    let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    client.connect(served.address).await.unwrap();
    for _ in 0..3 {
        client.send(b"hang").await.unwrap();
    }
    client.send(b"pending").await.unwrap();
    client.send(b"ready").await.unwrap();
    let mut buffer = [0; 16];
    let length = client.recv(&mut buffer).await.unwrap();
    assert_eq!(&buffer[..length], b"ydaer");
}

#[tokio::test]
async fn unrecognised_datagrams_are_dropped() {
    let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let stranger = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let answer = tokio::spawn(exchange_udp(address, b"question", |answer| {
        answer == b"right"
    }));
    let (_, client) = server.recv_from(&mut [0; 16]).await.unwrap();
    stranger.send_to(b"right", client).await.unwrap();
    for answer in ["wrong", "", "right"] {
        server.send_to(answer.as_bytes(), client).await.unwrap();
    }
    assert_eq!(answer.await.unwrap().unwrap(), b"right");
}

#[tokio::test]
async fn closed_port_is_reported_at_once() {
    let address = {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.local_addr().unwrap()
    };
    let error = exchange_udp(address, b"question", any).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    assert!(exchange_tcp(address, b"question", any).await.is_err());
}

#[tokio::test]
async fn foreign_answer_over_tcp_fails() {
    let served = serve(Limits::default()).await;
    let error = exchange_tcp(served.address, b"ab", |answer| answer == b"ab").await;
    assert_eq!(error.unwrap_err().kind(), io::ErrorKind::InvalidData);
    let error = exchange_tcp(served.address, b"none", any).await;
    assert_eq!(error.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn datagrams_of_several_batches_are_all_answered() {
    let served = serve(Limits::default()).await;
    let clients = [
        UdpSocket::bind("127.0.0.1:0").await.unwrap(),
        UdpSocket::bind("127.0.0.1:0").await.unwrap(),
    ];
    for client in &clients {
        client.connect(served.address).await.unwrap();
    }
    // The server runs on this thread: it receives them together. Some get no answer, some later.
    for number in 0..100 {
        for (client, name) in clients.iter().zip(["x", "y"]) {
            let kind = ["ready", "none", "pending"][number % 3];
            let message = format!("{kind}{name}{number}");
            client.send(message.as_bytes()).await.unwrap();
        }
    }
    for (client, name) in clients.iter().zip(["x", "y"]) {
        let mut answers = std::collections::BTreeSet::new();
        let mut buffer = [0; 64];
        while answers.len() < 67 {
            let length = client.recv(&mut buffer).await.unwrap();
            let text: Vec<u8> = buffer[..length].iter().rev().copied().collect();
            assert!(answers.insert(String::from_utf8(text).unwrap()));
        }
        assert!(answers.iter().all(|answer| answer.contains(name)));
    }
}

#[tokio::test]
async fn datagrams_of_any_length_are_survived() {
    let served = serve(Limits::default()).await;
    let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    client.connect(served.address).await.unwrap();
    client.send(&[b'a'; 60_000]).await.unwrap();
    client.send(b"").await.unwrap();
    client.send(b"ab").await.unwrap();
    let mut buffer = [0; 2048];
    // The first is cut, and the second has an empty answer, which is not sent.
    assert_eq!(client.recv(&mut buffer).await.unwrap(), 1536);
    assert_eq!(client.recv(&mut buffer).await.unwrap(), 2);
    assert_eq!(&buffer[..2], b"ba");
}
