//! A balancer of TCP connections in front of the nodes, as a cloud has one.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use jaco_chaos::{
    Lab, Rng,
    lab::{netns, network::HUB},
};
use tokio::{io::copy_bidirectional, net::TcpStream, task::JoinHandle};

use crate::authority::listen;

/// Takes connections to port 80 of the hub to nodes that a seed decides: the first ones to each node
/// once, so that the several validations of one order meet all of them; ends with this value.
pub(crate) struct Balancer {
    task: JoinHandle<()>,
    served: Arc<Vec<AtomicUsize>>,
}

impl Balancer {
    pub(crate) fn start(lab: &Lab, mut rng: Rng) -> Self {
        let hub = lab.network().namespace().to_owned();
        let nodes: Vec<_> = lab.nodes().iter().map(|node| node.address()).collect();
        let served: Arc<Vec<_>> = Arc::new(nodes.iter().map(|_| AtomicUsize::new(0)).collect());
        let listener = listen(&hub, (HUB, 80).into());
        let counts = Arc::clone(&served);
        let task = tokio::spawn(async move {
            let mut unmet: Vec<usize> = (0..nodes.len()).collect();
            while let Ok((mut client, _)) = listener.accept().await {
                let among = u64::try_from(match unmet.len() {
                    0 => nodes.len(),
                    count => count,
                });
                let drawn = usize::try_from(rng.within(0..among.unwrap())).unwrap();
                let next = match unmet.is_empty() {
                    true => drawn,
                    false => unmet.swap_remove(drawn),
                };
                let (hub, nodes, counts) = (hub.clone(), nodes.clone(), Arc::clone(&counts));
                tokio::spawn(async move {
                    if let Some((index, mut node)) = connect(&hub, &nodes, next).await {
                        counts[index].fetch_add(1, Ordering::Relaxed);
                        let _ = copy_bidirectional(&mut client, &mut node).await; // either may go
                    }
                });
            }
        });
        Self { task, served }
    }

    /// Connections that each node has served.
    pub(crate) fn served(&self) -> Vec<usize> {
        let counts = self.served.iter();
        counts.map(|count| count.load(Ordering::Relaxed)).collect()
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Connects to the drawn node, or to the next one that listens.
async fn connect(hub: &str, nodes: &[Ipv4Addr], drawn: usize) -> Option<(usize, TcpStream)> {
    for offset in 0..nodes.len() {
        let index = (drawn + offset) % nodes.len();
        let address: SocketAddr = (nodes[index], 80).into();
        if let Ok(stream) = netns::connect(hub, address).await {
            return Some((index, stream));
        }
    }
    None
}
