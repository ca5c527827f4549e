//! A network that deployments share: its containers reach each other by their names, and no other
//! deployment's containers reach it.

use std::{collections::BTreeSet, sync::Arc};

use anyhow::{Context as _, Result, ensure};
use jaco_chaos::{Lab, engine::IMAGE, until};
use jaco_proto::v1;
use serde_json::json;

use crate::{
    fixture::{LIMIT, Running, builder},
    resolver::resolve,
    traffic::{Endpoint, reaches},
};

/// Name of the network.
const NAME: &str = "proxy";
/// Service, network and node.
type OnNode = (&'static str, &'static str, u8);
/// Deployment and service.
type Of = (&'static str, &'static str);

/// Deployments with their services. The network has another key in each file.
const DEPLOYMENTS: [(&str, &[OnNode]); 3] = [
    ("shop", &[("web", "edge", 1), ("db", "default", 2)]),
    ("blog", &[("web", "front", 2), ("api", "front", 3)]),
    ("lone", &[("web", "default", 1), ("idle", "default", 3)]),
];
/// Deployment and service of a client, a name, and whose address it is.
const NAMES: [(&str, &str, &str, Option<Of>); 12] = [
    ("shop", "web", "api", Some(("blog", "api"))),
    ("shop", "web", "www", Some(("blog", "api"))),
    ("shop", "web", "web.blog", Some(("blog", "web"))),
    (
        "shop",
        "web",
        "web.blog.jaco.internal",
        Some(("blog", "web")),
    ),
    // The own service of that name, which is the container itself.
    ("shop", "web", "web", Some(("shop", "web"))),
    ("blog", "api", "web", Some(("blog", "web"))),
    ("blog", "api", "web.shop", Some(("shop", "web"))),
    // A service that does not join the network.
    ("blog", "api", "db.shop.jaco.internal", None),
    ("blog", "api", "db", None),
    ("shop", "db", "api", None),
    ("lone", "idle", "api", None),
    ("lone", "idle", "web.blog.jaco.internal", None),
];

fn request(lab: &Lab, deployment: &str, given: &[(&str, &[&str], u8)]) -> v1::ApplyRequest {
    let mut services = serde_json::Map::new();
    let mut settings = Vec::new();
    let mut networks = serde_json::Map::new();
    for (service, joined, node) in given {
        for network in *joined {
            let shared = json!({ "external": true, "name": NAME });
            let is_own = *network == "default";
            networks.insert(
                (*network).to_owned(),
                if is_own { json!({}) } else { shared },
            );
        }
        let aliases = if *service == "api" { &["www"][..] } else { &[] };
        let joined = joined.iter().map(|network| {
            let settings = json!({ "aliases": aliases });
            ((*network).to_owned(), settings)
        });
        let compose = json!({
            "image": IMAGE, "pull_policy": "never", "command": ["sleep", "86400"],
            "stop_signal": "SIGKILL", "networks": serde_json::Map::from_iter(joined),
        });
        services.insert((*service).to_owned(), compose);
        let host = lab.node(*node).host();
        settings.push(json!({ "name": service, "placement": "hosts", "hosts": [host] }));
    }
    let compose = json!({ "services": services, "networks": networks });
    let jaco = json!({ "deployment": deployment, "acme": "off", "services": settings });
    v1::ApplyRequest {
        jaco_yaml: jaco.to_string().into_bytes(),
        compose_yaml: compose.to_string().into_bytes(),
        ..Default::default()
    }
}

/// The end of a service's container on a network of this name; any if it is empty.
fn end<'a>(
    found: &'a [Arc<Endpoint>],
    (deployment, service): (&str, &str),
    network: &str,
) -> Result<&'a Arc<Endpoint>> {
    let replica = format!("{deployment}-{service}-");
    let mut ends = found.iter().filter(|end| end.replica.starts_with(&replica));
    ends.find(|end| network.is_empty() || end.scope.1 == network)
        .with_context(|| format!("no container of {deployment}/{service} on {network:?}"))
}

/// Checks that the containers on the shared network reach each other, and all names.
fn check(found: &[Arc<Endpoint>]) -> Result<()> {
    let sharing = [("shop", "web"), ("blog", "web"), ("blog", "api")];
    for from in sharing {
        for to in sharing.iter().filter(|to| **to != from) {
            let (one, other) = (end(found, from, NAME)?, end(found, *to, NAME)?);
            ensure!(one.scope.0 == "shared", "{:?}", one.scope);
            reaches(one, other).with_context(|| format!("{from:?} to {to:?}"))?;
        }
    }
    for (deployment, service, name, of) in NAMES {
        let client = end(found, (deployment, service), "")?;
        // A container on two networks has its own name on both.
        let is_meant = |end: &&Arc<Endpoint>| {
            let replica = of.map(|(deployment, service)| format!("{deployment}-{service}-"));
            replica.is_some_and(|replica| end.replica.starts_with(&replica))
        };
        let expected = found.iter().filter(is_meant).map(|end| end.address);
        let (answer, expected) = (resolve(client, name)?, BTreeSet::from_iter(expected));
        ensure!(
            answer.is_subset(&expected) && answer.is_empty() == expected.is_empty(),
            "{name} for {deployment}/{service}: {answer:?}, want {expected:?}"
        );
    }
    Ok(())
}

