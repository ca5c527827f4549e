//! A removed member serves until its replicas run elsewhere.
//!
//! There is no full form: `cargo test -p jaco-chaos --test cluster drain`.

use std::time::{Duration, Instant};

use jaco_chaos::{Rng, rng, test_permits, until};
use jaco_proto::v1::{self, ReplicaState};

use crate::{
    load::{Load, serves, web},
    setup::{LIMIT, cluster},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_member_serves_until_others_do() {
    let _permits = test_permits::exclusive().await;
    let mut rng = Rng::announced();
    let lab = cluster(3, rng.number()).await;
    lab.wait_voters(3).await.unwrap();
    let name = format!("drain-{:08x}", rng::unique() >> 32);
    let api = lab.node(1).api();
    // A pass puts both replicas on one node.
    let request = web(&name, "placement: pack", 2);
    api.deploy().apply(request).await.unwrap();
    let host = until("both replicas on one node", LIMIT, || async {
        let replicas = api.replicas(&name).await.map_err(|e| e.to_string())?;
        let running = |r: &&v1::ReplicaDetail| r.state() == ReplicaState::Running;
        match replicas.as_slice() {
            [one, other] if one.host == other.host && replicas.iter().all(|r| running(&r)) => {
                Ok(one.host.clone())
            }
            other => Err(format!("{other:?}")),
        }
    });
    let host = host.await.unwrap();
    let indexes: Vec<u8> = lab
        .nodes()
        .iter()
        .map(jaco_chaos::lab::Node::index)
        .collect();
    let leaves = indexes
        .iter()
        .copied()
        .find(|i| lab.node(*i).host() == host);
    let leaves = leaves.unwrap();
    let stay = lab.others(&[leaves]);
    serves(&lab, leaves).await;

    let leaver_load = Load::start(&lab, leaves);
    let loads: Vec<(u8, Load)> = stay.iter().map(|i| (*i, Load::start(&lab, *i))).collect();
    let start = Instant::now();
    let removal = v1::NodeRemoveRequest {
        hostname: host.clone(),
        force: false,
    };
    let mut through = lab.node(stay[0]).api().cluster();
    through.node_remove(removal).await.unwrap();
    println!("removed after {:?}", start.elapsed());
    // No waiting: the replicas run elsewhere before the member is gone.
    let replicas = lab.node(stay[0]).api().replicas(&name).await.unwrap();
    for replica in &replicas {
        assert_eq!(replica.state(), ReplicaState::Running, "{replica:?}");
        assert_ne!(replica.host, host, "{replica:?}");
    }
    assert_eq!(replicas.len(), 2);

    tokio::time::sleep(Duration::from_secs(2)).await;
    let served = leaver_load.stop().await;
    // A request in a container that stops may be lost; the service goes on in the other one.
    let last = served.iter().rev().find(|(_, good)| *good);
    let end_of_service = last.expect("the leaver never served").0;
    let mut first = None;
    for (index, load) in loads {
        let outcomes = load.stop().await;
        let begin = outcomes.iter().position(|(_, good)| *good);
        let Some(begin) = begin else {
            continue;
        };
        let lost = outcomes[begin..].iter().filter(|(_, good)| !good).count();
        println!("n{index} serves after {:?}", outcomes[begin].0 - start);
        // The containers are withdrawn from routing before they are stopped.
        assert_eq!(lost, 0, "n{index} lost requests");
        let at = outcomes[begin].0;
        first = Some(first.map_or(at, |other: Instant| other.min(at)));
    }
    let first = first.expect("no other node serves");
    println!(
        "{host} serves until {:?}, another node from {:?}",
        end_of_service - start,
        first - start
    );
    assert!(end_of_service >= first, "nobody served in between");
}
