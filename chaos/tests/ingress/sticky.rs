//! Sticky sessions: a client stays with its replica through every node, until the replica is gone.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use jaco_chaos::{Lab, rng, test_permits, until};

use crate::{
    fixture::{LIMIT, NODES},
    plain::{Answer, apply, cluster, get, web},
};

const COOKIE: &str = "seat";
const REPLICAS: usize = 3;
/// Requests of a client through each node.
const ROUNDS: usize = 10;

/// A client with a cookie.
struct Client {
    /// Its replica.
    replica: String,
    /// Field of its requests.
    cookie: String,
}

impl Client {
    /// The client that a response began a session with.
    fn of(answer: &Answer) -> Option<Self> {
        let field = answer.field("set-cookie")?;
        let (pair, attributes) = field.split_once(';')?;
        assert!(pair.starts_with(&format!("{COOKIE}=")), "{field}");
        assert!(attributes.contains("HttpOnly"), "{field}");
        assert!(!attributes.contains("Secure"), "plain HTTP: {field}");
        Some(Self {
            replica: answer.body.clone(),
            cookie: format!("Cookie: {pair}\r\n"),
        })
    }

    async fn ask(&self, lab: &Lab, node: u8) -> Result<Answer, String> {
        ask(lab, node, &self.cookie).await
    }

    /// Whether every node leads to its replica, without another cookie.
    async fn stays(&self, lab: &Lab) -> Result<(), String> {
        for node in (1..=NODES).cycle().take(ROUNDS * usize::from(NODES)) {
            let answer = self.ask(lab, node).await?;
            let cookie = answer.field("set-cookie");
            if answer.status != 200 || answer.body != self.replica || cookie.is_some() {
                return Err(format!("n{node}: {answer:?} instead of {}", self.replica));
            }
        }
        Ok(())
    }
}

async fn ask(lab: &Lab, node: u8, fields: &str) -> Result<Answer, String> {
    let hub = lab.network().namespace();
    get(hub, lab.node(node).address(), "/", fields).await
}

/// Waits until every node has served each of the replicas.
async fn all_served(lab: &Lab) {
    until("every node serves every replica", LIMIT, || async {
        for node in 1..=NODES {
            let mut seen = BTreeSet::new();
            for _ in 0..REPLICAS * 10 {
                let answer = ask(lab, node, "").await?;
                if answer.status == 200 {
                    seen.insert(answer.body);
                }
            }
            if seen.len() != REPLICAS {
                return Err(format!("n{node} serves {seen:?}"));
            }
        }
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_keeps_its_replica_until_its_removal() {
    let _permits = test_permits::heavy().await;
    let lab = cluster("").await;
    let name = format!("sticky-{:08x}", rng::unique() >> 32);
    let affinity = format!("affinity: {{cookie: {COOKIE}}}");
    apply(&lab, web(&name, &affinity, REPLICAS)).await;
    all_served(&lab).await;

    // A client of each replica, whose sessions began on different nodes.
    let mut clients: Vec<Client> = Vec::new();
    for node in (1..=NODES).cycle().take(100) {
        let client = Client::of(&ask(&lab, node, "").await.unwrap()).unwrap();
        if clients.iter().all(|known| known.replica != client.replica) {
            clients.push(client);
        }
    }
    assert_eq!(clients.len(), REPLICAS);
    for client in &clients {
        client.stays(&lab).await.unwrap();
    }
    let forged = format!("Cookie: {COOKIE}=AAAAAAAAAAAAAAAA\r\n");
    let answer = ask(&lab, 1, &forged).await.unwrap();
    assert!(
        Client::of(&answer).is_some(),
        "a forged cookie counts as none"
    );

    // One replica is removed while every client sends requests.
    let stop = Arc::new(AtomicBool::new(false));
    let lab = Arc::new(lab);
    let requests = clients.into_iter().map(|mut client| {
        let (lab, stop) = (Arc::clone(&lab), Arc::clone(&stop));
        tokio::spawn(async move {
            let mut moves = 0;
            for node in (1..=NODES).cycle() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let answer = client.ask(&lab, node).await.unwrap();
                assert_eq!(answer.status, 200, "{answer:?}");
                match Client::of(&answer) {
                    Some(moved) => {
                        moves += 1;
                        client = moved;
                    }
                    None => assert_eq!(answer.body, client.replica),
                }
            }
            (client, moves)
        })
    });
    let requests: Vec<_> = requests.collect();
    apply(&lab, web(&name, &affinity, REPLICAS - 1)).await;
    until("the replica is gone", LIMIT, || async {
        let mut containers = 0;
        for node in lab.nodes() {
            let engine = node.engine().await.map_err(|error| error.to_string())?;
            let found = engine.containers(lab.cluster_id()).await;
            containers += found.map_err(|error| error.to_string())?.len();
        }
        (containers == REPLICAS - 1)
            .then_some(())
            .ok_or_else(|| format!("{containers} containers"))
    })
    .await
    .unwrap();
    stop.store(true, Ordering::Relaxed);
    let (mut moved, mut left) = (0, BTreeSet::new());
    for client in requests {
        let (client, moves) = client.await.unwrap();
        client.stays(&lab).await.unwrap();
        moved += usize::from(moves > 0);
        left.insert(client.replica);
    }
    // The table of another node may still have the replica once: then the client is moved again.
    assert_eq!((moved, left.len()), (1, REPLICAS - 1));
}