async fn becomes(running: &mut Running, check: impl Fn(&[Arc<Endpoint>]) -> Result<()>) {
    let Running {
        lab,
        traffic,
        found,
        ..
    } = running;
    let traffic = tokio::sync::Mutex::new(traffic);
    let seen = until("the shared network", LIMIT, || async {
        let seen = traffic.lock().await.refresh(lab).await;
        let seen = seen.map_err(|why| format!("{why:#}"))?;
        let checked = tokio::task::block_in_place(|| check(&seen));
        checked.map(|()| seen).map_err(|why| format!("{why:#}"))
    });
    *found = seen.await.unwrap();
}

/// Blocks of the shared network that an engine has, of those that these containers are in.
async fn blocks_left(lab: &Lab, found: &[Arc<Endpoint>]) -> Result<BTreeSet<String>, String> {
    let shared = found.iter().filter(|end| end.scope.1 == NAME);
    let blocks: BTreeSet<String> = shared
        .map(|end| {
            let [a, b, c, _] = end.address.octets();
            format!("{a}.{b}.{c}.0/24")
        })
        .collect();
    let mut left = BTreeSet::new();
    for node in lab.nodes() {
        let engine = node.engine().await.map_err(|why| format!("{why:#}"))?;
        let subnets = engine.subnets().await.map_err(|why| format!("{why:#}"))?;
        left.extend(subnets.into_iter().filter(|subnet| blocks.contains(subnet)));
    }
    Ok(left)
}

async fn delete(lab: &Lab, deployment: &str) {
    let request = v1::DeleteRequest {
        deployment: deployment.to_owned(),
    };
    lab.node(1).api().deploy().delete(request).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deployments_share_a_network_by_its_name() {
    let mut running = Running::idle(builder(3)).await;
    for (deployment, services) in DEPLOYMENTS {
        let services: Vec<_> = services
            .iter()
            .map(|(service, network, node)| (*service, std::slice::from_ref(network), *node))
            .collect();
        let request = request(&running.lab, deployment, &services);
        let mut api = running.lab.node(1).api().deploy();
        api.apply(request).await.unwrap();
    }
    becomes(&mut running, check).await;
    running.assert_isolated().await;

    running.lab.node_mut(2).kill().unwrap();
    running.lab.node_mut(2).start().await.unwrap();
    becomes(&mut running, check).await;
    running.assert_isolated().await;

    // A container on both of its networks knows the names of both.
    let both = [
        ("web", &["default", "edge"][..], 1),
        ("db", &["default"], 2),
    ];
    let request_of_both = request(&running.lab, "shop", &both);
    let mut api = running.lab.node(1).api().deploy();
    api.apply(request_of_both).await.unwrap();
    becomes(&mut running, |found| {
        check(found)?;
        let (web, db) = (
            end(found, ("shop", "web"), NAME)?,
            end(found, ("shop", "db"), "")?,
        );
        let answer = resolve(web, "db")?;
        ensure!(answer == BTreeSet::from([db.address]), "db: {answer:?}");
        Ok(())
    })
    .await;

    let named = request(&running.lab, "shared", &[("web", &["default"], 1)]);
    let refused = api.apply(named.clone()).await.unwrap_err();
    assert_eq!(refused.message(), "validation_failed", "{refused:?}");

    // The network stays for the other deployment, and goes with it.
    delete(&running.lab, "blog").await;
    becomes(&mut running, |found| {
        let web = end(found, ("shop", "web"), NAME)?;
        let gone = ["api", "web"].map(|service| end(found, ("blog", service), "").is_err());
        let gone = gone == [true; 2];
        ensure!(
            gone && resolve(web, "api")?.is_empty(),
            "api is still there"
        );
        Ok(())
    })
    .await;
    let (lab, found) = (&running.lab, &running.found);
    assert_eq!(blocks_left(lab, found).await.unwrap().len(), 1);
    delete(lab, "shop").await;
    until("the network is gone", LIMIT, || async {
        let left = blocks_left(lab, found).await?;
        left.is_empty().then_some(()).ok_or(format!("{left:?}"))
    })
    .await
    .unwrap();
    api.apply(named).await.unwrap();
}
