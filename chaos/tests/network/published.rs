//! Published ports, seen from outside of the containers: every node serves them.

use std::{
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::Arc,
    time::Duration,
};

use jaco_chaos::{Rng, engine::IMAGE, lab::netns, size, until};
use jaco_proto::v1;
use serde_json::json;

use crate::{
    fixture::{LIMIT, Running, builder},
    traffic::Endpoint,
    transfer::random_bytes,
};

/// Port on every node.
const PUBLISHED: u16 = 9001;
/// Port in the container.
const TARGET: u16 = 9100;
/// Wait for an answer that should come.
const ANSWER: Duration = Duration::from_secs(2);
/// Longest pause of a transfer.
const STALL: Duration = Duration::from_secs(60);

fn request(replicas: u32) -> v1::ApplyRequest {
    let service = json!({
        "image": IMAGE, "pull_policy": "never", "command": ["sleep", "86400"],
        "stop_signal": "SIGKILL",
        "ports": [
            format!("{PUBLISHED}:{TARGET}"),
            format!("{PUBLISHED}:{TARGET}/udp"),
        ],
    });
    let compose = json!({ "services": { "echo": service } });
    let settings = json!([{ "name": "echo", "replicas": replicas }]);
    let jaco = json!({ "deployment": "ports", "acme": "off", "services": settings });
    v1::ApplyRequest {
        jaco_yaml: jaco.to_string().into_bytes(),
        compose_yaml: compose.to_string().into_bytes(),
        dry_run: false,
        files: Vec::new(),
        secret_values: Default::default(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn published_port_answers_on_every_node() {
    let mut rng = Rng::announced();
    let mut running = Running::idle(builder(2)).await;
    let Running { lab, traffic, .. } = &mut running;
    let mut api = lab.node(1).api().deploy();
    api.apply(request(1)).await.unwrap();
    let start = std::time::Instant::now();
    let container = loop {
        if let [container] = &traffic.refresh(lab).await.unwrap()[..] {
            break container.clone();
        }
        assert!(start.elapsed() < LIMIT, "no container runs");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    serve(&container);
    println!("the container runs on n{}", container.host);
    // One of the nodes has no replica.
    let nodes: Vec<_> = lab.nodes().iter().map(|node| node.address()).collect();
    let client = lab.node(1).namespace().to_owned();
    for node in &nodes {
        let answers = || async { inside(&client, *node, answers_to).await };
        until("the port answers", LIMIT, answers).await.unwrap();
        inside(&client, *node, is_half_closed).await.unwrap();
        let bytes = Arc::new(random_bytes(&mut rng, size("JACO_MEBIBYTES", 64)));
        let start = std::time::Instant::now();
        let echoed = inside(&client, *node, move |at| echoes(at, &bytes)).await;
        println!("echoed through {node} in {:?}", start.elapsed());
        echoed.unwrap();
        let answers = || async { inside(&client, *node, answers_datagrams).await };
        until("datagrams are answered", LIMIT, answers)
            .await
            .unwrap();
    }

    api.apply(request(0)).await.unwrap();
    for node in &nodes {
        let refused = || async {
            match inside(&client, *node, connect).await {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
                other => Err(format!("{other:?}")),
            }
        };
        until("connections are refused", LIMIT, refused)
            .await
            .unwrap();
    }
}

/// Runs `work` with the address of the published port of a node, inside of a namespace.
async fn inside<T: Send + 'static>(
    namespace: &str,
    node: Ipv4Addr,
    work: impl FnOnce(SocketAddr) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let namespace = namespace.to_owned();
    let at = SocketAddr::from((node, PUBLISHED));
    let task = tokio::task::spawn_blocking(move || netns::within(&namespace, || work(at)));
    task.await.unwrap().unwrap()
}

fn connect(at: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&at, ANSWER)?;
    stream.set_read_timeout(Some(STALL))?;
    stream.set_write_timeout(Some(STALL))?;
    Ok(stream)
}

fn answers_to(at: SocketAddr) -> io::Result<()> {
    let mut stream = connect(at)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.write_all(b"ping")?;
    let mut read = [0; 4];
    stream.read_exact(&mut read)?;
    (read == *b"ping")
        .then_some(())
        .ok_or(io::ErrorKind::InvalidData.into())
}

/// The end of the client's direction arrives, and the answer to it, too.
fn is_half_closed(at: SocketAddr) -> io::Result<()> {
    let mut stream = connect(at)?;
    stream.write_all(b"ping")?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    (answer == "ping.")
        .then_some(())
        .ok_or(io::ErrorKind::InvalidData.into())
}

/// Sends `bytes` and compares them with what comes back.
fn echoes(at: SocketAddr, bytes: &[u8]) -> io::Result<()> {
    let stream = connect(at)?;
    let mut answer = vec![0; bytes.len()];
    std::thread::scope(|threads| {
        let sent = threads.spawn(|| (&stream).write_all(bytes));
        (&stream).read_exact(&mut answer)?;
        sent.join().unwrap()
    })?;
    (answer == bytes)
        .then_some(())
        .ok_or(io::ErrorKind::InvalidData.into())
}

fn answers_datagrams(at: SocketAddr) -> io::Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    // Takes datagrams of the published port only.
    socket.connect(at)?;
    socket.set_read_timeout(Some(ANSWER))?;
    let mut answer = [0; 8];
    for question in [&b"one"[..], b"two"] {
        socket.send(question)?;
        let len = socket.recv(&mut answer)?;
        if &answer[..len] != question {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(())
}

/// Echoes in a container: datagrams, and connections with a `.` after their end.
fn serve(container: &Endpoint) {
    let at = (container.address, TARGET);
    let bound = container
        .namespace
        .within(|| Ok::<_, io::Error>((TcpListener::bind(at)?, UdpSocket::bind(at)?)));
    let (listener, socket) = bound.unwrap().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..len], from); // the client may be gone
        }
    });
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let _ = io::copy(&mut &stream, &mut &stream); // the client may be gone
                let _ = (&stream).write_all(b".");
            });
        }
    });
}
