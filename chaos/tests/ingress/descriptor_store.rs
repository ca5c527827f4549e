//! A daemon that its service manager restarts finds its listening sockets in the manager's store.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use jaco_chaos::{Daemon, daemon::Settings, rng, size, test_permits, until};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    fixture::LIMIT,
    plain::{WEB, web},
};

/// Starts the daemon as systemd does.
const SERVICE_MANAGER: &str = include_str!("service_manager.py");
/// Clients, each of which sends one request after another over connections of their own.
const CLIENTS: usize = 4;
/// Longer than the start of a daemon, for which requests wait in the accept queue.
const PATIENCE: Duration = Duration::from_secs(60);

/// First line of the response to a request.
async fn ask(to: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(to).await?;
    let request = format!("GET / HTTP/1.1\r\nHost: {WEB}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    Ok(answer.lines().next().unwrap_or_default().to_owned())
}

/// Descriptors that each process of the daemon was started with.
fn passed(daemon: &Daemon) -> Vec<usize> {
    let log = daemon.log();
    let lines = log.lines().filter_map(|line| {
        let (_, rest) = line.split_once("service manager: process ")?;
        let (_, count) = rest.split_once(" gets ")?;
        count.split(' ').next()?.parse().ok()
    });
    lines.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart_by_the_service_manager_refuses_no_connection() {
    let _permits = test_permits::exclusive().await;
    let launcher = ["/usr/bin/python3", "-c", SERVICE_MANAGER];
    let settings = Settings {
        launcher: launcher.map(str::to_owned).into(),
        ..Settings::default()
    };
    let mut daemon = Daemon::bootstrap(settings).await.unwrap();
    let name = format!("store-{:08x}", rng::unique() >> 32);
    let mut deploy = daemon.api().deploy();
    deploy
        .apply(web(&name, "strip_path: false", 1))
        .await
        .unwrap();
    let to = SocketAddr::from(([127, 0, 0, 1], daemon.http_port()));
    until("it serves", LIMIT, || async {
        match ask(to).await {
            Ok(line) if line.ends_with("200 OK") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    assert_eq!(passed(&daemon), [0]);

    let stop = Arc::new(AtomicBool::new(false));
    let clients = (0..CLIENTS).map(|_| {
        let stop = Arc::clone(&stop);
        tokio::spawn(async move {
            let mut outcomes = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                outcomes.push(match tokio::time::timeout(PATIENCE, ask(to)).await {
                    Ok(Ok(line)) => line,
                    Ok(Err(error)) => error.to_string(),
                    Err(_) => "no answer".to_owned(),
                });
            }
            outcomes
        })
    });
    let clients: Vec<_> = clients.collect();
    let restarts = size("JACO_REPLACEMENTS", 3);
    for restart in 1..=restarts {
        let pid = i32::try_from(daemon.pid().unwrap()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::HUP).unwrap();
        until("the next process has taken over", LIMIT, || async {
            let log = daemon.log();
            let taken = log.matches("listening sockets taken over").count();
            let served = log.matches("ingress listens").count();
            // It listens on two ports.
            (passed(&daemon).len() > restart && taken >= restart && served >= 2 * (restart + 1))
                .then_some(())
                .ok_or_else(|| format!("{:?}, {taken}, {served}", passed(&daemon)))
        })
        .await
        .unwrap();
        ask(to).await.unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    let mut requests = 0;
    for client in clients {
        let outcomes = client.await.unwrap();
        requests += outcomes.len();
        let lost = outcomes.iter().filter(|line| !line.ends_with("200 OK"));
        let lost: Vec<_> = lost.collect();
        assert!(lost.is_empty(), "{lost:?}");
    }
    let passed = passed(&daemon);
    println!("{requests} requests over {restarts} restarts, descriptors passed: {passed:?}");
    assert!(passed[1..].iter().all(|count| *count > 0), "{passed:?}");
    assert!(daemon.stop().await.unwrap().success());
}
