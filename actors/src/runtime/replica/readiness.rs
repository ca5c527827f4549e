//! Connects to a container's ports to learn whether it is ready.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use jaco_engine::{Inspected, Status};
use tokio::{net::TcpStream, time::timeout};

/// Time for all connections of one attempt. A container on the same machine accepts or refuses in
/// microseconds; one that drops packets must not hold up the news of its end.
const ATTEMPT: Duration = Duration::from_millis(500);

/// Returns those of `ports` that accept a connection at one of the container's addresses; nothing is
/// sent. Stops at the first that does not: the others are tried in the next attempt.
pub(super) async fn accepting(seen: &Inspected, ports: &BTreeSet<u16>) -> BTreeSet<u16> {
    let mut accepted = BTreeSet::new();
    if seen.status != Some(Status::Running) {
        return accepted;
    }
    let addresses = seen.addresses.values().map(|text| text.parse());
    let addresses: Vec<IpAddr> = addresses.filter_map(Result::ok).collect();
    let attempt = async {
        for port in ports {
            // A process may listen on one of its networks only.
            let at = |ip: &IpAddr| SocketAddr::new(*ip, *port);
            let addresses: Vec<SocketAddr> = addresses.iter().map(at).collect();
            if TcpStream::connect(&addresses[..]).await.is_err() {
                return;
            }
            accepted.insert(*port);
        }
    };
    // Ports that accepted until then count.
    let _ = timeout(ATTEMPT, attempt).await;
    accepted
}

#[cfg(test)]
mod tests {
    use jaco_engine::NetworkNamespace;
    use tokio::net::TcpListener;

    use super::*;

    fn container(status: Status, address: &str) -> Inspected {
        Inspected {
            id: "c1".to_owned(),
            status: Some(status),
            started_at: String::new(),
            exit_code: 0,
            oom_killed: false,
            health: None,
            namespace: NetworkNamespace::Own,
            addresses: [("net".to_owned(), address.to_owned())].into(),
        }
    }

    #[tokio::test]
    async fn open_ports_accept_until_the_first_closed_one() {
        let mut listeners = Vec::new();
        for _ in 0..3 {
            listeners.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
        }
        let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
        let mut ports: Vec<u16> = listeners.iter().map(port).collect();
        ports.sort_unstable();
        let all: BTreeSet<u16> = ports.iter().copied().collect();
        let up = container(Status::Running, "127.0.0.1");
        assert_eq!(accepting(&up, &all).await, all);
        listeners.retain(|listener| port(listener) != ports[1]);
        assert_eq!(accepting(&up, &all).await, [ports[0]].into());
        let ended = container(Status::Exited, "127.0.0.1");
        assert_eq!(accepting(&ended, &all).await, [].into());
        let odd = container(Status::Running, "not an address");
        assert_eq!(accepting(&odd, &all).await, [].into());
    }
}
